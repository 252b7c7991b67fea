"""WebhookService: stores webhook messages in the same transaction as the change they report (DEC-009).

Code that ends something calls it right after noting its event; `store` puts the messages into the outbox at the end of
the transaction, when the events have their numbers. It sends nothing: `delivery_worker` does, after the commit. The
subscriptions are kept in memory, so that a transaction without subscribers pays nothing. They are read at the start and
after every change, and a change takes effect with its commit.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nextslot.domain import (
    Delivery,
    DeliveryStatus,
    Direct,
    DirectStatus,
    Group,
    Job,
    Json,
    Webhook,
    json_form,
)
from nextslot.domain import webhook_delivery as policy
from nextslot.domain.addresses import origin
from nextslot.domain.webhook_delivery import SERVER, Target
from nextslot.engine.effects import Deliver, SubscribersChanged, WebhooksConfigured
from nextslot.engine.events.event_log import EventLog
from nextslot.errors import (
    Conflict,
    Invalid,
    NotFound,
    Problem,
)
from nextslot.extensions.legacy import legacy_table as old_jobs
from nextslot.extensions.legacy import old_words
from nextslot.store.contract import Tx
from nextslot.store.tables import (
    column_codec,
    deliveries,
    direct,
    groups,
    jobs,
    nodes,
    offices,
    runs,
    webhooks,
)
from nextslot.store.tables.webhooks import Secrets
from nextslot.system.instant import Instant
from nextslot.system.randomness import Chance

MOST_SUBSCRIPTIONS = 1000
DISABLED = "disabled by hand"
GONE = "the endpoint answered 410 Gone"
DELETED = "its subscription was deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """How webhooks are sent. `secret` signs those of jobs and offices; without it, one is generated and stored."""

    secret: str | None = field(default=None, repr=False)
    allow_private: bool = True
    timeout_seconds: float = 10.0
    concurrency: int = 64


@dataclass(frozen=True, slots=True)
class Listeners:
    """Those who receive events, as of the last commit: subscriptions, webhooks of offices, and their secrets."""

    subscriptions: Sequence[Webhook] = ()
    offices: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    secrets: Mapping[str, Secrets] = field(default_factory=dict)

    def of(self, office_id: str | None) -> list[Webhook]:
        return [one for one in self.subscriptions if one.office_id is None or one.office_id == office_id]


@dataclass(frozen=True, slots=True)
class _Message:
    """A message without its event's number: `events` is how many events its transaction had noted by then."""

    delivery_id: str
    event: str
    target: Target
    content: Mapping[str, Json]
    events: int
    office_id: str | None
    job_id: str | None
    now: Instant


class _Outbox:
    def __init__(self, tx: Tx) -> None:
        self.messages: list[_Message] = []


class WebhookService:
    def __init__(self, chance: Chance, events: EventLog, settings: WebhookSettings) -> None:
        problem = None if settings.secret is None else policy.secret_problem(settings.secret)
        if problem is not None:
            raise Invalid(problem, field="webhooks.secret")
        self.settings = settings
        self._chance = chance
        self._events = events
        self._listeners = Listeners()
        self._server_secret = settings.secret or ""

    def load(self, tx: Tx) -> None:
        """Reads subscriptions and secrets at the start, before anything can end, and after changes by another node."""
        self._listeners = _read(tx)
        self._server_secret = self._signing(tx, self.settings)

    def configure(self, tx: Tx, settings: WebhookSettings) -> None:
        """Changes the settings and reads the offices again, effective with this commit."""
        self._reload_listeners(tx)
        tx.cause(WebhooksConfigured(settings, self._signing(tx, settings)))

    def use(self, settings: WebhookSettings, server_secret: str) -> None:
        """Takes over committed settings."""
        self.settings, self._server_secret = settings, server_secret

    def use_listeners(self, listeners: Listeners) -> None:
        """Takes over committed subscriptions."""
        self._listeners = listeners

    def _signing(self, tx: Tx, settings: WebhookSettings) -> str:
        """Returns the secret that signs the messages of jobs and offices: the configured one, else a generated and
        stored one.
        """
        stored = settings.secret or webhooks.server_secret(tx)
        if stored is None:
            stored = policy.secret_of(self._chance.secret())
            webhooks.keep_server_secret(tx, stored)
        return stored

    # Events that cause messages.

    def job_ended(
        self, tx: Tx, job_id: str, office_id: str, has_own: bool, events: Sequence[str], now: Instant
    ) -> None:
        """Adds the messages about an ended job. `has_own`: whether the job has its own webhook. Does nothing without
        receivers.
        """
        listeners = self._listeners
        if not has_own and not self._has_listeners(office_id):
            return
        job = jobs.get(tx, job_id)
        assert job is not None
        wanted = [
            (event, target)
            for event in events
            for target in policy.targets(event, job.webhook, listeners.offices.get(office_id), listeners.of(office_id))
        ]
        if any(target.is_own for _, target in wanted):
            deliveries.mark_pending(tx, job_id)
            job = job._replace(webhook_status="pending")
        content = _job_content(tx, job) if any(not target.is_legacy for _, target in wanted) else {}
        for event, target in wanted:
            body = _legacy_content(tx, job, event, now) if target.is_legacy else content
            self._add(tx, event, target, body, now, office_id, job_id)

    def group_finished(self, tx: Tx, group: Group, now: Instant) -> None:
        self._batch_finished(tx, group, now)
        self._notify(tx, "group.finished", group.office_id, {"group": group.to_dict()}, now)
        first = jobs.member_at(tx, group.group_id, 0)
        job = None if first is None else jobs.get(tx, first)
        event = policy.batch_event(group)
        target = None if job is None else policy.batch_target(event, job.webhook)
        if target is not None:
            self._add(tx, event, target, _legacy_batch_content(group, event, now), now, group.office_id)

    def _batch_finished(self, tx: Tx, group: Group, now: Instant) -> None:
        """Adds the message of a batch of the old endpoints to its own webhook, and stores which message that was."""
        own, _ = groups.webhook(tx, group.group_id)
        if own is None:
            return
        batch = old_words.OldBatch(group, old_jobs.members(tx, group.group_id), own)
        status = old_words.batch_status(batch)
        if old_words.hears_of_batch(own, status):
            content = {"event": status, **old_words.batch(batch), "timestamp": json_form.time(now)}
            target = Target(own["url"], (SERVER,), is_own=True, is_legacy=True)
            groups.told(tx, group.group_id, self._add(tx, status, target, content, now, group.office_id))

    def schedule_skipped(
        self, tx: Tx, office_id: str, schedule: Mapping[str, Json], occurrence: Mapping[str, Json], now: Instant
    ) -> None:
        """Adds the messages about skipped occurrences; both arguments have the form of `json_form`."""
        content = {"schedule": schedule, "occurrence": occurrence}
        self._notify(tx, "schedule.skipped", office_id, content, now)

    def direct_ended(self, tx: Tx, ended: Direct, now: Instant) -> None:
        """Adds a message to the request's own webhook only; none if the caller left before its work began."""
        if ended.status is DirectStatus.CANCELLED:
            return
        own = direct.webhook(tx, ended.direct_id)
        event = f"direct.{ended.status.lower()}"
        for target in policy.targets(event, own, None, (), policy.DIRECT_EVENTS):
            self._add(tx, event, target, {"direct": ended.to_dict()}, now, ended.office_id)

    def store(self, tx: Tx) -> None:
        """Puts the messages into the outbox at the end of a transaction, with the numbers of their events."""
        if tx.local(offices.Touched).is_touched:
            self._reload_listeners(tx)
        messages = tx.local(_Outbox).messages
        if not messages:
            return
        before = self._events.last_number_before(tx)
        deliveries.insert(tx, [_delivery(one, before + one.events) for one in messages])
        self._send_soon(tx, [one.target.url for one in messages], messages[0].now)

    def _has_listeners(self, office_id: str) -> bool:
        return bool(self._listeners.subscriptions) or office_id in self._listeners.offices

    def _notify(self, tx: Tx, event: str, office_id: str, content: Mapping[str, Json], now: Instant) -> None:
        listeners = self._listeners
        for target in policy.targets(event, None, listeners.offices.get(office_id), listeners.of(office_id)):
            self._add(tx, event, target, content, now, office_id)

    def _add(
        self,
        tx: Tx,
        event: str,
        target: Target,
        content: Mapping[str, Json],
        now: Instant,
        office_id: str | None,
        job_id: str | None = None,
    ) -> str:
        delivery_id = self._chance.new_id()
        noted = self._events.noted(tx)
        tx.local(_Outbox).messages.append(_Message(delivery_id, event, target, content, noted, office_id, job_id, now))
        return delivery_id

    def _send_soon(self, tx: Tx, urls: Iterable[str], now: Instant) -> None:
        tx.announce("deliveries")
        tx.cause(Deliver(frozenset(origin(url) for url in urls), now))

    # Subscriptions.

    def create(
        self,
        tx: Tx,
        url: str,
        events: Sequence[str] | None,
        office_id: str | None,
        created_by: str | None,
        now: Instant,
    ) -> tuple[Webhook, str]:
        """Creates a subscription. Returns it with its secret, which is shown only once."""
        webhook = Webhook(
            webhook_id=self._chance.new_id(),
            url=url,
            events=tuple(policy.RUN_EVENTS if events is None else events),
            office_id=office_id,
            created_by=created_by,
            created_at=now,
        )
        self._check(tx, webhook)
        if webhooks.count(tx) >= MOST_SUBSCRIPTIONS:
            raise Conflict(
                f"there are already {MOST_SUBSCRIPTIONS:,} subscriptions, the most allowed: delete one first"
            )
        secret = policy.secret_of(self._chance.secret())
        webhooks.insert(tx, webhook, secret)
        self._reload_listeners(tx)
        return webhook, secret

    def change(self, tx: Tx, webhook_id: str, changes: Mapping[str, Json], now: Instant) -> tuple[Webhook, Webhook]:
        """Changes `url`, `events`, `office_id` or `enabled`. Returns (before, after). Disabling ends its pending
        deliveries.
        """
        unknown = sorted(changes.keys() - {"url", "events", "office_id", "enabled"})
        if unknown or not changes:
            problem = "cannot be changed" if unknown else "nothing to change was given"
            raise Invalid(f"{problem}; give url, events, office_id or enabled", *unknown[:1])
        before = self.subscription(tx, webhook_id)
        values = dict(changes)
        if isinstance(values.get("events"), list):
            values["events"] = tuple(values["events"])
        if "enabled" in values:
            if not isinstance(values["enabled"], bool):
                raise Invalid("is neither true nor false; give one of them", field="enabled")
            values["disabled_reason"] = None if values["enabled"] else before.disabled_reason or DISABLED
        after = replace(before, **values)
        self._check(tx, after)
        webhooks.update(tx, after)
        if before.enabled and not after.enabled:
            deliveries.give_up(tx, webhook_id, f"its subscription was {DISABLED}", now)
        self._reload_listeners(tx)
        return before, after

    def delete(self, tx: Tx, webhook_id: str, now: Instant) -> Webhook:
        """Deletes a subscription. Pending deliveries to it alone end FAILED; past deliveries stay stored."""
        webhook = self.subscription(tx, webhook_id)
        deliveries.give_up(tx, webhook_id, DELETED, now)
        webhooks.delete(tx, webhook_id)
        self._reload_listeners(tx)
        return webhook

    def rotate_secret(self, tx: Tx, webhook_id: str, now: Instant) -> tuple[Webhook, str]:
        """Replaces the secret. For a day the old one signs too, so that the receiver can switch."""
        self.subscription(tx, webhook_id)
        secret = policy.secret_of(self._chance.secret())
        webhooks.rotate(tx, webhook_id, secret, now.after(policy.ROTATION_SECONDS))
        self._reload_listeners(tx)
        return self.subscription(tx, webhook_id), secret

    def test(self, tx: Tx, webhook_id: str, now: Instant) -> str:
        """Adds a test message, even to a disabled subscription. Returns the delivery's id."""
        webhook = self.subscription(tx, webhook_id)
        target = Target(webhook.url, (webhook_id,), is_own=False)
        content = {"webhook": webhook.to_dict()}
        return self._add(tx, policy.TEST_EVENT, target, content, now, webhook.office_id)

    def subscription(self, tx: Tx, webhook_id: str) -> Webhook:
        webhook = webhooks.get(tx, webhook_id)
        if webhook is None:
            raise NotFound("webhook", webhook_id)
        return webhook

    def gone(self, tx: Tx, webhook_id: str, now: Instant) -> None:
        """Disables a subscription, because its endpoint answered that it is gone (410)."""
        webhook = webhooks.get(tx, webhook_id)
        if webhook is not None and webhook.enabled:
            webhooks.update(tx, replace(webhook, enabled=False, disabled_reason=f"{GONE} on {now}"))
            deliveries.give_up(tx, webhook_id, f"its subscription was disabled: {GONE}", now)
            self._reload_listeners(tx)

    def refuse_wrong(self, field: str, webhook: Mapping[str, Json], events: Sequence[str]) -> None:
        """Raises Invalid if a request's own webhook is wrong; `events` are those it may name."""
        problems = list(policy.problems(field, webhook, events, self.settings.allow_private))
        if problems:
            raise Invalid(problems)

    def _check(self, tx: Tx, webhook: Webhook) -> None:
        problems = [
            *policy.url_problems("url", webhook.url, self.settings.allow_private),
            *policy.event_problems("events", webhook.events, policy.EVENTS),
        ]
        if webhook.office_id is not None and not isinstance(webhook.office_id, str):
            problems.append(Problem("office_id", "is not a text; give the office's id"))
        if problems:
            raise Invalid(problems)
        if webhook.office_id is not None and offices.get(tx, webhook.office_id) is None:
            raise NotFound("office", webhook.office_id)

    def _reload_listeners(self, tx: Tx) -> None:
        """Reads the subscriptions again, effective with the commit: a rolled back change has no effect."""
        nodes.settings_changed(tx)
        tx.cause(SubscribersChanged(_read(tx)))

    # Deliveries.

    def redeliver(self, tx: Tx, delivery_id: str, now: Instant) -> Delivery:
        """Starts a new round of attempts for the same message, with the same `webhook-id`."""
        found = deliveries.get(tx, delivery_id)
        if found is None:
            raise NotFound("delivery", delivery_id)
        if SERVER not in found.signers and not any(webhooks.get(tx, one) for one in found.signers):
            raise Conflict(f"delivery {delivery_id} cannot be signed: {DELETED}, with its secret")
        if not deliveries.send_again(tx, delivery_id, now):
            raise Conflict(f"delivery {delivery_id} is PENDING: wait for its next attempt at {found.next_attempt_at}")
        if found.is_own and found.job_id is not None:
            deliveries.mark_job(tx, found.job_id)
        self._send_soon(tx, [found.url], now)
        again = deliveries.get(tx, delivery_id)
        assert again is not None
        return again

    def secret(self) -> str:
        """Returns the secret that signs the webhooks of jobs and offices."""
        return self._server_secret

    def secrets_of(self, signers: Iterable[str], now: Instant) -> list[str]:
        """Returns the secrets that sign a message now; none if its subscriptions are gone."""
        found = []
        for signer in signers:
            if signer == SERVER:
                found.append(self._server_secret)
            elif (own := self._listeners.secrets.get(signer)) is not None:
                found.append(own.secret)
                if own.old_secret is not None and own.old_until is not None and now < own.old_until:
                    found.append(own.old_secret)
        return found


class SilentWebhooks(WebhookService):
    """For a forecast, which simulates events but sends no messages."""

    def __init__(self, chance: Chance, events: EventLog) -> None:
        super().__init__(chance, events, WebhookSettings())

    def job_ended(
        self, tx: Tx, job_id: str, office_id: str, has_own: bool, events: Sequence[str], now: Instant
    ) -> None:
        pass

    def group_finished(self, tx: Tx, group: Group, now: Instant) -> None:
        pass

    def direct_ended(self, tx: Tx, ended: Direct, now: Instant) -> None:
        pass


def _read(tx: Tx) -> Listeners:
    return Listeners(webhooks.enabled(tx), webhooks.offices(tx), webhooks.secrets(tx))


def _job_content(tx: Tx, job: Job) -> dict[str, Json]:
    """Returns job and run as `GET /api/jobs/{job_id}` shows them now."""
    attempt = 1 if job.retry_of is None else 1 + len(jobs.failures_before(tx, job.chain_id, job.job_id))
    run = runs.of_job(tx, job.job_id)
    return {"job": json_form.job(job, attempt), "run": None if run is None else run.to_dict()}


def _legacy_content(tx: Tx, job: Job, event: str, now: Instant) -> dict[str, Json]:
    """Returns the old service's message: about the whole chain, under the id of its first job."""
    chain = jobs.chain(tx, job.chain_id)
    run = runs.of_job(tx, job.job_id)
    return {
        "event": event,
        "job_id": job.chain_id,
        "type": old_words.TYPES.get(job.job_type, job.job_type),
        "status": event,
        "params": old_words.params(chain[0]),
        "created_at": json_form.time(chain[0].created_at),
        "started_at": json_form.time(next((one.started_at for one in chain if one.started_at), None)),
        "finished_at": json_form.time(job.finished_at),
        "exit_code": None if run is None else run.exit_code,
        "error": None if run is None else run.error,
        "artifacts": [] if run is None else [one.path for one in run.artifacts],
        "timestamp": json_form.time(now),
    }


def _legacy_batch_content(group: Group, event: str, now: Instant) -> dict[str, Json]:
    return {
        "event": event,
        "job_id": group.group_id,
        "batch_id": group.group_id,
        "type": "batch",
        "status": event,
        "total_jobs": group.members,
        "completed_jobs": group.ended,
        "succeeded_jobs": group.succeeded,
        "failed_jobs": group.ended - group.succeeded,
        "created_at": json_form.time(group.created_at),
        "finished_at": json_form.time(group.finished_at),
        "timestamp": json_form.time(now),
    }


def _delivery(message: _Message, seq: int) -> Delivery:
    headers: dict[str, str] = {}
    if message.target.is_legacy:
        body = message.content
        old_id = message.content.get("job_id") or message.content["batch_id"]
        headers = {"User-Agent": old_words.USER_AGENT, "X-Job-ID": old_id, "X-Job-Event": message.event}
    else:
        body = {
            "event": message.event,
            "delivery_id": message.delivery_id,
            "seq": seq,
            "timestamp": json_form.time(message.now),
            **message.content,
        }
    return Delivery(
        delivery_id=message.delivery_id,
        url=message.target.url,
        event=message.event,
        seq=seq,
        status=DeliveryStatus.PENDING,
        signers=message.target.signers,
        is_own=message.target.is_own,
        body=column_codec.dumps(body),
        headers=headers,
        created_at=message.now,
        office_id=message.office_id,
        job_id=message.job_id,
        next_attempt_at=message.now,
    )
