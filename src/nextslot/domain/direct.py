"""Direct requests, whose callers wait for the result, and the slots reserved for them."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Generic, Literal

from nextslot.system.instant import Instant

from .bounds import Json
from .declared_values import At, Id, Internal, Later, Says, Value
from .runs import Artifact, OutcomeFields


class DirectStatus(StrEnum):
    WAITING = "WAITING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"
    # The caller disconnected or was refused before the work began.
    CANCELLED = "CANCELLED"


class DirectFields(OutcomeFields, Generic[At]):
    """The request of a direct caller, and its outcome. It never becomes a job."""

    FIRST = ("direct_id", "run_id", "job_type", "status")

    run_id: Id
    direct_id: Annotated[str, Says("The id that the caller chose, unique in the office; otherwise the `run_id`")]
    office_id: str
    job_type: str
    params: Mapping[str, Json]
    status: Later[DirectStatus]
    timeout_seconds: float
    created_at: At
    wait_until: At
    stall_timeout_seconds: float | None = None
    created_by: str | None = None
    started_at: Later[At | None] = None
    timeout_at: Later[At | None] = None
    finished_at: Later[At | None] = None
    worker_id: Later[str | None] = None
    devices: Annotated[Later[Mapping[str, Json] | None], Says("The named devices that the work had, by resource")] = (
        None
    )
    artifacts: Later[tuple[Artifact, ...]] = ()
    silent_since: Annotated[
        Later[At | None],
        Says("Since when the work has written no output and reported no progress; set only after the alarm"),
    ] = None


class Direct(DirectFields[Instant]):
    """A direct request, with its node and lane."""

    WORKED_OUT = ("detach", "waited_seconds", "ran_seconds")

    node_id: Internal[str]
    lane_id: Internal[int]
    is_detached: Internal[bool]

    @property
    def detach(self) -> bool:
        return self.is_detached

    @property
    def waited_seconds(self) -> float | None:
        until = self.started_at or self.finished_at
        return None if until is None else (until - self.created_at) / 1_000_000

    @property
    def ran_seconds(self) -> float | None:
        if self.started_at is None or self.finished_at is None:
            return None
        return (self.finished_at - self.started_at) / 1_000_000


class Reservation(Value, Generic[At]):
    """The reservation of an office's next slot for a direct request."""

    reservation_id: Id
    run_id: str | None
    office_id: str
    reserved_at: At
    reserved_by: str
    expires_at: At
    status: Literal["ACTIVE", "RELEASED", "EXPIRED"]
