"""The values that the client returns, with the names of the API, read from JSON by their declarations.

A value that the scheduler has too is declared in `nextslot.domain`; this module adds the fields that the server
computes. A field that an older server does not send is None. `json` is the whole answer, including fields that only a
newer server sends. A status or kind that this library does not know stays text.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Self, TypeVar

from nextslot import domain
from nextslot.domain import placements
from nextslot.domain.declared_values import Value, declared, is_time, is_words, item_of

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
    """Returns the function that reads a value of a declared type. It keeps None, or returns () for a required tuple."""
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
    """Makes a nested value from the fields that the server sends."""
    return kind(**{name: read(json[name]) for name, read in _readers(kind).items() if name in json})


@dataclass(frozen=True)
class Page(Generic[T]):
    """A part of a list; `next_cursor` is the cursor of the next part. An empty page may not be the last one."""

    items: tuple[T, ...]
    next_cursor: str | None
    json: Json = field(repr=False, compare=False)


class Job(ClientValue, domain.JobFields[datetime]):
    """A job, and its attempt number in its chain, from 1."""

    status: str
    attempt: int
    permanently_failed: bool
    awaiting: Json | None


class Signal(ClientValue, domain.Signal[datetime]):
    """An answer to a signal that a chain waits for, or one that is kept for it."""


class Progress(ClientValue):
    fraction: float | None
    text: str


class Run(ClientValue, domain.Run[datetime]):
    """A run; only `run_by_id` returns its `progress`, while it runs."""

    progress: Progress | None


class Checkpoint(ClientValue, domain.Checkpoint[datetime]):
    """What a run has stored for the next attempt of its chain."""


class JobDetail(Job):
    """A job with its run, the last checkpoint of its chain, and the whole chain from the root on."""

    run: Run | None
    checkpoint: Checkpoint | None
    chain: tuple[Job, ...]


class QueuedJob(Job):
    place: int
    expected_start: datetime | None
    expected_end: datetime | None


class Reservation(ClientValue, domain.Reservation[datetime]):
    """The slot that is reserved for a direct caller."""


class Queue(ClientValue):
    office_id: str
    paused: bool
    paused_by: tuple[str, ...]
    running: tuple[Job, ...]
    queue: tuple[QueuedJob, ...]
    next_cursor: str | None
    reservation: Reservation | None
    direct_waiting: int
    forecast_at: datetime | None


class Paused(ClientValue):
    """What is paused now."""

    scheduler: bool
    offices: tuple[str, ...]
    job_types: tuple[str, ...]
    resources: tuple[str, ...]


class Released(ClientValue):
    """A resource whose hold was ended."""

    resource: str


class Reason(ClientValue, domain.Reason):
    pass


class Why(ClientValue):
    status: str
    reasons: tuple[Reason, ...]
    ahead: int | None
    expected_start: datetime | None
    earliest_start: datetime | None
    latest_start: datetime | None
    expected_end: datetime | None
    confidence: str
    forecast_at: datetime | None


class DryRun(Why):
    """What a job would wait for, and when it would run; `job` names no stored job unless `is_new` is false."""

    job: Job
    is_new: bool


class Cancelled(ClientValue):
    """How many jobs were cancelled, requested to stop, or left to finish."""

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

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON form: that of the job, with its run."""
        return self.job.to_dict()


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
    """An update for a direct caller: `place`, `started`, `progress`, `output`, and `result` (with `direct`) last."""

    kind: str
    data: Json
    direct: Direct | None = None


class Group(ClientValue, domain.Group[datetime]):
    """A group, with counts of its members."""


class GroupDetail(Group):
    jobs: tuple[Job, ...]


class GroupCancelled(Group):
    """A cancelled group, with the running members that were requested to stop or left to finish."""

    stopping: tuple[str, ...]
    finishing: tuple[str, ...]


class Template(ClientValue, domain.Template[datetime]):
    """A reusable job definition."""


class Schedule(ClientValue, domain.ScheduleFields[datetime]):
    cron_words: str | None


class Upcoming(ClientValue):
    utc: datetime
    local: datetime


class Preview(ClientValue):
    """A cron expression in words, and when it would fire."""

    cron_words: str
    items: tuple[Upcoming, ...]


class Occurrence(ClientValue, domain.Occurrence[datetime]):
    """The outcome of one planned instant, or of several."""


class Webhook(ClientValue, domain.Webhook[datetime]):
    """A subscription; `secret` is present only when it is new."""

    secret: str | None


class Attempt(ClientValue, domain.Attempt[datetime]):
    """One attempt to deliver a message."""


class Delivery(ClientValue, domain.DeliveryFields[datetime]):
    webhook_id: str | None
    attempts: tuple[Attempt, ...]


class Event(ClientValue, domain.Event[datetime]):
    """A numbered event."""


class Key(ClientValue, domain.KeyFields[datetime]):
    """An API key. `key`, the text that its holder sends, is present only when it is new."""

    scopes: tuple[str, ...]
    key: str | None


class Node(ClientValue, domain.Node[datetime]):
    """A machine that shares the database: `live`, `draining`, `left` in good order, or `lost`."""


class Engine(ClientValue, placements.Engine):
    """An engine as the server sees it: a system outside of nextslot on which runs can be placed."""


class SeriesPoint(ClientValue, domain.SeriesPoint[datetime]):
    """The work that ended in one step of a series."""


class Series(ClientValue):
    """Points without gaps, oldest first; work that ended before `counted_from` does not count."""

    step: int
    counted_from: datetime | None
    total: SeriesPoint
    points: tuple[SeriesPoint, ...]


class Failure(ClientValue, domain.Failure[datetime]):
    """Failures of an office that are alike."""


class Failures(ClientValue):
    """Failures, the last seen first; the `buckets` of each contain its counts by parts of the range."""

    items: tuple[Failure, ...]
    next_cursor: str | None
    since: datetime
    until: datetime
    bucket_seconds: int


class Me(ClientValue):
    """The caller, as the server sees it. Follow events from `last_event` to get only new ones."""

    name: str
    key_id: str | None
    scopes: tuple[str, ...]
    office_id: str | None
    job_types: tuple[str, ...]
    last_event: int
    extensions: tuple[str, ...]


class AuditEntry(ClientValue, domain.AuditEntry[datetime]):
    """Who changed what, and when."""


class OfficeStatus(ClientValue, domain.OfficeStatus[datetime]):
    pass


class Limit(ClientValue):
    limit: str
    capacity: int
    used: int


class Held(ClientValue, domain.Held[datetime]):
    """A resource that does not answer, or whose quota is used up."""


class Status(ClientValue):
    """The status of the service."""

    version: str
    node: str
    live_nodes: int
    ready: bool
    not_ready_because: str | None
    now: datetime
    paused: Paused
    offices: tuple[OfficeStatus, ...]
    limits: tuple[Limit, ...]
    held: tuple[Held, ...]
    last_event: int
