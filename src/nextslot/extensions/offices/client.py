"""The verbs of the office API over HTTP, their keyword arguments and values: `client.extension(Offices)`."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypedDict, Unpack

from nextslot import domain
from nextslot.client import streams
from nextslot.client.binding import Collection, Operation, StreamOperation, Way, stream_verb, verb
from nextslot.client.keyword_arguments import Values
from nextslot.client.requests import create, delete, get, given, paged, part, patch, post, put
from nextslot.client.values import Cancelled, ClientValue, Json, Page

from . import office_words


class OfficeOptions(TypedDict, total=False):
    name: str
    status: str
    webhook: Json | None
    on_dependency_failure: str
    cancel_mode: str


class OfficeRoleOptions(TypedDict, total=False):
    command: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    timeout_ms: float
    resume_args: Sequence[str]
    resume_on: Sequence[str]
    session_id_pattern: str


class OfficeJobOptions(TypedDict, total=False):
    key: str
    description: str
    role: str
    priority: int
    depends_on: Sequence[str]
    timeout_ms: int
    params: Json
    urgent: bool
    job_type: str
    await_signal: Json


class OfficeConfigChanges(TypedDict, total=False):
    maxConcurrentJobs: int
    maxConcurrentByRole: Mapping[str, int]
    defaultTimeout: int | None
    maxRetries: int
    retryBackoff: str
    retryBaseDelay: int
    retryOn: Sequence[str]
    priorityAging: float | None


class Office(ClientValue, domain.OfficeFields[datetime]):
    pass


class Execution(ClientValue, office_words.Execution[datetime]):
    pass


class OfficeJob(ClientValue, office_words.OfficeJob[datetime]):
    executions: tuple[Execution, ...]


class OfficeStats(ClientValue, office_words.OfficeStats):
    pass


class OfficeConfig(ClientValue):
    """The settings of an office, in camelCase as in its API."""

    maxConcurrentJobs: int  # noqa: N815
    maxConcurrentByRole: Mapping[str, int]  # noqa: N815
    defaultTimeout: float | None  # noqa: N815
    maxRetries: int  # noqa: N815
    retryBackoff: str  # noqa: N815
    retryBaseDelay: float  # noqa: N815
    retryOn: tuple[str, ...]  # noqa: N815
    priorityAging: float | None  # noqa: N815


class OfficeRole(ClientValue):
    """How an office runs the jobs of a role; the values of its environment variables are not shown."""

    role: str
    command: tuple[str, ...] | None
    cwd: str | None
    env: tuple[str, ...]
    timeout_ms: float | None
    max_concurrent: int | None
    is_own: bool
    resume_args: tuple[str, ...]
    resume_on: tuple[str, ...]
    session_id_pattern: str | None


class OfficeEvent(ClientValue):
    type: str
    job_id: str | None
    office_id: str | None
    details: Json
    timestamp: datetime


class OfficeEvents(ClientValue):
    """Events of an office; `next_cursor` is the next page, and `next_after` the number to continue from later."""

    items: tuple[OfficeEvent, ...]
    next_cursor: str | None
    next_after: int


class Offices(Collection[Way, Office]):
    """Offices, and their jobs in the language of offices."""

    PATH, KIND = "/api/offices", Office

    @verb
    def create(
        self, office_id: str | None = None, *, idempotency_key: str | None = None, **options: Unpack[OfficeOptions]
    ) -> Operation[Office]:
        body = {**given(office_id=office_id), **options}
        return self._ask(create("/api/offices", body, idempotency_key), Office.read)

    @verb
    def get(self, office_id: str) -> Operation[Office]:
        return self._ask(get(f"/api/offices/{part(office_id)}"), Office.read)

    @verb
    def change(self, office_id: str, **changes: Unpack[OfficeOptions]) -> Operation[Office]:
        return self._ask(patch(f"/api/offices/{part(office_id)}", changes), Office.read)

    @verb
    def submit(
        self,
        office_id: str,
        jobs: Sequence[OfficeJobOptions],
        task_id: str | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> Operation[tuple[OfficeJob, ...]]:
        body = {"jobs": [dict(job) for job in jobs], **given(task_id=task_id)}
        request = create(f"/api/offices/{part(office_id)}/jobs", body, idempotency_key)
        return self._items(request, OfficeJob)

    @verb
    def jobs_page(
        self,
        office_id: str,
        limit: int = 50,
        cursor: str | None = None,
        *,
        status: Values | None = None,
        role: Values | None = None,
        task_id: Values | None = None,
    ) -> Operation[Page[OfficeJob]]:
        path = f"/api/offices/{part(office_id)}/jobs"
        return self._page(OfficeJob, path, limit, cursor, status=status, role=role, task_id=task_id)

    @verb
    def job(self, office_id: str, job_id: str) -> Operation[OfficeJob]:
        return self._ask(get(f"{_job(office_id, job_id)}"), OfficeJob.read)

    @verb
    def executions(self, office_id: str, job_id: str) -> Operation[tuple[Execution, ...]]:
        request = get(f"{_job(office_id, job_id)}/executions")
        return self._items(request, Execution)

    @verb
    def retry(self, office_id: str, job_id: str) -> Operation[OfficeJob]:
        return self._ask(post(f"{_job(office_id, job_id)}/retry"), OfficeJob.read)

    @verb
    def cancel(
        self, office_id: str, job_id: str, reason: str | None = None, interrupt: bool | None = None
    ) -> Operation[OfficeJob]:
        body = given(reason=reason, interrupt=interrupt)
        return self._ask(post(f"{_job(office_id, job_id)}/cancel", body), OfficeJob.read)

    @verb
    def set_priority(
        self, office_id: str, job_id: str, priority: int | None = None, urgent: bool | None = None
    ) -> Operation[OfficeJob]:
        """Changes the priority of a job; in the office API, lower goes first."""
        path = f"{_job(office_id, job_id)}/priority"
        body = given(priority=priority, urgent=urgent)
        return self._ask(patch(path, body), OfficeJob.read)

    @verb
    def cancel_all(
        self,
        office_id: str,
        task_id: str | None = None,
        include_running: bool = True,
        reason: str | None = None,
    ) -> Operation[Cancelled]:
        body = given(task_id=task_id, include_running=include_running, reason=reason)
        return self._ask(post(f"/api/offices/{part(office_id)}/jobs/cancel-all", body), Cancelled.read)

    @verb
    def stats(self, office_id: str) -> Operation[OfficeStats]:
        return self._ask(get(f"/api/offices/{part(office_id)}/scheduler/stats"), OfficeStats.read)

    @verb
    def config(self, office_id: str) -> Operation[OfficeConfig]:
        return self._ask(get(f"/api/offices/{part(office_id)}/scheduler/config"), OfficeConfig.read)

    @verb
    def change_config(self, office_id: str, **changes: Unpack[OfficeConfigChanges]) -> Operation[OfficeConfig]:
        return self._ask(patch(f"/api/offices/{part(office_id)}/scheduler/config", changes), OfficeConfig.read)

    @verb
    def roles(self, office_id: str) -> Operation[tuple[OfficeRole, ...]]:
        """Returns the roles that the office or the configuration knows."""
        return self._items(get(f"/api/offices/{part(office_id)}/roles"), OfficeRole)

    @verb
    def put_role(self, office_id: str, role: str, **settings: Unpack[OfficeRoleOptions]) -> Operation[OfficeRole]:
        """Sets how the office runs the jobs of a role, over the configuration; needs the scope admin."""
        return self._ask(put(_role(office_id, role), dict(settings)), OfficeRole.read)

    @verb
    def delete_role(self, office_id: str, role: str) -> Operation[OfficeRole]:
        """Removes the office's own settings of a role."""
        return self._ask(delete(_role(office_id, role)), OfficeRole.read)

    @verb
    def process(self, office_id: str) -> Operation[tuple[OfficeJob, ...]]:
        """Dispatches the office's queue now, and returns the jobs that started."""
        request = post(f"/api/offices/{part(office_id)}/scheduler/process")
        return self._items(request, OfficeJob)

    @verb
    def events(
        self, office_id: str, after: int = 0, limit: int = 100, cursor: str | None = None
    ) -> Operation[OfficeEvents]:
        """Returns events after a number or from a cursor, oldest first."""
        request = get(f"/api/offices/{part(office_id)}/events", {"after": after, **paged(limit, cursor)})
        return self._ask(request, OfficeEvents.read)

    @stream_verb
    def follow(self, office_id: str, after: int = 0) -> StreamOperation[OfficeEvent]:
        """Yields every event of the office after a number, then each new one; reconnects after a broken connection."""
        request = streams.stream_of(get(f"/api/offices/{part(office_id)}/events", {"after": after}))
        return streams.followed(self._transport, self._retries, request, _event, streams.by_last_event_id)


def _event(message: streams.Message) -> OfficeEvent | None:
    return None if message.event == "end" else OfficeEvent.read(message.json())


def _role(office_id: str, role: str) -> str:
    return f"/api/offices/{part(office_id)}/roles/{part(role)}"


def _job(office_id: str, job_id: str) -> str:
    return f"/api/offices/{part(office_id)}/jobs/{part(job_id)}"
