"""The dependency edges between jobs, one function per statement."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nextslot.domain import OnDependencyFailure, Run
from nextslot.store.contract import Tx

from . import column_codec, runs


class Edge(NamedTuple):
    """`job_id` waits for the chain of `depends_on`."""

    job_id: str
    depends_on: str
    chain_id: str
    is_met: bool
    # The key by which the request that created both jobs names `depends_on`.
    name: str | None = None


def insert(tx: Tx, edges: Sequence[Edge]) -> None:
    rows = [(edge.job_id, edge.depends_on, edge.chain_id, int(edge.is_met), edge.name) for edge in edges]
    tx.execute_batch("dependencies.insert", ("job_id", "depends_on", "chain_id", "is_met", "name"), rows)


def inputs(tx: Tx, job_id: str) -> dict[str, Run]:
    """Returns the successful runs of a job's prerequisites, by the names of the prerequisites."""
    succeeded: dict[str, str] = dict(tx.rows("dependencies.inputs", job_id=job_id))
    rows = tx.rows("dependencies.input_runs", job_ids=column_codec.key_set(succeeded.values()))
    found = {run.job_id: run for run in runs.of_rows(tx, rows)}
    return {name: found[succeeded[name]] for name in succeeded}


def meet(tx: Tx, chain_id: str) -> list[str]:
    """Marks the edges to a chain as met, once. Returns the waiting jobs, one entry per edge."""
    return [row[0] for row in tx.rows("dependencies.meet", chain_id=chain_id)]


def waiting_for(tx: Tx, chain_id: str) -> list[tuple[str, OnDependencyFailure]]:
    rows = tx.rows("dependencies.waiting_for", chain_id=chain_id)
    return [(job_id, OnDependencyFailure(policy)) for job_id, policy in rows]


def doomed_by(tx: Tx, chain_ids: Iterable[str]) -> set[str]:
    """Returns the jobs to cancel if one of these chains does not succeed."""
    return {row[0] for row in tx.rows("dependencies.doomed_by", chain_ids=column_codec.key_set(chain_ids))}


def succeeded(tx: Tx, chain_ids: Iterable[str]) -> set[str]:
    """Returns those of these chains that have a job that completed or was skipped."""
    return {row[0] for row in tx.rows("dependencies.has_succeeded", chain_ids=column_codec.key_set(chain_ids))}


def dead(tx: Tx, chain_ids: Iterable[str]) -> set[str]:
    """Returns those of these chains that have ended without success."""
    return {row[0] for row in tx.rows("dependencies.dead_chains", chain_ids=column_codec.key_set(chain_ids))}
