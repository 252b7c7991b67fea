"""Lanes, limits and pauses: the stored counters that decide what may start, one function a statement."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nextslot.domain import Lane, Limit
from nextslot.store.contract import Tx
from nextslot.system.instant import Instant

from . import column_codec


@dataclass(slots=True)
class LaneCounts:
    """What changes of a lane."""

    ready: int
    is_open: bool
    turn: int


@dataclass(slots=True)
class LaneTally:
    """What is added to the sums that an office's statistics are made of."""

    running: int = 0
    chains: int = 0
    completed: int = 0
    skipped: int = 0
    failed: int = 0
    cancelled: int = 0
    completion_us: int = 0

    def values(self) -> dict[str, int]:
        return {
            "running": self.running,
            "chains": self.chains,
            "completed": self.completed,
            "skipped": self.skipped,
            "failed": self.failed,
            "cancelled": self.cancelled,
            "completion_us": self.completion_us,
        }


_NOTHING = LaneTally().values()


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
) -> int:
    row = tx.row(
        "lanes.add",
        office_id=office_id,
        job_type=job_type,
        resources=column_codec.canonical(resources),
        local=column_codec.canonical(local),
        shared=column_codec.canonical(shared),
        class_key=class_key,
    )
    assert row is not None
    lane_id: int = row[0]
    return lane_id


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
    )


def class_key(job_type: str, resources: Mapping[str, int], shared: Mapping[str, int]) -> str:
    return column_codec.canonical({"type": job_type, "resources": resources, "limits": shared})


def counts(tx: Tx, lane_id: int) -> LaneCounts:
    row = tx.row("lanes.counts", lane_id=lane_id)
    assert row is not None
    return LaneCounts(row[0], row[1] == 1, row[2])


def of_office(tx: Tx, office_id: str) -> tuple[bool, int, int, float | None, dict[int, LaneCounts]]:
    """Whether an office is paused, how many callers wait, when it was last served, the period by which its jobs age,
    and its lanes with ready jobs."""
    rows = tx.rows("lanes.of_office", office_id=office_id)
    counts = {row[4]: LaneCounts(row[5], row[6] == 1, row[7]) for row in rows if row[4] is not None}
    return rows[0][0] == 1, rows[0][1], rows[0][2] or 0, rows[0][3], counts


def running_counts(tx: Tx) -> list[tuple[int, str, int]]:
    """(lane, office, how many jobs run) of every lane."""
    return [(lane_id, office_id, running) for lane_id, office_id, running in tx.rows("pages.lane_offices")]


def last_turn(tx: Tx) -> int:
    row = tx.row("lanes.last_turn")
    return row[0] if row and row[0] is not None else 0


def waiting_offices(tx: Tx) -> list[str]:
    """The offices that have ready jobs."""
    return [office_id for (office_id,) in tx.rows("lanes.waiting_offices")]


@dataclass(frozen=True, slots=True)
class DispatchHints:
    """What a look at the queue has to care about at all."""

    pauses: int
    passed_over_since: int | None
    has_open_lanes: bool
    callers: int
    outages: int


def hints(tx: Tx) -> DispatchHints:
    row = tx.row("lanes.outlook")
    assert row is not None
    return DispatchHints(row[0], row[1], row[2] is not None, row[3], row[4])


def save(tx: Tx, lane_id: int, counts: LaneCounts, tally: LaneTally | None) -> None:
    added = _NOTHING if tally is None else tally.values()
    tx.execute_later(
        "lanes.save", lane_id=lane_id, ready=counts.ready, is_open=int(counts.is_open), turn=counts.turn, **added
    )


def tally(tx: Tx, lane_id: int, tally: LaneTally) -> None:
    tx.execute_later("lanes.tally", lane_id=lane_id, **tally.values())


def first_open(tx: Tx, but: Iterable[str]) -> list[tuple[int, int]]:
    """(lane, turn): of each class the open lane whose office was served longest ago, leaving out some offices."""
    return [(lane_id, turn) for lane_id, turn in tx.rows("lanes.first_open", but=column_codec.key_set(but))]


def next_open(tx: Tx, class_key: str, but: Iterable[str]) -> tuple[int, int] | None:
    """As `first_open`, of one class."""
    row = tx.row("lanes.next_open", class_key=class_key, but=column_codec.key_set(but))
    return None if row is None else (row[0], row[1])


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
