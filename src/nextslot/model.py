"""The values of the domain: what is stored, frozen; their statuses, and which moves between them are legal.

Every layer speaks in these. They decide nothing; `lifecycle` and `policy` do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

from .clock import Instant

T = TypeVar("T")

# What JSON text becomes: nothing more can be said of a user's parameters and results.
Json = Any

MAX_PRIORITY = 999_999
URGENT = 1_000_000
DEFAULT_OFFICE = "default"
# The type of a job that names none: its role's command, run as a session.
SESSION = "session"


class JobStatus(StrEnum):
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    CANCELLED = "CANCELLED"


class RunStatus(StrEnum):
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"


class State(StrEnum):
    """What people ask for: a job's status and its run's in one word."""

    WAITING = "WAITING"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"
    CANCELLED = "CANCELLED"


# 5.3: the only moves there are; nothing goes back to QUEUED. The database has the same table as a rule.
TRANSITIONS: Mapping[JobStatus, frozenset[JobStatus]] = {
    JobStatus.QUEUED: frozenset({JobStatus.RUNNING, JobStatus.CANCELLED}),
    JobStatus.RUNNING: frozenset({JobStatus.CANCELLED}),
    JobStatus.CANCELLED: frozenset(),
}


class FailureKind(StrEnum):
    ERROR = "error"
    TIMEOUT = "timeout"
    SESSION_ERROR = "session_error"
    UNAVAILABLE = "unavailable"
    CRASH = "crash"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    GIT_CONFLICT = "git_conflict"
    PERMISSION = "permission"
    DEPENDENCY = "dependency"
    INVALID = "invalid"


RETRYABLE = frozenset(
    {
        FailureKind.ERROR,
        FailureKind.TIMEOUT,
        FailureKind.SESSION_ERROR,
        FailureKind.UNAVAILABLE,
        FailureKind.CRASH,
        FailureKind.INTERRUPTED,
    }
)


class CancelMode(StrEnum):
    FINISH = "finish"
    INTERRUPT = "interrupt"


class OnDependencyFailure(StrEnum):
    WAIT = "wait"
    CANCEL = "cancel"


class Decision(StrEnum):
    """What follows a failed run. UNDECIDED is what recovery looks for."""

    UNDECIDED = "undecided"
    RETRY = "retry"
    PERMANENT = "permanent"
    CANCELLED = "cancelled"


class GroupMode(StrEnum):
    SEQUENTIAL = "sequential"
    PARALLEL = "parallel"


class OnFailure(StrEnum):
    STOP = "stop"
    CONTINUE = "continue"
    SKIP = "skip"


class GroupStatus(StrEnum):
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    PARTIAL = "PARTIAL"
    CANCELLED = "CANCELLED"


class Backoff(StrEnum):
    EXPONENTIAL = "exponential"
    LINEAR = "linear"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """DEC-007. `max_attempts` counts automatic retries: 3 means at most four jobs in a chain."""

    max_attempts: int = 3
    backoff: Backoff = Backoff.EXPONENTIAL
    base_delay_seconds: float = 10
    max_delay_seconds: float | None = None
    jitter: float = 0
    retry_on: tuple[FailureKind, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Office:
    """A scope with its own jobs and settings. `default` is one of them with other values."""

    office_id: str
    name: str
    status: str = "active"
    is_paused: bool = False
    max_concurrent_jobs: int = 3
    role_limits: Mapping[str, int] = field(default_factory=lambda: {"FE": 1, "BE": 1, "QA": 1, "DevOps": 1})
    timeout_seconds: float | None = 1800
    retry_policy: RetryPolicy = RetryPolicy(max_attempts=2, base_delay_seconds=60)
    cancel_mode: CancelMode = CancelMode.INTERRUPT
    on_dependency_failure: OnDependencyFailure = OnDependencyFailure.WAIT
    webhook: Mapping[str, Json] | None = None
    created_at: Instant


def default_office(now: Instant) -> Office:
    """The office that always exists: one job at a time (DEC-011), nothing interrupted unless asked."""
    return Office(
        office_id=DEFAULT_OFFICE,
        name="Default",
        max_concurrent_jobs=1,
        role_limits={},
        timeout_seconds=None,
        retry_policy=RetryPolicy(),
        cancel_mode=CancelMode.FINISH,
        created_at=now,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """All jobs of an office that fall under the same limits: what holds one of them back holds back all.

    `local` are the limits that belong to the office (itself, its roles), `shared` those across offices, both as units
    by limit key. Lanes of different offices with the same `class_key` share type, resources and shared limits.
    """

    lane_id: int
    office_id: str
    job_type: str
    resources: Mapping[str, int]
    local: Mapping[str, int]
    shared: Mapping[str, int]
    class_key: str
    needs: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs", {**self.local, **self.shared})


class Limit(NamedTuple):
    """A counted limit: 0 means no limit."""

    limit_key: str
    capacity: int
    used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """What a caller asks for. None means: not said, take the default of the template, the type or the office."""

    job_type: str | None = None
    params: Mapping[str, Json] = field(default_factory=dict)
    office_id: str = DEFAULT_OFFICE
    key: str | None = None
    priority: int | None = None
    urgent: bool = False
    scheduled_for: Instant | None = None
    expires_at: Instant | None = None
    depends_on: Sequence[str] = ()
    on_dependency_failure: OnDependencyFailure | None = None
    role: str | None = None
    task_id: str | None = None
    title: str | None = None
    resources: Mapping[str, int] | Sequence[str] | None = None
    timeout_seconds: float | None = None
    stall_timeout_seconds: float | None = None
    retry_policy: Mapping[str, Json] | RetryPolicy | None = None
    webhook: Mapping[str, Json] | None = None
    unique_key: str | None = None
    template_id: str | None = None
    schedule_id: str | None = None
    created_by: str | None = None


class Job(NamedTuple):
    """One intent to run something, once.

    A tuple, because many are made at a time: a frozen data class of so many fields takes twenty times as long to make.
    """

    job_id: str
    office_id: str
    lane_id: int
    job_type: str
    params: Mapping[str, Json]
    status: JobStatus
    priority: int
    position: int
    created_at: Instant
    queued_at: Instant
    chain_id: str
    retry_policy: RetryPolicy
    on_dependency_failure: OnDependencyFailure
    resources: Mapping[str, int]
    depends_on: tuple[str, ...] = ()
    template_id: str | None = None
    schedule_id: str | None = None
    group_id: str | None = None
    sequence: int | None = None
    retry_of: str | None = None
    scheduled_for: Instant | None = None
    expires_at: Instant | None = None
    role: str | None = None
    task_id: str | None = None
    title: str | None = None
    timeout_seconds: float | None = None
    stall_timeout_seconds: float | None = None
    webhook: Mapping[str, Json] | None = None
    webhook_status: str = "none"
    unique_key: str | None = None
    created_by: str | None = None
    started_at: Instant | None = None
    finished_at: Instant | None = None
    outcome: RunStatus | None = None
    decision: Decision | None = None
    cancel_requested_at: Instant | None = None
    cancel_mode: CancelMode | None = None
    cancelled_at: Instant | None = None
    cancel_reason: str | None = None
    worker_id: str | None = None
    # What still holds it back: prerequisites not met, its time not come, not its turn in its group.
    unmet: int = 0
    is_due: bool = True
    is_turn: bool = True
    passed_over_since: Instant | None = None

    @property
    def is_ready(self) -> bool:
        return self.status is JobStatus.QUEUED and self.unmet == 0 and self.is_due and self.is_turn

    @property
    def is_running(self) -> bool:
        return self.status is JobStatus.RUNNING and self.finished_at is None

    @property
    def has_ended(self) -> bool:
        return self.finished_at is not None

    @property
    def permanently_failed(self) -> bool:
        return self.decision is Decision.PERMANENT

    @property
    def state(self) -> State:
        """A pure function of stored columns, never of the clock."""
        if self.status is JobStatus.CANCELLED:
            return State.CANCELLED
        if self.status is JobStatus.QUEUED:
            return State.QUEUED if self.is_ready else State.WAITING
        if self.outcome is None:
            return State.RUNNING
        return State(self.outcome.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What happened when a job ran: exactly one per job that was dispatched (DEC-001)."""

    run_id: str
    job_id: str
    params_snapshot: Mapping[str, Json]
    started_at: Instant
    template_id: str | None = None
    status: RunStatus | None = None
    timeout_at: Instant | None = None
    finished_at: Instant | None = None
    exit_code: int | None = None
    error: str | None = None
    failure_kind: FailureKind | None = None
    reason: str | None = None
    log_path: str | None = None
    session_id: str | None = None
    result: Json = None
    artifacts: tuple["Artifact", ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A file that a run produced; `path` is relative to the artifacts directory."""

    name: str
    path: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    group_id: str
    office_id: str
    mode: GroupMode
    on_failure: OnFailure
    status: GroupStatus
    created_at: Instant
    name: str | None = None
    started_at: Instant | None = None
    finished_at: Instant | None = None
    # A member counts by the last job of its chain.
    members: int = 0
    ended: int = 0
    succeeded: int = 0
    cancelled: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    seq: int
    type: str
    office_id: str | None
    job_id: str | None
    run_id: str | None
    details: Mapping[str, Json]
    timestamp: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended, as the executor saw it: a value, made by one of the three named constructors."""

    status: RunStatus
    result: Json = None
    error: str | None = None
    failure_kind: FailureKind | None = None
    reason: str | None = None
    exit_code: int | None = None
    log_path: str | None = None
    session_id: str | None = None
    artifacts: tuple[Artifact, ...] = ()

    @classmethod
    def completed(cls, result: Json = None) -> "Outcome":
        return _COMPLETED if result is None else cls(status=RunStatus.COMPLETED, result=result)

    @classmethod
    def failed(cls, kind: FailureKind, error: str, exit_code: int | None = None) -> "Outcome":
        return cls(status=RunStatus.FAILED, failure_kind=kind, error=error, exit_code=exit_code)

    @classmethod
    def skipped(cls, reason: str) -> "Outcome":
        return cls(status=RunStatus.SKIPPED, reason=reason)


_COMPLETED = Outcome(status=RunStatus.COMPLETED)


class DirectStatus(StrEnum):
    WAITING = "WAITING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"
    # Left, or sent away, before its work began.
    CANCELLED = "CANCELLED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Direct:
    """A caller who waited on the line: what was asked for, and how it ended. Never a job."""

    direct_id: str
    node_id: str
    office_id: str
    lane_id: int
    job_type: str
    params: Mapping[str, Json]
    status: DirectStatus
    is_detached: bool
    timeout_seconds: float
    created_at: Instant
    wait_until: Instant
    stall_timeout_seconds: float | None = None
    created_by: str | None = None
    started_at: Instant | None = None
    timeout_at: Instant | None = None
    finished_at: Instant | None = None
    worker_id: str | None = None
    exit_code: int | None = None
    error: str | None = None
    failure_kind: FailureKind | None = None
    reason: str | None = None
    log_path: str | None = None
    session_id: str | None = None
    result: Json = None
    artifacts: tuple[Artifact, ...] = ()

    @property
    def waited_seconds(self) -> float | None:
        until = self.started_at or self.finished_at
        return None if until is None else (until - self.created_at) / 1_000_000

    @property
    def ran_seconds(self) -> float | None:
        if self.started_at is None or self.finished_at is None:
            return None
        return (self.finished_at - self.started_at) / 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """The stored fact that a direct request holds an office's next slot."""

    reservation_id: str
    direct_id: str | None
    office_id: str
    reserved_at: Instant
    reserved_by: str
    expires_at: Instant
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine that shares the database: `live`, `draining`, `left` in good order, or `lost`."""

    node_id: str
    life: int
    status: str
    is_leader: bool
    running: int
    host: str
    pid: int
    version: str
    # How many it runs at once; 0: no limit of its own.
    max_running: int
    resources: Mapping[str, int]
    job_types: tuple[str, ...]
    joined_at: Instant
    renewed_at: Instant
    lease_until: Instant | None
    ended_at: Instant | None

    @property
    def is_live(self) -> bool:
        return self.ended_at is None


class ChainEnd(StrEnum):
    """How a chain ended: what dependents and groups go by."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class CatchUp(StrEnum):
    """What becomes of the occurrences that nobody was there for."""

    LATEST = "latest"
    ALL = "all"
    NONE = "none"


class Overlap(StrEnum):
    ALLOW = "allow"
    SKIP = "skip"


class SkipReason(StrEnum):
    """Why an occurrence made no job."""

    MISSED = "missed"
    COALESCED = "coalesced"
    OVERLAP = "overlap"
    DISABLED = "disabled"
    OUTSIDE_WINDOW = "outside_window"
    # Its job could not be made as things stand: `detail` says why.
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A reusable job definition. None means: not said, take the default of the type or the office."""

    template_id: str
    name: str
    job_type: str
    params: Mapping[str, Json] = field(default_factory=dict)
    priority: int = 0
    timeout_seconds: float | None = None
    retry_policy: Mapping[str, Json] | None = None
    resources: Mapping[str, int] | None = None
    webhook: Mapping[str, Json] | None = None
    description: str | None = None
    created_at: Instant
    archived_at: Instant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A cron expression in a time zone that makes jobs from a template.

    Every occurrence up to `accounted_until` is in the ledger; `next_trigger_at` is the first one after it.
    """

    schedule_id: str
    template_id: str
    name: str
    cron_expression: str
    timezone: str = "UTC"
    enabled: bool = True
    office_id: str = DEFAULT_OFFICE
    param_overrides: Mapping[str, Json] | None = None
    catch_up: CatchUp = CatchUp.LATEST
    catch_up_window_seconds: float = 86400
    overlap: Overlap = Overlap.ALLOW
    priority: int | None = None
    last_triggered_at: Instant | None = None
    next_trigger_at: Instant | None = None
    accounted_until: Instant
    created_at: Instant
    deleted_at: Instant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """What became of a planned instant, or of `count` of them from `instant` to `until`."""

    schedule_id: str
    instant: Instant
    until: Instant | None = None
    count: int = 1
    outcome: str
    reason: SkipReason | None = None
    detail: str | None = None
    job_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Upcoming:
    """An occurrence that is still to come, and what the clock on the wall of its zone will show."""

    instant: Instant
    local: datetime


class Scope(StrEnum):
    """What a key may do; each includes those before it."""

    READ = "read"
    SUBMIT = "submit"
    OPERATE = "operate"
    ADMIN = "admin"

    def includes(self, other: "Scope") -> bool:
        return _SCOPES.index(self) >= _SCOPES.index(other)


_SCOPES = list(Scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """An API key; what its holder sends is shown once and never stored, only its digest."""

    key_id: str
    name: str
    scope: Scope
    office_id: str | None = None
    created_by: str | None = None
    created_at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Who asks for a change through the API, and for which."""

    name: str
    key_id: str | None
    action: str
    target: str
    office_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """Who changed what, and when; of a setting also what it was and what it became."""

    audit_id: str
    timestamp: Instant
    actor: str
    key_id: str | None
    action: str
    target: str
    office_id: str | None
    details: Mapping[str, Json] | None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list; `next_cursor` asks for the part after it, and is None at the end of the list.

    A page may hold fewer items than were asked for, even none, and still not be the last: a search looks at so many
    rows at a time, not at the whole history.
    """

    items: tuple[T, ...]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """A job, and its place in its chain, from 1."""

    job: Job
    attempt: int


@dataclass(frozen=True, slots=True)
class JobDetail:
    """A job with its run and its whole chain, all of one moment; `attempts` are the places in the chain, by job."""

    job: Job
    attempt: int
    run: Run | None
    chain: tuple[Job, ...]
    attempts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Placed:
    """A queued job, and its place in its office's queue, from 1."""

    job: Job
    attempt: int
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePage:
    """An office's queue from some place on, and what holds it up, all of one moment."""

    office_id: str
    is_paused: bool
    running: tuple[Listed, ...]
    queue: tuple[Placed, ...]
    next_cursor: str | None
    reservation: Reservation | None
    direct_waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OfficeStatus:
    """How much an office has to do; `oldest_queued_at` is since when the oldest job that is free to go exists."""

    office_id: str
    is_paused: bool
    queued: int = 0
    waiting: int = 0
    running: int = 0
    oldest_queued_at: Instant | None = None
    direct_waiting: int = 0
    direct_running: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """A resource that does not answer."""

    resource: str
    since: Instant
    next_probe_at: Instant | None
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStatus:
    """What is going on, at one moment. `paused` has (scope, name) of all but offices, which say so themselves."""

    now: Instant
    offices: tuple[OfficeStatus, ...]
    limits: tuple[Limit, ...]
    paused: tuple[tuple[str, str], ...]
    held: tuple[Held, ...]
    last_event: int


class DeliveryStatus(StrEnum):
    PENDING = "PENDING"
    DELIVERED = "DELIVERED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A subscription: which events of which office (none: of all) go to a URL. Its secrets are kept elsewhere."""

    webhook_id: str
    url: str
    events: tuple[str, ...]
    office_id: str | None = None
    enabled: bool = True
    disabled_reason: str | None = None
    # Until then the secret before the last rotation signs too.
    old_secret_until: Instant | None = None
    created_by: str | None = None
    created_at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try to deliver: what was answered, or why nothing was."""

    number: int
    attempted_at: Instant
    duration_seconds: float
    status_code: int | None = None
    error: str | None = None
    answer: str | None = None
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One webhook message to one URL, with its attempts. `delivery_id` is its `webhook-id`."""

    delivery_id: str
    url: str
    event: str
    seq: int
    status: DeliveryStatus
    # Whose secrets sign it: `server`, and subscriptions by id.
    signers: tuple[str, ...]
    is_own: bool
    body: str
    headers: Mapping[str, str]
    created_at: Instant
    office_id: str | None = None
    job_id: str | None = None
    # Attempts of this round: sending it again by hand begins a new one.
    tries: int = 0
    next_attempt_at: Instant | None = None
    finished_at: Instant | None = None
    reason: str | None = None
    attempts: tuple[Attempt, ...] = ()

    @property
    def webhook_id(self) -> str | None:
        """The first subscription that it is for."""
        return next((one for one in self.signers if one != "server"), None)


class Confidence(StrEnum):
    """How sure a forecast is; NONE where there is none."""

    NONE = "none"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """When a job is expected to start and to end, as far as that can be said."""

    expected_start: Instant | None = None
    expected_end: Instant | None = None
    confidence: Confidence = Confidence.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is expected of an office's running jobs and of the first of its queue; `jobs` by id, direct callers too."""

    office_id: str
    made_at: Instant
    jobs: Mapping[str, Expected]
    # Whether the whole queue was looked at, and when not: how many of it, and the last start among them.
    is_whole: bool = True
    places: int = 0
    last_start: Instant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One thing that keeps a job from starting: a word for programs, a sentence for people, and the data behind it."""

    code: str
    text: str
    data: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """Why a job is not running, and when it will; `ahead` are the jobs before it in its office's queue."""

    job_id: str
    state: State
    reasons: tuple[Reason, ...]
    ahead: int
    expected: Expected
