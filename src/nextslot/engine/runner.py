"""Runner: the tasks of what runs now. Each runs its handler and then stores its outcome, however long that takes."""

import asyncio
import logging

from ..clock import Clock
from ..errors import Unavailable
from ..model import FailureKind, Outcome
from ..store.store import Store, Tx
from .direct import DirectExecutionHandler
from .dispatcher import Claim
from .endings import Endings
from .executor import Executor

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0


class Runner:
    def __init__(
        self, clock: Clock, store: Store, executor: Executor, endings: Endings, direct: DirectExecutionHandler
    ) -> None:
        self._clock = clock
        self._store = store
        self._executor = executor
        self._endings = endings
        self._direct = direct
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
        task = asyncio.get_running_loop().create_task(self._run(claim))
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

    async def _run(self, claim: Claim) -> None:
        listen = self._direct.listener(claim.run_id) if claim.is_direct else None
        outcome = await self._executor.run(claim, listen)
        try:
            await self._record(claim, outcome)
        except Exception as error:  # An outcome that the store refuses must not leave its job running for ever.
            log.exception("run %s: its outcome cannot be stored", claim.run_id)
            refused = f"its outcome could not be stored: {type(error).__name__}"
            await self._record(claim, Outcome.failed(FailureKind.INVALID, refused))

    async def _record(self, claim: Claim, outcome: Outcome) -> None:
        """The work is done: its outcome is kept until the store takes it."""
        pause = FIRST_PAUSE
        while True:
            try:
                stored = await self._store.write(lambda tx: self._finish(tx, claim, outcome))
            except Unavailable as error:
                if self._is_abandoned:
                    self._has_lost = True
                    log.error("run %s ended too late to be stored", claim.run_id)
                    return
                log.error("run %s ended, but cannot be stored yet: %s", claim.run_id, error)
                await self._clock.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                if stored is None:
                    log.warning("run %s had been ended by somebody else; its outcome is dropped", claim.run_id)
                return

    def _finish(self, tx: Tx, claim: Claim, outcome: Outcome) -> object | None:
        now = self._clock.now()
        if claim.is_direct:
            return self._direct.finish(tx, claim.run_id, outcome, now)
        return self._endings.finish(tx, claim.run_id, claim.job_id, outcome, now)

    def _left(self, task: asyncio.Task[None]) -> None:
        claim = self._tasks.pop(task)
        if not self._tasks:
            self._is_idle.set()
        if task.cancelled():
            self._has_lost = True
        elif task.exception() is not None:
            self._has_lost = True
            log.critical("run %s could not be stored", claim.run_id, exc_info=task.exception())
