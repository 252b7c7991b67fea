"""Jobs: what is asked for and what becomes of it; their statuses, and which moves between them are legal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from nextslot.system.clock import Instant

from .failures import Decision, RetryPolicy
from .json_types import Json
from .runs import RunStatus

MAX_PRIORITY = 999_999
URGENT = 1_000_000
DEFAULT_OFFICE = "default"


class JobStatus(StrEnum):
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    CANCELLED = "CANCELLED"


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


class CancelMode(StrEnum):
    FINISH = "finish"
    INTERRUPT = "interrupt"


class OnDependencyFailure(StrEnum):
    WAIT = "wait"
    CANCEL = "cancel"


class ChainEnd(StrEnum):
    """How a chain ended: what dependents and groups go by."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


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
