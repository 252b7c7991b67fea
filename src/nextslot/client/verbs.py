"""The verbs of runs, groups, direct requests, events and the service itself, on top of those of jobs."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Unpack
from urllib.parse import quote

from nextslot import domain

from . import streams
from .binding import Operation, StreamOperation, Way, stream_verb, verb
from .jobs import JobVerbs
from .keyword_arguments import DirectOptions, EventFilter, NewJob, RunFilter, Values
from .request_retries import RequestRetries, asked
from .requests import Request, bodies, create, get, given, part, post, put, texts
from .streams import End, Message
from .subjects import Engines, FailureList, Keys, Nodes, Quotas, Schedules, Stats, Templates, Webhooks
from .values import (
    AuditEntry,
    Checkpoint,
    Direct,
    Event,
    Group,
    GroupCancelled,
    GroupDetail,
    Job,
    Json,
    Me,
    Page,
    Reservation,
    Run,
    Status,
    Update,
)

T = TypeVar("T")


class Verbs(JobVerbs[Way]):
    """The verbs of `Client` and `AsyncClient`, with the names that `Scheduler` has."""

    def __init__(self, transport: Way, retries: RequestRetries) -> None:
        super().__init__(transport, retries)
        self.url = retries.url
        self.templates: Templates[Way] = Templates(transport, retries)
        self.schedules: Schedules[Way] = Schedules(transport, retries)
        self.webhooks: Webhooks[Way] = Webhooks(transport, retries)
        self.keys: Keys[Way] = Keys(transport, retries)
        self.quotas: Quotas[Way] = Quotas(transport, retries)
        self.nodes: Nodes[Way] = Nodes(transport, retries)
        self.engines: Engines[Way] = Engines(transport, retries)
        self.stats: Stats[Way] = Stats(transport, retries)
        self.failures: FailureList[Way] = FailureList(transport, retries)

    def extension(self, kind: Callable[[Way, RequestRetries], T]) -> T:
        """Returns the verbs of an extension, by their class."""
        return kind(self._transport, self._retries)

    # Runs.

    @verb
    def run_by_id(self, run_id: str) -> Operation[Run]:
        """Returns a run, with its progress while it runs."""
        return self._ask(get(f"/api/job-runs/{part(run_id)}"), Run.read)

    @stream_verb
    def runs(self, **filter: Unpack[RunFilter]) -> StreamOperation[Run]:
        return self._each(Run, "/api/job-runs", **filter)

    @verb
    def runs_page(
        self, limit: int = 50, cursor: str | None = None, **filter: Unpack[RunFilter]
    ) -> Operation[Page[Run]]:
        return self._page(Run, "/api/job-runs", limit, cursor, **filter)

    @verb
    def retry(self, run_id: str, priority: int | None = None, *, idempotency_key: str | None = None) -> Operation[Job]:
        """Retries a FAILED run by hand: submits a new job, or brings its waiting retry forward."""
        request = create(f"/api/job-runs/{part(run_id)}/retry", given(priority=priority), idempotency_key)
        return self._ask(request, Job.read)

    @verb
    def checkpoint(self, run_id: str, value: Any) -> Operation[Checkpoint]:
        """Stores the checkpoint of a run for the next attempt of its chain."""
        return self._ask(put(f"/api/job-runs/{part(run_id)}/checkpoint", {"value": value}), Checkpoint.read)

    @verb
    def park(
        self,
        run_id: str,
        name: str,
        question: str | None = None,
        deadline_seconds: float | None = None,
        on_deadline: str | None = None,
        answered_by: Sequence[str] | None = None,
    ) -> Operation[Run]:
        """Stores that a run will end with the kind `parked`; its chain continues after the signal."""
        names = None if answered_by is None else list(answered_by)
        more = given(question=question, deadline_seconds=deadline_seconds, on_deadline=on_deadline, answered_by=names)
        return self._ask(post(f"/api/job-runs/{part(run_id)}/park", {"name": name, **more}), Run.read)

    @verb
    def log(self, run_id: str, tail: int | None = None) -> Operation[str]:
        """Returns the whole log so far, or its last lines."""
        return self._log(f"/api/job-runs/{part(run_id)}/log", tail)

    async def _log(self, path: str, tail: int | None, **query: str | None) -> str:
        """Reads a log part by part; each answer says where the next part begins."""
        pieces: list[bytes] = []
        offset = 0
        while True:
            request = get(path, {"tail": tail, "offset": offset or None, **query})
            reply = await asked(self._transport, self._retries, request, lambda reply: reply)
            pieces.append(reply.content)
            offset = int(reply.headers.get("x-log-next", offset + len(reply.content)))
            if tail is not None or not reply.content or offset >= int(reply.headers.get("x-log-size", 0)):
                return b"".join(pieces).decode(errors="replace")

    @stream_verb
    def follow_log(self, run_id: str, tail: int | None = None) -> StreamOperation[str]:
        """Yields the log as it is written, until the run has ended."""
        request = streams.stream_of(get(f"/api/job-runs/{part(run_id)}/log", {"tail": tail}))
        return streams.followed(self._transport, self._retries, request, _log_text, streams.by_offset)

    @verb
    def artifact(self, run_id: str, name: str) -> Operation[bytes]:
        request = get(f"/api/job-runs/{part(run_id)}/artifacts/{quote(name)}")
        return asked(self._transport, self._retries, request, lambda reply: reply.content)

    @verb
    def direct_artifact(self, direct_id: str, name: str) -> Operation[bytes]:
        request = get(f"/api/direct/{part(direct_id)}/artifacts/{quote(name)}")
        return asked(self._transport, self._retries, request, lambda reply: reply.content)

    # Groups.

    @verb
    def submit_group(
        self,
        jobs: Sequence[NewJob | domain.NewJob],
        mode: str = "sequential",
        on_failure: str = "stop",
        name: str | None = None,
        *,
        webhook: Json | None = None,
        idempotency_key: str | None = None,
    ) -> Operation[GroupDetail]:
        """Submits jobs as a group, one after the other (`sequential`) or at the same time (`parallel`)."""
        body = {"jobs": bodies(jobs), "mode": mode, "on_failure": on_failure, **given(name=name, webhook=webhook)}
        return self._ask(create("/api/job-groups", body, idempotency_key), GroupDetail.read)

    @verb
    def submit_group_from(
        self,
        template_id: str,
        params: Json | None = None,
        priority: int | None = None,
        *,
        name: str | None = None,
        office_id: str | None = None,
        webhook: Json | None = None,
        idempotency_key: str | None = None,
    ) -> Operation[GroupDetail]:
        """Submits the group of a template; `params` and `priority` apply to every job of the group."""
        options = given(params=params, priority=priority, name=name, office_id=office_id, webhook=webhook)
        body = {"template_id": template_id, **options}
        return self._ask(create("/api/job-groups", body, idempotency_key), GroupDetail.read)

    @verb
    def group(self, group_id: str) -> Operation[GroupDetail]:
        return self._ask(get(f"/api/job-groups/{part(group_id)}"), GroupDetail.read)

    @stream_verb
    def groups(self, *, status: Values | None = None, office_id: Values | None = None) -> StreamOperation[Group]:
        return self._each(Group, "/api/job-groups", status=status, office_id=office_id)

    @verb
    def groups_page(
        self,
        limit: int = 50,
        cursor: str | None = None,
        *,
        status: Values | None = None,
        office_id: Values | None = None,
    ) -> Operation[Page[Group]]:
        return self._page(Group, "/api/job-groups", limit, cursor, status=status, office_id=office_id)

    @verb
    def cancel_group(
        self, group_id: str, reason: str | None = None, interrupt: bool | None = None
    ) -> Operation[GroupCancelled]:
        """Cancels every member that has not ended."""
        body = given(reason=reason, interrupt=interrupt)
        return self._ask(post(f"/api/job-groups/{part(group_id)}/cancel", body), GroupCancelled.read)

    # Direct requests.

    @verb
    def run_direct(
        self, job_type: str, params: Json | None = None, **options: Unpack[DirectOptions]
    ) -> Operation[Direct]:
        """Waits for the next slot, runs the work and returns its outcome; failed work raises no error."""
        return self._ask(_direct(job_type, params, options), Direct.read)

    @stream_verb
    def stream_direct(
        self, job_type: str, params: Json | None = None, **options: Unpack[DirectOptions]
    ) -> StreamOperation[Update]:
        """Does what `run_direct` does, but yields place, progress and output as they come, and the result last.

        Closing the stream disconnects the caller: the server gives up the place, or cancels the work unless `detach` is
        set.
        """
        request = streams.stream_of(_direct(job_type, params, options))
        return streams.heard_once(self._transport, self._retries, request, _update)

    @verb
    def direct(self, direct_id: str, office_id: str | None = None) -> Operation[Direct]:
        """Returns a direct execution; an id that a caller chose needs the `office_id` of that caller."""
        return self._ask(get(f"/api/direct/{part(direct_id)}", {"office_id": office_id}), Direct.read)

    @verb
    def direct_log(self, direct_id: str, office_id: str | None = None) -> Operation[str]:
        return self._log(f"/api/direct/{part(direct_id)}/log", None, office_id=office_id)

    @verb
    def cancel_direct(self, direct_id: str, office_id: str | None = None) -> Operation[Direct]:
        query = texts({"office_id": office_id})
        return self._ask(post(f"/api/direct/{part(direct_id)}/cancel", query=query), Direct.read)

    @verb
    def directs_page(
        self,
        limit: int = 50,
        cursor: str | None = None,
        *,
        status: Values | None = None,
        office_id: Values | None = None,
        job_type: Values | None = None,
    ) -> Operation[Page[Direct]]:
        query = {"status": status, "office_id": office_id, "job_type": job_type}
        return self._page(Direct, "/api/direct", limit, cursor, **query)

    @verb
    def reservations_page(
        self, limit: int = 50, cursor: str | None = None, *, office_id: Values | None = None
    ) -> Operation[Page[Reservation]]:
        """Returns reservations, newest first."""
        return self._page(Reservation, "/api/reservations", limit, cursor, office_id=office_id)

    # Events.

    @stream_verb
    def events(self, after: int = 0, **filter: Unpack[EventFilter]) -> StreamOperation[Event]:
        """Yields every event after a number, oldest first, then each new one; reconnects after a broken connection."""
        request = streams.stream_of(get("/api/events", {"after": after, **filter}))
        return streams.followed(self._transport, self._retries, request, _event, streams.by_last_event_id)

    @verb
    def events_page(
        self, after: int = 0, limit: int = 50, cursor: str | None = None, **filter: Unpack[EventFilter]
    ) -> Operation[Page[Event]]:
        return self._page(Event, "/api/events", limit, cursor, after=after, **filter)

    # The service itself.

    @verb
    def ready(self) -> Operation[None]:
        """Raises Unavailable unless the server takes and runs jobs."""
        return asked(self._transport, self._retries, Request(method="GET", path="/ready"), lambda reply: None)

    @verb
    def status(self) -> Operation[Status]:
        return self._ask(get("/api/status"), Status.read)

    @verb
    def me(self) -> Operation[Me]:
        """Returns the caller, as the server sees it, and its scopes."""
        return self._ask(get("/api/me"), Me.read)

    @verb
    def audit_page(self, limit: int = 50, cursor: str | None = None) -> Operation[Page[AuditEntry]]:
        return self._page(AuditEntry, "/api/audit", limit, cursor)

    @verb
    def reload(self) -> Operation[Json]:
        """Lets the server read its configuration again; an invalid configuration changes nothing."""
        return self._ask(post("/api/config/reload"), lambda json: json)


def _direct(job_type: str, params: Json | None, options: DirectOptions) -> Request:
    # The answer may take hours.
    return post(f"/api/direct/{part(job_type)}", {"params": params or {}, **given(**options)}, answer_seconds=None)


def _update(message: Message) -> Update:
    data = message.json()
    return Update(message.event, data, Direct.read(data) if message.event == "result" else None)


def _event(message: Message) -> Event | None:
    return None if message.event == "end" else Event.read(message.json())


def _log_text(message: Message) -> str | End | None:
    data = message.json()
    if message.event == "end":
        # A stopping server ends the stream too early; the client continues it from the last position.
        return End() if data["ended"] else None
    return str(data["text"])
