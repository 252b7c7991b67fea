"""Engines: lists them, and takes an operator's word that a run on one is lost."""

from nextslot.domain import AnyJob, FailureKind, Job, Outcome, id_of
from nextslot.domain.placements import Engine
from nextslot.engine.finish.job_finisher import JobFinisher
from nextslot.engine.placement.placed_executor import PlacedExecutor
from nextslot.errors import Conflict
from nextslot.executors.engines.engines import Engines
from nextslot.store.contract import Tx
from nextslot.store.tables import jobs, placements

from . import arguments
from .unit_of_work import UnitOfWork

LOST = "an operator has said that it is lost"


class EngineService:
    def __init__(self, access: UnitOfWork, engines: Engines, placed: PlacedExecutor, finisher: JobFinisher) -> None:
        self._access = access
        self._engines = engines
        self._placed = placed
        self._finisher = finisher

    async def list(self) -> tuple[Engine, ...]:
        """Lists the engines of this node's configuration, by name, with what they run."""
        counts = await self._access.read(placements.counts)
        return tuple(
            Engine(
                name=name,
                kind=settings.kind,
                slots=settings.slots,
                **{
                    state: counts.get(name, {}).get(state, 0)
                    for state in ("submitting", "queued", "running", "unknown")
                },
                problem=self._placed.problem(name),
            )
            for name, settings in sorted(self._engines.settings.items())
        )

    async def lose(self, job: AnyJob) -> Job:
        """Ends a run on an engine of which an operator knows that it does not go on: it is retried by its policy.

        Its records say so first: should its wrapper live after all, it ends its tree when it reads that.
        """
        job_id = id_of(job)
        found = arguments.found(await self._access.read(lambda tx: jobs.get(tx, job_id)), "job", job_id)
        placed = await self._access.read(lambda tx: placements.of_job(tx, job_id))
        if placed is None:
            advice = "" if found.has_ended else "; cancel it instead" + (", with interrupt" if found.is_running else "")
            raise Conflict(f"no engine runs job {job_id}, which is {found.status}{advice}")
        if not await self._placed.disown(placed, LOST):
            raise Conflict(f"job {job_id} is not lost: its run has just ended, and its end is being stored")

        def work(tx: Tx) -> None:
            placements.finish(tx, placed.run_id)
            outcome = Outcome.failed(FailureKind.CRASH, LOST)
            self._finisher.finish(tx, placed.run_id, job_id, outcome, self._access.clock.now())

        await self._access.write(work)
        return arguments.found(await self._access.read(lambda tx: jobs.get(tx, job_id)), "job", job_id)
