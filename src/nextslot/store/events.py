"""Events: appended in the transaction of what they tell, read from a number on."""

from collections.abc import Mapping

from ..clock import Instant
from ..model import Event
from . import codec
from .store import Row, Tx

Values = Mapping[str, object]


def values(
    type: str,
    now: Instant,
    office_id: str | None,
    job_id: str | None = None,
    run_id: str | None = None,
    details: Mapping[str, object] | None = None,
) -> Values:
    return {
        "type": type,
        "office_id": office_id,
        "job_id": job_id,
        "run_id": run_id,
        "details": codec.dumps(details) if details else "{}",
        "timestamp": now,
    }


def append(tx: Tx, events: list[Values]) -> None:
    tx.run_many("events.append", events)


def after(tx: Tx, seq: int, limit: int) -> list[Event]:
    return [of_row(row) for row in tx.rows("events.after", after=seq, limit=limit)]


def of_row(row: Row) -> Event:
    return Event(
        seq=row[0],
        type=row[1],
        office_id=row[2],
        job_id=row[3],
        run_id=row[4],
        details=codec.loads(row[5]),
        timestamp=Instant(row[6]),
    )


def last(tx: Tx) -> int:
    row = tx.row("events.last")
    return row[0] if row else 0
