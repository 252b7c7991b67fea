"""Recovery: ends the runs that a crash has left open, before anything is dispatched (DEC-008, spec 15.2).

Each step is a transaction and safe to repeat; recovery can be killed at any point and run again. It does not touch
queued jobs. Its cost depends on what was running, not on the queue or the history.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from nextslot.domain.job_lifecycle import lose
from nextslot.engine.direct.direct_requests import DirectExecutionHandler
from nextslot.engine.dispatch.resource_outages import Outages
from nextslot.engine.engine_context import EngineContext
from nextslot.engine.finish.job_finisher import JobFinisher
from nextslot.engine.schedules.schedule_trigger import ScheduleTrigger
from nextslot.executors.process_tree.survivors import end_survivors
from nextslot.executors.run_files import RunFiles
from nextslot.executors.threads import Threads
from nextslot.store.contract import Store, Tx
from nextslot.store.tables import devices, direct, jobs, nodes, old_history, runs

BATCH = 200

Adopt = Callable[[Store, str | None, Callable[[Tx, str | None], bool]], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Recovered:
    """How many of each kind recovery found and ended."""

    lost: int = 0
    closed: int = 0
    decided: int = 0
    direct: int = 0
    occurrences: int = 0


class Recovery:
    def __init__(
        self,
        engine: EngineContext,
        finisher: JobFinisher,
        direct_: DirectExecutionHandler,
        outages: Outages,
        schedules: ScheduleTrigger,
        files: RunFiles,
    ) -> None:
        self._clock = engine.clock
        self._chance = engine.chance
        self._finisher = finisher
        self._direct = direct_
        self._outages = outages
        self._schedules = schedules
        self._files = files
        self._events = engine.events
        # Goes on with what engines run for a node that is away; `Cluster` sets it.
        self.adopt: Adopt | None = None

    async def run(self, store: Store, node_id: str | None = None) -> Recovered:
        """Ends what the previous process of a node left running; without an id, of the only node."""
        recovered = await self._recover_work(store, node_id)
        if node_id is None:
            await store.write(self._outages.recover)
            recovered = replace(recovered, occurrences=await self._schedules.recover(store))
        await self._tell_of(store, recovered, node_id)
        return recovered

    async def clear_up(self, store: Store, node_id: str) -> None:
        """Recovers what another node left. Each step first checks that the node is still away: it may come back at any
        moment, and then it recovers itself.
        """
        await self._tell_of(store, await self._recover_work(store, node_id, _is_away), node_id)
        if self.adopt is not None:
            await self.adopt(store, node_id, _is_away)

    async def lead(self, store: Store) -> None:
        """Fires the occurrences that were missed while no node led, and forgets probes of nodes that are gone."""
        await store.write(self._outages.recover)
        await self._tell_of(store, Recovered(occurrences=await self._schedules.recover(store)), None)

    async def _recover_work(
        self, store: Store, node_id: str | None, is_ours: Callable[[Tx, str | None], bool] = lambda tx, node_id: True
    ) -> Recovered:
        # Comes first, and nothing else is recovered meanwhile: no retry may run beside the processes that it replaces.
        run_ids = await store.read(lambda tx: _running_run_ids(tx, node_id) if is_ours(tx, node_id) else [])
        end_survivors(run_ids)
        log_paths = self._files.found_logs(run_ids)
        # Stored before any of these runs ends: the number of runs in the process decides whether the crash counts
        # against a chain.
        await store.write(lambda tx: runs.note_company(tx, node_id) if is_ours(tx, node_id) else None)
        lost = closed = decided = 0
        while True:
            found = await store.write(
                lambda tx: self._lose_running(tx, node_id, log_paths) if is_ours(tx, node_id) else (0, 0), rows=BATCH
            )
            lost, closed = lost + found[0], closed + found[1]
            if sum(found) == 0:
                break
        while batch := await store.write(self._decide, rows=BATCH):
            decided += batch
        callers = await store.write(
            lambda tx: self._recover_callers(tx, node_id) if is_ours(tx, node_id) else 0, rows=BATCH
        )
        return Recovered(lost, closed, decided, callers)

    async def _tell_of(self, store: Store, recovered: Recovered, node_id: str | None) -> None:
        if recovered != Recovered():
            await store.write(lambda tx: self._tell(tx, recovered, node_id))

    def _lose_running(self, tx: Tx, node_id: str | None, log_paths: Mapping[str, str]) -> tuple[int, int]:
        """Ends jobs that were left running. Returns how many of their runs had no stored outcome, and how many had
        one.
        """
        now = self._clock.now()
        lost = closed = 0
        for job in jobs.running(tx, node_id, BATCH):
            run = runs.of_job(tx, job.job_id)
            if run is None:
                run_id = self._chance.new_id()
                runs.repair(tx, run_id, job.job_id)
            else:
                run_id = run.run_id
            if run is not None and run.status is not None:
                self._finisher.close(tx, job, run, run.status, run.finished_at or now)
                closed += 1
            else:
                outcome = replace(lose(job.cancel_mode), log_path=log_paths.get(run_id))
                self._finisher.finish(tx, run_id, job.job_id, outcome, now)
                lost += 1
        return lost, closed

    def _recover_callers(self, tx: Tx, node_id: str | None) -> int:
        """Ends direct requests that were left running, and releases the devices of all ended runs."""
        found = self._direct.recover(tx, node_id)
        devices.release_left(tx)
        return found

    def _decide(self, tx: Tx) -> int:
        """Makes the missing retry decisions for failures (spec 6.6). Returns how many."""
        now = self._clock.now()
        undecided = jobs.undecided(tx, BATCH)
        for job in undecided:
            self._finisher.decide(tx, job, now)
        return len(undecided)

    def _tell(self, tx: Tx, recovered: Recovered, node_id: str | None) -> None:
        details: dict[str, object] = {
            "lost": recovered.lost,
            "closed": recovered.closed,
            "decided": recovered.decided,
            "direct": recovered.direct,
            "occurrences": recovered.occurrences,
        }
        if node_id is not None:
            details["node_id"] = node_id
        self._events.note(tx, "recovered", self._clock.now(), None, details=details)


def _is_away(tx: Tx, node_id: str | None) -> bool:
    node = None if node_id is None else nodes.get(tx, node_id)
    return node is None or not node.is_live


def _running_run_ids(tx: Tx, node_id: str | None) -> list[str]:
    """Returns the runs of jobs and direct callers that a surviving process may still work for."""
    found = (runs.of_job(tx, job.job_id) for job in jobs.running(tx, node_id))
    return [run.run_id for run in found if run is not None] + [one.run_id for one in direct.unfinished(tx, node_id)]


async def join_left_logs(store: Store, files: RunFiles, threads: Threads) -> None:
    """Joins each log that a crash left in pieces into one file, after recovery.

    Skips runs that have not ended: they belong to another node with the same directory.
    """
    left = await threads.run(files.logs_in_pieces)
    if left:
        known = await store.read(lambda tx: old_history.known_runs(tx, left))
        await threads.run(lambda: files.join_logs(run_id for run_id in left if known.get(run_id)))
