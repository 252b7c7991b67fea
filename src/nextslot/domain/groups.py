"""Groups: jobs that belong together, one after the other or side by side."""

from dataclasses import dataclass
from enum import StrEnum

from nextslot.system.clock import Instant


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
