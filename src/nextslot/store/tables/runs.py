"""Runs and their artifacts: converts rows to values and back, one function per statement."""

from collections.abc import Mapping, Sequence

from nextslot.domain import (
    Artifact,
    Json,
    Outcome,
    Run,
)
from nextslot.domain.devices import NO_DEVICES, Devices
from nextslot.store.contract import Row, Tx
from nextslot.system.instant import Instant

from . import column_codec
from .rows import RUNS


def begin(
    tx: Tx,
    run_id: str,
    job_id: str,
    now: Instant,
    session_id: str | None = None,
    is_inside: bool = False,
    devices: Devices = NO_DEVICES,
) -> None:
    """Inserts the run of a queued job, without which the job cannot start. `is_inside`: the run uses the scheduler's
    process.
    """
    tx.execute_later(
        "runs.begin",
        run_id=run_id,
        job_id=job_id,
        now=now,
        session_id=session_id,
        is_inside=int(is_inside),
        devices=column_codec.dumps(devices) if devices else None,
    )


def note_company(tx: Tx, node_id: str | None) -> None:
    """Stores for each run inside a process that died how many others were inside it. Existing values stay."""
    row = tx.row("runs.inside", node_id=node_id)
    if row is not None and row[0] > 0:
        tx.execute("runs.note_company", node_id=node_id, beside=row[0] - 1)


def finish(tx: Tx, run_id: str, job_id: str, outcome: Outcome, now: Instant) -> None:
    """Stores the outcome of a run that has not ended, which `jobs.ending_facts` has checked."""
    tx.execute_later("runs.finish", run_id=run_id, job_id=job_id, now=now, **column_codec.outcome_values(outcome))
    if outcome.artifacts:
        rows = [(run_id, one.name, one.path, one.size) for one in outcome.artifacts]
        tx.execute_batch("runs.add_artifact", ("run_id", "name", "path", "size"), rows)


def get(tx: Tx, run_id: str) -> Run | None:
    return _found(tx, tx.row("runs.get", run_id=run_id))


def of_job(tx: Tx, job_id: str) -> Run | None:
    return _found(tx, tx.row("runs.of_job", job_id=job_id))


def repair(tx: Tx, run_id: str, job_id: str) -> None:
    """Adds the missing run of a RUNNING job. The rules forbid both states, so they are suspended for this change."""
    tx.execute("maintenance.begin", reason="recovery: RUNNING without a run")
    tx.execute("runs.repair", run_id=run_id, job_id=job_id)
    tx.execute("maintenance.end")


def next_timeout(tx: Tx, now: Instant) -> Instant | None:
    row = tx.row("runs.next_timeout", now=now)
    return column_codec.instant(row[0]) if row else None


def overdue(tx: Tx, now: Instant, limit: int) -> list[str]:
    return [row[0] for row in tx.rows("runs.overdue", now=now, limit=limit)]


def of_rows(tx: Tx, rows: Sequence[Row]) -> list[Run]:
    """Returns the runs of whole rows, which `keyset_pagination.py` found, with their artifacts."""
    made: dict[str, list[Row]] = {}
    for run_id, *artifact in tx.rows("pages.artifacts", run_ids=column_codec.key_set(row[0] for row in rows)):
        made.setdefault(run_id, []).append(tuple(artifact))
    return [_run(row, made.get(row[0], [])) for row in rows]


def _found(tx: Tx, row: Row | None) -> Run | None:
    return None if row is None else _run(row, tx.rows("runs.artifacts", run_id=row[0]))


def _run(row: Row, artifacts: Sequence[Row]) -> Run:
    found = tuple(Artifact(name=name, path=path, size=size) for name, path, size in artifacts)
    return RUNS.value(row, artifacts=found)


def park(tx: Tx, run_id: str, wait: Mapping[str, Json]) -> bool:
    """Stores the signal for which the session of an unfinished run waits."""
    return tx.execute("runs.park", run_id=run_id, park=column_codec.dumps(wait)) == 1


def set_session(tx: Tx, run_id: str, session_id: str) -> bool:
    return tx.execute("runs.set_session", run_id=run_id, session_id=session_id) == 1


def set_silent(tx: Tx, run_id: str, since: Instant | None) -> bool:
    """Stores since when an unfinished run is silent; None if it is not."""
    return tx.execute("runs.set_silent", run_id=run_id, since=since) == 1
