"""Starvation: gives the next free units to a job that a limit has held back for too long while other jobs started.

`fairness` stores which jobs are passed over. `Dispatcher` serves the jobs that were passed over for
`starvation_after_seconds` before all others, and holds free units for each until they suffice.
"""

from collections.abc import Sequence

from nextslot.domain import Lane
from nextslot.engine.effects import WorkKind
from nextslot.store.tables import jobs, lanes
from nextslot.store.tables.direct import WaitingCaller
from nextslot.store.tables.jobs import FirstInLane

from .dispatch_round import DispatchRound
from .limits_and_slots import OfficeCounters

STARVATION_AFTER_SECONDS = 600
# The largest number of starving jobs that one round reads, oldest first.
MOST_STARVING = 100
# Passed-over times are stored for at most so many lanes of an office, the first ones in order.
MOST_PASSED_OVER = 10


def serve_starving(round_: DispatchRound, after_seconds: float, before: WaitingCaller | None = None) -> None:
    """Starts the starving jobs that fit, and holds the units that the others need.

    With `before`, serves only jobs of other offices that have starved for longer than this caller's reservation has
    existed; if the caller has no reservation, serves all starving jobs.
    """
    if round_.hints.passed_over_since is None:
        return
    round_.write_starts()  # Otherwise the next query would return the started jobs again.
    held = {hold.id for hold in round_.holds}
    for lane, head in starving(round_, after_seconds):
        if head.job_id in held or (before is not None and not _goes_before(lane, head, before)):
            continue
        if round_.fits(lane):
            round_.start(lane, head)
        elif round_.could_ever_fit(lane):
            round_.hold(WorkKind.JOB, head.job_id, lane)


def _goes_before(lane: Lane, head: FirstInLane, caller: WaitingCaller) -> bool:
    since = head.passed_over_since
    if lane.office_id == caller.office_id or since is None:
        return False
    return caller.reserved_at is None or since < caller.reserved_at


def starving(round_: DispatchRound, after_seconds: float) -> list[tuple[Lane, FirstInLane]]:
    """Returns one starving job of each office: the first in the office's order that may start. The office that has
    waited longest comes first."""
    since = round_.now.after(-after_seconds)
    if round_.hints.passed_over_since is None or round_.hints.passed_over_since > since:
        return []
    first: dict[str, tuple[Lane, FirstInLane]] = {}
    for office_id, lane_id, head in jobs.starving(round_.tx, since, MOST_STARVING):
        lane = round_.engine.lanes.lane(round_.tx, lane_id)
        if not round_.is_allowed(lane) or round_.counters.is_closed(lane):
            continue
        if office_id not in first or head.place < first[office_id][1].place:
            first[office_id] = (lane, head)
    return list(first.values())


def note_passed_over(round_: DispatchRound, office: OfficeCounters, started: FirstInLane) -> None:
    """Stores since when limits have held back jobs that should have started before `started`: earlier jobs of the same
    office, and the first jobs of offices with an earlier turn. An office about which this transaction may not decide
    shares no limit with the office of `started`, so `started` takes nothing from it."""
    held_back = _earlier(round_, office, started)
    held_back += [
        lane
        for turn, lane in round_.others or ()
        if turn < office.turn
        and round_.tx.has_entered(lane.office_id)
        and round_.is_allowed(lane)
        and not round_.fits_elsewhere(lane)
    ]
    _pass_over(round_, held_back, office.office_id, started)


def note_passed_over_by_caller(round_: DispatchRound, started: Lane) -> None:
    """Stores since when shared limits have held back the first jobs of other offices while direct callers start.
    Without this, a series of callers would starve these jobs unnoticed."""
    if not round_.hints.has_open_lanes:
        return
    opened = lanes.first_open(round_.tx, but=[started.office_id])
    _pass_over(
        round_,
        [
            lane
            for lane in (round_.engine.lanes.lane(round_.tx, lane_id) for lane_id, _ in opened)
            if started.needs.keys() & lane.shared.keys()
            and round_.is_allowed(lane)
            and not round_.counters.is_emptied(lane)
            and not round_.fits_elsewhere(lane)
        ],
    )


def _earlier(round_: DispatchRound, office: OfficeCounters, started: FirstInLane) -> list[Lane]:
    """Returns the first lanes of the office that a limit holds back and whose first job may be before `started`."""
    found = _held_back(round_, office.waiting)
    while True:
        found = sorted(
            (lane for lane in found if office.bound(lane.lane_id) <= started.place.bound),
            key=lambda lane: office.bound(lane.lane_id),
        )[:MOST_PASSED_OVER]
        last = office.bound(found[-1].lane_id) if len(found) == MOST_PASSED_OVER else started.place.bound
        needed = [
            class_key
            for class_key, front in (office.unread or {}).items()
            if front.place[:2] < last and _held_back(round_, [front.lane_id])
        ]
        if not needed:
            return found
        for class_key in needed:
            found += _held_back(round_, round_.counters.read_more(office, class_key))


def _held_back(round_: DispatchRound, lane_ids: Sequence[int]) -> list[Lane]:
    found = [round_.engine.lanes.lane(round_.tx, lane_id) for lane_id in lane_ids]
    return [
        lane
        for lane in found
        if not round_.may_start(lane, lane.needs)
        and lane.job_type in round_.engine.job_types
        and round_.is_allowed(lane)
        and not round_.counters.is_closed(lane)
    ]


def _pass_over(
    round_: DispatchRound, held_back: Sequence[Lane], office_id: str = "", started: FirstInLane | None = None
) -> None:
    """Stores that the first jobs of these lanes are passed over; in the office of `started`, only earlier ones."""
    round_.read_heads(held_back)
    for lane in held_back:
        head = round_.head(lane)
        is_before = started is None or lane.office_id != office_id or head.place < started.place
        if is_before and head.passed_over_since is None:
            jobs.pass_over(round_.tx, head.job_id, round_.now)
            round_.replace_head(lane, head._replace(passed_over_since=round_.now))
