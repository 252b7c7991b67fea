"""Fairness: serves, of the offices that have a job which fits, the one that was served longest ago.

`Dispatcher.claim` calls `start_next` until nothing fits. Of the offices that the transaction has not touched, only the
first open lane of each class is read, so the cost of a round does not grow with the number of offices.
"""

from nextslot.domain import Lane
from nextslot.store.tables import lanes

from .dispatch_round import DispatchRound
from .limits_and_slots import OfficeCounters
from .starvation import note_passed_over


def start_next(round_: DispatchRound) -> bool:
    """Starts one job of the office that was served longest ago and has one that fits. Returns False if none has."""
    best: tuple[int, str] | None = None
    fitting: list[Lane] = []
    for office in round_.counters.offices:
        if (best is None or (office.turn, office.office_id) < best) and (open_ := _open_lanes(round_, office)):
            best, fitting = (office.turn, office.office_id), open_
    for turn, lane in _open_elsewhere(round_):
        if best is None or (turn, lane.office_id) < best:
            best, fitting = (turn, lane.office_id), []
    if best is None:
        return False
    office = round_.counters.office(best[1])
    if not fitting:
        _replace_in_others(round_, office)
        fitting = _open_lanes(round_, office)
    if fitting:  # Empty if a policy has changed since the lane was stored as open: the next call goes on without it.
        _start_first(round_, office, fitting)
    return True


def _open_lanes(round_: DispatchRound, office: OfficeCounters) -> list[Lane]:
    if office.is_paused:
        return []
    found = [round_.engine.lanes.lane(round_.tx, lane_id) for lane_id in office.waiting]
    if office.callers:
        found = [lane for lane in found if not round_.counters.is_closed(lane)]
    round_.counters.know({key for lane in found for key in lane.needs})
    return [lane for lane in found if round_.may_start(lane, lane.needs)]


def _open_elsewhere(round_: DispatchRound) -> list[tuple[int, Lane]]:
    """Returns one lane for each class that fits, of offices that this transaction has not touched, with their turns."""
    if not round_.counters.is_freed or not round_.hints.has_open_lanes:
        return []
    if round_.others is None:
        found = lanes.first_open(round_.tx, but=[office.office_id for office in round_.counters.offices])
        round_.others = [(turn, round_.engine.lanes.lane(round_.tx, lane_id)) for lane_id, turn in found]
    return [(turn, lane) for turn, lane in round_.others if round_.may_start(lane, lane.shared)]


def _replace_in_others(round_: DispatchRound, office: OfficeCounters) -> None:
    """Replaces the lanes of an office that the transaction now touches by the next open lanes of their classes."""
    touched = [one.office_id for one in round_.counters.offices]
    others = round_.others or []
    passed = [lane for _, lane in others if lane.office_id == office.office_id]
    following = [lanes.next_open(round_.tx, lane.class_key, but=touched) for lane in passed]
    round_.others = [(turn, lane) for turn, lane in others if lane.office_id != office.office_id]
    round_.others += [
        (found[1], round_.engine.lanes.lane(round_.tx, found[0])) for found in following if found is not None
    ]


def _start_first(round_: DispatchRound, office: OfficeCounters, fitting: list[Lane]) -> None:
    """Starts the first job in order (INV-004) of the lanes that fit."""
    first = min(fitting, key=lambda lane: round_.head(lane).place)
    head = round_.head(first)
    if round_.others or len(fitting) < len(office.waiting):
        note_passed_over(round_, office, fitting, head)
    round_.start(first, head)
