"""Finds and deletes old history for `engine.retention`, one function per statement.

The rules of the database protect some rows. Those are deleted in maintenance mode, which the same transaction ends.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from nextslot.store.contract import Tx
from nextslot.system.instant import Instant

from . import column_codec

# In the order in which the tables refer to each other. Rollups come last: they are compared with the remaining history
# only.
_DROP_JOBS = (
    "retention.mark_jobs",
    "retention.drop_attempts",
    "retention.drop_deliveries",
    "retention.drop_artifacts",
    "retention.drop_checkpoints",
    "retention.drop_signals",
    "retention.drop_runs",
    "retention.drop_waits",
    "retention.drop_occurrences",
    "search.drop",
    "retention.drop_jobs",
)


class Root(NamedTuple):
    """The beginning of a chain, or of a group of chains."""

    job_id: str
    created_at: int
    group_id: str | None


class OldJob(NamedTuple):
    job_id: str
    lane_id: int
    chain_id: str
    retry_of: str | None
    stage: str
    outcome: str | None
    decision: str | None
    started_at: int | None
    finished_at: int | None


@contextmanager
def maintenance(tx: Tx) -> Iterator[None]:
    tx.execute("maintenance.begin", reason="retention")
    yield
    tx.execute("maintenance.end")


def roots(tx: Tx, before: Instant, after: tuple[int, str], limit: int) -> list[Root]:
    rows = tx.rows("retention.roots", before=before, after_at=after[0], after_id=after[1], limit=limit)
    return [Root(*row) for row in rows]


def jobs_of(tx: Tx, root: Root) -> list[OldJob]:
    """Returns the jobs that are deleted together: of a chain, or of all chains of a group."""
    if root.group_id is None:
        rows = tx.rows("retention.chain", chain_id=root.job_id)
    else:
        rows = tx.rows("retention.members", group_id=root.group_id)
    return [OldJob(*row) for row in rows]


def is_referred(tx: Tx, job_ids: Iterable[str]) -> bool:
    return tx.row("retention.referred", job_ids=column_codec.key_set(job_ids)) is not None


def run_ids(tx: Tx, job_ids: Iterable[str]) -> list[str]:
    return [run_id for (run_id,) in tx.rows("retention.runs", job_ids=column_codec.key_set(job_ids))]


def drop_jobs(tx: Tx, job_ids: Iterable[str], group_id: str | None) -> None:
    ids = column_codec.key_set(job_ids)
    for statement in _DROP_JOBS:
        tx.execute(statement, job_ids=ids)
    if group_id is not None:
        tx.execute("retention.drop_group", group_id=group_id)


def skipped(tx: Tx, before: Instant, limit: int) -> list[tuple[str, int]]:
    return [(schedule_id, at) for schedule_id, at in tx.rows("retention.skipped", before=before, limit=limit)]


def drop_skipped(tx: Tx, entries: Iterable[tuple[str, int]]) -> None:
    tx.execute_batch("retention.drop_skipped", ("schedule_id", "instant"), entries)


def direct(tx: Tx, before: Instant, limit: int) -> list[str]:
    return [run_id for (run_id,) in tx.rows("retention.direct", before=before, limit=limit)]


def drop_direct(tx: Tx, run_ids: Iterable[str]) -> None:
    ids = column_codec.key_set(run_ids)
    tx.execute("retention.mark_direct", run_ids=ids)
    tx.execute("retention.drop_reservations", run_ids=ids)
    tx.execute("retention.drop_direct", run_ids=ids)


def old_events(tx: Tx, before: Instant) -> tuple[int, int]:
    """Returns (the number of the first event, the number of the first event to keep)."""
    kept, first = tx.row("retention.first_recent_event", before=before), tx.row("retention.first_event")
    return (first[0] or 0) if first else 0, (kept[0] or 0) if kept else 0


def drop_events(tx: Tx, until: int) -> None:
    tx.execute("retention.drop_events", until=until)


def deliveries(tx: Tx, before: Instant, limit: int) -> list[str]:
    return [delivery_id for (delivery_id,) in tx.rows("retention.deliveries", before=before, limit=limit)]


def drop_deliveries(tx: Tx, delivery_ids: Iterable[str]) -> None:
    ids = column_codec.key_set(delivery_ids)
    tx.execute("retention.drop_delivery_attempts", delivery_ids=ids)
    tx.execute("retention.drop_messages", delivery_ids=ids)


def audit(tx: Tx, before: Instant, limit: int) -> list[str]:
    return [audit_id for (audit_id,) in tx.rows("retention.audit", before=before, limit=limit)]


def drop_audit(tx: Tx, audit_ids: Iterable[str]) -> None:
    tx.execute("retention.drop_audit", audit_ids=column_codec.key_set(audit_ids))


def rollups(tx: Tx, before: Instant, limit: int) -> list[tuple[int, int]]:
    """Returns (step, at) of the rollups and queue depths whose span ended before a time."""
    return [(step, at) for step, at in tx.rows("retention.rollups", before=before, limit=limit)]


def drop_rollups(tx: Tx, spans: Iterable[tuple[int, int]]) -> None:
    spans = list(spans)
    tx.execute_batch("retention.drop_rollups", ("step", "at"), spans)
    tx.execute_batch("retention.drop_depths", ("step", "at"), spans)
    tx.execute("rollups.set_bound", name="written_from", at=max(at + step * 1_000_000 for step, at in spans))


def known_runs(tx: Tx, run_ids: Iterable[str]) -> dict[str, bool]:
    """Returns those of these runs that are stored, each with whether it has ended."""
    rows = tx.rows("retention.known", run_ids=column_codec.key_set(run_ids))
    return {run_id: has_ended == 1 for run_id, has_ended in rows}
