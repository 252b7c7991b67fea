"""Runner: the tasks of what runs now. Each runs its handler and then stores its outcome, however long that takes."""

import asyncio
import contextvars
import logging
from collections.abc import Callable

from ..clock import Clock
from ..errors import Fenced, Unavailable
from ..logs import bound
from ..meters import Meters, Unmeasured
from ..model import FailureKind, Outcome, RunStatus
from ..store import jobs
from ..store.store import Foreseen, Store, Tx
from ..tracing import Tracer, Untraced
from .direct import DirectExecutionHandler
from .dispatcher import Claim
from .endings import Endings
from .executor import Executor

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0


class Runner:
    def __init__(
        self,
        clock: Clock,
        store: Store,
        executor: Executor,
        endings: Endings,
        direct: DirectExecutionHandler,
        completed: Callable[[str, float], None] = lambda job_type, seconds: None,
        meters: Meters | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """`completed` hears how long work of a type took."""
        self._clock = clock
        self._store = store
        self._executor = executor
        self._endings = endings
        self._direct = direct
        self._completed = completed
        self._meters = meters or Unmeasured()
        self._tracer = tracer or Untraced()
        # When the run ended whose transaction is being followed up: what that launches gets its slot.
        self._freed_at: float | None = None
        self._tasks: dict[asyncio.Task[None], Claim] = {}
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_abandoned = False
        self._has_lost = False

    @property
    def running(self) -> list[Claim]:
        return list(self._tasks.values())

    @property
    def has_stored_all(self) -> bool:
        """Whether the outcome of everything that was launched is in the store."""
        return not self._tasks and not self._has_lost

    def launch(self, claim: Claim) -> None:
        # Whoever's transaction this job was started by, it is not done for them: it has a context of its own.
        context = contextvars.Context()
        task = asyncio.get_running_loop().create_task(self._run(claim, self._freed_at), context=context)
        self._tasks[task] = claim
        self._is_idle.clear()
        task.add_done_callback(self._left)

    async def idle(self) -> None:
        """Returns when nothing runs any more."""
        await self._is_idle.wait()

    async def abandon(self) -> None:
        """Gives up on what did not stop: its jobs stay RUNNING in the store, and the next start recovers them."""
        self._is_abandoned = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)

    async def _run(self, claim: Claim, freed_at: float | None) -> None:
        kind = "direct_id" if claim.is_direct else "job_id"
        with bound(**{kind: claim.job_id}, run_id=claim.run_id, office_id=claim.office_id, job_type=claim.job_type):
            if freed_at is not None:
                self._meters.handed_over(self._meters.seconds() - freed_at)
            await self._run_and_record(claim)

    async def _run_and_record(self, claim: Claim) -> None:
        began = self._clock.monotonic()
        outcome = await self._execute(claim)
        took = self._clock.monotonic() - began
        kind = "direct" if claim.is_direct else "job"
        self._meters.ran(claim.job_type, kind, outcome.status, outcome.failure_kind, took)
        try:
            await self._record(claim, outcome)
            if outcome.status is RunStatus.COMPLETED:
                self._completed(claim.job_type, took)
        except Exception as error:  # An outcome that the store refuses must not leave its job running for ever.
            log.exception("run %s: its outcome cannot be stored", claim.run_id)
            refused = f"its outcome could not be stored: {type(error).__name__}"
            await self._record(claim, Outcome.failed(FailureKind.INVALID, refused))

    async def _execute(self, claim: Claim) -> Outcome:
        listen = self._direct.listener(claim.run_id) if claim.is_direct else None
        with self._tracer.run(claim) as span:
            outcome = await self._executor.run(claim, listen)
            span.note({"nextslot.outcome": outcome.status, "nextslot.failure_kind": outcome.failure_kind})
            if outcome.status is RunStatus.FAILED:
                span.fail((outcome.error or "")[:500])
            return outcome

    async def _record(self, claim: Claim, outcome: Outcome) -> None:
        """The work is done: its outcome is kept until the store takes it."""
        pause, ended_at = FIRST_PAUSE, self._meters.seconds()
        asked = () if claim.is_direct else (jobs.asks_at_the_end(claim.run_id, claim.job_id),)
        ending = Foreseen(lambda tx: self._finish(tx, claim, outcome, ended_at), asked)
        while True:
            try:
                stored = await self._store.write(ending)
            except Fenced:
                log.warning("run %s belongs to a node that was taken for lost; its outcome is dropped", claim.run_id)
                return
            except Unavailable as error:
                if self._is_abandoned:
                    self._has_lost = True
                    log.error("run %s ended too late to be stored", claim.run_id)
                    return
                log.error("run %s ended, but cannot be stored yet: %s", claim.run_id, error)
                await self._clock.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                # Its transaction has been followed up, and no later one yet: those begin after their callers went on.
                self._freed_at = None
                if stored is None:
                    log.warning("run %s had been ended by somebody else; its outcome is dropped", claim.run_id)
                return

    def _finish(self, tx: Tx, claim: Claim, outcome: Outcome, ended_at: float) -> object | None:
        now = self._clock.now()
        tx.after_commit(lambda: self._free(ended_at))
        if claim.is_direct:
            return self._direct.finish(tx, claim.run_id, outcome, now)
        return self._endings.finish(tx, claim.run_id, claim.job_id, outcome, now)

    def _free(self, ended_at: float) -> None:
        """After the commit, before what it launches; of runs that end together, the first counts."""
        if self._freed_at is None:
            self._freed_at = ended_at

    def _left(self, task: asyncio.Task[None]) -> None:
        claim = self._tasks.pop(task)
        if not self._tasks:
            self._is_idle.set()
        if task.cancelled():
            self._has_lost = True
        elif task.exception() is not None:
            self._has_lost = True
            ids = {"job_id": claim.job_id, "run_id": claim.run_id, "office_id": claim.office_id}
            log.critical("run %s could not be stored", claim.run_id, exc_info=task.exception(), extra=ids)
