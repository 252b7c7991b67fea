"""Rollups: counts what ends, in the transaction that ends it, by minute, office, type and outcome.

A transaction collects its ends and writes one row for those that are alike. The first transaction of a minute that
changes the queue also stores how long the queue was, and adds the minutes before to rollups with histograms. So an idle
scheduler writes nothing, and a hand-over writes one small row.
"""

from dataclasses import dataclass

from nextslot.domain import FailureKind
from nextslot.domain.fingerprints import Fingerprint
from nextslot.domain.rollups import FAILURES_KEPT_SECONDS, HOUR, MINUTE, End, RollupKey, ended, floor
from nextslot.engine.effects import MinuteBegun
from nextslot.store.contract import Tx
from nextslot.store.tables import failures, rollup_spans, rollups
from nextslot.system.instant import Instant


@dataclass(slots=True)
class _Failures:
    """Failures of one transaction that have one fingerprint; what is known of the last of them."""

    office_id: str
    job_type: str
    kind: FailureKind
    last: Fingerprint
    at: Instant
    count: int = 0


class _Ends(dict[End, int]):
    """What has ended in one transaction, and how many alike; and the failures among them, by fingerprint."""

    def __init__(self, tx: Tx) -> None:
        super().__init__()
        self.failures: dict[str, _Failures] = {}


class Rollups:
    def __init__(self) -> None:
        # A cache of the minute that a committed transaction of this node has begun.
        self._minute: int | None = None

    def note_minute(self, minute: int) -> None:
        """Follows a commit."""
        self._minute = minute

    def note(self, tx: Tx, key: RollupKey, free_at: Instant, started_at: Instant | None, finished_at: Instant) -> None:
        """Counts an end. The arguments are what is stored of it, so that `doctor` counts the same."""
        ends, end = tx.local(_Ends), ended(key, free_at, started_at, finished_at)
        ends[end] = ends.get(end, 0) + 1

    def note_failure(
        self, tx: Tx, office_id: str, job_type: str, kind: FailureKind, last: Fingerprint, now: Instant
    ) -> None:
        """Counts a failure, and keeps its error as the last one of its fingerprint."""
        one = tx.local(_Ends).failures.setdefault(last.fingerprint, _Failures(office_id, job_type, kind, last, now))
        one.last, one.at, one.count = last, now, one.count + 1

    def begin_minute(self, tx: Tx, now: Instant) -> None:
        """In the first transaction of a minute: stores the depth of the queue, and folds the minutes before.

        Runs before the transaction's counters are written, so the depth is that of the minute's beginning. If another
        node has begun the minute, or this node before a restart, the stored depth stays.
        """
        minute = floor(now, MINUTE)
        if minute != self._minute:
            rollups.sample(tx, minute)
            rollup_spans.fold(tx, minute, now)
            if self._minute is None or floor(minute, HOUR) != floor(self._minute, HOUR):
                failures.forget(tx, now.after(-FAILURES_KEPT_SECONDS))
            tx.cause(MinuteBegun(minute))

    def save(self, tx: Tx) -> None:
        """Writes what has ended, in a fixed order: of two nodes that write the same rows, one waits for the other."""
        ends = tx.local(_Ends)
        if ends:
            rollups.count(tx, sorted(ends.items()) if len(ends) > 1 else ends.items())
            if ends.failures:
                _save_failures(tx, sorted(ends.failures.items()))


def _save_failures(tx: Tx, found: list[tuple[str, _Failures]]) -> None:
    failures.see(
        tx,
        [
            (name, one.office_id, one.job_type, one.kind, one.last.pattern, one.last.line, one.at, one.count)
            for name, one in found
        ],
    )
    failures.count(tx, [(name, floor(one.at, HOUR), one.count) for name, one in found])
