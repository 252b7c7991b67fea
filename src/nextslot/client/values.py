"""What comes back: frozen values with the names of the API, read from its JSON by their own declarations.

A field that an older server does not send is None; what a newer one sends besides is in `json`, the answer as it came.
States and kinds are plain texts, so that a word this library does not know yet breaks nothing.
"""

import functools
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")
Json = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Value:
    json: Json = field(repr=False, compare=False)

    @classmethod
    def read(cls, json: Json) -> Self:
        return cls(json=json, **{name: read(json.get(name)) for name, read in _readers(cls).items()})  # type: ignore[arg-type]


@functools.cache
def _readers(kind: Any) -> dict[str, Callable[[Any], Any]]:
    hints = typing.get_type_hints(kind)
    return {one.name: _reader(hints[one.name]) for one in fields(kind) if one.name != "json"}


def _reader(hint: Any) -> Callable[[Any], Any]:
    """How a value of this declared type is read; None stays None."""
    inner = [one for one in typing.get_args(hint) if one is not types.NoneType]
    if typing.get_origin(hint) is types.UnionType and len(inner) == 1:
        return _reader(inner[0])
    if typing.get_origin(hint) is tuple:
        item = _reader(inner[0])
        return lambda value: () if value is None else tuple(item(one) for one in value)
    if hint is datetime:
        return lambda value: None if value is None else datetime.fromisoformat(value)
    if isinstance(hint, type) and issubclass(hint, Value):
        return lambda value: None if value is None else hint.read(value)
    return lambda value: value


@dataclass(frozen=True)
class Page(Generic[T]):
    """A part of a list; `next_cursor` asks for the part after it. A page may be empty and still not be the last."""

    items: tuple[T, ...]
    next_cursor: str | None
    json: Json = field(repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class RetryPolicy(Value):
    max_attempts: int
    backoff: str
    base_delay_seconds: float
    max_delay_seconds: float | None
    jitter: float
    retry_on: tuple[str, ...] | None


@dataclass(frozen=True, kw_only=True)
class Artifact(Value):
    name: str
    size: int
    path: str


@dataclass(frozen=True, kw_only=True)
class Job(Value):
    job_id: str
    office_id: str
    template_id: str | None
    schedule_id: str | None
    group_id: str | None
    sequence: int | None
    job_type: str
    params: Json
    status: str
    state: str
    priority: int
    position: int
    attempt: int
    retry_of: str | None
    permanently_failed: bool
    scheduled_for: datetime | None
    expires_at: datetime | None
    depends_on: tuple[str, ...]
    on_dependency_failure: str
    role: str | None
    task_id: str | None
    title: str | None
    resources: Mapping[str, int]
    timeout_seconds: float | None
    stall_timeout_seconds: float | None
    retry_policy: RetryPolicy
    webhook: Json | None
    webhook_status: str
    unique_key: str | None
    created_by: str | None
    created_at: datetime
    queued_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    cancel_requested_at: datetime | None
    cancel_mode: str | None
    cancelled_at: datetime | None
    cancel_reason: str | None
    worker_id: str | None


@dataclass(frozen=True, kw_only=True)
class Progress(Value):
    fraction: float | None
    text: str


@dataclass(frozen=True, kw_only=True)
class Run(Value):
    """`progress` is there only while it runs, and only if it was asked for by its id."""

    run_id: str
    job_id: str
    template_id: str | None
    params_snapshot: Json
    status: str | None
    started_at: datetime
    timeout_at: datetime | None
    finished_at: datetime | None
    exit_code: int | None
    error: str | None
    failure_kind: str | None
    reason: str | None
    artifacts: tuple[Artifact, ...]
    log_path: str | None
    session_id: str | None
    result: Any
    progress: Progress | None


@dataclass(frozen=True, kw_only=True)
class JobDetail(Job):
    """A job with its run, and its whole chain from the root on."""

    run: Run | None
    chain: tuple[Job, ...]


@dataclass(frozen=True, kw_only=True)
class QueuedJob(Job):
    place: int
    expected_start: datetime | None
    expected_end: datetime | None


@dataclass(frozen=True, kw_only=True)
class Reservation(Value):
    reservation_id: str
    direct_id: str | None
    office_id: str
    reserved_at: datetime
    reserved_by: str
    expires_at: datetime
    status: str


@dataclass(frozen=True, kw_only=True)
class Queue(Value):
    office_id: str
    paused: bool
    running: tuple[Job, ...]
    queue: tuple[QueuedJob, ...]
    next_cursor: str | None
    reservation: Reservation | None
    direct_waiting: int


@dataclass(frozen=True, kw_only=True)
class Paused(Value):
    """What is paused now."""

    scheduler: bool
    offices: tuple[str, ...]
    job_types: tuple[str, ...]
    resources: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Reason(Value):
    code: str
    text: str
    data: Json


@dataclass(frozen=True, kw_only=True)
class Why(Value):
    state: str
    reasons: tuple[Reason, ...]
    ahead: int | None
    expected_start: datetime | None
    expected_end: datetime | None
    confidence: str


@dataclass(frozen=True, kw_only=True)
class Cancelled(Value):
    """How many were cancelled, told to stop, or left to finish."""

    cancelled: int
    stopping: int
    finishing: int


@dataclass(frozen=True, kw_only=True)
class Retried(Value):
    retried: int


@dataclass(frozen=True)
class Ended:
    """How a chain ended: its last job, and that job's run if it had one."""

    job: JobDetail

    @property
    def run(self) -> Run | None:
        return self.job.run

    @property
    def state(self) -> str:
        return self.job.state

    @property
    def is_success(self) -> bool:
        return self.state in ("COMPLETED", "SKIPPED")

    @property
    def result(self) -> Any:
        return self.run.result if self.run else None

    @property
    def error(self) -> str | None:
        return self.run.error if self.run else self.job.cancel_reason


@dataclass(frozen=True, kw_only=True)
class JobType(Value):
    job_type: str
    params_schema: Json
    resources: Mapping[str, int]
    timeout_seconds: float | None
    stall_timeout_seconds: float | None
    retry_policy: Json | None


@dataclass(frozen=True, kw_only=True)
class Direct(Value):
    direct_id: str
    office_id: str
    job_type: str
    params: Json
    status: str
    result: Any
    error: str | None
    failure_kind: str | None
    reason: str | None
    exit_code: int | None
    artifacts: tuple[Artifact, ...]
    log: str | None
    log_path: str | None
    session_id: str | None
    detach: bool
    timeout_seconds: float
    stall_timeout_seconds: float | None
    created_by: str | None
    created_at: datetime
    wait_until: datetime
    started_at: datetime | None
    timeout_at: datetime | None
    finished_at: datetime | None
    worker_id: str | None
    waited_seconds: float | None
    ran_seconds: float | None


@dataclass(frozen=True)
class Update:
    """What a caller on the line hears: `place`, `started`, `progress`, `output`, and last `result` (with `direct`)."""

    kind: str
    data: Json
    direct: Direct | None = None


@dataclass(frozen=True, kw_only=True)
class Group(Value):
    group_id: str
    office_id: str
    name: str | None
    mode: str
    on_failure: str
    status: str
    members: int
    ended: int
    succeeded: int
    cancelled: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class GroupDetail(Group):
    jobs: tuple[Job, ...]


@dataclass(frozen=True, kw_only=True)
class GroupCancelled(Group):
    """`stopping` and `finishing` are the members that run: told to stop, or left to finish."""

    stopping: tuple[str, ...]
    finishing: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Template(Value):
    template_id: str
    name: str
    job_type: str
    params: Json
    retry_policy: Json | None
    timeout_seconds: float | None
    priority: int
    resources: Mapping[str, int] | None
    webhook: Json | None
    description: str | None
    created_at: datetime
    archived_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Schedule(Value):
    schedule_id: str
    template_id: str
    name: str
    cron_expression: str
    cron_words: str | None
    timezone: str
    enabled: bool
    param_overrides: Json | None
    office_id: str
    catch_up: str
    catch_up_window_seconds: float
    overlap: str
    priority: int | None
    next_trigger_at: datetime | None
    last_triggered_at: datetime | None
    created_at: datetime
    deleted_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Upcoming(Value):
    utc: datetime
    local: str


@dataclass(frozen=True, kw_only=True)
class Preview(Value):
    """What an expression means, and when it would fire."""

    cron_words: str
    items: tuple[Upcoming, ...]


@dataclass(frozen=True, kw_only=True)
class Occurrence(Value):
    schedule_id: str
    instant: datetime
    until: datetime | None
    count: int
    outcome: str
    reason: str | None
    detail: str | None
    job_id: str | None


@dataclass(frozen=True, kw_only=True)
class Webhook(Value):
    """`secret` is there only when it is new."""

    webhook_id: str
    url: str
    events: tuple[str, ...]
    office_id: str | None
    enabled: bool
    disabled_reason: str | None
    old_secret_until: datetime | None
    created_by: str | None
    created_at: datetime
    secret: str | None


@dataclass(frozen=True, kw_only=True)
class Attempt(Value):
    number: int
    attempted_at: datetime
    duration_seconds: float
    status_code: int | None
    error: str | None
    answer: str | None
    retry_after_seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Delivery(Value):
    delivery_id: str
    webhook_id: str | None
    url: str
    event: str
    seq: int
    office_id: str | None
    job_id: str | None
    status: str
    reason: str | None
    next_attempt_at: datetime | None
    created_at: datetime
    finished_at: datetime | None
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, kw_only=True)
class Event(Value):
    seq: int
    type: str
    office_id: str | None
    job_id: str | None
    run_id: str | None
    details: Json
    timestamp: datetime


@dataclass(frozen=True, kw_only=True)
class Key(Value):
    """`key`, what its holder sends, is there only when it is new."""

    key_id: str
    name: str
    scopes: tuple[str, ...]
    office_id: str | None
    created_by: str | None
    created_at: datetime
    key: str | None


@dataclass(frozen=True, kw_only=True)
class Node(Value):
    """A machine that shares the database: `live`, `draining`, `left` in good order, or `lost`."""

    node_id: str
    status: str
    is_leader: bool
    running: int
    max_running: int
    resources: Json
    job_types: tuple[str, ...]
    host: str
    pid: int
    version: str
    life: int
    joined_at: datetime
    last_seen_at: datetime
    lease_until: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Me(Value):
    """Who asks, as the server sees it. `last_event` is where to begin for who wants only what comes."""

    name: str
    key_id: str | None
    scopes: tuple[str, ...]
    office_id: str | None
    last_event: int


@dataclass(frozen=True, kw_only=True)
class AuditEntry(Value):
    audit_id: str
    timestamp: datetime
    actor: str
    key_id: str | None
    action: str
    target: str
    office_id: str | None
    details: Json | None


@dataclass(frozen=True, kw_only=True)
class Office(Value):
    office_id: str
    name: str
    status: str
    max_concurrent_jobs: int
    role_limits: Mapping[str, int]
    timeout_seconds: float | None
    retry_policy: RetryPolicy
    cancel_mode: str
    on_dependency_failure: str
    webhook: Json | None
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Execution(Value):
    id: str | None
    job_id: str
    attempt: int
    status: str
    started_at: datetime | None
    timeout_at: datetime | None
    completed_at: datetime | None
    session_id: str | None
    error_message: str | None
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class OfficeJob(Value):
    job_id: str
    office_id: str
    job_type: str | None
    task_id: str | None
    role: str | None
    description: str | None
    status: str
    priority: int
    params: Json
    timeout_ms: int | None
    depends_on: tuple[str, ...]
    blocked_by: tuple[Json, ...]
    retry_count: int
    executions: tuple[Execution, ...]
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    cancelled_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class OfficeStats(Value):
    office_id: str | None
    pending: int
    ready: int
    processing: int
    done: int
    failed: int
    cancelled: int
    avg_completion_time: float | None


@dataclass(frozen=True, kw_only=True)
class OfficeConfig(Value):
    """In camelCase, as the API has it."""

    maxConcurrentJobs: int  # noqa: N815
    maxConcurrentByRole: Mapping[str, int]  # noqa: N815
    defaultTimeout: float | None  # noqa: N815
    maxRetries: int  # noqa: N815
    retryBackoff: str  # noqa: N815
    retryBaseDelay: float  # noqa: N815


@dataclass(frozen=True, kw_only=True)
class OfficeEvent(Value):
    type: str
    job_id: str | None
    office_id: str | None
    details: Json
    timestamp: datetime


@dataclass(frozen=True, kw_only=True)
class OfficeEvents(Value):
    """`next_cursor` leads to the next page; who comes back later asks from `next_after` on."""

    items: tuple[OfficeEvent, ...]
    next_cursor: str | None
    next_after: int


@dataclass(frozen=True, kw_only=True)
class OfficeStatus(Value):
    office_id: str
    paused: bool
    queued: int
    waiting: int
    running: int
    oldest_queued_at: datetime | None
    direct_waiting: int
    direct_running: int


@dataclass(frozen=True, kw_only=True)
class Limit(Value):
    limit: str
    capacity: int
    used: int


@dataclass(frozen=True, kw_only=True)
class Held(Value):
    """A resource that does not answer."""

    resource: str
    since: datetime
    next_probe_at: datetime | None
    failures: int


@dataclass(frozen=True, kw_only=True)
class Status(Value):
    """The service in one look."""

    version: str
    node: str
    live_nodes: int
    ready: bool
    now: datetime
    paused: Paused
    offices: tuple[OfficeStatus, ...]
    limits: tuple[Limit, ...]
    held: tuple[Held, ...]
    last_event: int
