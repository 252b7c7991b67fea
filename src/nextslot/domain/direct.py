"""Direct requests: callers who wait on the line, and the slot that is kept for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from nextslot.system.clock import Instant

from .failures import FailureKind
from .json_types import Json
from .runs import Artifact


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
