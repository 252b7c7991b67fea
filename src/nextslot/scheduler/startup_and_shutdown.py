"""Starts a scheduler, which recovers what the last process left, and stops it without losing the outcome of a run."""

import asyncio
import logging
import math
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Protocol

from nextslot.domain import FailureKind, default_office
from nextslot.engine.cluster.recovery import Recovered, join_left_logs
from nextslot.engine.execution.runner import Runner
from nextslot.engine.placement.placed_runner import PlacedRunner
from nextslot.errors import NextslotError, Unavailable
from nextslot.services.unit_of_work import STARTING, UnitOfWork
from nextslot.store.contract import Closing, Effects, Store, Tx, Work

from .readiness import in_words
from .runtime import Runtime
from .services import Services

log = logging.getLogger(__name__)

# How long interrupted work may take to end at shutdown. After that, the next start recovers it.
STOP_GRACE_SECONDS = 10.0
# How often the log states the rest of the grace time.
REMINDER_SECONDS = 60.0


class OpenStore(Protocol):
    """Opens the database.

    `opening` begins and `closing` ends each transaction; `effects` carries out the effects of commits; `refresh` runs
    at the beginning of the first transaction after another node has changed something.
    """

    def __call__(self, closing: Closing, *, effects: Effects, opening: Work[None], refresh: Work[None]) -> Store: ...


@contextmanager
def using(scheduler: "Lifespan", store: Store) -> Iterator[None]:
    """Lets the services of a scheduler that was not started use a store, for an offline command."""
    scheduler._gate.store = store
    try:
        yield
    finally:
        scheduler._gate.store = None


def offline_closing(scheduler: "Lifespan") -> Closing:
    """Returns the function that ends each transaction of an offline command."""
    return scheduler._runtime.close_offline_transaction


class Lifespan(Services):
    """Services that can be started and stopped."""

    def __init__(
        self,
        open_store: OpenStore,
        runtime: Runtime,
        access: UnitOfWork,
        shutdown_grace_seconds: float | None,
        is_in_real_time: bool = True,
    ) -> None:
        super().__init__(runtime, access, {})
        self._is_in_real_time = is_in_real_time
        self._open_store = open_store
        self._gate = access.gate
        self._cluster = runtime.cluster
        self._store: Store | None = None
        self._runner: Runner | None = None
        self._placed: PlacedRunner | None = None
        self._hurry, self._stopped = asyncio.Event(), asyncio.Event()
        self._watching = ExitStack()
        self.shutdown_grace_seconds = shutdown_grace_seconds
        self.recovered = Recovered()

    # Start.

    async def start(self) -> Recovered:
        """Opens the store, repairs what the last process left (spec 15.1), and begins to dispatch."""
        if self._store is not None:
            raise NextslotError("this scheduler has been started already")
        runtime = self._runtime
        runner = self._runner = runtime.new_runner()
        placed = self._placed = runtime.new_placed_runner(runner)
        effects = runtime.interpreter(runner, placed)
        store = self._store = self._open_store(
            self._close_transaction, effects=effects, opening=runtime.clock_steps.follow, refresh=self._refresh
        )
        runner.open(store)
        placed.open(store)
        self._gate.is_draining, self._gate.interrupts_at = False, None
        self._gate.obstacle = self._gate.obstacle or STARTING
        runtime.events.open(store)
        self._hurry, self._stopped = asyncio.Event(), asyncio.Event()
        try:
            self._be_watched(store)
            await self._cluster.read_clock(store)
            await store.write(lambda tx: runtime.offices.install(tx, default_office(runtime.clock.now())))
            await store.write(runtime.webhooks.load)
            await store.read(runtime.quotas.load)
            self.recovered = await self._cluster.start(store, runner, placed)
            await join_left_logs(store, runtime.files, runtime.threads)
            await runtime.shipping.start(store)
            if runtime.workers.devices.names:  # Before anything starts, which could get a device in use.
                await runtime.gpu_watch.start(partial(self._see_devices, store))
            runtime.dispatcher.start()
            # From here on, callers reach the store; until now they got the error that the scheduler is starting.
            self._gate.store, self._gate.loop, self._gate.obstacle = store, asyncio.get_running_loop(), None
            for extension in self.attached.values():
                await extension.start()
            await self.process()
            await self._prepare()
            await runtime.inbox.look()
        except BaseException:
            # Otherwise the database would stay locked, and nobody could stop the scheduler.
            if self._store is store:
                await self._take_back()
            raise
        return self.recovered

    async def _prepare(self) -> None:
        """Stores the declarations of the application."""

    async def _take_back(self) -> None:
        """Undoes a start that failed. If the database is gone by now, the next start recovers what this start began."""
        try:
            await self.stop(grace_seconds=0)
        except Unavailable:
            await self._crash()

    def _be_watched(self, store: Store) -> None:
        """Watches the event loop. If nodes share the database, the sidecar renews this node's lease as long as the loop
        responds; otherwise the log names a handler that blocks the loop. Watches nothing on a clock that tests
        control."""
        if store.is_shared:
            self._watching.enter_context(self._runtime.watchdog.watching())
            self._runtime.job_types.guardians.use_heartbeat_file(self._runtime.watchdog.heartbeat.fd)
            self._watching.callback(self._runtime.job_types.guardians.use_heartbeat_file, None)
        elif self._is_in_real_time:
            self._watching.enter_context(self._runtime.watchdog.watching(with_sidecar=False))

    async def _see_devices(self, store: Store, seen: Mapping[tuple[str, str], str]) -> None:
        """Keeps runs off devices that other programs use, and starts jobs on devices that have become free."""
        workers = self._runtime.workers
        busy = await store.read(lambda tx: workers.not_held(tx, seen))
        freed = workers.busy_devices.keys() - busy.keys()
        workers.busy_devices = busy
        if freed:
            await self.process()

    def _close_transaction(self, tx: Tx) -> None:
        """Ends every writing transaction. Stops dispatch once the database file is known to be damaged."""
        if self._store is not None and self._store.health.damage is not None:
            self._runtime.dispatcher.stop()
        self._runtime.close_transaction(tx)

    def _refresh(self, tx: Tx) -> None:
        """Reads cached data again, in the first transaction after another node has changed something."""
        self._runtime.webhooks.load(tx)
        self._runtime.quotas.load(tx)
        self._runtime.lanes.forget()
        self._cluster.refresh(tx)

    async def process(self) -> None:
        """Starts every job of every office's queue that may start.

        Needed only after a job type was registered while the scheduler was running.
        """
        await self._access.write(lambda tx: self._runtime.lanes.counters(tx).include_all_offices())

    def listens_at(self, address: str) -> None:
        """Sets the address of this node's HTTP server for other nodes, unless configured; the next start stores it."""
        registry = self._cluster.registry
        if registry.card.address is None:
            registry.card = registry.card._replace(address=address)

    def wait_for(self, obstacle: str) -> None:
        """Sets what the start waits for: until the scheduler has started, callers get this as an error."""
        self._gate.obstacle = obstacle

    # Stop.

    async def stop(self, grace_seconds: float | None = None) -> bool:
        """Stops dispatch and waits for running work; interrupts it after the grace time, or when called again.

        Returns whether the outcomes of all runs have been stored.
        """
        if self._gate.is_draining:
            self._hurry.set()
        store, runner, runtime = self._store, self._runner, self._runtime
        if store is None or runner is None:
            return True
        if self._gate.is_draining:
            await self._stopped.wait()
            return runner.has_stored_all
        self._gate.is_draining = True
        runtime.gpu_watch.stop()
        runtime.dispatcher.stop()
        await runtime.direct.drain(store)
        grace_seconds = self.shutdown_grace_seconds if grace_seconds is None else grace_seconds
        if grace_seconds is not None:
            self._gate.interrupts_at = runtime.clock.now().after(grace_seconds)
        await self._wait_for_the_end(runner, grace_seconds)
        await runtime.shipping.close()
        await self._detach()
        await self._cluster.leave(runner.has_stored_all)
        await runtime.direct.close()
        await runtime.files_of_nodes.close()
        for extension in reversed(self.attached.values()):
            await extension.stop()
        runtime.job_types.guardians.close()
        runtime.events.close()
        await store.close()
        self._watching.close()
        self._gate.store = self._gate.loop = None
        self._store = self._runner = None
        runtime.waiters.release()
        self._stopped.set()
        return runner.has_stored_all

    async def _detach(self) -> None:
        """Stops following placed runs. They go on, and the next start or another node follows them."""
        if self._placed is not None:
            await self._placed.detach()
            self._placed = None

    def hurry(self) -> None:
        """Ends the grace time of a stopping scheduler, which then interrupts the runs that are left."""
        self._hurry.set()

    async def _wait_for_the_end(self, runner: Runner, grace_seconds: float | None) -> None:
        """Waits for running work, then interrupts it, then abandons what is left to the next recovery."""
        executor = self._runtime.executor
        if not await self._wait_and_say(runner, grace_seconds) or runner.running:
            executor.stop_all(FailureKind.INTERRUPTED)
            self._runtime.shipping.hurry()
            grace_seconds = STOP_GRACE_SECONDS + executor.longest_grace()
            if not await self._within(grace_seconds, runner.idle()):
                left = ", ".join(claim.job_id for claim in runner.running)
                log.error("these jobs ignore the signal to stop and are left to the next start: %s", left)
                await runner.abandon()

    async def _wait_and_say(self, runner: Runner, grace_seconds: float | None) -> bool:
        """Waits for running work, and logs the rest of the grace time. Returns False if the grace time ends first."""
        left = math.inf if grace_seconds is None else grace_seconds
        while True:
            rest = f" and are interrupted in {in_words(round(left * 1_000_000))}" if left < math.inf else ""
            log.info("stopping: %d jobs are running%s", len(runner.running), rest if runner.running else "")
            part = min(left, REMINDER_SECONDS)
            if await self._within(part, runner.idle(), self._hurry.wait()):
                return True
            left -= part
            if left <= 0:
                return False

    async def _within(self, seconds: float | None, *ends: Any) -> bool:
        """Returns whether one of `ends` is done within this time."""
        tasks = [asyncio.ensure_future(end) for end in ends]
        clock = asyncio.ensure_future(self._runtime.clock.sleep(seconds)) if seconds is not None else None
        await asyncio.wait([*tasks, clock] if clock else tasks, return_when=asyncio.FIRST_COMPLETED)
        came = any(task.done() for task in tasks)
        for task in [*tasks, clock] if clock else tasks:
            task.cancel()
        return came

    def _listen_for_signals(self) -> asyncio.Event:
        """Returns an event that the first SIGTERM or SIGINT sets; the second signal ends the grace time."""
        loop, signalled = asyncio.get_running_loop(), asyncio.Event()

        def stop() -> None:
            if signalled.is_set():
                self._hurry.set()
            signalled.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        return signalled

    async def _crash(self) -> None:
        """Drops everything in memory and unlocks the database for another scheduler, for `testing.crash`."""
        self._runtime.dispatcher.stop()
        self._runtime.timer.stop()
        if self._store is not None and self._runner is not None:
            self._store.abandon()
            await self._runner.abandon()
            await self._runtime.shipping.close()
            await self._runtime.files_of_nodes.close()
            await self._detach()
            await self._cluster.abandon()
        self._watching.close()
        self._gate.store = self._gate.loop = None
        self._store = self._runner = None
