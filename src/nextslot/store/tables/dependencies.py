"""The edges between jobs, one function a statement."""

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
    # The key of `depends_on` in the request that made both.
    name: str | None = None


def insert(tx: Tx, edges: Sequence[Edge]) -> None:
    rows = [(edge.job_id, edge.depends_on, edge.chain_id, int(edge.is_met), edge.name) for edge in edges]
    tx.execute_batch("dependencies.insert", ("job_id", "depends_on", "chain_id", "is_met", "name"), rows)


def inputs(tx: Tx, job_id: str) -> dict[str, Run]:
    """The runs by which the prerequisites of a job have succeeded, by their names."""
    succeeded: dict[str, str] = dict(tx.rows("dependencies.inputs", job_id=job_id))
    rows = tx.rows("dependencies.input_runs", job_ids=column_codec.key_set(succeeded.values()))
    found = {run.job_id: run for run in runs.of_rows(tx, rows)}
    return {name: found[succeeded[name]] for name in succeeded}


def meet(tx: Tx, chain_id: str) -> list[str]:
    """Marks a chain's edges as met, once; the jobs at their other end, one for each edge."""
    return [row[0] for row in tx.rows("dependencies.meet", chain_id=chain_id)]


def waiting_for(tx: Tx, chain_id: str) -> list[tuple[str, OnDependencyFailure]]:
    rows = tx.rows("dependencies.waiting_for", chain_id=chain_id)
    return [(job_id, OnDependencyFailure(policy)) for job_id, policy in rows]


def doomed_by(tx: Tx, chain_ids: Iterable[str]) -> set[str]:
    """The jobs that are to be cancelled if one of these chains does not succeed."""
    return {row[0] for row in tx.rows("dependencies.doomed_by", chain_ids=column_codec.key_set(chain_ids))}


def succeeded(tx: Tx, chain_ids: Iterable[str]) -> set[str]:
    """Which of these chains have a job that completed or was skipped."""
    return {row[0] for row in tx.rows("dependencies.has_succeeded", chain_ids=column_codec.key_set(chain_ids))}


def dead(tx: Tx, chain_ids: Iterable[str]) -> set[str]:
    """Which of these chains have ended without success."""
    return {row[0] for row in tx.rows("dependencies.dead_chains", chain_ids=column_codec.key_set(chain_ids))}
