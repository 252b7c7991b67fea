"""Placements, the runs that engines have: rows to values and back, one function a statement."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from nextslot.domain.placements import Placement, PlacementSpec, PlacementState
from nextslot.store.contract import Row, Tx
from nextslot.system.instant import Instant

from . import column_codec


def begin(tx: Tx, run_id: str, job_id: str, spec: PlacementSpec, token_hash: str, now: Instant) -> None:
    """Stores that a run starts on an engine, in the transaction that starts it."""
    values = {"run_id": run_id, "job_id": job_id, "engine": spec.engine, "token_hash": token_hash, "now": now}
    tx.execute("placements.begin", **values, spec=column_codec.dumps(asdict(spec)))
    tx.execute("placements.untimed", run_id=run_id, shown=_shown(spec.engine, PlacementState.SUBMITTING, None))


def set_token(tx: Tx, run_id: str, token_hash: str) -> bool:
    return tx.execute("placements.set_token", run_id=run_id, token_hash=token_hash) == 1


def see(tx: Tx, run_id: str, engine: str, state: PlacementState, handle: str | None) -> None:
    """Stores what is known of a run that has not ended, and shows it to readers."""
    tx.execute("placements.see", run_id=run_id, state=state.value, handle=handle)
    tx.execute("placements.show", run_id=run_id, shown=_shown(engine, state, handle))


def claim(tx: Tx, run_id: str, now: Instant, lease_until: Instant, timeout_seconds: float | None) -> None:
    """Stores that the wrapper has begun; the time of the run counts from now on."""
    if tx.execute("placements.claim", run_id=run_id, now=now, lease_until=lease_until):
        tx.execute("placements.time", run_id=run_id, now=now, timeout_seconds=timeout_seconds)


def renew(tx: Tx, run_id: str, lease_until: Instant) -> None:
    tx.execute("placements.renew", run_id=run_id, lease_until=lease_until)


def finish(tx: Tx, run_id: str) -> bool:
    return tx.execute("placements.finish", run_id=run_id) == 1


def worked(tx: Tx, run_id: str, began_at: Instant) -> None:
    """Stores when the work of a run began that ends now, by the time that its wrapper has measured."""
    tx.execute("placements.worked", run_id=run_id, began_at=began_at)


def get(tx: Tx, run_id: str) -> Placement | None:
    row = tx.row("placements.get", run_id=run_id)
    return None if row is None else _placement(row)


def of_job(tx: Tx, job_id: str) -> Placement | None:
    row = tx.row("placements.of_job", job_id=job_id)
    return None if row is None else _placement(row)


def of_node(tx: Tx, node_id: str | None) -> list[tuple[str, Placement]]:
    """Returns the jobs of placed runs, of a node or of all, each with its placement."""
    if node_id is None:
        rows: Sequence[Row] = tx.rows("placements.everywhere")
    else:
        rows = tx.rows("placements.here", node_id=node_id)
    return [(row[0], _placement(row[1:])) for row in rows]


def adopt(tx: Tx, job_id: str, before: str | None, worker_id: str) -> bool:
    """Gives a placed run to another worker; False if it has ended or was adopted by others."""
    return tx.execute("placements.adopt", job_id=job_id, before=before, worker_id=worker_id) == 1


def counts(tx: Tx) -> dict[str, dict[str, int]]:
    """Returns how many runs of each engine are in each state."""
    found: dict[str, dict[str, int]] = {}
    for engine, state, number in tx.rows("placements.counts"):
        found.setdefault(engine, {})[state] = number
    return found


def _shown(engine: str, state: PlacementState, handle: str | None) -> str:
    return column_codec.dumps({"engine": engine, "state": state.value, "handle": handle})


def _placement(row: Sequence[Any]) -> Placement:
    run_id, spec, state, *rest = row
    return Placement(run_id, PlacementSpec(**column_codec.loads(spec)), PlacementState(state), *rest)
