"""Lanes, limits and pauses: the stored counters that decide what may start, one function per statement."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from nextslot.domain import Lane, Limit
from nextslot.domain.limits import is_of_jobs
from nextslot.store.contract import Tx
from nextslot.system.instant import Instant

from . import column_codec

# The part of a job's place by which lanes are ordered: see `jobs.Place.bound`.
Bound = tuple[int, int]
# After so many lanes of an office, a search for open ones reads no further: if roles or keys of the office hold all of
# these back, those behind them wait too. 1,000 take about 7 ms.
MOST_SEARCHED = 1_000


@dataclass(slots=True)
class LaneCounts:
    """The counters of a lane. `first` is at or before the place of its first ready job; None if the lane has none."""

    ready: int
    is_open: bool
    turn: int
    first: Bound | None


class ClassFront(NamedTuple):
    """The lanes of a class in an office that were not read yet. `place` is that of the first of them."""

    lane_id: int
    place: tuple[int, int, int]


@dataclass(slots=True)
class LaneTally:
    """The amounts to add to a lane's number of ready jobs, and to the totals of its office's statistics."""

    ready: int = 0
    running: int = 0
    chains: int = 0
    completed: int = 0
    skipped: int = 0
    failed: int = 0
    cancelled: int = 0
    completion_us: int = 0

    def values(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}


def find(tx: Tx, office_id: str, class_key: str, local: Mapping[str, int]) -> int | None:
    row = tx.row("lanes.find", office_id=office_id, class_key=class_key, local=column_codec.canonical(local))
    return row[0] if row else None


def add(
    tx: Tx,
    office_id: str,
    job_type: str,
    resources: Mapping[str, int],
    local: Mapping[str, int],
    shared: Mapping[str, int],
    class_key: str,
    affinity: str | None = None,
) -> int:
    row = tx.row(
        "lanes.add",
        office_id=office_id,
        job_type=job_type,
        resources=column_codec.canonical(resources),
        local=column_codec.canonical(local),
        shared=column_codec.canonical(shared),
        class_key=class_key,
        affinity=affinity,
    )
    assert row is not None
    lane_id: int = row[0]
    return lane_id


def of_affinity(tx: Tx, affinity: str, limit: int) -> list[int]:
    """Returns lanes of any office with this affinity and ready jobs; those of offices that were served long ago come
    first.
    """
    return [row[0] for row in tx.rows("lanes.of_affinity", affinity=affinity, limit=limit)]


def loaded(tx: Tx) -> dict[str, tuple[str, Instant | None]]:
    """Returns for each resource the affinity of the last job that started there, and since when others are passed over
    for it.
    """
    return {row[0]: (row[1], column_codec.instant(row[2])) for row in tx.rows("lanes.loaded")}


def load(tx: Tx, resource: str, affinity: str, passed_since: Instant | None) -> None:
    tx.execute("lanes.load", resource=resource, affinity=affinity, passed_since=passed_since)


def has_class(tx: Tx, office_id: str, class_key: str) -> bool:
    return tx.row("lanes.has_class", office_id=office_id, class_key=class_key) is not None


def get(tx: Tx, lane_id: int) -> Lane:
    row = tx.row("lanes.get", lane_id=lane_id)
    assert row is not None
    return Lane(
        lane_id=row[0],
        office_id=row[1],
        job_type=row[2],
        resources=column_codec.loads(row[3]),
        local=column_codec.loads(row[4]),
        shared=column_codec.loads(row[5]),
        class_key=row[6],
        affinity=row[7],
    )


def class_key(job_type: str, resources: Mapping[str, int], shared: Mapping[str, int], of_office: int) -> str:
    """Returns a key that is equal for all lanes, of any office, with the same type, resources, shared limits and units
    of the office's limit.
    """
    own = {} if of_office == 1 else {"office": of_office}
    return column_codec.canonical({"type": job_type, "resources": resources, "limits": shared, **own})


def counts(tx: Tx, lane_id: int) -> LaneCounts:
    row = tx.row("lanes.counts", lane_id=lane_id)
    assert row is not None
    return _counts(*row)


def of_office(tx: Tx, office_id: str, limit: int) -> tuple[bool, int, int, float | None, dict[int, LaneCounts]]:
    """Returns whether an office is paused, how many callers wait, when it was last served, the period by which its jobs
    age, and its first lanes in order that have ready jobs.
    """
    rows = tx.rows("lanes.of_office", office_id=office_id, limit=limit)
    is_paused, callers, turn, aging = rows[0][:4]
    return is_paused == 1, callers, turn, aging, {row[4]: _counts(*row[5:]) for row in rows if row[4] is not None}


def classes_of(tx: Tx, office_id: str) -> tuple[dict[str, ClassFront], dict[int, LaneCounts]]:
    """Returns each class of lanes with ready jobs in an office, without reading those lanes; and the lanes that are
    open.
    """
    rows = tx.rows("lanes.classes_of", office_id=office_id)
    fronts = {row[0]: ClassFront(row[1], (row[2], row[3], row[1])) for row in rows}
    return fronts, {row[4]: _counts(*row[5:]) for row in rows if row[4] is not None}


def of_class(tx: Tx, office_id: str, class_key: str, place: tuple[int, int, int], limit: int) -> dict[int, LaneCounts]:
    """Returns the first lanes of a class in an office that have ready jobs, in order, from a place on."""
    rows = tx.rows(
        "lanes.of_class",
        office_id=office_id,
        class_key=class_key,
        first_rank=place[0],
        first_position=place[1],
        lane_id=place[2],
        limit=limit,
    )
    return {row[0]: _counts(*row[1:]) for row in rows}


def _counts(ready: int, is_open: int, turn: int, rank: int | None, position: int | None) -> LaneCounts:
    first = None if rank is None or position is None else (rank, position)
    return LaneCounts(ready, is_open == 1, turn, first)


def running_counts(tx: Tx) -> list[tuple[int, str, int]]:
    """Returns (lane, office, number of running jobs) of every lane."""
    return [(lane_id, office_id, running) for lane_id, office_id, running in tx.rows("pages.lane_offices")]


def waiting_offices(tx: Tx) -> list[str]:
    """Returns the offices that have ready jobs."""
    return [office_id for (office_id,) in tx.rows("lanes.waiting_offices")]


@dataclass(frozen=True, slots=True)
class DispatchHints:
    """What a dispatch round has to consider: pauses, waiting callers, starving jobs, outages, ready jobs with room."""

    pauses: int
    passed_over_since: int | None
    has_open_lanes: bool
    callers: int
    outages: int
    # The largest turn number of any office.
    last_turn: int


def hints(tx: Tx) -> DispatchHints:
    row = tx.row("lanes.outlook")
    assert row is not None
    return DispatchHints(row[0], row[1], row[2] is not None, row[3], row[4], row[5] or 0)


def take_turn(tx: Tx, office_id: str, turn: int) -> None:
    tx.execute_later("lanes.take_turn", office_id=office_id, turn=turn)


def place(tx: Tx, lane_id: int, counts: LaneCounts) -> None:
    rank, position = counts.first or (None, None)
    tx.execute_later(
        "lanes.place",
        lane_id=lane_id,
        is_open=int(counts.is_open),
        turn=counts.turn,
        first_rank=rank,
        first_position=position,
    )


def tally(tx: Tx, lane_id: int, tally: LaneTally) -> None:
    tx.execute_later("lanes.tally", lane_id=lane_id, **tally.values())


def first_open(tx: Tx, but: Iterable[str]) -> list[tuple[int, int]]:
    """Returns (lane, turn): for each class, the open lane whose office was served longest ago. Leaves out some
    offices.
    """
    return [(lane_id, turn) for lane_id, turn in tx.rows("lanes.first_open", but=column_codec.key_set(but))]


def next_open(tx: Tx, class_key: str, but: Iterable[str]) -> tuple[int, int] | None:
    """Returns the same for one class."""
    row = tx.row("lanes.next_open", class_key=class_key, but=column_codec.key_set(but))
    return None if row is None else (row[0], row[1])


def idle(tx: Tx, after: int, limit: int) -> list[int]:
    """Returns lanes whose counters allow that they are unused, in the order of their ids."""
    return [lane_id for (lane_id,) in tx.rows("lanes.idle", after=after, limit=limit)]


def drop_unused(tx: Tx, lane_ids: Iterable[int]) -> int:
    """Deletes those of these lanes to which nothing refers. Returns how many."""
    return tx.execute("lanes.drop_unused", lane_ids=column_codec.key_set(map(str, lane_ids)))


def unneeded_limits(tx: Tx) -> tuple[int, list[str]]:
    """Returns the last lane, and the limits of roles, keys and affinities that no lane has."""
    rows = tx.rows("lanes.locals", after=0)
    needed = {key for _, local in rows for key in column_codec.loads(local)}
    unneeded = [one.limit_key for one in all_limits(tx) if is_of_jobs(one.limit_key) and one.limit_key not in needed]
    return max((lane_id for lane_id, _ in rows), default=0), unneeded


def drop_limits(tx: Tx, keys: Iterable[str], after: int) -> None:
    """Deletes those of these limits that no lane has which is newer than `after`."""
    newer = {key for _, local in tx.rows("lanes.locals", after=after) for key in column_codec.loads(local)}
    tx.execute("limits.drop", limit_keys=column_codec.key_set(set(keys) - newer))


def add_limit(tx: Tx, limit_key: str, capacity: int) -> None:
    tx.execute("limits.add", limit_key=limit_key, capacity=capacity)


def limits(tx: Tx, limit_keys: Iterable[str]) -> dict[str, Limit]:
    rows = tx.rows("limits.get_many", limit_keys=column_codec.key_set(limit_keys))
    return {key: Limit(limit_key=key, capacity=capacity, used=used) for key, capacity, used in rows}


def all_limits(tx: Tx) -> list[Limit]:
    return [Limit(limit_key=key, capacity=capacity, used=used) for key, capacity, used in tx.rows("limits.all")]


def use(tx: Tx, limit_key: str, units: int) -> None:
    tx.execute_later("limits.use", limit_key=limit_key, units=units)


def resize(tx: Tx, limit_key: str, capacity: int) -> bool:
    return tx.execute("limits.resize", limit_key=limit_key, capacity=capacity) == 1


def pauses(tx: Tx) -> set[tuple[str, str]]:
    return {(scope, name) for scope, name in tx.rows("limits.pauses")}


def pause(tx: Tx, scope: str, name: str, now: Instant) -> bool:
    return tx.execute("limits.pause", scope=scope, name=name, now=now) == 1


def resume(tx: Tx, scope: str, name: str) -> bool:
    return tx.execute("limits.resume", scope=scope, name=name) == 1
