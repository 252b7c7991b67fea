"""The verbs by subject: templates, schedules, webhooks, quotas, keys, nodes, statistics. `verbs.py` has the rest."""

from collections.abc import Sequence
from typing import Unpack

from nextslot.domain import AnyJob, id_of

from .binding import Collection, Operation, StreamOperation, Subject, Way, stream_verb, verb
from .keyword_arguments import (
    FailureChanges,
    QuotaChanges,
    ScheduleChanges,
    ScheduleOptions,
    SchedulePutOptions,
    TemplateChanges,
    TemplateOptions,
    TemplatePutOptions,
    Time,
    Values,
    WebhookChanges,
)
from .requests import create, delete, get, given, part, patch, post
from .values import (
    Delivery,
    Engine,
    Failure,
    Failures,
    GroupDetail,
    Job,
    Json,
    Key,
    Node,
    Occurrence,
    Page,
    Preview,
    Schedule,
    Series,
    Template,
    Upcoming,
    Webhook,
)


class Templates(Collection[Way, Template]):
    PATH, KIND = "/api/job-templates", Template

    @verb
    def create(
        self,
        name: str,
        job_type: str | None = None,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[TemplateOptions],
    ) -> Operation[Template]:
        """Creates a template that makes one job of `job_type`, or a group of `jobs`."""
        body = {"name": name, **given(job_type=job_type), **options}
        return self._ask(create("/api/job-templates", body, idempotency_key), Template.read)

    @verb
    def put(
        self,
        name: str,
        job_type: str | None = None,
        *,
        office_id: str | None = None,
        **options: Unpack[TemplatePutOptions],
    ) -> Operation[tuple[Template, bool]]:
        """Creates the template of this name, or changes it to what the arguments say. Returns whether it is new."""
        path = f"/api/job-templates/by-name/{part(name)}"
        return self._put(path, office_id, {**given(job_type=job_type), **options}, Template.read)

    @verb
    def get(self, template_id: str) -> Operation[Template]:
        return self._ask(get(f"/api/job-templates/{part(template_id)}"), Template.read)

    @verb
    def change(self, template_id: str, **changes: Unpack[TemplateChanges]) -> Operation[Template]:
        """Changes a template for future jobs."""
        return self._ask(patch(f"/api/job-templates/{part(template_id)}", changes), Template.read)

    @verb
    def archive(self, template_id: str) -> Operation[Template]:
        """Archives a template: disables its schedules, keeps its jobs."""
        return self._ask(delete(f"/api/job-templates/{part(template_id)}"), Template.read)


class Schedules(Subject[Way]):
    @verb
    def create(
        self,
        name: str,
        template_id: str,
        cron_expression: str,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Operation[Schedule]:
        body = {"name": name, "template_id": template_id, "cron_expression": cron_expression, **options}
        return self._ask(create("/api/schedules", body, idempotency_key), Schedule.read)

    @verb
    def put(
        self,
        name: str,
        template_id: str,
        cron_expression: str,
        *,
        office_id: str | None = None,
        **options: Unpack[SchedulePutOptions],
    ) -> Operation[tuple[Schedule, bool]]:
        """Creates the schedule of this name, or changes it to what the arguments say. Returns whether it is new."""
        body = {"template_id": template_id, "cron_expression": cron_expression, **options}
        return self._put(f"/api/schedules/by-name/{part(name)}", office_id, body, Schedule.read)

    @stream_verb
    def list(self, *, office_id: str | None = None, template_id: str | None = None) -> StreamOperation[Schedule]:
        return self._each(Schedule, "/api/schedules", office_id=office_id, template_id=template_id)

    @verb
    def page(
        self,
        limit: int = 50,
        cursor: str | None = None,
        *,
        office_id: str | None = None,
        template_id: str | None = None,
    ) -> Operation[Page[Schedule]]:
        return self._page(Schedule, "/api/schedules", limit, cursor, office_id=office_id, template_id=template_id)

    @verb
    def get(self, schedule_id: str) -> Operation[Schedule]:
        return self._ask(get(f"/api/schedules/{part(schedule_id)}"), Schedule.read)

    @verb
    def change(self, schedule_id: str, **changes: Unpack[ScheduleChanges]) -> Operation[Schedule]:
        """Changes a schedule from its next occurrence on."""
        return self._ask(patch(f"/api/schedules/{part(schedule_id)}", changes), Schedule.read)

    @verb
    def delete(self, schedule_id: str) -> Operation[Schedule]:
        """Deletes a schedule; keeps its jobs and its occurrences."""
        return self._ask(delete(f"/api/schedules/{part(schedule_id)}"), Schedule.read)

    @verb
    def trigger(
        self,
        schedule_id: str,
        params: Json | None = None,
        priority: int | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> Operation[Job | GroupDetail]:
        """Submits a job of a schedule now, besides its occurrences; submits the group if the template makes one."""
        body = given(params=params, priority=priority)
        return self._ask(create(f"/api/schedules/{part(schedule_id)}/trigger", body, idempotency_key), _triggered)

    @verb
    def upcoming(
        self, schedule_id: str, count: int | None = None, after: Time | None = None
    ) -> Operation[tuple[Upcoming, ...]]:
        """Returns the next occurrences, without firing any."""
        request = get(f"/api/schedules/{part(schedule_id)}/upcoming", {"count": count, "after": after})
        return self._items(request, Upcoming)

    @verb
    def preview(
        self,
        cron_expression: str,
        timezone: str | None = None,
        count: int | None = None,
        after: Time | None = None,
    ) -> Operation[Preview]:
        """Returns an expression in words and the times at which it would fire; stores nothing."""
        query = {"cron_expression": cron_expression, "timezone": timezone, "count": count, "after": after}
        return self._ask(get("/api/schedules/preview", query), Preview.read)

    @verb
    def occurrences_page(
        self, schedule_id: str, limit: int = 50, cursor: str | None = None
    ) -> Operation[Page[Occurrence]]:
        """Returns the outcome of each planned instant, newest first."""
        return self._page(Occurrence, f"/api/schedules/{part(schedule_id)}/occurrences", limit, cursor)


def _triggered(json: Json) -> Job | GroupDetail:
    return Job.read(json) if "job_id" in json else GroupDetail.read(json)


class Webhooks(Collection[Way, Webhook]):
    """Subscriptions and deliveries."""

    PATH, KIND = "/api/webhooks", Webhook

    @verb
    def create(
        self, url: str, events: Sequence[str] | None = None, office_id: str | None = None, format: str | None = None
    ) -> Operation[Webhook]:
        """Creates a subscription. Only this answer contains the secret, so the client never repeats the request."""
        body = given(url=url, events=events, office_id=office_id, format=format)
        return self._ask(post("/api/webhooks", body), Webhook.read)

    @verb
    def get(self, webhook_id: str) -> Operation[Webhook]:
        return self._ask(get(f"/api/webhooks/{part(webhook_id)}"), Webhook.read)

    @verb
    def change(self, webhook_id: str, **changes: Unpack[WebhookChanges]) -> Operation[Webhook]:
        return self._ask(patch(f"/api/webhooks/{part(webhook_id)}", changes), Webhook.read)

    @verb
    def delete(self, webhook_id: str) -> Operation[None]:
        return self._do(delete(f"/api/webhooks/{part(webhook_id)}"))

    @verb
    def test(self, webhook_id: str) -> Operation[Delivery]:
        """Sends a test message."""
        return self._ask(post(f"/api/webhooks/{part(webhook_id)}/test"), Delivery.read)

    @verb
    def rotate_secret(self, webhook_id: str) -> Operation[Webhook]:
        """Replaces the secret. Only this answer contains the new one."""
        return self._ask(post(f"/api/webhooks/{part(webhook_id)}/rotate-secret"), Webhook.read)

    @verb
    def deliveries_page(
        self,
        limit: int = 50,
        cursor: str | None = None,
        *,
        job_id: str | None = None,
        webhook_id: str | None = None,
        event: str | None = None,
        status: Values | None = None,
    ) -> Operation[Page[Delivery]]:
        wanted = {"job_id": job_id, "webhook_id": webhook_id, "event": event, "status": status}
        return self._page(Delivery, "/api/webhook-deliveries", limit, cursor, **wanted)

    @verb
    def delivery(self, delivery_id: str) -> Operation[Delivery]:
        """Returns one delivery with its attempts."""
        return self._ask(get(f"/api/webhook-deliveries/{part(delivery_id)}"), Delivery.read)

    @verb
    def redeliver(self, delivery_id: str) -> Operation[Delivery]:
        return self._ask(post(f"/api/webhook-deliveries/{part(delivery_id)}/redeliver"), Delivery.read)


class Quotas(Subject[Way]):
    """The limits that admins grant to each office."""

    @verb
    def get(self, office_id: str) -> Operation[Json]:
        return self._ask(get(f"/api/quotas/{part(office_id)}"), lambda json: json)

    @verb
    def change(self, office_id: str, **quotas: Unpack[QuotaChanges]) -> Operation[Json]:
        """Changes the quotas of an office; None restores the default."""
        return self._ask(patch(f"/api/quotas/{part(office_id)}", quotas), lambda json: json)


class Keys(Collection[Way, Key]):
    """API keys; these verbs need the scope admin."""

    PATH, KIND = "/api/keys", Key

    @verb
    def create(
        self,
        name: str,
        scopes: Sequence[str],
        office_id: str | None = None,
        expires_at: Time | None = None,
        allowed_addresses: Sequence[str] = (),
        job_types: Sequence[str] = (),
    ) -> Operation[Key]:
        """Creates a key. Only this answer contains the key's text, so the client never repeats the request."""
        limits = {"allowed_addresses": [*allowed_addresses], "job_types": [*job_types]}
        body = {"name": name, "scopes": [*scopes], **given(office_id=office_id, expires_at=expires_at), **limits}
        return self._ask(post("/api/keys", body), Key.read)

    @verb
    def rotate(self, key_id: str, overlap_seconds: float = 0) -> Operation[Key]:
        """Gives a key another text, which only this answer contains; the old text stays valid for `overlap_seconds`."""
        return self._ask(post(f"/api/keys/{part(key_id)}/rotate", {"overlap_seconds": overlap_seconds}), Key.read)

    @verb
    def delete(self, key_id: str) -> Operation[None]:
        """Deletes a key; the server refuses it from then on."""
        return self._do(delete(f"/api/keys/{part(key_id)}"))


class Nodes(Subject[Way]):
    """The machines that share the database; SQLite has one."""

    @verb
    def list(self) -> Operation[tuple[Node, ...]]:
        """Returns every node that is not forgotten, by name."""
        return self._items(get("/api/nodes"), Node)

    @verb
    def drain(self, node_id: str, undo: bool = False) -> Operation[Node]:
        """Lets a node finish its jobs and start no more; `undo` lets it start jobs again."""
        return self._ask(post(f"/api/nodes/{part(node_id)}/drain", {"undo": undo}), Node.read)

    @verb
    def forget(self, node_id: str) -> Operation[None]:
        """Removes a node that will not come back, with its resources."""
        return self._do(delete(f"/api/nodes/{part(node_id)}"))


class Engines(Subject[Way]):
    """The engines, systems outside of nextslot on which runs can be placed."""

    @verb
    def list(self) -> Operation[tuple[Engine, ...]]:
        """Returns the engines of the server's configuration, by name."""
        return self._items(get("/api/engines"), Engine)

    @verb
    def lose(self, job: AnyJob) -> Operation[Job]:
        """Ends a run on an engine as a crash, because an operator knows that it does not go on there."""
        return self._ask(post(f"/api/jobs/{part(id_of(job))}/lost"), Job.read)


class Stats(Subject[Way]):
    """Statistics of ended work over time."""

    @verb
    def series(
        self,
        from_: Time | None = None,
        to: Time | None = None,
        step: int | None = None,
        *,
        office_id: str | None = None,
        job_type: str | None = None,
        kind: str | None = None,
    ) -> Operation[Series]:
        """Returns, for each step of a range, how many jobs ended, their waits and durations, and the queue's length."""
        query = {"from": from_, "to": to, "step": step, "office_id": office_id, "job_type": job_type, "kind": kind}
        return self._ask(get("/api/stats/series", query), Series.read)


class FailureList(Subject[Way]):
    """Failures by fingerprint. `retry_all(fingerprint=…)` retries the failed jobs of a fingerprint."""

    @verb
    def list(
        self,
        since: Time | None = None,
        until: Time | None = None,
        *,
        office_id: Values | None = None,
        job_type: Values | None = None,
        fingerprint: Values | None = None,
        muted: bool | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> Operation[Failures]:
        """Returns the failures seen in a range, the last seen first, each with its count."""
        query: dict[str, object] = {"since": since, "until": until, "office_id": office_id, "job_type": job_type}
        query |= {"fingerprint": fingerprint, "muted": muted, "cursor": cursor, "limit": limit}
        return self._ask(get("/api/failures", query), Failures.read)

    @verb
    def change(self, fingerprint: str, **changes: Unpack[FailureChanges]) -> Operation[Failure]:
        """Changes `muted` and `note` of a fingerprint; None removes the note."""
        return self._ask(patch(f"/api/failures/{part(fingerprint)}", dict(changes)), Failure.read)
