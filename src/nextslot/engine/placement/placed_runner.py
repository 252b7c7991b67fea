"""PlacedRunner: one task for each run that this node follows on an engine, and the adoption of other nodes' runs."""

import logging
from collections.abc import Callable

from nextslot.domain import CancelMode, FailureKind, Outcome
from nextslot.domain.placements import Placement
from nextslot.engine.dispatch.limits_and_slots import Lanes, Workers
from nextslot.engine.effects import Claim, Place, Stop, WorkKind
from nextslot.engine.engine_context import EngineContext
from nextslot.engine.execution.executor import SHORTEST_WAIT
from nextslot.engine.execution.runner import FIRST_PAUSE, LONGEST_PAUSE, Runner, WorkFinisher
from nextslot.engine.finish.job_finisher import JobFinisher
from nextslot.errors import Unavailable
from nextslot.store.contract import Store, Tx
from nextslot.store.tables import jobs, placements, runs
from nextslot.system.instant import Instant

from .placed_executor import PlacedExecutor

log = logging.getLogger(__name__)


class PlacedFinisher(WorkFinisher):
    """Stores the end of a placed run like that of any other run, and ends its placement."""

    def __init__(self, finisher: JobFinisher) -> None:
        self._finisher = finisher

    def finish(
        self, tx: Tx, run_id: str, job_id: str, outcome: Outcome, now: Instant, waited_us: int = 0
    ) -> object | None:
        placements.finish(tx, run_id)
        return self._finisher.finish(tx, run_id, job_id, outcome, now, waited_us)


class PlacedRunner(Runner):
    """A runner for engines: unlike in `Runner`, a failure of this process says nothing about the run, which goes on."""

    def __init__(self, engine: EngineContext, executor: PlacedExecutor, finisher: JobFinisher, parts: Runner) -> None:
        super().__init__(
            engine.clock,
            executor,
            {WorkKind.JOB: PlacedFinisher(finisher)},
            parts._callers,
            parts._durations,
            engine.meters,
            engine.tracer,
            shipping=parts._shipping,
        )
        self._placed_executor = executor
        self._lanes: Lanes = engine.lanes
        self._workers: Workers = engine.workers
        self._placed: dict[str, Placement] = {}

    def open(self, store: Store) -> None:
        super().open(store)
        self._placed_executor.open(store)

    def place(self, claim: Claim, placed: Placement, token: str | None) -> None:
        """Starts to follow a run after the commit that started it on an engine, or gave it to this node."""
        if claim.run_id in self._placed:
            return
        self._placed[claim.run_id] = placed
        self._placed_executor.place(placed, token)
        self.launch(claim)

    async def adopt(
        self, store: Store, node_id: str | None, is_ours: Callable[[Tx, str | None], bool] = lambda tx, node_id: True
    ) -> int:
        """Goes on with the placed runs of one node, or of all nodes. Returns the number of these runs."""
        return await store.write(lambda tx: self._adopt(tx, node_id) if is_ours(tx, node_id) else 0)

    async def detach(self) -> None:
        """Stops following all runs. The runs go on, and the node that adopts them follows them."""
        await self.abandon()
        self._is_abandoned = self._has_lost = False
        self._placed.clear()

    def _adopt(self, tx: Tx, node_id: str | None) -> int:
        found = placements.of_node(tx, node_id)
        for job_id, placed in found:
            job = jobs.get(tx, job_id)
            if job is None or not job.is_running:
                continue
            lane, worker_id = self._lanes.lane(tx, job.lane_id), job.worker_id
            if worker_id is not None and self._workers.follows(worker_id):
                self._workers.hold(tx, worker_id, lane)
            else:
                worker_id = self._workers.take(tx, lane, is_placed=True)
                if not placements.adopt(tx, job_id, job.worker_id, worker_id):
                    continue
            attempts = jobs.attempts(tx, job.chain_id, job_id)
            run = runs.get(tx, placed.run_id)
            devices = {name: tuple(units) for name, units in ((run and run.devices) or {}).items()}
            claim = Claim(
                kind=WorkKind.JOB,
                run_id=placed.run_id,
                job_id=job_id,
                office_id=job.office_id,
                lane_id=job.lane_id,
                job_type=job.job_type,
                params=dict(job.params),
                attempt=max(len(attempts), 1),
                worker_id=worker_id,
                timeout_seconds=job.timeout_seconds,
                title=job.title,
                role=job.role,
                task_id=job.task_id,
                waited=job.chain_id if job.depends_on else None,
                devices=devices,
                environment=self._workers.devices.environment(devices),
                continues=job.chain_id if job.retry_of is not None or job.await_signal is not None else None,
            )
            tx.cause(Place(claim, placed, None))
            if job.cancel_mode is CancelMode.INTERRUPT:
                tx.cause(Stop(placed.run_id, FailureKind.CANCELLED))
        return len(found)

    async def _outcome(self, claim: Claim) -> Outcome:
        """Waits until the run ends, however often this process fails to follow it."""
        pause = FIRST_PAUSE
        while True:
            placed = self._placed[claim.run_id]
            try:
                given = await self._given(claim)
                return await self._placed_executor.run(claim, None, given, lambda text: self._keep(claim.run_id, text))
            except Unavailable as error:
                log.warning("run %s: what is stored for it cannot be read yet: %s", claim.run_id, error)
            except Exception:  # The run goes on elsewhere; a made-up outcome would let a retry run beside it.
                log.exception("run %s: following it failed", claim.run_id)
            self._placed_executor.place(placed, None)
            await self._clock.sleep(max(pause, SHORTEST_WAIT))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _record(self, claim: Claim, outcome: Outcome, seconds: float, since: float) -> bool:
        has_ended = await super()._record(claim, outcome, seconds, since)
        placed = self._placed.pop(claim.run_id, None)
        # The directory of a run that was given up stays: a wrapper that lives reads there that it must end.
        if has_ended and placed is not None and outcome.failure_kind is not FailureKind.CRASH:
            await self._placed_executor.clean_up(claim.run_id, placed)
        if has_ended:
            await self._sweep()
        return has_ended

    async def _sweep(self) -> None:
        try:
            await self._placed_executor.sweep()
        except Unavailable as error:
            log.warning("directories of runs that have ended are not looked for now: %s", error)
