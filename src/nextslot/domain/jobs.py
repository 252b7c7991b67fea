"""The values of jobs: requests, stored jobs, their statuses and the legal transitions."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal

from nextslot.errors import Invalid
from nextslot.system.instant import Instant

from .bounds import MAX_PRIORITY, URGENT, Affinity, Json, LimitKeys, Name, Priority, Seconds, Text, Title, must_be
from .declared_values import At, Id, Internal, InternalLater, Later, Says, Value
from .failures import Decision
from .retry_policy import RetryPolicy
from .runs import RunStatus
from .signals import SignalSetting
from .webhooks import WebhookSetting

if TYPE_CHECKING:
    # Callers may give jobs too; `services/arguments.py` makes ids of them.
    JobIds = Sequence["AnyJob"]
else:
    JobIds = Sequence[str]

DEFAULT_OFFICE = "default"


def order_priority(priority: int, steps: int) -> int:
    """Returns the priority used for ordering. With any number of steps, a job stays behind urgent ones."""
    return priority if priority == URGENT else min(priority + steps, MAX_PRIORITY)


class Stage(StrEnum):
    """The stored stage of a job. Readers see its `JobStatus` instead."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    CANCELLED = "CANCELLED"


class JobStatus(StrEnum):
    """The status of a job, from its stage, what holds it back, and how its run ended."""

    WAITING = "WAITING"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"
    CANCELLED = "CANCELLED"


# Spec 2.9: the only transitions; no job returns to QUEUED. The database enforces the same table.
TRANSITIONS: Mapping[Stage, frozenset[Stage]] = {
    Stage.QUEUED: frozenset({Stage.RUNNING, Stage.CANCELLED}),
    Stage.RUNNING: frozenset({Stage.CANCELLED}),
    Stage.CANCELLED: frozenset(),
}


class CancelMode(StrEnum):
    FINISH = "finish"
    INTERRUPT = "interrupt"


class OnDependencyFailure(StrEnum):
    WAIT = "wait"
    CANCEL = "cancel"


class ChainEnd(StrEnum):
    """How a chain ended. Dependents and groups depend on it."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobRequest(Value, Generic[At]):
    """The fields of a request that its job keeps unchanged."""

    template_id: Annotated[Name | None, Says(asked="Required unless `job_type` is given")] = None
    schedule_id: Text | None = None
    scheduled_for: Annotated[At | None, Says(asked="The job starts no earlier than this")] = None
    expires_at: Annotated[At | None, Says(asked="The job is cancelled if it has not started by then")] = None
    role: Text | None = None
    task_id: Text | None = None
    title: Title | None = None
    timeout_seconds: Seconds | None = None
    stall_timeout_seconds: Seconds | None = None
    affinity: Annotated[
        Affinity | None,
        Says("What its resource should have loaded, such as a model: jobs that need the same go together"),
    ] = None
    limit_keys: Annotated[
        LimitKeys | None,
        Says(
            "Of the jobs of its office with the same key, such as `customer:7`, so many run at once as the "
            "configuration says"
        ),
    ] = None
    webhook: WebhookSetting = None
    await_signal: SignalSetting = None
    unique_key: Annotated[Text | None, Says(asked="If a job with this key has not ended, the answer is that job")] = (
        None
    )
    created_by: Text | None = None

    def kept(self) -> dict[str, Json]:
        """Returns these fields, for another job or request with the same values."""
        return {name: self.__dict__[name] for name in JobRequest._names}


class NewJob(JobRequest[Instant]):
    """A request for a job. None means not given: the template, the type or the office has the default."""

    job_type: Annotated[Text | None, Says(examples=("thumbnail",))] = None
    params: Annotated[Mapping[str, Json], Says(examples=({"path": "a.png", "size": 256},))] = field(
        default_factory=dict
    )
    office_id: Name = DEFAULT_OFFICE
    key: Annotated[Text | None, Says("A name for `depends_on` of other jobs in the same request")] = None
    priority: Priority | None = None
    urgent: Annotated[bool, Says("The job starts before all others in its office")] = False
    depends_on: Annotated[JobIds, Says("Jobs of the same office, or keys of the same request")] = ()
    on_dependency_failure: OnDependencyFailure | None = None
    resources: Annotated[Mapping[str, int] | Sequence[str] | None, Says("Added to the resources of the job type")] = (
        None
    )
    retry_policy: Mapping[str, Json] | RetryPolicy | None = None


class JobFields(JobRequest[At]):
    """The fields of a job that every reader sees."""

    job_id: Id
    office_id: str
    job_type: str
    params: Mapping[str, Json]
    priority: Annotated[int, Says("Higher goes first; 1,000,000 is urgent")]
    position: Annotated[int, Says("Among jobs of the same priority and age, the lower position goes first")]
    created_at: At
    queued_at: At
    retry_policy: RetryPolicy
    on_dependency_failure: OnDependencyFailure
    resources: Mapping[str, int]
    depends_on: tuple[str, ...] = ()
    group_id: str | None = None
    sequence: Annotated[int | None, Says("Its place in its group, from 0")] = None
    retry_of: str | None = None
    webhook_status: Literal["none", "pending", "delivered", "failed"] = "none"
    asked_at: Annotated[Later[At | None], Says("Since when the job waits for nothing but its signal")] = None
    answer_by: Annotated[Later[At | None], Says("When the signal gets its default answer")] = None
    started_at: Later[At | None] = None
    finished_at: Later[At | None] = None
    cancel_requested_at: Later[At | None] = None
    cancel_mode: Later[CancelMode | None] = None
    cancelled_at: Later[At | None] = None
    cancel_reason: Later[str | None] = None
    worker_id: Later[str | None] = None
    error_line: Annotated[Later[str | None], Says("If it failed: the beginning of the error, on one line")] = None
    fingerprint: Annotated[Later[str | None], Says("If it failed: the same for failures that are alike")] = None
    aged_steps: Later[
        Annotated[int, Says("Added to `priority` when jobs are ordered: one for each period that the job was ready")]
    ] = 0


# A job, or the id of a job.
AnyJob = str | JobFields[Any]


def id_of(job: AnyJob, field: str = "job_id") -> str:
    """Returns the id, given a job or its id."""
    if isinstance(job, JobFields):
        return job.job_id
    if not isinstance(job, str):
        raise Invalid(must_be(job, "a job, or the id of one"), field=field)
    return job


class Job(JobFields[Instant]):
    """One intent to run something, once."""

    FIRST = ("job_id", "job_type", "status", "office_id", "title", "params", "priority", "aged_steps")
    WORKED_OUT = ("status", "permanently_failed", "awaiting")

    chain_id: Internal[str]
    lane_id: Internal[int]
    # The statement that inserts a job sets QUEUED.
    stage: InternalLater[Stage]
    outcome: InternalLater[RunStatus | None] = None
    decision: InternalLater[Decision | None] = None
    # What holds the job back: the number of unmet prerequisites (its signal included), its start time, its turn in its
    # group.
    unmet: Internal[int] = 0
    is_due: Internal[bool] = True
    is_turn: Internal[bool] = True
    # Whether the job still waits for its signal.
    is_awaiting: Internal[bool] = False
    passed_over_since: InternalLater[Instant | None] = None
    # When the job gets its next step.
    ages_at: InternalLater[Instant | None] = None

    @property
    def order_priority(self) -> int:
        """Returns what the order goes by (INV-004); the column of this name is computed in the same way."""
        return order_priority(self.priority, self.aged_steps)

    @property
    def is_ready(self) -> bool:
        return self.stage is Stage.QUEUED and self.unmet == 0 and self.is_due and self.is_turn

    @property
    def is_asking(self) -> bool:
        """Returns whether the job waits for nothing but its signal."""
        return self.stage is Stage.QUEUED and self.is_awaiting and self.unmet == 1 and self.is_due and self.is_turn

    @property
    def awaiting(self) -> dict[str, Json] | None:
        """Returns the signal that the job waits for, as readers see it."""
        if self.stage is not Stage.QUEUED or not self.is_awaiting or self.await_signal is None:
            return None
        times = {"asked_at": self.asked_at, "answer_by": self.answer_by}
        return {**self.await_signal, **{name: None if at is None else str(at) for name, at in times.items()}}

    @property
    def is_running(self) -> bool:
        return self.stage is Stage.RUNNING and self.finished_at is None

    @property
    def has_ended(self) -> bool:
        return self.finished_at is not None

    @property
    def permanently_failed(self) -> bool:
        return self.decision is Decision.PERMANENT

    @property
    def status(self) -> JobStatus:
        is_free = self.unmet == 0 and self.is_due and self.is_turn
        return status_of(self.stage, self.outcome, is_free)


@cache
def status_of(stage: Stage, outcome: RunStatus | None, is_free: bool) -> JobStatus:
    """Returns the status of a job from its stored fields, never from the clock. `is_free`: nothing holds it back."""
    if stage == Stage.CANCELLED:
        return JobStatus.CANCELLED
    if stage == Stage.QUEUED:
        return JobStatus.QUEUED if is_free else JobStatus.WAITING
    return JobStatus.RUNNING if outcome is None else JobStatus(str(outcome))
