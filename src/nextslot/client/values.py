"""What comes back: frozen values with the names of the API, read from its JSON by their declarations.

A value that the scheduler has too is declared there (`model`), and is completed here by what the server works out. A
field that an older server does not send is None; what a newer one sends besides is in `json`, the answer as it came.
A status or kind that this library does not know yet stays a plain text, and breaks nothing.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Self, TypeVar

from nextslot import domain
from nextslot.domain.declared_values import (
    Value,
    declared,
    is_time,
    is_words,
    item_of,
)

T = TypeVar("T")
Json = Mapping[str, Any]


class ClientValue(Value):
    json: Json = field(repr=False, compare=False)

    @classmethod
    def read(cls, json: Json) -> Self:
        return cls(json=json, **{name: read(json.get(name)) for name, read in _readers(cls).items()})  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON form, as the server sent it."""
        return dict(self.json)


@functools.cache
def _readers(kind: Any) -> dict[str, Callable[[Any], Any]]:
    return {one.name: _reader(one.type, one.is_optional) for one in declared(kind) if one.name != "json"}


def _reader(kind: Any, is_optional: bool = True) -> Callable[[Any], Any]:
    """How a value of this declared type is read; None stays None."""
    if (item := item_of(kind)) is not None:
        read = _reader(item)
        none = None if is_optional else ()
        return lambda value: none if value is None else tuple(read(one) for one in value)
    if kind is datetime or is_time(kind):
        return lambda value: None if value is None else datetime.fromisoformat(value)
    if is_words(kind):
        words = {word.value: word for word in kind}
        return lambda value: words.get(value, value)
    if isinstance(kind, type) and issubclass(kind, ClientValue):
        return lambda value: None if value is None else kind.read(value)
    if isinstance(kind, type) and issubclass(kind, Value):
        return lambda value: None if value is None else _part(kind, value)
    return lambda value: value


def _part(kind: Any, json: Json) -> Any:
    """A value inside of another, of what the server sends of it."""
    return kind(**{name: read(json[name]) for name, read in _readers(kind).items() if name in json})


@dataclass(frozen=True)
class Page(Generic[T]):
    """A part of a list; `next_cursor` asks for the part after it. A page may be empty and still not be the last."""

    items: tuple[T, ...]
    next_cursor: str | None
    json: Json = field(repr=False, compare=False)


class Job(ClientValue, domain.JobFields[datetime]):
    """A job, and its place in its chain, from 1."""

    status: str
    attempt: int
    permanently_failed: bool


class Progress(ClientValue):
    fraction: float | None
    text: str


class Run(ClientValue, domain.Run[datetime]):
    """`progress` is there only while it runs, and only if it was asked for by its id."""

    progress: Progress | None


class JobDetail(Job):
    """A job with its run, and its whole chain from the root on."""

    run: Run | None
    chain: tuple[Job, ...]


class QueuedJob(Job):
    place: int
    expected_start: datetime | None
    expected_end: datetime | None


class Reservation(ClientValue, domain.Reservation[datetime]):
    """The slot that is kept for a caller on the line."""


class Queue(ClientValue):
    office_id: str
    paused: bool
    running: tuple[Job, ...]
    queue: tuple[QueuedJob, ...]
    next_cursor: str | None
    reservation: Reservation | None
    direct_waiting: int


class Paused(ClientValue):
    """What is paused now."""

    scheduler: bool
    offices: tuple[str, ...]
    job_types: tuple[str, ...]
    resources: tuple[str, ...]


class Reason(ClientValue, domain.Reason):
    pass


class Why(ClientValue):
    status: str
    reasons: tuple[Reason, ...]
    ahead: int | None
    expected_start: datetime | None
    expected_end: datetime | None
    confidence: str


class Cancelled(ClientValue):
    """How many were cancelled, told to stop, or left to finish."""

    cancelled: int
    stopping: int
    finishing: int


class Retried(ClientValue):
    retried: int


@dataclass(frozen=True)
class Ended:
    """How a chain ended: its last job, and that job's run if it had one."""

    job: JobDetail

    @property
    def run(self) -> Run | None:
        return self.job.run

    @property
    def status(self) -> str:
        return self.job.status

    @property
    def is_success(self) -> bool:
        return self.status in ("COMPLETED", "SKIPPED")

    @property
    def result(self) -> Any:
        return self.run.result if self.run else None

    @property
    def error(self) -> str | None:
        return self.run.error if self.run else self.job.cancel_reason


class JobType(ClientValue):
    job_type: str
    params_schema: Json
    resources: Mapping[str, int]
    timeout_seconds: float | None
    stall_timeout_seconds: float | None
    retry_policy: Json | None


class Direct(ClientValue, domain.DirectFields[datetime]):
    detach: bool
    waited_seconds: float | None
    ran_seconds: float | None
    log: str | None


@dataclass(frozen=True)
class Update:
    """What a caller on the line hears: `place`, `started`, `progress`, `output`, and last `result` (with `direct`)."""

    kind: str
    data: Json
    direct: Direct | None = None


class Group(ClientValue, domain.Group[datetime]):
    """A group, and how far it is."""


class GroupDetail(Group):
    jobs: tuple[Job, ...]


class GroupCancelled(Group):
    """`stopping` and `finishing` are the members that run: told to stop, or left to finish."""

    stopping: tuple[str, ...]
    finishing: tuple[str, ...]


class Template(ClientValue, domain.Template[datetime]):
    """A reusable job definition."""


class Schedule(ClientValue, domain.ScheduleFields[datetime]):
    cron_words: str | None


class Upcoming(ClientValue):
    utc: datetime
    local: str


class Preview(ClientValue):
    """What an expression means, and when it would fire."""

    cron_words: str
    items: tuple[Upcoming, ...]


class Occurrence(ClientValue, domain.Occurrence[datetime]):
    """What became of a planned instant, or of several."""


class Webhook(ClientValue, domain.Webhook[datetime]):
    """`secret` is there only when it is new."""

    secret: str | None


class Attempt(ClientValue, domain.Attempt[datetime]):
    """One try to deliver."""


class Delivery(ClientValue, domain.DeliveryFields[datetime]):
    webhook_id: str | None
    attempts: tuple[Attempt, ...]


class Event(ClientValue, domain.Event[datetime]):
    """What happened, numbered."""


class Key(ClientValue, domain.KeyFields[datetime]):
    """An API key. `key`, the text that its holder sends, is there only when it is new."""

    scopes: tuple[str, ...]
    key: str | None


class Node(ClientValue, domain.Node[datetime]):
    """A machine that shares the database: `live`, `draining`, `left` in good order, or `lost`."""


class Me(ClientValue):
    """Who asks, as the server sees it. `last_event` is where to begin for who wants only what comes."""

    name: str
    key_id: str | None
    scopes: tuple[str, ...]
    office_id: str | None
    last_event: int
    extensions: tuple[str, ...]


class AuditEntry(ClientValue, domain.AuditEntry[datetime]):
    """Who changed what, and when."""


class Office(ClientValue, domain.OfficeFields[datetime]):
    pass


class Execution(ClientValue):
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


class OfficeJob(ClientValue):
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


class OfficeStats(ClientValue):
    office_id: str | None
    pending: int
    ready: int
    processing: int
    done: int
    failed: int
    cancelled: int
    avg_completion_time: float | None


class OfficeConfig(ClientValue):
    """In camelCase, as the API has it."""

    maxConcurrentJobs: int  # noqa: N815
    maxConcurrentByRole: Mapping[str, int]  # noqa: N815
    defaultTimeout: float | None  # noqa: N815
    maxRetries: int  # noqa: N815
    retryBackoff: str  # noqa: N815
    retryBaseDelay: float  # noqa: N815


class OfficeEvent(ClientValue):
    type: str
    job_id: str | None
    office_id: str | None
    details: Json
    timestamp: datetime


class OfficeEvents(ClientValue):
    """`next_cursor` leads to the next page; who comes back later asks from `next_after` on."""

    items: tuple[OfficeEvent, ...]
    next_cursor: str | None
    next_after: int


class OfficeStatus(ClientValue, domain.OfficeStatus[datetime]):
    pass


class Limit(ClientValue):
    limit: str
    capacity: int
    used: int


class Held(ClientValue, domain.Held[datetime]):
    """A resource that does not answer."""


class Status(ClientValue):
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
