"""Lists of jobs, runs, groups and so on, page by page, and the status of the scheduler.

Every page is one read transaction. The key of an item never changes, so a caller who reads all pages sees every item
that existed throughout exactly once. With a filter on something that changes, such as a job's status, each page is
right for the moment when it was read.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from nextslot.domain import (
    AuditEntry,
    Direct,
    Event,
    Group,
    Held,
    Job,
    JobDetail,
    Limit,
    Listed,
    OfficeStatus,
    Page,
    Placed,
    QueuePage,
    Reservation,
    Run,
    SchedulerStatus,
)
from nextslot.domain.filters import DirectFilter, EventFilter, GroupFilter, JobFilter, JobSort, RunFilter
from nextslot.domain.job_query import resolved
from nextslot.domain.limits import ONLY_RATED
from nextslot.errors import Invalid, NotFound
from nextslot.store.contract import Tx
from nextslot.store.tables import checkpoints, direct, events, filter_sql, jobs, lanes, offices, outages, runs
from nextslot.store.tables.filter_sql import Part
from nextslot.store.tables.jobs import Link, Place
from nextslot.store.tables.keyset_pagination import Found, Key
from nextslot.system.instant import Instant

from . import cursors
from .arguments import found
from .cursors import DEFAULT_LIMIT
from .unit_of_work import UnitOfWork

T = TypeVar("T")
F = TypeVar("F")

BY_TIME = (int, str)
BY_PRIORITY = (int, int, str)
EVERY_OFFICE = 1_000_000


class ListService:
    def __init__(self, access: UnitOfWork) -> None:
        self._access = access

    # Jobs.

    async def jobs(
        self,
        filter: JobFilter | None = None,
        cursor: str | None = None,
        limit: int = DEFAULT_LIMIT,
        sort: str | None = None,
    ) -> Page[Listed]:
        """Lists jobs, by default the newest first, and with a bound of their end those that ended last first.

        `sort` is one of `JobSort`. If the field of the order changes between two calls, as a priority may, that job may
        be on both pages or on neither.
        """
        read, kind = self._list_of_jobs(filter or JobFilter(), cursor, limit, sort)

        def page(tx: Tx) -> Page[Listed]:
            found = read(tx)
            return Page(listed(tx, jobs.of_rows(found.rows)), cursors.encode(kind, found.after))

        return await self._access.read(page)

    async def jobs_shown(
        self, filter: JobFilter, cursor: str | None = None, limit: int = DEFAULT_LIMIT, sort: str | None = None
    ) -> Page[dict[str, Any]]:
        """Lists jobs in the JSON form of the API, made from their rows: for `orjson`, which knows their JSON texts."""
        read, kind = self._list_of_jobs(filter, cursor, limit, sort)

        def page(tx: Tx) -> Page[dict[str, Any]]:
            found = read(tx)
            places = attempts(tx, map(jobs.link_of, found.rows))
            items = tuple(jobs.shown(row) for row in found.rows)
            for one in items:
                one["attempt"] = places[one["job_id"]]
            return Page(items, cursors.encode(kind, found.after))

        return await self._access.read(page)

    def _list_of_jobs(
        self, filter: JobFilter, cursor: str | None, limit: int, sort: str | None
    ) -> tuple[Callable[[Tx], Found], str]:
        """Returns the read of a page of jobs, and the kind of its cursors: they belong to one order."""
        wanted = resolved(filter, self._access.clock.now())
        order = sort_of(sort, wanted)
        kind = "jobs" if order is JobSort.NEWEST else f"jobs by {order}"
        after = cursors.decode(kind, cursor, BY_PRIORITY if order.field == "priority" else BY_TIME)
        cursors.checked_limit(limit)
        return lambda tx: filter_sql.job_rows(tx, wanted, after, limit, order), kind

    async def job(self, job_id: str) -> JobDetail:
        """Returns a job with its run and its chain."""
        return await self._access.read(lambda tx: _detail(tx, job_id), is_small=True)

    async def attempts(self, jobs: Sequence[Job]) -> dict[str, int]:
        """Returns the place of each job in its chain, from 1."""
        return await self._access.read(lambda tx: attempts(tx, jobs))

    async def queue(
        self, office_id: str = "default", cursor: str | None = None, limit: int = DEFAULT_LIMIT
    ) -> QueuePage:
        """Returns an office's queue in its order, waiting jobs included, with running jobs and direct callers.

        A page begins after the last job of the previous page. If a job is moved between two calls, the places of the
        pages may not match, and that job may be on both pages or on neither.
        """
        shape = (int, int, int, int, str)
        after = cursors.decode("queue", cursor, shape)
        cursors.checked_limit(limit)
        return await self._access.read(lambda tx: _queue(tx, office_id, after, limit))

    # Everything else.

    async def runs(
        self, filter: RunFilter | None = None, cursor: str | None = None, limit: int = DEFAULT_LIMIT
    ) -> Page[Run]:
        """Lists runs, the newest first."""
        return await self._page("runs", BY_TIME, cursor, limit, filter or RunFilter(), filter_sql.runs_page)

    async def groups(
        self, filter: GroupFilter | None = None, cursor: str | None = None, limit: int = DEFAULT_LIMIT
    ) -> Page[Group]:
        """Lists groups, the newest first."""
        return await self._page("groups", BY_TIME, cursor, limit, filter or GroupFilter(), filter_sql.groups_page)

    async def direct(
        self, filter: DirectFilter | None = None, cursor: str | None = None, limit: int = DEFAULT_LIMIT
    ) -> Page[Direct]:
        """Lists direct executions, the newest first."""
        return await self._page("direct", (int,), cursor, limit, filter or DirectFilter(), filter_sql.direct_page)

    async def reservations(
        self, cursor: str | None = None, limit: int = DEFAULT_LIMIT, office_id: tuple[str, ...] = ()
    ) -> Page[Reservation]:
        """Lists reservations of these offices, or of all, the newest first."""
        return await self._page("reservations", BY_TIME, cursor, limit, office_id, filter_sql.reservations_page)

    async def events(
        self,
        after: int = 0,
        filter: EventFilter | None = None,
        cursor: str | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> Page[Event]:
        """Lists events after a number, the oldest first; with a cursor, `after` is not used."""
        if type(after) is not int or not 0 <= after < 2**62:
            raise Invalid(f"is {after!r}; it must be the number of an event, or 0 for all", "after")
        wanted = filter or EventFilter()
        return await self._page("events", (int,), cursor, limit, wanted, filter_sql.events_page, first=(after,))

    async def audit(self, cursor: str | None = None, limit: int = DEFAULT_LIMIT) -> Page[AuditEntry]:
        """Lists audit entries, the newest first."""
        return await self._page(
            "audit", (str,), cursor, limit, None, lambda tx, _, key, n: filter_sql.audit_page(tx, key, n)
        )

    async def paused(self) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
        """Returns what is paused now: (scope, name) of all but offices, and the offices."""
        return await self._access.read(_paused)

    async def status(self) -> SchedulerStatus:
        """Returns the status of everything; its cost depends on queued and running jobs, never on ended ones."""
        now = self._access.clock.now()
        return await self._access.read(lambda tx: _status(tx, now))

    async def last_event(self) -> int:
        """Returns the number of the newest event."""
        return await self._access.read(events.last)

    async def _page(
        self,
        kind: str,
        shape: Sequence[type],
        cursor: str | None,
        limit: int,
        wanted: F,
        read: Callable[[Tx, F, Any, int], Part[T]],
        first: Key | None = None,
    ) -> Page[T]:
        """Reads a page of `wanted` after the cursor or, without one, after `first`."""
        after = cursors.decode(kind, cursor, shape) or first
        cursors.checked_limit(limit)
        part = await self._access.read(lambda tx: read(tx, wanted, after, limit))
        return Page(tuple(part.items), cursors.encode(kind, part.after))


def sort_of(sort: str | None, filter: JobFilter) -> JobSort:
    """Returns the order of a list of jobs, or refuses a text that is none."""
    if sort is None:
        return filter.usual_sort
    if sort not in list(JobSort):
        raise Invalid(f"is {sort!r}; it must be one of {', '.join(JobSort)}", "sort")
    return JobSort(sort)


def attempts(tx: Tx, some: Iterable[Job | Link]) -> dict[str, int]:
    """Returns the place of each job in its chain. Reads only chains that have retries."""
    some = list(some)
    chains = {job.chain_id for job in some if job.retry_of is not None}
    before = jobs.links(tx, chains) if chains else {}
    places: dict[str, int] = {}
    for job in some:
        place, link = 1, job.retry_of
        while link is not None:
            place, link = place + 1, before.get(link)
        places[job.job_id] = place
    return places


def listed(tx: Tx, some: Sequence[Job]) -> tuple[Listed, ...]:
    places = attempts(tx, some)
    return tuple(Listed(job, places[job.job_id]) for job in some)


def _detail(tx: Tx, job_id: str) -> JobDetail:
    job = found(jobs.get(tx, job_id), "job", job_id)
    chain = tuple(jobs.chain(tx, job.chain_id))
    places = {one.job_id: place for place, one in enumerate(chain, start=1)}
    kept = checkpoints.of_chain(tx, job.chain_id)
    return JobDetail(job, places[job_id], runs.of_job(tx, job_id), chain, places, kept)


def _queue(tx: Tx, office_id: str, after: Key | None, limit: int) -> QueuePage:
    office = offices.get(tx, office_id)
    if office is None:
        raise NotFound("office", office_id)
    passed, place = (0, None) if after is None else (int(after[0]), Place(*after[1:]))  # type: ignore[arg-type]
    queued = jobs.queue(tx, office_id, place, limit + 1)
    page = queued[:limit]
    key = (passed + limit, *jobs.place_of(page[-1])) if len(queued) > limit else None
    places = attempts(tx, page)
    waiting, _ = direct.counts(tx).get(office_id, (0, 0))
    return QueuePage(
        office_id=office_id,
        paused_by=_paused_by(tx, office.is_paused),
        running=listed(tx, jobs.running_of(tx, office_id)),
        queue=tuple(Placed(job, places[job.job_id], passed + number) for number, job in enumerate(page, start=1)),
        next_cursor=cursors.encode("queue", key),
        reservation=direct.active_reservation(tx, office_id),
        direct_waiting=waiting,
    )


def _paused_by(tx: Tx, is_office_paused: bool) -> tuple[str, ...]:
    whole = ("scheduler",) if ("scheduler", "") in lanes.pauses(tx) else ()
    return (*whole, "office") if is_office_paused else whole


def _paused(tx: Tx) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    held = tuple(office.office_id for office in offices.page(tx, "", EVERY_OFFICE) if office.is_paused)
    return tuple(sorted(lanes.pauses(tx))), held


def _status(tx: Tx, now: Instant) -> SchedulerStatus:
    queued, ready, callers = jobs.queue_counts(tx), jobs.ready_counts(tx), direct.counts(tx)
    running: dict[str, int] = {}
    free: dict[str, list[tuple[int, Instant]]] = {}
    for lane_id, office_id, count in lanes.running_counts(tx):
        running[office_id] = running.get(office_id, 0) + count
        if lane_id in ready:
            free.setdefault(office_id, []).append(ready[lane_id])
    every = []
    for office in offices.page(tx, "", EVERY_OFFICE):
        office_id = office.office_id
        counts = free.get(office_id, [])
        ready_now = sum(count for count, _ in counts)
        direct_waiting, direct_running = callers.get(office_id, (0, 0))
        every.append(
            OfficeStatus(
                office_id=office_id,
                paused=office.is_paused,
                queued=ready_now,
                waiting=queued.get(office_id, 0) - ready_now,
                running=running.get(office_id, 0),
                oldest_queued_at=min((oldest for _, oldest in counts), default=None),
                direct_waiting=direct_waiting,
                direct_running=direct_running,
            )
        )
    return SchedulerStatus(
        now=now,
        offices=tuple(every),
        limits=tuple(_shown_limit(one) for one in lanes.all_limits(tx) if not _is_of_one_job(one)),
        paused=tuple(sorted(lanes.pauses(tx))),
        held=tuple(
            Held(
                resource=outage.resource,
                since=outage.held_since,
                next_probe_at=outage.probe_at,
                failures=outage.failures,
                quota_until=outage.quota_until,
            )
            for outage in outages.all_of_them(tx)
            if outage.held_since is not None
        ),
        last_event=events.last(tx),
    )


def _is_of_one_job(limit: Limit) -> bool:
    """Returns whether jobs bring this limit with them, so that there may be thousands of its kind."""
    return limit.limit_key.startswith(("affinity:", "key:"))


def _shown_limit(limit: Limit) -> Limit:
    return limit._replace(capacity=0) if limit.capacity == ONLY_RATED else limit
