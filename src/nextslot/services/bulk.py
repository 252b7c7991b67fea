"""Cancels or retries every job that a filter finds, and runs an ended job again.

Matching jobs are read page by page, and each page is changed in a small transaction of its own, so that a million of
them delay neither dispatch nor other callers. Only jobs that existed when the call began, and their retries, change.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from nextslot.domain import Job, JobStatus, Json
from nextslot.domain.filters import NOT_STARTED, JobFilter, to_cancel
from nextslot.domain.job_query import resolved
from nextslot.domain.request_checks import text_problems
from nextslot.engine.finish.bulk_actions import BulkActions, Step
from nextslot.engine.submit.idempotency import Once
from nextslot.errors import Draining, Invalid
from nextslot.store.contract import Tx, Work
from nextslot.store.tables import filter_sql, jobs
from nextslot.store.tables.filter_sql import Part
from nextslot.store.tables.keyset_pagination import Key
from nextslot.system.instant import Instant

from .unit_of_work import UnitOfWork

T = TypeVar("T")

# How many jobs one write changes, and the size that it claims: large enough to run alone and off the event loop.
STEP = 100
ROWS = 1_001
MOST_IDS = 1_000
# Sorts after the key of every job.
AFTER_ALL: Key = (2**62, "")


@dataclass(frozen=True, slots=True)
class Counted:
    """How many jobs there are, and the first ids."""

    count: int = 0
    ids: tuple[str, ...] = ()

    def plus(self, more: tuple[str, ...]) -> "Counted":
        return Counted(self.count + len(more), (self.ids + more[: MOST_IDS - len(self.ids)]))


@dataclass(frozen=True, slots=True)
class BulkCancelled:
    """The jobs that a call cancelled at once, interrupted, or lets finish without a retry.

    A job that ends as a consequence, in a group or as a dependent, is counted only if it matches the filter.
    """

    cancelled: Counted = Counted()
    stopping: Counted = Counted()
    finishing: Counted = Counted()

    def plus(self, step: Step) -> "BulkCancelled":
        return BulkCancelled(
            self.cancelled.plus(step.cancelled), self.stopping.plus(step.stopping), self.finishing.plus(step.finishing)
        )

    @property
    def job_ids(self) -> tuple[str, ...]:
        """Returns the ids of the first jobs of all three kinds."""
        return (*self.cancelled.ids, *self.stopping.ids, *self.finishing.ids)[:MOST_IDS]


@dataclass(frozen=True, slots=True)
class BulkRetried:
    retried: Counted = Counted()


class BulkService:
    def __init__(self, access: UnitOfWork, actions: BulkActions) -> None:
        self._access = access
        self._actions = actions

    async def cancel(
        self,
        filter: JobFilter | None = None,
        *,
        all: bool = False,
        include_running: bool = False,
        reason: str | None = None,
        interrupt: bool | None = None,
    ) -> BulkCancelled:
        """Cancels every job that matches and has not started; with `include_running`, running ones too."""
        wanted = self._wanted(filter, all)
        if reason is not None and (problems := list(text_problems("reason", reason))):
            raise Invalid(problems)
        done, is_first = BulkCancelled(), True
        async for page in self._live_pages(wanted, include_running):
            ids = [job.job_id for job in page]
            step = await self._step(
                lambda tx, ids=ids: self._actions.cancel(  # type: ignore[misc]
                    tx, ids, wanted, include_running, reason, interrupt, self._access.clock.now()
                ),
                is_first,
            )
            done, is_first = done.plus(step), False
        return done

    async def retry(self, filter: JobFilter | None = None, *, all: bool = False, dry_run: bool = False) -> BulkRetried:
        """Retries every chain whose last job matches and is FAILED. With `dry_run` it changes nothing, and returns the
        failed jobs that it would retry."""
        wanted = self._wanted(filter, all)
        if dry_run:
            return await self._retryable(wanted)
        done, is_first = BulkRetried(), True
        # Chains whose new job may be on a later page. This happens only if the clock was set back, so that new jobs
        # look older.
        made: set[str] = set()
        end = await self._access.read(_end_of_jobs)
        async for page in self._pages(wanted, wanted.statuses & {JobStatus.FAILED}, end):
            if self._access.gate.is_draining:
                raise Draining("the scheduler is stopping and takes no new jobs")
            self._access.refuse_new_work()
            ids = [job.job_id for job in page if job.chain_id not in made]
            new = await self._step(
                lambda tx, ids=ids: self._actions.retry(tx, ids, wanted, self._access.clock.now()),  # type: ignore[misc]
                is_first,
            )
            is_first = False
            made |= {job.chain_id for job in new if job.created_at <= page[0].created_at}
            done = BulkRetried(done.retried.plus(tuple(job.job_id for job in new)))
        return done

    def _wanted(self, filter: JobFilter | None, all: bool) -> JobFilter:
        return resolved(_refuse_empty(filter, all), self._access.clock.now())

    async def _retryable(self, wanted: JobFilter) -> BulkRetried:
        found = BulkRetried()
        end = await self._access.read(_end_of_jobs)
        async for page in self._pages(wanted, wanted.statuses & {JobStatus.FAILED}, end):
            ids = [job.job_id for job in page]
            part = await self._access.read(partial(self._actions.retryable, job_ids=ids, filter=wanted))
            found = BulkRetried(found.retried.plus(tuple(part)))
        return found

    async def rerun(
        self,
        job_id: str,
        params: Mapping[str, Json] | None = None,
        priority: int | None = None,
        created_by: str | None = None,
    ) -> Job:
        """Makes a new job like an ended one, in a chain of its own. Given parameters replace the old ones key by
        key."""
        content = [job_id, params, priority]
        once: Once[Job] = Once("rerun", self._access.context.office_id, content, lambda made: [made.job_id])
        return await self._access.create(
            lambda tx: self._actions.rerun(tx, job_id, params, priority, created_by, self._access.clock.now()),
            once=once,
        )

    async def _live_pages(self, wanted: JobFilter, include_running: bool) -> AsyncIterator[list[Job]]:
        """Yields jobs that have not ended: queued ones first, so that none of them starts in place of a cancelled one.

        Retries that were created meanwhile, of jobs that existed when the call began, come last.
        """
        end = await self._access.read(_end_of_jobs)
        queued = wanted.statuses & NOT_STARTED
        async for page in self._pages(wanted, queued, end):
            yield page
        async for page in self._pages(wanted, wanted.statuses & to_cancel(include_running) - queued, end):
            yield page
        if end is not None:
            since = Instant(max(int(end[0]) - 1, wanted.created_after or 0))
            async for page in self._pages(replace(wanted, created_after=since), queued, AFTER_ALL):
                yield await self._access.read(partial(_of_older_chains, page=page, end=end))

    async def _pages(
        self, wanted: JobFilter, statuses: frozenset[JobStatus], after: Key | None
    ) -> AsyncIterator[list[Job]]:
        """Yields matching jobs, newest first, from a key on. Reads a page only when the caller needs it."""
        if not statuses:
            return
        found = replace(wanted, status=tuple(sorted(statuses)))
        while after is not None:
            part = await self._access.read(partial(_page_of, filter=found, after=after))
            if part.items:
                yield part.items
            after = part.after

    async def _step(self, work: Work[T], is_first: bool) -> T:
        """Stores one step. The first step stores the audit entry of the whole call."""
        write: Callable[..., object] = self._access.write if is_first else self._access.write_more
        return await write(work, rows=ROWS)  # type: ignore[misc,no-any-return]


def _page_of(tx: Tx, filter: JobFilter, after: Key) -> Part[Job]:
    return filter_sql.jobs_page(tx, filter, after, STEP)


def _of_older_chains(tx: Tx, page: list[Job], end: Key) -> list[Job]:
    """Returns the retries on a page that are newer than the key but belong to older chains."""
    retries = [job for job in page if job.retry_of is not None and (job.created_at, job.job_id) > end]
    roots = jobs.get_many(tx, [job.chain_id for job in retries])
    return [job for job in retries if (roots[job.chain_id].created_at, job.chain_id) <= end]


def _end_of_jobs(tx: Tx) -> Key | None:
    """Returns the key directly after that of the newest job."""
    newest = filter_sql.jobs_page(tx, JobFilter(), None, 1).items
    return (newest[0].created_at, newest[0].job_id + "~") if newest else None


def _refuse_empty(filter: JobFilter | None, all: bool) -> JobFilter:
    if (filter is None or filter.is_empty) and not all:
        raise Invalid("the filter is empty, which means every job; add all=true to change every job", "all")
    return filter or JobFilter()
