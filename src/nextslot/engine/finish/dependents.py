"""DependencyResolver: stores which jobs wait for which, and releases or cancels them when a chain ends (US-JS01)."""

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from nextslot.domain import ChainEnd, Job
from nextslot.domain.job_lifecycle import Dependents, dependent_after
from nextslot.engine.engine_context import EngineContext
from nextslot.errors import DependencyCycle
from nextslot.store.contract import Tx
from nextslot.store.tables import dependencies, jobs
from nextslot.store.tables.dependencies import Edge
from nextslot.system.instant import Instant


class DependencyResolver:
    def __init__(self, engine: EngineContext) -> None:
        self._engine = engine

    def edges(
        self, tx: Tx, waits: Mapping[str, Sequence[str]], new: Mapping[str, Job], names: Mapping[str, str]
    ) -> list[Edge]:
        """Returns the edges of new jobs, to each other or to existing jobs, which may have succeeded already.

        `names` are the keys of jobs in the request.
        """
        existing = {other for others in waits.values() for other in others if other not in new}
        chains = {job_id: chain for job_id, (chain, _) in jobs.chains(tx, existing).items()} if existing else {}
        met = dependencies.succeeded(tx, set(chains.values())) if chains else set()
        return [
            Edge(job_id, other, chains.get(other, other), chains.get(other) in met, names.get(other))
            for job_id, others in waits.items()
            for other in dict.fromkeys(others)
        ]

    def doomed(self, tx: Tx, edges: Sequence[Edge], new: Mapping[str, Job]) -> list[str]:
        """Returns the new jobs to cancel at once, because a prerequisite has already failed permanently."""
        chains = {edge.chain_id for edge in edges if edge.chain_id not in new and not edge.is_met}
        dead = dependencies.dead(tx, chains) if chains else set()
        found = {edge.job_id: new[edge.job_id].on_dependency_failure for edge in edges if edge.chain_id in dead}
        return [one for one, policy in found.items() if dependent_after(ChainEnd.FAILED, policy) is Dependents.CANCEL]

    def after_chain(self, tx: Tx, chain_id: str, end: ChainEnd, now: Instant) -> list[str]:
        """Releases the jobs that waited for this chain. Returns those that must be cancelled instead."""
        if end is ChainEnd.SUCCEEDED:
            self._release(tx, chain_id, now)
            return []
        return [
            job_id
            for job_id, policy in dependencies.waiting_for(tx, chain_id)
            if dependent_after(end, policy) is Dependents.CANCEL
        ]

    def _release(self, tx: Tx, chain_id: str, now: Instant) -> None:
        for job_id in dependencies.meet(tx, chain_id):
            freed = jobs.met(tx, job_id)
            if freed is not None:
                self._engine.note_freed(tx, freed, now)


def refuse_cycle(waits: Mapping[str, Iterable[str]], names: Mapping[str, str]) -> None:
    """Raises DependencyCycle with the jobs that wait for each other, by the names that the caller gave them."""
    cycle = find_cycle(waits)
    if cycle:
        raise DependencyCycle([names.get(job_id, job_id) for job_id in cycle])


def find_cycle(waits: Mapping[str, Iterable[str]]) -> list[str] | None:
    """Returns a cycle, in which each job waits for the next and the last for the first."""
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as error:
        # graphlib puts each job before the one that waits for it, and repeats the first at the end.
        closed: list[str] = error.args[1]
        return closed[:0:-1]
    return None
