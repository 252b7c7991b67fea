"""SimulatedTx: a transaction of a simulation, which answers from memory those statements that a dispatch round repeats.

A forecast executes thousands of rounds. Each reads and writes the counters of all lanes and limits, and the first jobs
of each lane: two thirds of its time were these statements. There are few lanes and limits, so dictionaries hold them.
Every other statement goes to the in-memory database.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import apsw

from nextslot.store.contract import Row
from nextslot.store.tables import column_codec
from nextslot.store.tables.forecast_reads import Rows

from .sqlite_store import SqliteTx

# How many ready jobs of a lane are read at once.
HEADS = 50
# Writes that leave the order of ready jobs as it is. After any other write to jobs, their order is read again.
_KEEP_ORDER = frozenset(
    {"jobs.succeed", "runs.begin", "runs.finish", "outages.answered", "events.append", "lanes.load", "rates.put"}
)


@dataclass(slots=True)
class _Lane:
    row: Row
    office_id: str
    class_key: str
    ready: int = 0
    is_open: int = 0
    turn: int = 0
    first: tuple[int, int] | None = None

    @property
    def changing(self) -> Row:
        return (self.ready, self.is_open, self.turn, *(self.first or (None, None)))


class DispatchMemory:
    """The data that simulated rounds read again and again: the counters of lanes and limits, and the first ready jobs
    of each lane.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._lanes: dict[int, _Lane] = {}
        self._by_office: dict[str, list[int]] = {}
        self._by_class: dict[str, list[int]] = {}
        self._turns: dict[str, int] = {}
        self._limits: dict[str, list[Any]] = {}
        # The first ready jobs of a lane, and whether the lane has no others.
        self._heads: dict[int, tuple[list[Row], bool]] = {}
        self._lane_of: dict[str, int] = {}
        self.reads: dict[str, Callable[..., list[Row]]] = {
            "lanes.get": self._get,
            "lanes.counts": lambda lane_id: [self._lanes[lane_id].changing],
            "lanes.classes_of": self._classes_of,
            "lanes.of_class": self._of_class,
            "lanes.first_open": self._first_open,
            "lanes.next_open": self._next_open,
            "lanes.waiting_offices": self._waiting_offices,
            "lanes.of_affinity": self._of_affinity,
            "limits.get_many": self._some_limits,
        }
        self.writes: dict[str, Callable[..., None]] = {
            "lanes.place": self._place,
            "lanes.tally": self._tally,
            "lanes.take_turn": self._take_turn,
            "limits.use": self._use,
        }

    def take(self, copies: Iterable[Rows]) -> None:
        """Uses the lanes and limits that were copied from the real database."""
        for copy in copies:
            for row in copy.rows:
                named = dict(zip(copy.columns, row, strict=True))
                if copy.table == "lanes":
                    self.add_lane(named["lane_id"], named)
                elif copy.table == "offices":
                    self._turns[named["office_id"]] = named["turn"]
                elif copy.table == "limits":
                    self._limits[named["limit_key"]] = [named["limit_key"], named["capacity"], named["used"]]

    def add_lane(self, lane_id: int, named: Mapping[str, Any]) -> None:
        """Takes over a lane that is copied, or that the simulation has added."""
        office_id, class_key = named["office_id"], named["class_key"]
        self._lanes[lane_id] = _Lane((lane_id, *(named[name] for name in _FIXED)), office_id, class_key)
        self._by_office.setdefault(office_id, []).append(lane_id)
        self._by_class.setdefault(class_key, []).append(lane_id)

    def add_limit(self, limit_key: str, capacity: int) -> None:
        self._limits.setdefault(limit_key, [limit_key, capacity, 0])

    # Lanes and limits.

    def _get(self, lane_id: int) -> list[Row]:
        return [self._lanes[lane_id].row]

    def of_office(self, office_id: str, limit: int, is_paused: int, callers: int, aging: float | None) -> list[Row]:
        about = (is_paused, callers, self._turns[office_id], aging)
        found = self._in_order(self._by_office.get(office_id, ()))[:limit]
        return [(*about, lane_id, *lane.changing) for _, _, lane_id, lane in found] or [(*about, *[None] * 6)]

    def _in_order(self, lane_ids: Iterable[int]) -> list[tuple[int, int, int, _Lane]]:
        found = ((lane_id, self._lanes[lane_id]) for lane_id in lane_ids)
        return sorted((*lane.first, lane_id, lane) for lane_id, lane in found if lane.first is not None)

    def _classes_of(self, office_id: str) -> list[Row]:
        fronts: dict[str, tuple[int, int, int]] = {}
        opened: dict[str, tuple[int, _Lane]] = {}
        for rank, position, lane_id, lane in self._in_order(self._by_office[office_id]):
            fronts.setdefault(lane.class_key, (lane_id, rank, position))
            if lane.is_open:
                opened[lane.class_key] = lane_id, lane
        none: Row = (None,) * 6
        return [
            (key, *front, *((opened[key][0], *opened[key][1].changing) if key in opened else none))
            for key, front in fronts.items()
        ]

    def _of_class(
        self, office_id: str, class_key: str, first_rank: int, first_position: int, lane_id: int, limit: int
    ) -> list[Row]:
        of_class = [one for one in self._by_class[class_key] if self._lanes[one].office_id == office_id]
        found = [one for one in self._in_order(of_class) if one[:3] >= (first_rank, first_position, lane_id)]
        return [(one[2], *one[3].changing) for one in found[:limit]]

    def last_turn(self) -> int:
        return max(self._turns.values(), default=0)

    def first_open_class(self) -> str | None:
        return min((lane.class_key for lane in self._lanes.values() if lane.is_open), default=None)

    def _first_open(self, but: str) -> list[Row]:
        left_out, first = column_codec.loads(but), dict[str, tuple[int, int]]()
        for lane_id, lane in self._lanes.items():
            if lane.is_open and lane.office_id not in left_out:
                known = first.get(lane.class_key)
                if known is None or (lane.turn, lane_id) < known:
                    first[lane.class_key] = (lane.turn, lane_id)
        return sorted((lane_id, turn) for turn, lane_id in first.values())

    def _next_open(self, class_key: str, but: str) -> list[Row]:
        left_out = column_codec.loads(but)
        found = [
            (self._lanes[lane_id].turn, lane_id)
            for lane_id in self._by_class[class_key]
            if self._lanes[lane_id].is_open and self._lanes[lane_id].office_id not in left_out
        ]
        return [min(found)[::-1]] if found else []

    def _waiting_offices(self) -> list[Row]:
        return [(office_id,) for office_id in {lane.office_id: None for lane in self._lanes.values() if lane.ready}]

    def _of_affinity(self, affinity: str, limit: int) -> list[Row]:
        found = [one for one in self._in_order(self._lanes) if one[3].row[-1] == affinity]
        found.sort(key=lambda one: (self._turns[one[3].office_id], one[3].office_id, *one[:3]))
        return [(one[2],) for one in found[:limit]]

    def _place(self, lane_id: int, is_open: int, turn: int, first_rank: int | None, first_position: int | None) -> None:
        lane = self._lanes[lane_id]
        lane.is_open, lane.turn = is_open, turn
        lane.first = None if first_rank is None or first_position is None else (first_rank, first_position)

    def _tally(self, lane_id: int, ready: int, **sums: int) -> None:
        self._lanes[lane_id].ready += ready  # The totals are for statistics, which no simulation reads.

    def _take_turn(self, office_id: str, turn: int) -> None:
        self._turns[office_id] = turn

    def _some_limits(self, limit_keys: str) -> list[Row]:
        return [tuple(self._limits[key]) for key in column_codec.loads(limit_keys) if key in self._limits]

    def _use(self, limit_key: str, units: int) -> None:
        self._limits[limit_key][2] += units

    # The first ready jobs of each lane.

    def heads(self, lane_id: int, limit: int, sql: str) -> list[Row]:
        known, is_all = self._heads.get(lane_id, ((), False))
        if len(known) < limit and not is_all:
            known = self._connection.execute(sql, {"lane_id": lane_id, "limit": HEADS}).fetchall()
            self._heads[lane_id] = (known, len(known) < HEADS)
            self._lane_of.update((row[0], lane_id) for row in known)
        return list(known[:limit])

    def started(self, job_id: object) -> None:
        """Forgets a job that starts. The other jobs of its lane keep their order."""
        lane_id = self._lane_of.get(str(job_id))
        if lane_id in self._heads:
            known, is_all = self._heads[lane_id]
            self._heads[lane_id] = ([row for row in known if row[0] != job_id], is_all)

    def forget_order(self, job_id: object = None) -> None:
        """Forgets the order of a job's lane or, without a job, of all lanes."""
        if job_id is None:
            self._heads.clear()
        else:
            self._heads.pop(self._lane_of.get(str(job_id), -1), None)


_FIXED = ("office_id", "job_type", "resources", "local", "shared", "class_key", "affinity")


class SimulatedTx(SqliteTx):
    def __init__(self, connection: apsw.Connection, memory: DispatchMemory) -> None:
        super().__init__(connection)
        self._memory = memory

    def row(self, statement: str, /, **values: object) -> Row | None:
        rows = self.rows(statement, **values)
        return rows[0] if rows else None

    def rows(self, statement: str, /, **values: Any) -> list[Row]:
        memory = self._memory
        if statement in memory.reads:
            return memory.reads[statement](**values)
        if statement == "jobs.heads":
            return memory.heads(sql=self._statements[statement], **values)
        if not self._statements[statement].startswith(("select", "with")):
            self._note(statement, values)
        found = super().rows(statement, **values)
        if statement == "lanes.add":
            memory.add_lane(found[0][0], values)
        if statement == "lanes.of_office":
            return memory.of_office(values["office_id"], values["limit"], found[0][0], found[0][1], found[0][3])
        if statement == "lanes.outlook":
            return [(*found[0][:2], memory.first_open_class(), *found[0][3:5], memory.last_turn())]
        return found

    def execute(self, statement: str, /, **values: Any) -> int:
        if statement == "limits.add":
            self._memory.add_limit(**values)
        self._note(statement, values)
        return super().execute(statement, **values)

    def execute_later(self, statement: str, /, **values: object) -> None:
        kept = self._memory.writes.get(statement)
        if kept is not None:
            kept(**values)
            return
        self._note(statement, values)
        super().execute_later(statement, **values)

    def execute_batch(self, statement: str, names: tuple[str, ...], rows: Iterable[Sequence[object]], /) -> None:
        self._note(statement, {})
        super().execute_batch(statement, names, rows)

    def _note(self, statement: str, values: dict[str, object]) -> None:
        if statement == "jobs.start":
            self._memory.started(values["job_id"])
        elif statement == "jobs.pass_over":
            self._memory.forget_order(values["job_id"])
        elif statement not in _KEEP_ORDER:
            self._memory.forget_order()
