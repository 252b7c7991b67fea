"""Events: stored in the transaction that causes them, and read from a number on."""

from collections.abc import Mapping
from typing import NamedTuple

from nextslot.domain import Event
from nextslot.store.contract import Tx
from nextslot.system.instant import Instant

from . import column_codec
from .rows import EVENTS


class Noted(NamedTuple):
    """An event without a number, with its fields in the order that `events.append` expects."""

    type: str
    office_id: str | None
    job_id: str | None
    run_id: str | None
    details: str
    timestamp: Instant


def noted(
    type: str,
    now: Instant,
    office_id: str | None,
    job_id: str | None = None,
    run_id: str | None = None,
    details: Mapping[str, object] | None = None,
) -> Noted:
    return Noted(type, office_id, job_id, run_id, column_codec.dumps(details) if details else "{}", now)


def append(tx: Tx, events: list[Noted]) -> None:
    tx.execute_batch("events.append", Noted._fields, events)


def after(tx: Tx, seq: int, limit: int) -> list[Event]:
    return [EVENTS.value(row) for row in tx.rows("events.after", after=seq, limit=limit)]


def last(tx: Tx) -> int:
    row = tx.row("events.last")
    return row[0] if row else 0
