"""Retention: deletes old history (spec 19), in small transactions, so that nothing waits for it.

A chain is deleted as a whole, and a group with all its chains, unless something that has not ended refers to it. Rows
are deleted first, and their files after the commit; the next purge finds files that a crash left without their run. It
runs once a day if retention is configured, and for `nextslot purge`.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, NamedTuple

from nextslot.engine.effects import LanesDeleted
from nextslot.errors import Unavailable
from nextslot.executors.run_files import RunFiles
from nextslot.executors.threads import Threads
from nextslot.store.contract import ALL, Store, Tx, Work
from nextslot.store.group_commit import GROUP_ROWS
from nextslot.store.tables import lanes, nodes, old_history
from nextslot.store.tables.lanes import LaneTally
from nextslot.store.tables.old_history import OldJob, Root
from nextslot.system.clock import Clock
from nextslot.system.instant import Instant

log = logging.getLogger(__name__)

DAY = 86_400.0
# The first purge comes some time after the start, which has other work to catch up on.
FIRST_AFTER_SECONDS = 600.0
# How many chains or groups, and how many small rows, one transaction deletes.
UNITS = 50
ROWS = 500
# A repeated request with an idempotency key is answered with its jobs for a day, so these are kept at least as long.
SHORTEST_JOBS_DAYS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """How many days each kind of history is kept; None means for ever."""

    jobs_days: float | None = None
    events_days: float | None = None
    files_days: float | None = None
    deliveries_days: float | None = None
    audit_days: float | None = None
    stats_days: float | None = None

    @property
    def is_for_ever(self) -> bool:
        return all(getattr(self, one.name) is None for one in fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """How many rows and files were deleted, or would be."""

    jobs: int = 0
    groups: int = 0
    direct: int = 0
    occurrences: int = 0
    events: int = 0
    deliveries: int = 0
    audit: int = 0
    stats: int = 0
    lanes: int = 0
    files: int = 0

    def plus(self, **more: int) -> "Purged":
        return replace(self, **{name: getattr(self, name) + count for name, count in more.items()})


@dataclass(frozen=True, slots=True)
class _RetentionPage:
    """The chains and groups of one page that can be deleted, and where the next page begins."""

    units: list[tuple[Root, list[OldJob]]]
    after: tuple[int, str] | None

    def add_to(self, purged: Purged) -> Purged:
        return purged.plus(
            jobs=sum(len(jobs) for _, jobs in self.units),
            groups=sum(root.group_id is not None for root, _ in self.units),
        )


class _Kind(NamedTuple):
    """Small rows: their name in `Purged`, the setting in `Keep`, and how to find and delete them."""

    name: str
    days: str
    find: Callable[[Tx, Instant, int], list[Any]]
    drop: Callable[[Tx, list[Any]], None]

    def drop_some(self, tx: Tx, before: Instant) -> int:
        old = self.find(tx, before, ROWS)
        if old:
            with old_history.maintenance(tx):
                self.drop(tx, old)
        return len(old)


_KINDS = (
    _Kind("direct", "jobs_days", old_history.direct, old_history.drop_direct),
    _Kind("occurrences", "jobs_days", old_history.skipped, old_history.drop_skipped),
    _Kind("deliveries", "deliveries_days", old_history.deliveries, old_history.drop_deliveries),
    _Kind("audit", "audit_days", old_history.audit, old_history.drop_audit),
    _Kind("stats", "stats_days", old_history.rollups, old_history.drop_rollups),
)


class Retention:
    def __init__(self, clock: Clock, files: RunFiles, threads: Threads) -> None:
        self._clock = clock
        self._files = files
        self._threads = threads
        self.keep = Keep()
        # The leader deletes rows; every node deletes the files on its own disk.
        self.is_leading = True
        self._store: Store | None = None
        self._daily: asyncio.Task[None] | None = None

    # Once a day.

    def start(self, store: Store) -> None:
        self._store = store
        self.use(self.keep)

    def use(self, keep: Keep) -> None:
        """Changes what is kept, from the next purge on. Starts the daily purge unless everything is kept for ever."""
        self.keep = keep
        if self._daily is None and self._store is not None and not keep.is_for_ever:
            work = self._purge_daily(self._store)
            self._daily = asyncio.get_running_loop().create_task(work, name="nextslot-retention")

    async def close(self) -> None:
        """Stops. A purge in progress ends between two of its transactions."""
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
                log.error("history could not be purged, the next try is tomorrow: %s", error)
            await self._clock.sleep(DAY)

    # On request.

    async def purge(self, store: Store) -> Purged:
        """Deletes what is older than `keep` says. Returns how much that was."""
        purged = await self._purge_jobs(store)
        for kind in _KINDS:
            before = self._before(kind.days)
            if before is not None:
                purged = purged.plus(**{kind.name: await _repeat(store, partial(kind.drop_some, before=before))})
        before = self._before("events_days")
        if before is not None:
            purged = purged.plus(events=await _repeat(store, partial(_drop_events, before=before)))
        purged = purged.plus(lanes=await _purge_lanes(store))
        return purged.plus(files=await self._purge_files(store))

    def count(self, tx: Tx) -> Purged:
        """Returns how much `purge` would delete, without lanes, which follow the jobs, and files, which only the disk
        knows. Reads only.
        """
        counted = Purged()
        for page in self._old_pages(tx):
            counted = page.add_to(counted)
        for kind in _KINDS:
            before = self._before(kind.days)
            if before is not None:
                counted = counted.plus(**{kind.name: len(kind.find(tx, before, ALL))})
        before = self._before("events_days")
        if before is not None:
            first, kept = old_history.old_events(tx, before)
            counted = counted.plus(events=kept - first)
        return counted

    def _before(self, setting: str) -> Instant | None:
        """Returns the instant before which history is deleted by this setting of `Keep`; None: history is kept."""
        days = getattr(self.keep, setting)
        if days is None:
            return None
        return self._clock.now().after(-max(days, SHORTEST_JOBS_DAYS if setting == "jobs_days" else 0) * DAY)

    # Chains and groups.

    async def _purge_jobs(self, store: Store) -> Purged:
        purged, before = Purged(), self._before("jobs_days")
        after: tuple[int, str] | None = (0, "")
        while before is not None and after is not None:
            page, runs = await store.write(partial(_drop_page, before=before, after=after), rows=ROWS)
            after = page.after
            await self._remove(runs)
            purged = page.add_to(purged)
        return purged

    def _old_pages(self, tx: Tx) -> Iterator[_RetentionPage]:
        before = self._before("jobs_days")
        after: tuple[int, str] | None = (0, "")
        while before is not None and after is not None:
            page = _old_page(tx, before, after)
            after = page.after
            yield page

    # Files.

    async def _purge_files(self, store: Store) -> int:
        """Deletes the files of runs that ended long ago, and of runs that are no longer stored."""
        keep, jobs = self.keep.files_days, self.keep.jobs_days
        if keep is None and jobs is None:
            return 0
        now, youngest = self._clock.now(), min(days for days in (keep, jobs) if days is not None)
        removed, before = 0, now.after(-youngest * DAY)
        found = await self._threads.run(lambda: self._files.older_than(before, self.is_leading))
        oldest_kept = self._before("files_days")
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


async def _repeat(store: Store, drop_some: Work[int]) -> int:
    """Deletes rows in small transactions until none is left. Returns how many."""
    total = 0
    while count := await store.write(drop_some, rows=ROWS):
        total += count
    return total


async def _purge_lanes(store: Store) -> int:
    """Deletes lanes that no job refers to, and limits that no lane has. Returns how many lanes; all are made again."""
    total = after = 0
    while idle := await store.read(partial(lanes.idle, after=after, limit=ROWS)):
        after = idle[-1]
        # Committed alone: the cached lanes of other works are right until the commit.
        total += await store.write(partial(_drop_lanes, lane_ids=idle), rows=GROUP_ROWS + 1)
    last, unneeded = await store.read(lanes.unneeded_limits)
    for at in range(0, len(unneeded), ROWS):
        await store.write(partial(lanes.drop_limits, keys=unneeded[at : at + ROWS], after=last), rows=GROUP_ROWS + 1)
    return total


def _drop_lanes(tx: Tx, lane_ids: list[int]) -> int:
    count = lanes.drop_unused(tx, lane_ids)
    if count:
        tx.cause(LanesDeleted())
        nodes.settings_changed(tx)
    return count


def _may_go(has_ended: bool | None, changed: Instant, kept_from: Instant | None) -> bool:
    """Returns whether files can be deleted; `has_ended` is None if their run is no longer stored."""
    return has_ended is None or (has_ended and kept_from is not None and changed < kept_from)


def _drop_page(tx: Tx, before: Instant, after: tuple[int, str]) -> tuple[_RetentionPage, list[str]]:
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
    """Returns the negative of what these jobs have added to the sums for statistics."""
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


def _drop_events(tx: Tx, before: Instant) -> int:
    """Deletes the oldest events, without a gap. The numbers of new events go on."""
    first, kept = old_history.old_events(tx, before)
    until = min(kept, first + ROWS)
    if until > first:
        with old_history.maintenance(tx):
            old_history.drop_events(tx, until)
    return until - first
