"""Groups of jobs, sequential or parallel."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Generic

from .bounds import Json
from .declared_values import At, Id, InternalLater, Says, Value


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


class Group(Value, Generic[At]):
    group_id: Id
    office_id: str
    mode: GroupMode
    on_failure: OnFailure
    status: GroupStatus
    created_at: At
    name: str | None = None
    started_at: At | None = None
    finished_at: At | None = None
    # A member counts by the last job of its chain.
    members: int = 0
    ended: Annotated[int, Says("How many members have ended; a member counts by the last job of its chain")] = 0
    succeeded: int = 0
    cancelled: int = 0
    # What a cancel asked for that goes on in small transactions: `reason` and `interrupt`.
    cancel_request: InternalLater[Mapping[str, Json] | None] = None
