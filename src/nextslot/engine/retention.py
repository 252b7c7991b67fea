"""Retention: history that is old enough goes (spec 19), in small transactions, so that nothing waits for it.

A chain goes as a whole, a group with all its chains, and neither while something alive refers to it. Rows go first and
their files after the commit; files that a crash leaves without their run are found by the next look at them. Called
once a day while the scheduler runs, by `admin` for `nextslot purge`, and by nobody where nothing is configured.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

from nextslot.errors import Unavailable
from nextslot.executors.run_files import RunFiles
from nextslot.executors.threads import Threads
from nextslot.store.contract import Store, Tx, Work
from nextslot.store.tables import lanes, old_history
from nextslot.store.tables.lanes import LaneTally
from nextslot.store.tables.old_history import OldJob, Root
from nextslot.system.clock import Clock
from nextslot.system.instant import Instant

log = logging.getLogger(__name__)

T = TypeVar("T")

DAY = 86_400.0
# The first look comes a while after the start, when that is through with all it has to catch up on.
FIRST_AFTER_SECONDS = 600.0
# How many chains or groups, and how many of the small rows, one transaction takes away.
UNITS = 50
ROWS = 500
# An idempotency key is answered with the jobs that it made for this long: younger ones stay.
SHORTEST = DAY


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """How many days each kind of history is kept; None: for ever."""

    jobs_days: float | None = None
    events_days: float | None = None
    files_days: float | None = None
    deliveries_days: float | None = None
    audit_days: float | None = None

    @property
    def is_for_ever(self) -> bool:
        return all(getattr(self, one.name) is None for one in fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """How much went, or would go."""

    jobs: int = 0
    groups: int = 0
    direct: int = 0
    occurrences: int = 0
    events: int = 0
    deliveries: int = 0
    audit: int = 0
    files: int = 0

    def plus(self, **more: int) -> "Purged":
        return replace(self, **{name: getattr(self, name) + count for name, count in more.items()})


@dataclass(frozen=True, slots=True)
class _RetentionPage:
    """Chains and groups of one page that may go, and where the next page begins."""

    units: list[tuple[Root, list[OldJob]]]
    after: tuple[int, str] | None


class Retention:
    def __init__(self, clock: Clock, files: RunFiles, threads: Threads) -> None:
        self._clock = clock
        self._files = files
        self._threads = threads
        self.keep = Keep()
        # The database is cleared by one node for all; files by each on its own disk.
        self.is_leading = True
        self._store: Store | None = None
        self._daily: asyncio.Task[None] | None = None

    # By itself.

    def start(self, store: Store) -> None:
        self._store = store
        self.use(self.keep)

    def use(self, keep: Keep) -> None:
        """From the next purge on; one that keeps all for ever has nothing to wake up for."""
        self.keep = keep
        if self._daily is None and self._store is not None and not keep.is_for_ever:
            work = self._purge_daily(self._store)
            self._daily = asyncio.get_running_loop().create_task(work, name="nextslot-retention")

    async def close(self) -> None:
        """A purge that is under way ends between two of its transactions."""
        self._store = None
        if self._daily is not None:
            self._daily.cancel()
            await asyncio.wait([self._daily])
            self._daily = None

    async def _purge_daily(self, store: Store) -> None:
        await self._clock.sleep(FIRST_AFTER_SECONDS)
        while True:
            try:
                purged = await self.purge(store) if self.is_leading else Purged(files=await self._purge_files(store))
                log.info("history purged: %s", purged)
            except Unavailable as error:
                log.error("history could not be purged: %s; the next look is tomorrow", error)
            await self._clock.sleep(DAY)

    # By hand.

    async def purge(self, store: Store) -> Purged:
        """Takes away what is older than is to be kept, and says how much that was."""
        purged = await self._purge_jobs(store)
        if self.keep.jobs_days is not None:
            before = self._before(max(self.keep.jobs_days, SHORTEST / DAY))
            purged = purged.plus(
                direct=await self._purge_rows(store, lambda tx: self._drop_direct(tx, before)),
                occurrences=await self._purge_rows(
                    store, _dropping(old_history.skipped, old_history.drop_skipped, before)
                ),
            )
        if self.keep.deliveries_days is not None:
            before = self._before(self.keep.deliveries_days)
            count = await self._purge_rows(
                store, _dropping(old_history.deliveries, old_history.drop_deliveries, before)
            )
            purged = purged.plus(deliveries=count)
        if self.keep.audit_days is not None:
            before = self._before(self.keep.audit_days)
            purged = purged.plus(
                audit=await self._purge_rows(store, _dropping(old_history.audit, old_history.drop_audit, before))
            )
        if self.keep.events_days is not None:
            before = self._before(self.keep.events_days)
            purged = purged.plus(events=await self._purge_rows(store, lambda tx: _drop_events(tx, before)))
        return purged.plus(files=await self._purge_files(store))

    def count(self, tx: Tx) -> Purged:
        """What `purge` would take away; reads only. Files are not counted: they are looked for on the disk."""
        counted, many = Purged(), 1_000_000_000
        if self.keep.jobs_days is not None:
            before = self._before(max(self.keep.jobs_days, SHORTEST / DAY))
            after: tuple[int, str] | None = (0, "")
            while after is not None:
                page = _old_page(tx, before, after)
                after = page.after
                counted = counted.plus(
                    jobs=sum(len(jobs) for _, jobs in page.units),
                    groups=sum(root.group_id is not None for root, _ in page.units),
                )
            counted = counted.plus(
                direct=len(old_history.direct(tx, before, many)), occurrences=len(old_history.skipped(tx, before, many))
            )
        if self.keep.deliveries_days is not None:
            old = old_history.deliveries(tx, self._before(self.keep.deliveries_days), many)
            counted = counted.plus(deliveries=len(old))
        if self.keep.audit_days is not None:
            counted = counted.plus(audit=len(old_history.audit(tx, self._before(self.keep.audit_days), many)))
        if self.keep.events_days is not None:
            first, kept = old_history.old_events(tx, self._before(self.keep.events_days))
            counted = counted.plus(events=kept - first)
        return counted

    def _before(self, days: float) -> Instant:
        return self._clock.now().after(-days * DAY)

    # Chains and groups.

    async def _purge_jobs(self, store: Store) -> Purged:
        purged = Purged()
        if self.keep.jobs_days is None:
            return purged
        before = self._before(max(self.keep.jobs_days, SHORTEST / DAY))
        after: tuple[int, str] | None = (0, "")
        while after is not None:
            page, runs = await store.write(lambda tx, a=after: self._drop_page(tx, before, a), rows=ROWS)  # type: ignore[misc]
            after = page.after
            await self._remove(runs)
            purged = purged.plus(
                jobs=sum(len(jobs) for _, jobs in page.units),
                groups=sum(root.group_id is not None for root, _ in page.units),
            )
        return purged

    def _drop_page(self, tx: Tx, before: Instant, after: tuple[int, str]) -> tuple[_RetentionPage, list[str]]:
        page = _old_page(tx, before, after)
        runs: list[str] = []
        if page.units:
            with old_history.maintenance(tx):
                for root, old in page.units:
                    ids = [job.job_id for job in old]
                    runs += old_history.run_ids(tx, ids)
                    old_history.drop_jobs(tx, ids, root.group_id)
            for lane_id, tally in _tallies(job for _, old in page.units for job in old).items():
                lanes.tally(tx, lane_id, tally)
        return page, runs

    def _drop_direct(self, tx: Tx, before: Instant) -> int:
        old = old_history.direct(tx, before, ROWS)
        if old:
            with old_history.maintenance(tx):
                old_history.drop_direct(tx, old)
        return len(old)

    # Small rows.

    async def _purge_rows(self, store: Store, drop: Work[int]) -> int:
        total = 0
        while count := await store.write(drop, rows=ROWS):
            total += count
        return total

    # Files.

    async def _purge_files(self, store: Store) -> int:
        """Files of runs that ended long ago, and of runs that are not there any more."""
        keep, jobs = self.keep.files_days, self.keep.jobs_days
        if keep is None and jobs is None:
            return 0
        youngest = min(days for days in (keep, jobs) if days is not None)
        removed = 0
        found = await self._threads.run(lambda: self._files.older_than(self._before(youngest)))
        oldest_kept = None if keep is None else self._before(keep)
        for at in range(0, len(found), ROWS):
            part = found[at : at + ROWS]
            known = await store.read(lambda tx, p=part: old_history.known_runs(tx, [run_id for run_id, _ in p]))  # type: ignore[misc]
            gone = [run_id for run_id, changed in part if _may_go(known.get(run_id), changed, oldest_kept)]
            await self._remove(gone)
            removed += len(gone)
        return removed

    async def _remove(self, run_ids: Sequence[str]) -> None:
        if run_ids:
            await self._threads.run(lambda: self._files.remove_all(run_ids))


def _may_go(has_ended: bool | None, changed: Instant, kept_from: Instant | None) -> bool:
    """None: its run is not stored any more."""
    return has_ended is None or (has_ended and kept_from is not None and changed < kept_from)


def _old_page(tx: Tx, before: Instant, after: tuple[int, str]) -> _RetentionPage:
    roots = old_history.roots(tx, before, after, UNITS)
    units = [(root, old_history.jobs_of(tx, root)) for root in roots]
    following = (roots[-1].created_at, roots[-1].job_id) if len(roots) == UNITS else None
    return _RetentionPage([(root, jobs) for root, jobs in units if _is_over(tx, jobs, before)], following)


def _is_over(tx: Tx, jobs: list[OldJob], before: Instant) -> bool:
    if any(job.finished_at is None or job.finished_at >= before or job.decision == "undecided" for job in jobs):
        return False
    return not old_history.is_referred(tx, [job.job_id for job in jobs])


def _tallies(jobs: Iterable[OldJob]) -> dict[int, LaneTally]:
    """What these jobs have added to the sums that statistics are made of, with the sign turned."""
    jobs = list(jobs)
    retried = {job.retry_of for job in jobs}
    began: dict[str, int] = {}
    for job in jobs:
        if job.started_at is not None:
            began[job.chain_id] = min(began.get(job.chain_id, job.started_at), job.started_at)
    counts: dict[int, Counter[str]] = {}
    for job in jobs:
        counts.setdefault(job.lane_id, Counter()).update(_parts(job, job.job_id in retried, began))
    return {lane_id: LaneTally(**{name: -count for name, count in parts.items()}) for lane_id, parts in counts.items()}


def _parts(job: OldJob, is_retried: bool, began: dict[str, int]) -> dict[str, int]:
    parts = {"chains": int(job.retry_of is None)}
    if job.outcome == "COMPLETED":
        parts |= {"completed": 1, "completion_us": max((job.finished_at or 0) - began[job.chain_id], 0)}
    elif job.outcome == "SKIPPED":
        parts["skipped"] = 1
    elif job.stage == "CANCELLED" and not is_retried:
        parts["cancelled"] = 1
    elif job.decision in ("permanent", "cancelled") and not is_retried:
        parts["failed"] = 1
    return parts


def _dropping(
    find: Callable[[Tx, Instant, int], list[T]], drop: Callable[[Tx, list[T]], None], before: Instant
) -> Work[int]:
    """A work that takes away some of the rows that are older, and says how many."""

    def work(tx: Tx) -> int:
        old = find(tx, before, ROWS)
        if old:
            with old_history.maintenance(tx):
                drop(tx, old)
        return len(old)

    return work


def _drop_events(tx: Tx, before: Instant) -> int:
    """The oldest, without a gap: numbers go on from where they are."""
    first, kept = old_history.old_events(tx, before)
    until = min(kept, first + ROWS)
    if until > first:
        with old_history.maintenance(tx):
            old_history.drop_events(tx, until)
    return until - first
