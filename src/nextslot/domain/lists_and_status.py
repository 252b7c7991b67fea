"""The answers of reads, each of one moment: pages, jobs with their places, the status of the scheduler."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from nextslot.system.instant import Instant

from .declared_values import At, Says, Value
from .direct import Reservation
from .jobs import Job
from .offices import Limit
from .runs import Checkpoint, Run

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list; `next_cursor` is the cursor of the next part, None at the end.

    A page that is not the last may hold fewer items than requested, even none: a search reads a bounded number of rows.
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
    """A job with its run, its whole chain and the chain's last checkpoint, all as of one moment; `attempts` maps each
    job of the chain to its place."""

    job: Job
    attempt: int
    run: Run | None
    chain: tuple[Job, ...]
    attempts: Mapping[str, int]
    checkpoint: Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """A queued job, and its place in its office's queue, from 1."""

    job: Job
    attempt: int
    place: int


class QueuePage(Value):
    """A part of an office's queue, its running jobs and its reservation; `paused_by`: `scheduler`, `office` or both."""

    office_id: str
    paused_by: tuple[str, ...]
    running: tuple[Listed, ...]
    queue: tuple[Placed, ...]
    next_cursor: str | None
    reservation: Reservation | None
    direct_waiting: int

    @property
    def is_paused(self) -> bool:
        return bool(self.paused_by)


class OfficeStatus(Value, Generic[At]):
    """How much an office has to do; `oldest_queued_at` is when its oldest job that is free to start was created."""

    office_id: str
    paused: bool
    queued: Annotated[int, Says("Ready jobs, which wait only for order and limits")] = 0
    waiting: int = 0
    running: int = 0
    oldest_queued_at: At | None = None
    direct_waiting: int = 0
    direct_running: int = 0


class Held(Value, Generic[At]):
    """A resource that does not answer, or whose quota is used up."""

    resource: str
    since: At
    next_probe_at: Annotated[At | None, Says("When the resource is tried again")]
    failures: int
    quota_until: Annotated[
        At | None, Says("When the quota is renewed, if the resource is held because its quota is used up")
    ] = None


class SchedulerStatus(Value):
    """The status of the scheduler. `paused` has pairs of scope and name, without offices."""

    now: Instant
    offices: tuple[OfficeStatus, ...]
    limits: tuple[Limit, ...]
    paused: tuple[tuple[str, str], ...]
    held: tuple[Held, ...]
    last_event: int
