"""Statistics: a series of points from the rollups, at a cost that depends on the requested range and not on history."""

from bisect import bisect_left
from collections import Counter
from datetime import datetime

from nextslot.domain import Series, SeriesPoint
from nextslot.domain.rollups import (
    DAY,
    HOUR,
    JOB,
    KEPT_SECONDS,
    KINDS,
    MAX_POINTS,
    MINUTE,
    SECOND,
    SERIES_STEPS,
    STORED_STEPS,
    RollupKey,
    Totals,
    floor,
    is_outdated,
    quantile_seconds,
)
from nextslot.errors import Invalid
from nextslot.store.contract import Tx
from nextslot.store.tables import offices, rollups
from nextslot.system.instant import Instant

from .arguments import found, instant
from .unit_of_work import UnitOfWork

# How far back a series goes by default, in seconds; a day for the steps that are not listed.
DEFAULT_SECONDS = {60: 6 * HOUR, 86_400: 30 * DAY}


class StatsService:
    def __init__(self, access: UnitOfWork) -> None:
        self._access = access

    async def series(
        self,
        from_: Instant | datetime | None = None,
        to: Instant | datetime | None = None,
        step: int = HOUR,
        office_id: str | None = None,
        job_type: str | None = None,
        kind: str = JOB,
    ) -> Series:
        """Returns what ended in each step between two times: how many by outcome, how long they waited and ran, and how
        long the queue was at the end of the step.

        The times are rounded to whole steps in UTC, and steps that have not begun are left out.
        """
        if kind not in KINDS:
            raise Invalid(f"is {kind!r}; it must be one of {', '.join(KINDS)}", "kind")
        now = self._access.clock.now()
        begin, until = _range(instant(from_, "from"), instant(to, "to"), step, now)

        def read(tx: Tx) -> Series:
            if office_id is not None:
                found(offices.get(tx, office_id), "office", office_id)
            return _series(tx, begin, until, step, office_id or "", job_type or "", kind, now)

        return await self._access.read(read)


def _range(begin: Instant | None, until: Instant | None, step: int, now: Instant) -> tuple[int, int]:
    """Returns the beginning of the first step and the end of the last one, or refuses them."""
    if type(step) is not int or step not in SERIES_STEPS:
        raise Invalid(f"is {step!r}; it must be one of {', '.join(map(str, SERIES_STEPS))} seconds", "step")
    until = now.after(1e-6) if until is None or until > now else until
    begin = until.after(-DEFAULT_SECONDS.get(step, DAY)) if begin is None else begin
    if begin >= until:
        raise Invalid(f"is {_text(begin)}; it must be before `to`, and before now", "from")
    if begin < 0:
        raise Invalid(f"is {_text(begin)}; it must not be before 1970", "from")
    first, end = floor(begin, step), floor(until - 1, step) + step * SECOND
    _refuse_folded(first, step, now)
    points = (end - first) // (step * SECOND)
    if points > MAX_POINTS:
        raise Invalid(f"makes {points:,} points of this range; use a larger step: at most {MAX_POINTS:,} fit", "step")
    return first, end


def _text(at: Instant) -> str:
    try:
        return str(at)
    except OverflowError:  # A time before the year 1 or after 9999 in UTC.
        return "out of range"


def _refuse_folded(first: int, step: int, now: Instant) -> None:
    """Raises Invalid if the step is finer than the rollups that are still stored for that time."""
    stored = MINUTE if step < HOUR else HOUR
    larger = HOUR if step < HOUR else DAY
    if step < DAY and is_outdated(first, stored, larger, now):
        days = KEPT_SECONDS[stored] // DAY
        raise Invalid(
            f"is too fine: before the last {days} days only larger steps are stored; use {larger}, or a later `from`",
            "step",
        )


def _series(
    tx: Tx, begin: int, until: int, step: int, office_id: str, job_type: str, kind: str, now: Instant
) -> Series:
    width = step * SECOND
    counts: dict[int, Counter[str]] = {}
    times: dict[int, Totals] = {}
    for at, key, totals in _rollups(tx, begin, until, step, office_id):
        if key.kind == kind and job_type in ("", key.job_type):
            counts.setdefault(floor(at, step), Counter())[key.outcome] += totals.jobs
            times.setdefault(floor(at, step), Totals()).add(totals)
    counted_from = rollups.bounds(tx)[1]
    depths = _Depths(tx, begin, until, office_id, job_type, counted_from) if kind == JOB else None
    points = [
        _point(
            at, counts.get(at, Counter()), times.get(at, Totals()), None if depths is None else depths.at(at + width)
        )
        for at in range(begin, until, width)
    ]
    every = Totals()
    for totals in times.values():
        every.add(totals)
    return Series(
        step=step,
        counted_from=Instant(counted_from) if counted_from > begin else None,
        total=_point(begin, sum(counts.values(), Counter()), every, points[-1].queue_depth),
        points=tuple(points),
    )


def _rollups(tx: Tx, begin: int, until: int, step: int, office_id: str) -> list[tuple[int, RollupKey, Totals]]:
    found = [
        (one.at, one.key, one.totals)
        for stored in STORED_STEPS
        if stored <= step
        for one in rollups.stored(tx, stored, begin, until, office_id)
    ]
    for end, jobs in rollups.recent(tx, begin, until, office_id):
        totals = Totals()
        totals.count(end, jobs)
        found.append((end.minute, end.key, totals))
    return found


def _point(at: int, counts: Counter[str], totals: Totals, depth: int | None) -> SeriesPoint[Instant]:
    return SeriesPoint(
        at=Instant(at),
        completed=counts["COMPLETED"],
        failed=counts["FAILED"],
        skipped=counts["SKIPPED"],
        cancelled=counts["CANCELLED"],
        wait_p50_seconds=quantile_seconds(totals.waits, 0.5),
        wait_p95_seconds=quantile_seconds(totals.waits, 0.95),
        duration_p50_seconds=quantile_seconds(totals.durations, 0.5),
        duration_p95_seconds=quantile_seconds(totals.durations, 0.95),
        queue_depth=depth,
    )


class _Depths:
    """The depth of the queue at the beginning of each minute. A minute without a stored depth changed nothing, so the
    next stored depth is also its depth; after the last one, the current depth is.
    """

    def __init__(self, tx: Tx, begin: int, until: int, office_id: str, job_type: str, counted_from: int) -> None:
        self._counted_from = counted_from
        stored = rollups.depths(tx, begin, until, office_id, job_type)
        self._times = sorted(stored)
        self._depths = [stored[at] for at in self._times]
        self._depths.append(rollups.depth_now(tx, office_id, job_type))

    def at(self, instant: int) -> int | None:
        """Returns None for a time before anything was stored."""
        return None if instant < self._counted_from else self._depths[bisect_left(self._times, instant)]
