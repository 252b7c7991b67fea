"""Cluster: this node's life among the others that share its database. It joins, hears what others announce, does for
all what one must do while it leads, and begins anew when it was taken for lost. Alone on SQLite, it simply leads.

Nothing here decides what is stored: leading twice for a moment, or hearing of something twice, does no harm.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from nextslot.domain import FailureKind
from nextslot.engine.direct.direct_requests import DirectExecutionHandler
from nextslot.engine.dispatch.dispatcher import Dispatcher
from nextslot.engine.engine_context import EngineContext
from nextslot.engine.events.event_log import EventLog
from nextslot.engine.execution.executor import Executor
from nextslot.engine.execution.runner import Runner
from nextslot.engine.execution.timeouts import TimeoutManager
from nextslot.engine.retention import Retention
from nextslot.engine.settings.key_ring import KeyRing
from nextslot.engine.webhooks.delivery_worker import DeliveryWorker
from nextslot.errors import Unavailable
from nextslot.executors.job_type_catalog import Catalog
from nextslot.store.contract import Store, Tx
from nextslot.store.membership import LeaseTimes, Membership
from nextslot.store.tables import lanes, nodes
from nextslot.system.clock import Clock

from .clock_steps import ClockSteps
from .node_registry import NodeRegistry, Others
from .recovery import Recovered, Recovery

log = logging.getLogger(__name__)

REJOIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class LeaderDuties:
    """What one node does for all."""

    timeouts: TimeoutManager
    deliveries: DeliveryWorker
    retention: Retention
    recovery: Recovery


class Waiting(Protocol):
    """Callers here who wait for the end of a chain, which may come on another node."""

    async def look(self) -> None: ...


@dataclass(frozen=True, slots=True)
class NodeParts:
    """What has to look again when another node has changed something."""

    dispatcher: Dispatcher
    executor: Executor
    direct: DirectExecutionHandler
    events: EventLog
    keys: KeyRing
    waiters: Waiting
    job_types: Catalog
    steps: ClockSteps


class Cluster:
    def __init__(
        self, engine: EngineContext, registry: NodeRegistry, duties: LeaderDuties, local: NodeParts, times: LeaseTimes
    ) -> None:
        self._clock: Clock = engine.clock
        self._lanes = engine.lanes
        self._workers = engine.workers
        self.registry = self._registry = registry
        self._duties = duties
        self._local = local
        self._times = times
        self._store: Store | None = None
        self._runner: Runner | None = None
        self._offered: list[str] = []
        self._is_leading = self._is_to_lead = False
        self._has_joined = False
        self._others: Others | None = None
        self._heard: set[str] = set()
        self._serving: asyncio.Task[None] | None = None
        self._rejoining: asyncio.Task[None] | None = None
        self._acts: dict[str, Callable[[Store], Awaitable[None]]] = {
            "nodes": self._look_at_nodes,
            "settings": self._forget_settings,
            "stop": self._stop_what_is_cancelled,
            "callers": self._local.direct.look,
            "events": self._look_at_events,
            "timer": self._look_at_timers,
            "deliveries": self._look_at_deliveries,
            "lost": self._look_for_lost,
            "work": self._look_for_work,
        }

    # Life.

    async def read_clock(self, store: Store) -> None:
        """Counts by the server's clock from here on: nothing is stored by a machine's clock that may be wrong."""
        self._local.steps.end()
        if store.is_shared:
            self._clock.adjust(*await store.read(self._server_time))
            self._clock.follow()

    def _server_time(self, tx: Tx) -> tuple[int, float, float]:
        sent = self._clock.monotonic()
        return nodes.time(tx, self._clock.now()), sent, self._clock.monotonic()

    async def start(self, store: Store, runner: Runner) -> Recovered:
        """Recovers what the last life of this node left (or of all, if it is the only one), and joins."""
        self._store, self._runner = store, runner
        node_id = self._registry.node_id if store.is_shared else None
        if node_id is not None:
            await self._wait_for_last_life(store, node_id)
        recovered = await self._duties.recovery.run(store, node_id)
        self._duties.timeouts.is_leading = self._duties.retention.is_leading = not store.is_shared
        await self._duties.timeouts.start(store)
        await self._join(store)
        await self._change_lead(store)
        self._duties.retention.start(store)
        self._has_joined = True
        self._serve_soon()
        return recovered

    async def _join(self, store: Store) -> None:
        lease = self._times.lease_seconds if store.is_shared else None
        self._workers.forget()
        life = await store.write(lambda tx: self._begin_life(tx, lease))
        await self._look_at_nodes(store)
        membership = Membership(self._registry.node_id, life, self, self._times, self._clock.adjust)
        store.join(membership)

    def _begin_life(self, tx: Tx, lease_seconds: float | None) -> int:
        life = self._registry.join(tx, lease_seconds)
        self._local.steps.begin(tx, is_shared=lease_seconds is not None)
        return life

    async def _wait_for_last_life(self, store: Store, node_id: str) -> None:
        """On another machine it may still be at work; on this one its processes are found and ended."""
        found = await store.read(lambda tx: nodes.time_until_lost(tx, node_id, self._clock.now()))
        if found is not None and found[0] != self._registry.card.host and found[1] > 0:
            log.warning("node %s may still be at work on %s: waiting %g s for the end of its lease", node_id, *found)
            await self._clock.sleep(found[1])

    async def leave(self, has_stored_all: bool) -> None:
        """What this node does for all ends with it. What it could not store is recovered by others, after its lease."""
        store, self._store, self._has_joined = self._store, None, False
        if store is None:
            return
        await self._end_tasks()
        await self._end_duties()
        await self._duties.retention.close()
        await self._duties.timeouts.close()
        await store.leave()
        if has_stored_all and self._registry.life:
            try:
                await store.write(self._registry.leave)
            except Unavailable as error:
                log.error("node %s could not say that it leaves: %s", self._registry.node_id, error)

    async def abandon(self) -> None:
        """As in a crash."""
        self._store, self._has_joined = None, False
        await self._end_tasks()
        self._is_leading = False
        await self._duties.retention.close()
        await self._duties.deliveries.abandon()

    async def _end_tasks(self) -> None:
        for task in (self._rejoining, self._serving):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait([task])

    # What the lease tells.

    def renewed(self, until: float) -> None:
        self._local.job_types.guardians.renew(until)

    def notified(self, topics: frozenset[str]) -> None:
        self._heard |= topics
        self._serve_soon()

    def leads(self, is_leader: bool) -> None:
        self._is_to_lead = is_leader
        self._serve_soon()

    def lapsed(self) -> None:
        """Commands are ended by their guardians, at the same time."""
        log.error("node %s could not renew its lease: what it runs is ended", self._registry.node_id)
        self._local.executor.stop_all(FailureKind.INTERRUPTED)

    def fenced(self) -> None:
        if self._store is not None and self._has_joined and (self._rejoining is None or self._rejoining.done()):
            work = self._begin_anew(self._store)
            self._rejoining = asyncio.get_running_loop().create_task(work, name="nextslot-rejoin")

    # When it was taken for lost.

    async def _begin_anew(self, store: Store) -> None:
        """Nothing of the last life goes on when the new one begins; what it brought is dropped: others have it."""
        log.error("node %s was taken for lost: what it runs is ended, and it joins anew", self._registry.node_id)
        dispatcher, runner = self._local.dispatcher, self._runner
        assert runner is not None
        dispatcher.is_held = True
        await store.leave()
        self._is_to_lead = False
        await self._end_duties()
        self._local.executor.stop_all(FailureKind.INTERRUPTED)
        self._local.job_types.guardians.renew(0.0)
        await runner.idle()
        while True:
            try:
                await self._duties.recovery.run(store, self._registry.node_id)
                await self._join(store)
                break
            except Unavailable as error:
                log.warning("node %s cannot join yet: %s", self._registry.node_id, error)
                await self._clock.sleep(REJOIN_SECONDS)
        self.notified(frozenset(self._acts))

    # What there is to look at.

    def _serve_soon(self) -> None:
        if self._has_joined and (self._serving is None or self._serving.done()):
            self._serving = asyncio.get_running_loop().create_task(self._serve(), name="nextslot-cluster")

    async def _serve(self) -> None:
        """What was heard while something was looked at is looked at together, next."""
        while self._store is not None and (self._heard or self._is_to_lead != self._is_leading):
            topics, self._heard = self._heard, set()
            try:
                await self._change_lead(self._store)
                for topic, act in self._acts.items():
                    if topic in topics and self._store is not None:
                        await act(self._store)
            except Unavailable as error:
                log.warning("node %s: the store did not answer: %s", self._registry.node_id, error)
                return  # The next time that the lease is renewed, all is looked at again.

    async def look(self) -> None:
        """What this node itself has stored about nodes holds for it at once: nobody else tells it."""
        if self._store is not None:
            await self._look_at_nodes(self._store)

    async def _look_at_nodes(self, store: Store) -> None:
        offered = sorted(self._registry.job_types)
        if self._registry.life and offered != self._offered:
            await store.write(self._registry.offer)
        self._offered = offered
        before = self._others
        await store.read(self.refresh)
        if self._others != before:  # What did not fit, or was not for this node, may be now.
            self.notified(frozenset({"work"}))

    def refresh(self, tx: Tx) -> None:
        """What this node has to know of the others before it starts anything."""
        others = self._others = self._registry.others(tx)
        self._workers.know_others(others.resources, others.job_types)
        self._local.dispatcher.is_held = others.is_draining

    async def _forget_settings(self, store: Store) -> None:
        self._local.keys.forget()

    async def _stop_what_is_cancelled(self, store: Store) -> None:
        for run_id in await store.read(lambda tx: nodes.to_stop(tx, self._registry.node_id)):
            self._local.executor.stop(run_id, FailureKind.CANCELLED)

    async def _look_at_events(self, store: Store) -> None:
        self._local.events.wake()
        await self._local.waiters.look()

    async def _look_for_work(self, store: Store) -> None:
        """Only if there may be some: looking costs a transaction, and others wait for it."""
        if self._local.dispatcher.is_dispatching and await store.read(_is_something_open):
            await store.write(self._look_elsewhere)

    def _look_elsewhere(self, tx: Tx) -> None:
        self._lanes.counters(tx).is_freed = True

    # What one does for all.

    async def _change_lead(self, store: Store) -> None:
        if self._is_to_lead and not self._is_leading:
            await self._begin_duties(store)
        elif self._is_leading and not self._is_to_lead:
            log.warning("node %s does not lead any more", self._registry.node_id)
            await self._end_duties()

    async def _begin_duties(self, store: Store) -> None:
        duties = self._duties
        if store.is_shared:
            log.info("node %s leads", self._registry.node_id)
            await store.write(lambda tx: nodes.lead(tx, self._registry.node_id))
            await duties.recovery.lead(store)
            duties.timeouts.is_leading = duties.retention.is_leading = True
            await duties.timeouts.tick()
        await duties.deliveries.start(store)
        self._is_leading = True

    async def _end_duties(self) -> None:
        self._is_leading = False
        self._duties.timeouts.is_leading = self._duties.retention.is_leading = False
        await self._duties.deliveries.close()

    async def _look_at_timers(self, store: Store) -> None:
        if self._is_leading:
            await self._duties.timeouts.look()

    async def _look_at_deliveries(self, store: Store) -> None:
        if self._is_leading:
            await self._duties.deliveries.refresh()

    async def _look_for_lost(self, store: Store) -> None:
        """Nodes whose lease is over, and those that went before they were cleared up after."""
        if not self._is_leading:
            return
        if await store.read(nodes.lapsed):
            lost = await store.write(self._registry.lose)
            log.error("taken for lost: %s", ", ".join(lost))
        for node_id in await store.read(nodes.without_office):
            await self._duties.recovery.clear_up(store, node_id)


def _is_something_open(tx: Tx) -> bool:
    hints = lanes.hints(tx)
    return hints.has_open_lanes or hints.callers > 0
