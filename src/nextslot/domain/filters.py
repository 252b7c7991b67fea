"""Filters of lists: they refuse wrong values, and say which jobs and events match.

Services take filters, `store/tables/filter_sql.py` turns them into SQL, and bulk actions call `matches` again before
they change a job.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any

from nextslot.errors import Invalid, Problem
from nextslot.system.instant import Instant

from . import DirectStatus, Event, FailureKind, GroupStatus, Job, JobStatus, RunStatus, request_checks
from .bounds import must_be, text_problem
from .events import EventType

# The most values of one field. The database looks up each one separately.
MOST_VALUES = 100
LONGEST_SEARCH = 1_000

LIVE = frozenset({JobStatus.WAITING, JobStatus.QUEUED, JobStatus.RUNNING})
NOT_STARTED = LIVE - {JobStatus.RUNNING}


class JobSort(StrEnum):
    """The order of a list of jobs; `-` is descending. Jobs with the same value are in the order of their ids; with the
    same priority, of their creation. A list by `finished_at` has jobs that have ended; one by `duration`, those of them
    that had started.
    """

    CREATED = "created_at"
    NEWEST = "-created_at"
    FINISHED = "finished_at"
    LAST_FINISHED = "-finished_at"
    DURATION = "duration"
    LONGEST = "-duration"
    PRIORITY = "priority"
    HIGHEST = "-priority"

    @property
    def field(self) -> str:
        return self.removeprefix("-")

    @property
    def is_descending(self) -> bool:
        return self.startswith("-")


_WHOLE_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

# A caller may give one text or several; a filter always holds a tuple.
Texts = str | Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Jobs that have, for every given field, one of its values. An empty filter finds all jobs.

    Bounds of time exclude the instant itself; a job that has not ended is not within a bound of its end. `q` is a query
    in one line (`job_query.py`), which the services read; what is left of it here is a part of an id, or of the title.
    A whole id finds only that job.
    `awaiting_signal`: only jobs that wait for nothing but an answer, or only others.
    """

    status: Texts = ()
    job_type: Texts = ()
    office_id: Texts = ()
    role: Texts = ()
    task_id: Texts = ()
    template_id: Texts = ()
    schedule_id: Texts = ()
    group_id: Texts = ()
    retry_of: Texts = ()
    fingerprint: Texts = ()
    created_after: Instant | None = None
    created_before: Instant | None = None
    awaiting_signal: bool | None = None
    finished_after: Instant | None = None
    finished_before: Instant | None = None
    q: str | None = None

    LABELS = (
        "fingerprint",
        "retry_of",
        "group_id",
        "task_id",
        "schedule_id",
        "template_id",
        "role",
        "job_type",
        "office_id",
    )
    TIMES = ("created_after", "created_before", "finished_after", "finished_before")

    def __post_init__(self) -> None:
        _complete(self, {"status": JobStatus}, self.LABELS, self.TIMES)
        if self.q is not None and (problem := text_problem(self.q, LONGEST_SEARCH)) is not None:
            raise Invalid(problem, "q")
        if self.awaiting_signal is not None and not isinstance(self.awaiting_signal, bool):
            raise Invalid(must_be(self.awaiting_signal, "true or false"), "awaiting_signal")

    @property
    def is_empty(self) -> bool:
        return all(getattr(self, field.name) in ((), None) for field in fields(self))

    @property
    def statuses(self) -> frozenset[JobStatus]:
        return frozenset(JobStatus(status) for status in self.status or JobStatus)

    @property
    def usual_sort(self) -> JobSort:
        """Returns the order of a list if the caller asks for none: that of the times that the filter bounds."""
        is_of_ends = self.finished_after is not None or self.finished_before is not None
        return JobSort.LAST_FINISHED if is_of_ends else JobSort.NEWEST

    @property
    def whole_id(self) -> str | None:
        """Returns `q` if it is a whole id."""
        text = None if self.q is None else folded(self.q)
        return text if text is not None and _WHOLE_ID.fullmatch(text) else None

    def matches(self, job: Job) -> bool:
        return (
            job.status in self.statuses
            and all(getattr(job, name) in (getattr(self, name) or (getattr(job, name),)) for name in self.LABELS)
            and _is_between(job.created_at, self.created_after, self.created_before)
            and _is_between(job.finished_at, self.finished_after, self.finished_before)
            and self.awaiting_signal in (None, job.is_asking)
            and (self.q is None or self._is_found(job))
        )

    def _is_found(self, job: Job) -> bool:
        if self.whole_id is not None:
            return job.job_id == self.whole_id
        text = folded(self.q or "")
        return text in folded(job.title or "") or text in job.job_id


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    status: Texts = ()
    job_type: Texts = ()
    office_id: Texts = ()
    job_id: Texts = ()
    failure_kind: Texts = ()
    started_after: Instant | None = None
    started_before: Instant | None = None

    def __post_init__(self) -> None:
        kinds = {"status": RunStatus, "failure_kind": FailureKind}
        _complete(self, kinds, ("job_type", "office_id", "job_id"), ("started_after", "started_before"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFilter:
    status: Texts = ()
    office_id: Texts = ()

    def __post_init__(self) -> None:
        _complete(self, {"status": GroupStatus}, ("office_id",), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectFilter:
    status: Texts = ()
    office_id: Texts = ()
    job_type: Texts = ()

    def __post_init__(self) -> None:
        _complete(self, {"status": DirectStatus}, ("office_id", "job_type"), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    type: Texts = ()
    office_id: Texts = ()
    job_id: Texts = ()

    def __post_init__(self) -> None:
        _complete(self, {"type": EventType}, ("office_id", "job_id"), ())

    def takes(self, event: Event) -> bool:
        return (
            (not self.type or event.type in self.type)
            and (not self.office_id or event.office_id in self.office_id)
            and (not self.job_id or event.job_id in self.job_id)
        )


def to_cancel(include_running: bool) -> frozenset[JobStatus]:
    """Returns the statuses of the jobs that a bulk cancellation covers."""
    return LIVE if include_running else NOT_STARTED


def folded(text: str) -> str:
    """Lowers the letters A to Z, and only these, as both databases do."""
    return text.encode().lower().decode()


def _is_between(at: Instant | None, after: Instant | None, before: Instant | None) -> bool:
    if at is None:
        return after is None and before is None
    return (after is None or at > after) and (before is None or at < before)


def _complete(filter: Any, kinds: Mapping[str, type[StrEnum]], labels: Iterable[str], instants: Iterable[str]) -> None:
    """Makes a tuple of the right type of each field; raises Invalid with every problem."""
    problems: list[Problem] = []
    for name in (*kinds, *labels):
        try:
            object.__setattr__(filter, name, _values(name, getattr(filter, name), kinds.get(name)))
        except Invalid as error:
            problems += error.problems
    for name in instants:
        value = getattr(filter, name)
        if isinstance(value, datetime) and value.tzinfo is not None:
            value = Instant.of(value)
            object.__setattr__(filter, name, value)
        if value is not None and not request_checks.is_instant(value):
            problems.append(Problem(name, request_checks.AN_INSTANT))
    if problems:
        raise Invalid(problems)


def _values(name: str, given: Any, kind: type[StrEnum] | None) -> tuple[str, ...]:
    if given is not None and not isinstance(given, (str, list, tuple, set, frozenset)):
        raise Invalid(must_be(given, "text, or a list of texts"), name)
    values = (given,) if isinstance(given, str) else tuple(dict.fromkeys(given or ()))
    if len(values) > MOST_VALUES:
        raise Invalid(f"has {len(values):,} values; it must have at most {MOST_VALUES} values", name)
    if kind is None:
        for value in values:
            if (problem := text_problem(value)) is not None:
                raise Invalid(problem, name)
        return values
    for value in values:
        if value not in list(kind):
            raise Invalid(f"is {value!r}; it must be one of {', '.join(kind)}", name)
    return tuple(kind(value) for value in values)
