"""Affinity: lets jobs that need what a resource has already loaded (such as a model) start before others for a limited
time.

What a resource has loaded is the affinity of the last job that started on the resource; the database stores both. The
dispatcher passes over the next job in order if that job needs something else, but at most for the
`affinity_wait_seconds` of the resource. Then that job starts, and the resource loads what the job needs. So ABCABC
becomes AABBCC, and no job that is next in order waits longer than that for others. A job without affinity leaves
loaded what is loaded, so it starts when it is next.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

from nextslot.domain import Lane
from nextslot.store.tables import lanes
from nextslot.store.tables.direct import WaitingCaller
from nextslot.store.tables.jobs import FirstInLane

from .dispatch_round import DispatchRound

# A search reads at most so many lanes whose affinity is loaded, and takes the first lane that fits.
MOST_LANES = 16


def preferred(round_: DispatchRound, first: tuple[Lane, FirstInLane]) -> tuple[Lane, FirstInLane]:
    """Returns the job that starts instead of the next one in order, because its resource has loaded what it needs."""
    for resource in _preferring(round_, first[0]):
        found = _first_with(round_, resource, round_.loaded[resource][0])
        if found is not None:
            round_.note_passed_for_affinity(resource)
            return found
    return first


def callers_in_order(
    round_: DispatchRound, waiting: Sequence[tuple[WaitingCaller, Lane]]
) -> Sequence[tuple[WaitingCaller, Lane]]:
    """Returns the callers by arrival, but first those whose resource has loaded what they need and may still prefer it.
    A resource prefers none if the next caller that fits needs nothing loaded."""
    with_room = [lane for _, lane in waiting if not round_.full_limits(lane)]
    next_ = {resource: lane.affinity for lane in reversed(with_room) for resource in lane.resources}
    plain = {resource for resource, affinity in next_.items() if affinity is None}
    return sorted(waiting, key=lambda one: not _is_loaded(round_, one[1], but=plain))


def _is_loaded(round_: DispatchRound, lane: Lane, but: Collection[str] = ()) -> bool:
    """Returns whether a resource of the lane, except these, has loaded what the lane needs, and may still prefer it."""
    return lane.affinity is not None and any(
        round_.loaded[resource][0] == lane.affinity and not _is_over(round_, resource)
        for resource in lane.resources
        if resource in round_.loaded and resource not in but
    )


def note_passed_callers(round_: DispatchRound, started: Lane, waiting: Sequence[Lane]) -> None:
    """Stores since when callers with another affinity are passed over, if the started caller was preferred."""
    for resource in started.resources.keys() & round_.loaded.keys() if _is_loaded(round_, started) else ():
        before = waiting[: waiting.index(started)]
        if any(resource in other.resources and other.affinity not in (None, started.affinity) for other in before):
            round_.note_passed_for_affinity(resource)


def waits_for(round_: DispatchRound, lane: Lane) -> Iterator[tuple[str, str]]:
    """Yields the resources that would prefer another job to one of this lane now, with what they have loaded."""
    for resource in _preferring(round_, lane):
        if _first_with(round_, resource, round_.loaded[resource][0], needs_room=False) is not None:
            yield resource, round_.loaded[resource][0]


def _preferring(round_: DispatchRound, lane: Lane) -> Iterator[str]:
    """Yields the resources of a lane that have loaded something else than it needs, and may still prefer that."""
    for resource in lane.resources if lane.affinity is not None else ():
        if resource in round_.loaded and round_.loaded[resource][0] != lane.affinity and not _is_over(round_, resource):
            yield resource


def _is_over(round_: DispatchRound, resource: str) -> bool:
    """Returns whether jobs were passed over for as long as the resource allows, or it allows no wait now."""
    since, wait = round_.loaded[resource][1], round_.engine.lanes.affinity_waits.get(resource, 0)
    return wait == 0 or (since is not None and since.after(wait) <= round_.now)


def _first_with(
    round_: DispatchRound, resource: str, affinity: str, needs_room: bool = True
) -> tuple[Lane, FirstInLane] | None:
    """Returns the first job with this affinity that may start, of the office that was served longest ago."""
    best: tuple[tuple[int, str], Lane, FirstInLane] | None = None
    for lane in _lanes_with(round_, affinity):
        office = round_.counters.office(lane.office_id)
        if resource not in lane.resources or round_.counters.ready(lane.lane_id) <= 0:
            continue
        if round_.counters.is_closed(lane) or (needs_room and not round_.may_start(lane, lane.needs)):
            continue
        turn, head = (office.turn, office.office_id), round_.head(lane)
        if best is None or turn < best[0] or (turn == best[0] and head.place < best[2].place):
            best = turn, lane, head
    return None if best is None else best[1:]


def _lanes_with(round_: DispatchRound, affinity: str) -> Iterable[Lane]:
    """Returns lanes with this affinity: those that this transaction has read, and the first ones in the database."""
    known = [lane_id for office in round_.counters.offices for lane_id in office.waiting]
    stored = lanes.of_affinity(round_.tx, affinity, MOST_LANES)
    found = (round_.engine.lanes.lane(round_.tx, lane_id) for lane_id in dict.fromkeys([*known, *stored]))
    return [lane for lane in found if lane.affinity == affinity]
