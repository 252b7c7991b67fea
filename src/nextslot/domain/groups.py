"""Groups of jobs, sequential or parallel."""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Generic

from nextslot.system.instant import Instant

from .bounds import Json
from .declared_values import At, Id, InternalLater, Says, Value
from .jobs import DEFAULT_OFFICE, Job, NewJob


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


class NewGroup(Value):
    """A request for a group: its jobs in order, or a template that has them.

    `params` and `priority` go to every job of the template. A group whose jobs are here and that names a template was
    completed by it.
    """

    jobs: Sequence[NewJob] = ()
    mode: GroupMode | None = None
    on_failure: OnFailure | None = None
    name: str | None = None
    # The group's own webhook, which gets one message when all jobs have ended.
    webhook: Mapping[str, Json] | None = None
    template_id: str | None = None
    schedule_id: str | None = None
    office_id: str = DEFAULT_OFFICE
    params: Mapping[str, Json] | None = None
    priority: int | None = None
    created_by: str | None = None


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
    template_id: Annotated[str | None, Says("The template that made it")] = None
    schedule_id: Annotated[str | None, Says("The schedule that made it")] = None
    # The stored arguments (`reason`, `interrupt`) of a cancel that continues in small transactions.
    cancel_request: InternalLater[Mapping[str, Json] | None] = None


class GroupDetail(Group[Instant]):
    """A group with its jobs, by place. It also unpacks: `group, jobs = …`."""

    jobs: tuple[Job, ...]

    @classmethod
    def of(cls, group: Group[Instant], jobs: Sequence[Job]) -> "GroupDetail":
        return cls(**group.__dict__, jobs=tuple(jobs))

    def __iter__(self) -> Iterator[Any]:
        yield Group(**{name: self.__dict__[name] for name in Group._names})
        yield list(self.jobs)
