"""Fairness: of the offices that have a job which fits, starts a job of the office that was served longest ago.

`Dispatcher.claim` calls `start_next` until no job fits. Of the offices that the transaction has touched, a round reads
as many lanes from the front of each class as it needs to find the first job that fits. Of all other offices, it reads
only one open lane of each class. So the cost of a round grows neither with the number of offices nor with the number of
their lanes.
"""

from collections.abc import Sequence

from nextslot.domain import Lane
from nextslot.store.tables import lanes
from nextslot.store.tables.jobs import FirstInLane

from .affinity import preferred
from .dispatch_round import DispatchRound
from .limits_and_slots import OfficeCounters
from .starvation import note_passed_over


def start_next(round_: DispatchRound) -> bool:
    """Starts a fitting job of the office that was served longest ago. Returns False if no office has one."""
    best: tuple[int, str] | None = None
    first: tuple[Lane, FirstInLane] | None = None
    for office in sorted(round_.counters.offices, key=_turn):
        first = first_fitting(round_, office)
        if first is not None:
            best = _turn(office)
            break
    while elsewhere := _first_elsewhere(round_, best):
        if round_.enter(elsewhere[1]):
            best, first = (elsewhere[0], elsewhere[1].office_id), None
            break
    if best is None:
        return False
    office = round_.counters.office(best[1])
    if first is None:
        first = first_fitting(round_, office)
    if first is not None and round_.loaded:
        first = preferred(round_, first)
        office = round_.counters.office(first[0].office_id)
    if round_.others:
        _replace_in_others(round_)
    if first is not None:  # None if a policy has changed since the lane was stored as open: the next call goes on.
        if round_.others or office.unread or len(office.lanes) > 1:
            note_passed_over(round_, office, first[1])
        round_.start(*first)
    return True


def _turn(office: OfficeCounters) -> tuple[int, str]:
    return office.turn, office.office_id


def first_fitting(round_: DispatchRound, office: OfficeCounters) -> tuple[Lane, FirstInLane] | None:
    """Returns the first job in order (INV-004) of the office that may start, with the lane of the job."""
    if office.is_paused:
        return None
    counters = round_.counters
    unread = counters.unread(office)
    first = _first_of(round_, office, _open_lanes(round_, office, office.waiting))
    while needed := [
        class_key
        for class_key, front in unread.items()
        if (first is None or front.place[:2] <= first[1].place.bound) and _is_class_open(round_, front.lane_id)
    ]:
        new = [lane_id for class_key in needed for lane_id in counters.read_more(office, class_key)]
        among = [*_open_lanes(round_, office, new), *([] if first is None else [first[0]])]
        first = _first_of(round_, office, among)
    return first


def _open_lanes(round_: DispatchRound, office: OfficeCounters, lane_ids: Sequence[int]) -> list[Lane]:
    found = [round_.engine.lanes.lane(round_.tx, lane_id) for lane_id in lane_ids]
    if office.callers:
        found = [lane for lane in found if not round_.counters.is_closed(lane)]
    round_.counters.know({key for lane in found for key in lane.needs})
    return [lane for lane in found if round_.may_start(lane, lane.needs)]


def _is_class_open(round_: DispatchRound, lane_id: int) -> bool:
    """Returns whether the limits that all lanes of this class share within the office let a job start."""
    lane = round_.engine.lanes.lane(round_.tx, lane_id)
    return not round_.counters.is_class_closed(lane) and round_.may_start(lane, lane.class_needs)


def _first_of(round_: DispatchRound, office: OfficeCounters, among: Sequence[Lane]) -> tuple[Lane, FirstInLane] | None:
    """Returns the first job of these lanes. Reads jobs only of lanes that may contain this job. Stores the true place
    of each lane whose first job is further behind, so that the next search does not read that lane again."""
    if len(among) == 1:
        return among[0], round_.head(among[0])
    first: tuple[Lane, FirstInLane] | None = None
    for lane in sorted(among, key=lambda lane: office.bound(lane.lane_id)):
        if first is not None and office.bound(lane.lane_id) > first[1].place.bound:
            break
        one = lane, round_.head(lane)
        later = one if first is None or first[1].place < one[1].place else first
        first = one if later is first or first is None else first
        if later is not first:
            office.lanes[later[0].lane_id].first = later[1].place.bound
    return first


def _first_elsewhere(round_: DispatchRound, best: tuple[int, str] | None) -> tuple[int, Lane] | None:
    """Returns a lane of the office that was served longest ago, before `best`; None if there is no such office."""
    found = min(_open_elsewhere(round_), key=_turn_elsewhere, default=None)
    return found if found is not None and (best is None or _turn_elsewhere(found) < best) else None


def _turn_elsewhere(found: tuple[int, Lane]) -> tuple[int, str]:
    return found[0], found[1].office_id


def _open_elsewhere(round_: DispatchRound) -> list[tuple[int, Lane]]:
    """Returns, for each class that fits, one lane of an office not touched by this transaction, with its turn."""
    if not round_.counters.is_freed or not round_.hints.has_open_lanes:
        return []
    if round_.others is None:
        found = lanes.first_open(round_.tx, but=[office.office_id for office in round_.counters.offices])
        round_.others = [(turn, round_.engine.lanes.lane(round_.tx, lane_id)) for lane_id, turn in found]
    return [(turn, lane) for turn, lane in round_.others if round_.may_start(lane, lane.shared)]


def _replace_in_others(round_: DispatchRound) -> None:
    """Replaces the lanes of offices that the transaction now touches by the next open lanes of their classes."""
    touched = {one.office_id for one in round_.counters.offices}
    passed = [lane for _, lane in round_.others or () if lane.office_id in touched]
    following = [lanes.next_open(round_.tx, lane.class_key, but=touched) for lane in passed]
    round_.others = [(turn, lane) for turn, lane in round_.others or () if lane.office_id not in touched]
    round_.others += [
        (found[1], round_.engine.lanes.lane(round_.tx, found[0])) for found in following if found is not None
    ]
