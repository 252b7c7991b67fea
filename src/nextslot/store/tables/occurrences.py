"""The ledger of schedules: what became of each occurrence; rows to values and back, one function a statement."""

from collections.abc import Iterable
from operator import attrgetter

from nextslot.domain import Occurrence, SkipReason
from nextslot.store.contract import Tx
from nextslot.system.clock import Instant

from . import column_codec


def insert(tx: Tx, occurrences: Iterable[Occurrence]) -> None:
    names = ("schedule_id", "instant", "until", "count", "outcome", "reason", "detail", "job_id")
    tx.execute_batch("occurrences.insert", names, map(attrgetter(*names), occurrences))


def page(tx: Tx, schedule_id: str, before: Instant, limit: int) -> list[Occurrence]:
    """The newest first, from an instant downwards."""
    return [
        Occurrence(
            schedule_id=schedule_id,
            instant=Instant(instant),
            until=column_codec.instant(until),
            count=count,
            outcome=outcome,
            reason=None if reason is None else SkipReason(reason),
            detail=detail,
            job_id=job_id,
        )
        for schedule_id, instant, until, count, outcome, reason, detail, job_id in tx.rows(
            "occurrences.page", schedule_id=schedule_id, before=before, limit=limit
        )
    ]


def last(tx: Tx, schedule_id: str) -> Instant | None:
    """The last instant that a schedule's ledger covers."""
    row = tx.row("occurrences.last", schedule_id=schedule_id)
    return None if row is None else column_codec.instant(row[0])
