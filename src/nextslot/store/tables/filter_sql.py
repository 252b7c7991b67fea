"""The SQL of each filter, and the pages of each list, for `services/lists.py` and bulk actions."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

from nextslot.domain import (
    AuditEntry,
    Direct,
    Event,
    Group,
    Job,
    JobStatus,
    Reservation,
    Run,
    RunStatus,
)
from nextslot.domain.filters import (
    LIVE,
    DirectFilter,
    EventFilter,
    GroupFilter,
    JobFilter,
    JobSort,
    RunFilter,
    folded,
)
from nextslot.domain.job_query import JobSearch
from nextslot.store.contract import Row, Tx
from nextslot.system.instant import Instant

from . import (
    audit,
    column_codec,
    jobs,
    rows,
    runs,
    search,
)
from .keyset_pagination import (
    Found,
    Key,
    Listing,
    Term,
    find,
    one_of,
)

T = TypeVar("T")

# Ordered by creation time and then by id, both of which never change. Ids alone are ordered by time too, but by the
# clock of the machine that made them: after a clock was set, the list would be out of order by `created_at`. `job_id >=
# ''` makes the database use the index of the whole list, see `Listing.everything`.
JOBS = Listing("jobs", ", ".join(rows.JOBS.columns), ("created_at", "job_id"), everything="job_id >= ''")
# The keys of the orders by other fields, and which jobs are in them.
_KEYS: Mapping[str, tuple[str, ...]] = {
    "created_at": JOBS.key,
    "finished_at": ("finished_at", "job_id"),
    "duration": ("duration", "job_id"),
    "priority": ("priority", "created_at", "job_id"),
}
_ARE_IN: Mapping[str, str] = {
    "finished_at": " and finished_at is not null",
    "duration": " and duration is not null",
    "priority": "",
}
RUNS = Listing("runs", ", ".join(rows.RUNS.columns), ("started_at", "run_id"))
GROUPS = Listing("job_groups", ", ".join(rows.GROUPS.columns), ("created_at", "group_id"))
DIRECT = Listing("direct_executions", ", ".join(rows.DIRECT.columns), ("arrival",))
RESERVATIONS = Listing(
    "reservations",
    ", ".join(rows.RESERVATIONS.columns),
    ("reserved_at", "reservation_id"),
    everything="reserved_by >= ''",
)
EVENTS = Listing("events", ", ".join(rows.EVENTS.columns), ("seq",), is_newest_first=False)

# The same rules as `Job.status`. COMPLETED has no index: it would cost time at every hand-over, and most of a history
# is completed.
STATUSES = {
    JobStatus.WAITING: "stage = 'QUEUED' and (unmet > 0 or is_due = 0 or is_turn = 0)",
    JobStatus.QUEUED: "stage = 'QUEUED' and unmet = 0 and is_due = 1 and is_turn = 1 and job_id >= ''",
    JobStatus.RUNNING: "stage = 'RUNNING' and finished_at is null",
    JobStatus.COMPLETED: "outcome = 'COMPLETED'",
    JobStatus.FAILED: "outcome = 'FAILED' and stage = 'RUNNING'",
    JobStatus.SKIPPED: "outcome = 'SKIPPED'",
    JobStatus.CANCELLED: "stage = 'CANCELLED'",
}
# The same rule as `Job.is_asking`.
_ASKING = "stage = 'QUEUED' and is_awaiting = 1 and unmet = 1 and is_due = 1 and is_turn = 1"
# The first column of the indexes of the other orders, so that an index has the jobs of each outcome in order.
_ENDED_AS = "case when finished_at is null then 'LIVE' when stage = 'CANCELLED' then 'CANCELLED' else outcome end"
_NOTHING = Term(("1 = 0",))
_LED = ("job_type", "office_id")
# Jobs that some words lead to at most, and how many jobs a search looks at one by one: in parts, and so many
# characters of parameters. It takes about 30 ms then.
MOST_BY_WORDS = 2_000
AT_ONCE = 200
LOOKED_AT = 2_000
MOST_CHARACTERS = 8_000_000
_AMONG = "job_id in (select key from json_each( :among ))"
_TO_SIEVE = itemgetter(*map(rows.JOBS.columns.index, ("title", "error_line", "params")))
_KEY_FIELDS = itemgetter(
    *map(rows.JOBS.columns.index, ("created_at", "job_id", "started_at", "finished_at", "priority"))
)
# Ids are hexadecimal, so this sorts after all of them.
_ABOVE_ALL_IDS = "g"


class Part(NamedTuple, Generic[T]):
    """Some items of a list in order, and the key from which to continue, if there may be more."""

    items: list[T]
    after: Key | None


def job_terms(filter: JobFilter) -> list[Term]:
    terms = [*_label_terms(filter), *_status_terms(filter.statuses), *_search_terms(filter)]
    if filter.awaiting_signal is not None:
        terms.append(Term((_ASKING,)) if filter.awaiting_signal else Term((f"not ({_ASKING})",), is_indexed=False))
    return terms


def _label_terms(filter: JobFilter) -> Iterator[Term]:
    for name in filter.LABELS:
        values = getattr(filter, name)
        if values:
            yield one_of(name, values, lead=" and job_id >= ''" if name in _LED else "")


def _status_terms(statuses: frozenset[JobStatus]) -> Iterator[Term]:
    if not statuses:
        yield _NOTHING
    elif len(statuses) < len(JobStatus):
        yield Term(tuple(STATUSES[status] for status in sorted(statuses)))


def _search_terms(filter: JobFilter) -> Iterator[Term]:
    if filter.whole_id is not None:
        yield one_of("job_id", [filter.whole_id])
    elif filter.q is not None:
        literal = folded(filter.q).replace("!", "!!").replace("%", "!%").replace("_", "!_")
        found = "lower(title) like :q escape '!' or job_id like :q escape '!'"
        yield Term((found,), {"q": f"%{literal}%"}, is_indexed=False)


def jobs_page(tx: Tx, filter: JobFilter, after: Key | None, limit: int, sort: JobSort = JobSort.NEWEST) -> Part[Job]:
    """Returns a page of jobs, by default the newest first."""
    found = job_rows(tx, filter, after, limit, sort)
    return Part(jobs.of_rows(found.rows), found.after)


def job_rows(tx: Tx, filter: JobFilter, after: Key | None, limit: int, sort: JobSort = JobSort.NEWEST) -> Found:
    """Returns a page of jobs as rows, by default the newest first."""
    listing = replace(JOBS, key=_KEYS[sort.field], is_newest_first=sort.is_descending)
    start, until = _bounds(filter, after, sort)
    terms = [*_time_terms(filter, sort.field), *_sorted_terms(filter, sort.field)]
    if not isinstance(filter, JobSearch):
        return find(tx, listing, terms, start, limit, until)
    if filter.words or filter.error_words:
        # Rare words lead to their jobs. Common ones are soon met among the first jobs, which are looked at one by one.
        rare = search.find(tx, filter.words, filter.error_words, MOST_BY_WORDS)
        if rare is not None:
            terms.append(Term((_AMONG,), {"among": column_codec.key_set(rare)}))
    page = partial(find, tx, listing, terms, limit=AT_ONCE, until=until)
    return _sieved(filter, lambda after: page(after=after), partial(_key_of, field=sort.field), start, limit)


def _sorted_terms(filter: JobFilter, field: str) -> list[Term]:
    """Returns the terms of a filter for the list by a field. Most indexes have only the order of creation."""
    terms = job_terms(filter)
    if field == "created_at":
        return terms
    ended = filter.statuses - LIVE
    kinds = [*sorted(ended), *(["LIVE"] if field == "priority" and len(ended) < len(filter.statuses) else [])]
    led = Term(tuple(f"{_ENDED_AS} = '{kind}'{_ARE_IN[field]}" for kind in kinds)) if kinds else _NOTHING
    return [led, *(replace(term, is_indexed=term.values.keys() == {"job_id_0"}) for term in terms)]


def _time_terms(filter: JobFilter, field: str) -> Iterator[Term]:
    """Yields the bounds of times that are not those of the list's order."""
    for name in filter.TIMES:
        column, _, side = name.rpartition("_")
        at = getattr(filter, name)
        if at is not None and f"{column}_at" != field:
            sign = ">" if side == "after" else "<"
            yield Term((f"{column}_at {sign} :{name}",), {name: int(at)}, is_indexed=False)


def _bounds(filter: JobFilter, after: Key | None, sort: JobSort) -> tuple[Key | None, Key | None]:
    """Returns the keys between which a page lies, by the bounds of the time that orders the list."""
    column = sort.field.removesuffix("_at")
    later, earlier = (getattr(filter, f"{column}_{side}", None) for side in ("after", "before"))
    if sort.is_descending:
        return _between(after, later, earlier)
    start = None if later is None else (int(later), _ABOVE_ALL_IDS)
    until = None if earlier is None else (earlier - 1, _ABOVE_ALL_IDS)
    return (after if start is None else start if after is None else max(after, start)), until


def _key_of(row: Row, field: str) -> Key:
    created_at, job_id, started_at, finished_at, priority = _KEY_FIELDS(row)
    if field == "created_at":
        return created_at, job_id
    if field == "priority":
        return priority, created_at, job_id
    return (finished_at if field == "finished_at" else finished_at - started_at), job_id


def _sieved(
    filter: JobSearch, read: Callable[[Key | None], Found], key: Callable[[Row], Key], start: Key | None, limit: int
) -> Found:
    """Checks jobs one by one. Stops after LOOKED_AT jobs or some megabytes, even if the page is not full."""
    kept: list[Row] = []
    looked_at = size = 0
    while True:
        found = read(start)
        for row in found.rows:
            title, error, params = _TO_SIEVE(row)
            start, looked_at, size = key(row), looked_at + 1, size + len(params)
            if filter.finds(title, error, partial(column_codec.loads, params)):
                kept.append(row)
            if len(kept) == limit or looked_at >= LOOKED_AT or size >= MOST_CHARACTERS:
                is_end = row is found.rows[-1] and found.after is None
                return Found(kept, None if is_end else start)
        if found.after is None or len(found.rows) < AT_ONCE:
            return Found(kept, found.after)
        start = found.after


def runs_page(tx: Tx, filter: RunFilter, after: Key | None, limit: int) -> Part[Run]:
    terms = []
    if filter.job_id:
        terms.append(one_of("job_id", filter.job_id))
    if filter.status:
        # Written into the SQL instead of bound: only then does the database use its index of FAILED runs.
        are = tuple(f"status = '{RunStatus(status).value}'" for status in filter.status)
        terms.append(Term(are, is_indexed=RunStatus.COMPLETED not in filter.status))
    if filter.failure_kind:
        kinds = one_of("failure_kind", filter.failure_kind, is_indexed=False)
        terms += [Term(("status = 'FAILED'",)), kinds]
    for name in ("office_id", "job_type"):
        if values := getattr(filter, name):
            theirs = one_of(name, values)
            is_theirs = " or ".join(theirs.alternatives)
            of_job = f"exists (select 1 from jobs where jobs.job_id = runs.job_id and ({is_theirs}))"
            terms.append(Term((of_job,), theirs.values, is_indexed=False))
    start, until = _between(after, filter.started_after, filter.started_before)
    found = find(tx, RUNS, terms, start, limit, until)
    return Part(runs.of_rows(tx, found.rows), found.after)


def groups_page(tx: Tx, filter: GroupFilter, after: Key | None, limit: int) -> Part[Group]:
    terms = [one_of("office_id", filter.office_id)] if filter.office_id else []
    if filter.status:
        terms.append(one_of("status", filter.status, is_indexed=False))
    found = find(tx, GROUPS, terms, after, limit)
    return Part([rows.GROUPS.value(row) for row in found.rows], found.after)


def direct_page(tx: Tx, filter: DirectFilter, after: Key | None, limit: int) -> Part[Direct]:
    terms = [one_of("office_id", filter.office_id)] if filter.office_id else []
    if filter.job_type:
        terms.append(one_of("job_type", filter.job_type, is_indexed=False))
    if filter.status:
        terms.append(one_of("status", filter.status, is_indexed=False))
    found = find(tx, DIRECT, terms, after, limit)
    return Part([rows.DIRECT.value(row) for row in found.rows], found.after)


def reservations_page(tx: Tx, office_id: tuple[str, ...], after: Key | None, limit: int) -> Part[Reservation]:
    terms = [one_of("office_id", office_id, is_indexed=False)] if office_id else []
    found = find(tx, RESERVATIONS, terms, after, limit)
    return Part([rows.RESERVATIONS.value(row) for row in found.rows], found.after)


def events_page(tx: Tx, filter: EventFilter, after: Key | None, limit: int) -> Part[Event]:
    """Returns a page of events, the oldest first."""
    terms = [one_of("job_id", filter.job_id)] if filter.job_id else []
    checked = [name for name in ("type", "office_id") if getattr(filter, name)]
    terms += [one_of(name, getattr(filter, name), is_indexed=False) for name in checked]
    found = find(tx, EVENTS, terms, after, limit)
    return Part([rows.EVENTS.value(row) for row in found.rows], found.after)


def audit_page(tx: Tx, after: Key | None, limit: int) -> Part[AuditEntry]:
    found = audit.page(tx, _ABOVE_ALL_IDS if after is None else str(after[0]), limit + 1)
    return Part(found[:limit], (found[limit - 1].audit_id,) if len(found) > limit else None)


def _between(
    after: Key | None, later_than: Instant | None, earlier_than: Instant | None
) -> tuple[Key | None, Key | None]:
    """Returns a span of time as two keys. Ids are never empty, so ("", an instant) sorts before all rows of that
    instant.
    """
    until = None if later_than is None else (later_than + 1, "")
    if earlier_than is None:
        return after, until
    start = (int(earlier_than), "")
    return start if after is None else min(after, start), until
