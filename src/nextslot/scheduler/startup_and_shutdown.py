"""Life: a scheduler from its start, which repairs what the last life left, to a stop that loses nothing that ran."""

import asyncio
import logging
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Protocol

from nextslot.domain import FailureKind, default_office
from nextslot.engine.cluster.recovery import Recovered
from nextslot.engine.execution.left_logs import join_left_logs
from nextslot.engine.execution.runner import Runner
from nextslot.errors import NextslotError, Unavailable
from nextslot.extension_api import Attached
from nextslot.services.unit_of_work import UnitOfWork
from nextslot.store.contract import (
    Closing,
    Effects,
    Store,
    Tx,
    Work,
)
from nextslot.store.open_store import abandon_store
from nextslot.store.tables import lanes

from .runtime import Runtime

log = logging.getLogger(__name__)

# How long work that was told to stop at shutdown has, before it is left behind.
STOP_GRACE_SECONDS = 10.0


class OpenStore(Protocol):
    """Opens the database, given what happens first and last in each transaction, what commits cause, and what a
    transaction does first when another node has changed something."""

    def __call__(self, closing: Closing, *, effects: Effects, opening: Work[None], refresh: Work[None]) -> Store: ...


class Lifespan:
    def __init__(
        self, open_store: OpenStore, runtime: Runtime, access: UnitOfWork, extensions: Sequence[Attached]
    ) -> None:
        self.open_store = open_store
        self._runtime = runtime
        self._access = access
        self._cluster = runtime.cluster
        self._waiters = runtime.waiters
        self._extensions = extensions
        self.store: Store | None = None
        self._runner: Runner | None = None
        self._hurry, self._stopped = asyncio.Event(), asyncio.Event()
        self._watching = ExitStack()
        self.recovered = Recovered()

    # It starts.

    async def start(self) -> Recovered:
        """First what the last life left is repaired (spec 15.1), then work is dispatched, then callers come in."""
        if self.store is not None:
            raise NextslotError("this scheduler has been started already")
        runtime = self._runtime
        runner = self._runner = runtime.new_runner()
        effects = runtime.interpreter(runner)
        store = self.store = self.open_store(
            self._close_transaction, effects=effects, opening=runtime.open_transaction, refresh=self._refresh
        )
        runner.open(store)
        self._access.is_draining = False
        runtime.events.open(store)
        self._hurry, self._stopped = asyncio.Event(), asyncio.Event()
        try:
            self._be_watched(store)
            await self._cluster.read_clock(store)
            await store.write(lambda tx: runtime.offices.install(tx, default_office(runtime.clock.now())))
            await store.write(runtime.webhooks.load)
            self.recovered = await self._cluster.start(store, runner)
            await join_left_logs(store, runtime.files, runtime.threads)
            runtime.dispatcher.start(await store.read(lanes.last_turn))
            # Callers from here on: until now they hear that it is starting.
            self._access.open(store)
            for extension in self._extensions:
                await extension.start()
            await self.process()
        except BaseException:
            # Else the database would stay locked, with nobody to stop.
            if self.store is store:
                await self._take_back()
            raise
        return self.recovered

    async def _take_back(self) -> None:
        """Ends a start that failed. Where the database has gone away meanwhile, nothing can be stored any more: the
        next start recovers what this one began."""
        try:
            await self.stop(grace_seconds=0)
        except Unavailable:
            await self.crash()

    def _be_watched(self, store: Store) -> None:
        """Where others could take this node for lost: its lease needs to know whether its event loop answers."""
        if store.is_shared:
            self._watching.enter_context(self._runtime.watchdog.watching())
            self._runtime.job_types.guardians.use_heartbeat_file(self._runtime.watchdog.heartbeat.fd)
            self._watching.callback(self._runtime.job_types.guardians.use_heartbeat_file, None)

    def _close_transaction(self, tx: Tx) -> None:
        """Ends every writing transaction; starts no more jobs once the database file was found to be damaged."""
        if self.store is not None and self.store.health.damage is not None:
            self._runtime.dispatcher.stop()
        self._runtime.close_transaction(tx)

    def _refresh(self, tx: Tx) -> None:
        """The beginning of a transaction that finds that another node has changed what is kept in memory here."""
        self._runtime.webhooks.load(tx)
        self._cluster.refresh(tx)

    async def process(self) -> None:
        """Looks at every office's queue and starts what may start."""
        await self._access.write(lambda tx: self._runtime.lanes.counters(tx).include_all_offices())

    def wait_for(self, obstacle: str) -> None:
        """Says to callers, in place of an answer, what the start waits for."""
        self._access.obstacle = obstacle

    # It stops.

    async def stop(self, grace_seconds: float | None) -> bool:
        """Whether everything that ran has been stored. Whoever calls again hurries the first, and waits with it."""
        if self._access.is_draining:
            self._hurry.set()
        store, runner, runtime = self.store, self._runner, self._runtime
        if store is None or runner is None:
            return True
        if self._access.is_draining:
            await self._stopped.wait()
            return runner.has_stored_all
        self._access.is_draining = True
        runtime.dispatcher.stop()
        await runtime.direct.drain(store)
        log.info("stopping: %d jobs are running", len(runner.running))
        await self._wait_for_the_end(runner, grace_seconds)
        await self._cluster.leave(runner.has_stored_all)
        await runtime.direct.close()
        for extension in reversed(self._extensions):
            await extension.stop()
        runtime.job_types.guardians.close()
        runtime.events.close()
        await store.close()
        self._watching.close()
        self._access.close()
        self.store = self._runner = None
        self._waiters.release()
        self._stopped.set()
        return runner.has_stored_all

    def hurry(self) -> None:
        """One that is stopping waits no longer: what still runs is interrupted."""
        self._hurry.set()

    async def _wait_for_the_end(self, runner: Runner, grace_seconds: float | None) -> None:
        """Running work finishes; once it is told to stop, it has a while; then it is left to the next recovery."""
        executor = self._runtime.executor
        if not await self._within(grace_seconds, runner.idle(), self._hurry.wait()) or runner.running:
            executor.stop_all(FailureKind.INTERRUPTED)
            grace_seconds = STOP_GRACE_SECONDS + executor.longest_grace()
            if not await self._within(grace_seconds, runner.idle()):
                left = ", ".join(claim.job_id for claim in runner.running)
                log.error("these jobs ignore the signal to stop and are left to the next start: %s", left)
                await runner.abandon()

    async def _within(self, seconds: float | None, *ends: Any) -> bool:
        """Whether one of these came within that time."""
        tasks = [asyncio.ensure_future(end) for end in ends]
        clock = asyncio.ensure_future(self._runtime.clock.sleep(seconds)) if seconds is not None else None
        await asyncio.wait([*tasks, clock] if clock else tasks, return_when=asyncio.FIRST_COMPLETED)
        came = any(task.done() for task in tasks)
        for task in [*tasks, clock] if clock else tasks:
            task.cancel()
        return came

    def listen_for_signals(self) -> asyncio.Event:
        """Set by the first SIGTERM or SIGINT; the second hurries."""
        loop, signalled = asyncio.get_running_loop(), asyncio.Event()

        def told() -> None:
            if signalled.is_set():
                self._hurry.set()
            signalled.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, told)
        return signalled

    async def crash(self) -> None:
        """For `testing.crash`: what is in memory is gone, and the file is free for another scheduler."""
        self._runtime.dispatcher.stop()
        self._runtime.timer.stop()
        if self.store is not None and self._runner is not None:
            abandon_store(self.store)
            await self._runner.abandon()
            await self._cluster.abandon()
        self._watching.close()
        self._access.close()
        self.store = self._runner = None
