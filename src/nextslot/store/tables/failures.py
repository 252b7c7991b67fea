"""Failures by fingerprint: rows to values and back, one function a statement."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from nextslot.domain.fingerprints import AffectedSchedule, FailedRun, Failure
from nextslot.store.contract import Tx
from nextslot.system.instant import Instant

from . import column_codec
from .keyset_pagination import Key, Listing, Term, find, one_of
from .rows import FAILURES

LISTING = Listing("failures", ", ".join(FAILURES.columns), ("last_seen", "fingerprint"))
_SEEN = ("fingerprint", "office_id", "job_type", "failure_kind", "message", "last_error", "seen", "failed")
# How many failed jobs are looked at for schedules, and how many runs are shown.
LOOKED_AT = 100
SHOWN_RUNS = 5


def see(tx: Tx, rows: Iterable[Sequence[object]]) -> None:
    tx.execute_batch("failures.see", _SEEN, rows)


def count(tx: Tx, rows: Iterable[Sequence[object]]) -> None:
    """Counts (fingerprint, hour, how many)."""
    tx.execute_batch("failures.count", ("fingerprint", "hour", "failed"), rows)


def get(tx: Tx, fingerprint: str) -> Failure | None:
    row = tx.row("failures.get", fingerprint=fingerprint)
    return None if row is None else FAILURES.value(row)


def change(tx: Tx, fingerprint: str, is_muted: bool, note: str | None) -> None:
    tx.execute("failures.change", fingerprint=fingerprint, is_muted=int(is_muted), note=note)


def forget(tx: Tx, before: Instant) -> None:
    tx.execute("failures.forget_hours", before=before)
    tx.execute("failures.forget", before=before)


def page(
    tx: Tx,
    office_ids: Sequence[str],
    fingerprints: Sequence[str],
    job_types: Sequence[str],
    is_muted: bool | None,
    span: tuple[Instant, Instant],
    after: Key | None,
    limit: int,
) -> tuple[list[Failure], Key | None]:
    """Returns failures that were seen in a span, the last seen first, and the key of the next page."""
    terms = [one_of("office_id", office_ids)] if office_ids else []
    if fingerprints:
        terms.append(one_of("fingerprint", fingerprints))
    if job_types:
        terms.append(one_of("job_type", job_types, is_indexed=False))
    if is_muted is not None:
        terms.append(Term((f"is_muted = {int(is_muted)}",), is_indexed=False))
    terms.append(Term(("first_seen < :before",), {"before": span[1]}, is_indexed=False))
    found = find(tx, LISTING, terms, after, limit, (int(span[0]), ""))
    return [FAILURES.value(row) for row in found.rows], found.after


def counted(tx: Tx, some: Sequence[Failure], span: tuple[Instant, Instant], width: int, buckets: int) -> list[Failure]:
    """Completes failures with how many there were in each part of a span, their schedules and last runs.

    Failures that were not seen in the span are left out.
    """
    parts: dict[str, list[int]] = {one.fingerprint: [0] * buckets for one in some}
    asked = column_codec.key_set(parts)
    rows = tx.rows("failures.buckets", fingerprints=asked, begin=int(span[0]), until=int(span[1]), width=width)
    for fingerprint, bucket, failed in rows:
        parts[fingerprint][int(bucket)] = int(failed)
    return [_completed(tx, one, parts[one.fingerprint]) for one in some if any(parts[one.fingerprint])]


def _completed(tx: Tx, failure: Failure, parts: list[int]) -> Failure:
    rows = tx.rows("failures.last", fingerprint=failure.fingerprint, limit=LOOKED_AT)
    schedules = {row[2]: row[3] for row in rows if row[2] is not None}
    return replace(
        failure,
        count=sum(parts),
        buckets=tuple(parts),
        schedules=tuple(AffectedSchedule(schedule_id=one, name=name) for one, name in sorted(schedules.items())),
        last_runs=tuple(FailedRun(run_id=row[1], job_id=row[0]) for row in rows[:SHOWN_RUNS]),
    )
