"""Shipping: stores the files of runs in the shared store: logs while they grow, the rest before the outcome is stored.

The runner calls it if there is a shared store.
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterable

from nextslot.executors.run_files import RunFiles
from nextslot.executors.shared_run_files import WAIT_SECONDS, ShippedLog
from nextslot.executors.threads import Threads
from nextslot.store.contract import Store
from nextslot.store.tables import old_history
from nextslot.system.clock import Clock

log = logging.getLogger(__name__)

# How often a log that grows is shipped.
EVERY_SECONDS = 1.0
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
# How often files are tried again whose run's outcome did not wait any longer, or that a crash has left.
LEFT_SECONDS = 60.0


class Shipping:
    def __init__(self, clock: Clock, files: RunFiles, threads: Threads) -> None:
        self._clock = clock
        self._files = files
        self._threads = threads
        self.wait_seconds = WAIT_SECONDS
        # Set when the scheduler stops, and its grace time is over.
        self._hurry = asyncio.Event()
        self._followed: dict[str, asyncio.Task[None]] = {}
        self._shipped: dict[str, ShippedLog] = {}
        # The calls for logs that grow, in their threads.
        self._calls: dict[str, asyncio.Future[str | None]] = {}
        self._left: set[str] = set()
        self._retrying: asyncio.Task[None] | None = None

    async def start(self, store: Store) -> None:
        """Ships later what runs that have ended have left on this disk. To be called before anything runs."""
        self._hurry = asyncio.Event()
        left = await self._threads.run(self._files.unshipped)
        if left:
            known = await store.read(lambda tx: old_history.known_runs(tx, left))
            # A run that has not ended belongs to another node with the same directory.
            self._retry(run_id for run_id in left if known.get(run_id))

    async def close(self) -> None:
        """Stops. What is not shipped yet is on this disk, and the next start goes on."""
        tasks = [*self._followed.values(), *([] if self._retrying is None else [self._retrying])]
        self._followed.clear()
        self._left.clear()
        self._retrying = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def hurry(self) -> None:
        """Lets no outcome wait any longer: the scheduler must stop."""
        self._hurry.set()

    def follow(self, run_id: str) -> None:
        """Ships the log of a run from now on, as it grows."""
        assert self._files.shared is not None
        self._shipped[run_id] = self._files.shared.shipped_log(run_id, is_new=True)
        self._followed[run_id] = asyncio.get_running_loop().create_task(self._follow(run_id), name="nextslot-log")

    async def _follow(self, run_id: str) -> None:
        problem: str | None = None
        shipped = self._shipped[run_id]
        while True:
            await self._clock.sleep(EVERY_SECONDS)
            call = self._threads.run(lambda: self._files.ship_growing(run_id, shipped))
            self._calls[run_id] = asyncio.ensure_future(call)
            before, problem = problem, await asyncio.shield(self._calls[run_id])
            if problem is not None and before is None:
                log.warning("the log of run %s cannot be read on other nodes now: %s", run_id, problem)

    async def finish(self, run_id: str) -> None:
        """Stores all files of a run that has ended, before its outcome is stored.

        While the store does not take them, the outcome waits, as it waits for a database; but not for ever: the files
        are on this disk then, and are stored later.
        """
        if (following := self._followed.pop(run_id, None)) is not None:
            following.cancel()
            await asyncio.wait([following])
        if (call := self._calls.pop(run_id, None)) is not None:
            await call
        shipped = self._shipped.pop(run_id, None)
        if not self._files.is_unshipped(run_id):
            return
        pause, until = FIRST_PAUSE, self._clock.monotonic() + self.wait_seconds
        while True:
            work = self._threads.run(lambda: self._files.ship(run_id, shipped))
            if (problem := await self._unless_hurried(work)) is None:
                return
            if self._clock.monotonic() + pause > until or self._hurry.is_set():
                log.error("run %s: its files stay on this node until they can be stored: %s", run_id, problem)
                self._retry([run_id])
                return
            log.error("run %s ended, but its files cannot be stored yet: %s", run_id, problem)
            await self._unless_hurried(self._clock.sleep(pause))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _unless_hurried(self, work: Awaitable[str | None]) -> str | None:
        task, hurried = asyncio.ensure_future(work), asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait([task, hurried], return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else "the scheduler stops"
        finally:
            task.cancel()
            hurried.cancel()

    def _retry(self, run_ids: Iterable[str]) -> None:
        self._left.update(run_ids)
        if self._left and self._retrying is None:
            self._retrying = asyncio.get_running_loop().create_task(self._retry_left(), name="nextslot-shipping")

    async def _retry_left(self) -> None:
        pause = 0.0
        while self._left:
            await self._clock.sleep(pause)
            for run_id in sorted(self._left):
                problem = await self._threads.run(lambda run_id=run_id: self._files.ship(run_id))  # type: ignore[misc]
                if problem is None:
                    self._left.discard(run_id)
                    log.info("the files of run %s are stored now", run_id)
            pause = LEFT_SECONDS
        self._retrying = None
