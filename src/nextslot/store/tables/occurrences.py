"""Occurrences of schedules and their outcomes: converts rows to values and back, one function per statement."""

from collections.abc import Iterable

from nextslot.domain import Occurrence
from nextslot.store.contract import Tx
from nextslot.system.instant import Instant

from . import column_codec
from .rows import OCCURRENCES


def insert(tx: Tx, occurrences: Iterable[Occurrence]) -> None:
    tx.execute_batch("occurrences.insert", OCCURRENCES.new_columns, map(OCCURRENCES.new, occurrences))


def page(tx: Tx, schedule_id: str, before: Instant, limit: int) -> list[Occurrence]:
    """Returns a page of occurrences, the newest first, before an instant."""
    rows = tx.rows("occurrences.page", schedule_id=schedule_id, before=before, limit=limit)
    return [OCCURRENCES.value(row) for row in rows]


def last(tx: Tx, schedule_id: str) -> Instant | None:
    """Returns the last instant for which a schedule has an outcome."""
    row = tx.row("occurrences.last", schedule_id=schedule_id)
    return None if row is None else column_codec.instant(row[0])
