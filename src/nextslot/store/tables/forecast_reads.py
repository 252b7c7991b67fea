"""What forecasts and explanations read, one function per statement. Rows for the simulation are copied unchanged."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from nextslot.domain.limits import is_of_jobs
from nextslot.store import dialects
from nextslot.store.contract import Row, Tx
from nextslot.system.instant import Instant

from . import column_codec
from .jobs import Place

_COPIED = re.compile(r"select (?P<columns>[\w, \n]+?)\s+from (?P<table>\w+)")


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one table, and the names of their columns."""

    table: str
    columns: tuple[str, ...]
    rows: list[Row]

    def column(self, name: str) -> list[Any]:
        at = self.columns.index(name)
        return [row[at] for row in self.rows]

    def mapped(self, name: str, change: Callable[[Any], Any]) -> "Rows":
        """Returns the rows with changed values in one column."""
        at = self.columns.index(name)
        return Rows(self.table, self.columns, [(*row[:at], change(row[at]), *row[at + 1 :]) for row in self.rows])


class Holding(NamedTuple):
    """A running job or direct execution, which holds units of its lane's limits."""

    id: str
    title: str | None
    job_type: str
    since: Instant
    lane_id: int
    node_id: str
    is_direct: bool


def queue(tx: Tx, office_id: str, limit: int) -> Rows:
    return _copy(tx, "forecast.queue", office_id=office_id, limit=limit)


def running(tx: Tx, limit: int) -> Rows:
    return _copy(tx, "forecast.running", limit=limit)


def chains(tx: Tx, chain_ids: Iterable[str]) -> Rows:
    return _copy(tx, "forecast.chains", chain_ids=column_codec.key_set(chain_ids))


def members(tx: Tx, group_id: str, first: int, last: int) -> Rows:
    return _copy(tx, "forecast.members", group_id=group_id, first=first, last=last)


def runs(tx: Tx, job_ids: Iterable[str]) -> Rows:
    return _copy(tx, "forecast.runs", job_ids=column_codec.key_set(job_ids))


def edges(tx: Tx, job_ids: Iterable[str]) -> Rows:
    return _copy(tx, "forecast.edges", job_ids=column_codec.key_set(job_ids))


def groups(tx: Tx, group_ids: Iterable[str]) -> Rows:
    return _copy(tx, "forecast.groups", group_ids=column_codec.key_set(group_ids))


def queued_offices(tx: Tx, limit: int) -> list[str]:
    return [row[0] for row in tx.rows("forecast.queued_offices", limit=limit)]


def scheduled_offices(tx: Tx, limit: int) -> set[str]:
    """Returns the offices of the schedules that fire next."""
    return {row[0] for row in tx.rows("forecast.scheduled_offices", limit=limit)}


def schedules(tx: Tx, office_ids: Iterable[str], limit: int) -> Rows:
    return _copy(tx, "forecast.schedules", office_ids=column_codec.key_set(office_ids), limit=limit)


def templates(tx: Tx, template_ids: Iterable[str]) -> Rows:
    return _copy(tx, "forecast.templates", template_ids=column_codec.key_set(template_ids))


def offices(tx: Tx, office_ids: Iterable[str]) -> Rows:
    return _copy(tx, "forecast.offices", office_ids=column_codec.key_set(office_ids))


def lanes(tx: Tx, lane_ids: Iterable[int]) -> Rows:
    return _copy(tx, "forecast.lanes", lane_ids=column_codec.key_set(map(str, lane_ids)))


def lanes_of(tx: Tx, office_ids: Iterable[str]) -> Rows:
    return _copy(tx, "forecast.lanes_of", office_ids=column_codec.key_set(office_ids))


def limits(tx: Tx) -> Rows:
    """Returns all limits except those that jobs bring with them, of which there may be many."""
    return _copy(tx, "forecast.limits")


def limits_of(tx: Tx, lanes_: Rows) -> Rows:
    """Returns those limits of some lanes that their jobs bring with them."""
    keys = {key for text in lanes_.column("local") for key in lane_limits(text) if is_of_jobs(key)}
    return _copy(tx, "limits.get_many", limit_keys=column_codec.key_set(keys))


def rates(tx: Tx) -> Rows:
    return _copy(tx, "rates.all")


def pauses(tx: Tx) -> Rows:
    return _copy(tx, "forecast.pauses")


def affinities(tx: Tx) -> Rows:
    return _copy(tx, "lanes.loaded")


def outages(tx: Tx) -> Rows:
    return _copy(tx, "outages.all")


def callers(tx: Tx) -> Rows:
    return _copy(tx, "forecast.callers")


def reservations(tx: Tx) -> Rows:
    return _copy(tx, "forecast.reservations")


def durations(tx: Tx, limit: int) -> list[tuple[str, float, Mapping[str, Any]]]:
    """Returns (type, seconds, parameters) of the completed runs among the newest ones, the newest first."""
    return [
        (job_type, micros / 1_000_000, {} if params is None else column_codec.loads(params))
        for job_type, micros, params in tx.rows("forecast.durations", limit=limit)
    ]


def params(tx: Tx, job_ids: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """Returns the parameters of some jobs by id, unless they are long."""
    rows = tx.rows("forecast.params", job_ids=column_codec.key_set(job_ids))
    return {job_id: column_codec.loads(text) for job_id, text in rows}


def ahead(tx: Tx, office_id: str, place: Place, limit: int) -> int:
    row = tx.row(
        "forecast.ahead",
        office_id=office_id,
        priority=place.priority,
        position=place.position,
        created_at=place.created_at,
        job_id=place.job_id,
        limit=limit,
    )
    assert row is not None
    count: int = row[0]
    return count


def unmet(tx: Tx, job_id: str, limit: int) -> list[tuple[str, str]]:
    """Returns (prerequisite, its chain) of each unmet dependency."""
    return [(row[0], row[1]) for row in tx.rows("forecast.unmet", job_id=job_id, limit=limit)]


def holders(tx: Tx, limit: int) -> list[Holding]:
    """Returns the running jobs and direct executions, those that started first at the front."""
    found = [
        Holding(job_id, title, job_type, Instant(since), lane_id, worker_id.rpartition("/slot-")[0], False)
        for job_id, title, job_type, since, lane_id, worker_id in tx.rows("forecast.holders", limit=limit)
    ]
    found += [
        Holding(run_id, None, job_type, Instant(since), lane_id, node_id, True)
        for run_id, job_type, since, lane_id, node_id in tx.rows("forecast.direct_holders")
    ]
    return sorted(found, key=lambda one: (one.since, one.id))


def lane_limits(text_: str) -> dict[str, int]:
    """Returns the limits of a lane by key, from its column."""
    found: dict[str, int] = column_codec.loads(text_)
    return found


def _copy(tx: Tx, statement: str, **values: object) -> Rows:
    """Copies rows; the statement itself names the table and its columns."""
    named = _COPIED.match(dialects.statements()[statement])
    assert named is not None
    columns = tuple(name.strip() for name in named["columns"].split(","))
    return Rows(named["table"], columns, tx.rows(statement, **values))
