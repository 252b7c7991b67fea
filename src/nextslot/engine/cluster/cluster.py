"""Cluster: this node among those that share its database. It joins, follows what others announce, and leaves.

A node on PostgreSQL has a lease, which `store/postgres/lease_and_leader.py` renews; its thread calls `renewed`,
`lapsed` and `fenced`. A node whose lease expired is lost to the others: it stops what it runs and joins again.
`leader_duties` does the work that one node does for all. A notification that arrives twice does no harm: the database
decides what is stored.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from nextslot.domain import FailureKind
from nextslot.domain.lease_times import LeaseTimes
from nextslot.engine.direct.direct_requests import DRAINED, DirectExecutionHandler
from nextslot.engine.dispatch.dispatcher import Dispatcher
from nextslot.engine.engine_context import EngineContext
from nextslot.engine.events.event_log import EventLog
from nextslot.engine.execution.executor import Executor
from nextslot.engine.execution.runner import Runner
from nextslot.engine.placement.placed_executor import PlacedExecutor
from nextslot.engine.placement.placed_runner import PlacedRunner
from nextslot.engine.settings.key_ring import KeyRing
from nextslot.errors import Unavailable
from nextslot.executors.job_type_catalog import Catalog
from nextslot.store.contract import Membership, Store, Tx
from nextslot.store.group_commit import GROUP_ROWS
from nextslot.store.tables import lanes, nodes
from nextslot.system.clock import Clock

from .clock_steps import ClockSteps
from .leader_duties import Leader
from .node_registry import NodeRegistry, Others
from .recovery import Recovered, Recovery

log = logging.getLogger(__name__)

REJOIN_SECONDS = 1.0


class Waiting(Protocol):
    """What waits for something that others store: callers for the end of a chain, the inbox for requests."""

    async def look(self) -> None: ...


@dataclass(frozen=True, slots=True)
class NodeParts:
    """The components of this node that keep in memory what another node may change."""

    dispatcher: Dispatcher
    executor: Executor
    direct: DirectExecutionHandler
    events: EventLog
    keys: KeyRing
    waiters: Waiting
    inbox: Waiting
    job_types: Catalog
    steps: ClockSteps
    placed: PlacedExecutor


class Cluster:
    def __init__(
        self,
        engine: EngineContext,
        registry: NodeRegistry,
        leader: Leader,
        recovery: Recovery,
        local: NodeParts,
        times: LeaseTimes,
    ) -> None:
        self._clock: Clock = engine.clock
        self._lanes = engine.lanes
        self._workers = engine.workers
        self._job_types = engine.job_types
        self.registry = self._registry = registry
        self._leader = leader
        self._recovery = recovery
        self._local = local
        self._times = times
        self._store: Store | None = None
        self._runner: Runner | None = None
        self._placed: PlacedRunner | None = None
        self._offered: list[str] = []
        self._has_joined = False
        self._others: Others | None = None
        self._heard: set[str] = set()
        self._serving: asyncio.Task[None] | None = None
        self._rejoining: asyncio.Task[None] | None = None
        self._on_topic: dict[str, Callable[[Store], Awaitable[None]]] = {
            "nodes": self._read_nodes,
            "settings": self._forget_settings,
            "stop": self._stop_what_is_cancelled,
            "callers": self._local.direct.look,
            "events": self._look_at_events,
            "timer": leader.read_timers,
            "deliveries": leader.read_deliveries,
            "lost": leader.recover_lost_nodes,
            "work": self._look_for_work,
            "inbox": self._take_in_requests,
        }

    # Joining and leaving.

    async def read_clock(self, store: Store) -> None:
        """Sets this node's clock by that of the database server, because the machine's own clock may be wrong."""
        self._local.steps.end()
        if store.is_shared:
            self._clock.adjust(*await store.read(self._server_time))
            self._clock.follow()

    def _server_time(self, tx: Tx) -> tuple[int, float, float]:
        sent = self._clock.monotonic()
        return nodes.time(tx, self._clock.now()), sent, self._clock.monotonic()

    async def start(self, store: Store, runner: Runner, placed: PlacedRunner) -> Recovered:
        """Recovers what the last incarnation of this node (or, on SQLite, any node) left behind, and joins."""
        self._store, self._runner, self._placed = store, runner, placed
        self._recovery.adopt = placed.adopt
        node_id = self._registry.node_id if store.is_shared else None
        if node_id is not None:
            await self._wait_for_last_incarnation(store, node_id)
        recovered = await self._recovery.run(store, node_id)
        await self._leader.start(store)
        await self._join(store)
        await placed.adopt(store, node_id)
        await self._local.placed.sweep()
        await self._leader.follow_election(store)
        self._has_joined = True
        self._serve_soon()
        return recovered

    async def _join(self, store: Store) -> None:
        lease = self._times.lease_seconds if store.is_shared else None
        self._workers.forget()
        since = self._clock.monotonic()
        life = await store.write(lambda tx: self._begin_incarnation(tx, lease))
        await self._read_nodes(store)
        age = self._clock.monotonic() - since
        membership = Membership(self._registry.node_id, life, self, self._times, age, self._clock.adjust)
        store.join(membership)
        self._local.dispatcher.has_lease = True

    def _begin_incarnation(self, tx: Tx, lease_seconds: float | None) -> int:
        life = self._registry.join(tx, lease_seconds)
        self._local.steps.begin(tx, is_shared=lease_seconds is not None)
        return life

    async def _wait_for_last_incarnation(self, store: Store, node_id: str) -> None:
        """Waits until the lease of an incarnation on another machine has ended. On this machine, recovery ends the
        processes instead."""
        found = await store.read(lambda tx: nodes.time_until_lost(tx, node_id, self._clock.now()))
        if found is not None and found[0] != self._registry.card.host and found[1] > 0:
            log.warning("node %s may still be running on %s: waiting %g s until its lease ends", node_id, *found)
            await self._clock.sleep(found[1])

    async def leave(self, has_stored_all: bool) -> None:
        """Leaves the cluster. When the lease has ended, other nodes recover the outcomes that this node could not
        store."""
        store, self._store, self._has_joined = self._store, None, False
        if store is None:
            return
        await self._end_tasks()
        await self._leader.close()
        await store.leave()
        if has_stored_all and self._registry.life:
            try:
                await store.write(self._registry.leave)
            except Unavailable as error:
                log.error("node %s has left, but could not store that: %s", self._registry.node_id, error)

    async def abandon(self) -> None:
        """Stops at once, as a crash would."""
        self._store, self._has_joined = None, False
        await self._end_tasks()
        await self._leader.abandon()

    async def _end_tasks(self) -> None:
        for task in (self._rejoining, self._serving):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait([task])

    # The lease.

    def renewed(self, until: float) -> None:
        self._local.job_types.guardians.renew(until)

    def notified(self, topics: frozenset[str]) -> None:
        self._heard |= topics
        self._serve_soon()

    def leads(self, is_leader: bool) -> None:
        self._leader.is_elected = is_leader
        self._serve_soon()

    def lapsed(self, has_lapsed: bool) -> None:
        """Stops all runs and starts no others. The guardians of commands end the commands at the same time."""
        if not has_lapsed and self._is_rejoining:
            return  # The answer to the renewal came before the node was lost.
        if has_lapsed and self._local.dispatcher.has_lease:
            log.error("node %s could not renew its lease: it stops its runs", self._registry.node_id)
        self._local.dispatcher.has_lease = not has_lapsed
        if has_lapsed:
            self._local.executor.stop_all(FailureKind.INTERRUPTED)

    def fenced(self) -> None:
        if self._store is not None and self._has_joined and not self._is_rejoining:
            work = self._rejoin(self._store)
            self._rejoining = asyncio.get_running_loop().create_task(work, name="nextslot-rejoin")

    @property
    def _is_rejoining(self) -> bool:
        return self._rejoining is not None and not self._rejoining.done()

    async def _rejoin(self, store: Store) -> None:
        """Stops everything, drops the outcomes, and joins again: other nodes have recovered the runs of this one."""
        log.error("node %s was lost to the other nodes: it stops its runs and joins again", self._registry.node_id)
        runner, placed = self._runner, self._placed
        assert runner is not None
        assert placed is not None
        self._local.dispatcher.has_lease = False  # Set before the store stops checking the lease of this node.
        await store.leave()
        self._leader.is_elected = False
        await self._leader.resign()
        self._local.executor.stop_all(FailureKind.INTERRUPTED)
        self._local.job_types.guardians.renew(0.0)
        await runner.idle()
        await placed.detach()
        while True:
            try:
                await self._recovery.run(store, self._registry.node_id)
                await self._join(store)
                await placed.adopt(store, self._registry.node_id)
                break
            except Unavailable as error:
                log.warning("node %s cannot join yet: %s", self._registry.node_id, error)
                await self._clock.sleep(REJOIN_SECONDS)
        self.notified(frozenset(self._on_topic))

    # What other nodes announce.

    def _serve_soon(self) -> None:
        if self._has_joined and (self._serving is None or self._serving.done()):
            self._serving = asyncio.get_running_loop().create_task(self._serve(), name="nextslot-cluster")

    async def _serve(self) -> None:
        """Handles the announced topics until none is left. Topics that arrive meanwhile are handled together in the
        next pass."""
        while self._store is not None and (self._heard or not self._leader.is_up_to_date):
            topics, self._heard = self._heard, set()
            try:
                await self._leader.follow_election(self._store)
                for topic, read_changes in self._on_topic.items():
                    if topic in topics and self._store is not None:
                        await read_changes(self._store)
            except Unavailable as error:
                log.warning("node %s: the database did not answer: %s", self._registry.node_id, error)
                return  # All topics are announced again when the lease is renewed.

    def look_for_work(self) -> None:
        """Dispatches again, because new work may start on this node."""
        self.notified(frozenset({"work"}))

    async def look(self) -> None:
        """Reads the nodes again after this node has changed one: a node does not hear its own announcements."""
        if self._store is not None:
            await self._read_nodes(self._store)

    async def _read_nodes(self, store: Store) -> None:
        offered = sorted(self._registry.job_types)
        if self._registry.life and offered != self._offered:
            await store.write(self._registry.offer)
        self._offered = offered
        before = self._others
        await store.read(self.refresh)
        if self._local.dispatcher.is_held:
            await self._local.direct.end_waits(store, DRAINED)
        if self._others != before:  # A job that did not fit before, or was for another node, may start here now.
            self.notified(frozenset({"work"}))

    def refresh(self, tx: Tx) -> None:
        """Reads from the other nodes what this node must know before it starts anything."""
        others = self._others = self._registry.others(tx)
        self._workers.know_others(others.resources, others.job_types)
        self._local.dispatcher.is_held = others.is_draining

    async def _forget_settings(self, store: Store) -> None:
        self._local.keys.forget()

    async def _stop_what_is_cancelled(self, store: Store) -> None:
        for run_id in await store.read(lambda tx: nodes.to_stop(tx, self._registry.node_id)):
            self._local.executor.stop(run_id, FailureKind.CANCELLED)
            self._local.placed.stop(run_id, FailureKind.CANCELLED)

    async def _look_at_events(self, store: Store) -> None:
        self._local.events.wake()
        await self._local.waiters.look()

    async def _take_in_requests(self, store: Store) -> None:
        """Lets the leader take in what other programs have stored. Two nodes that do it at once do no harm."""
        if self._leader.is_elected:
            await self._local.inbox.look()

    async def _look_for_work(self, store: Store) -> None:
        """Dispatches if a lane may have work that can start: a useless transaction would delay others."""
        is_full = self._workers.is_full and not self._job_types.engines.settings
        if self._local.dispatcher.is_dispatching and not is_full and await store.read(_is_something_open):
            # The claimed size of a work that must be committed alone: other works would store changes that are not
            # announced.
            await store.write(self._dispatch_everywhere, rows=GROUP_ROWS + 1)

    def _dispatch_everywhere(self, tx: Tx) -> None:
        counters = self._lanes.counters(tx)
        counters.is_freed = counters.is_announced = True


def _is_something_open(tx: Tx) -> bool:
    hints = lanes.hints(tx)
    return hints.has_open_lanes or hints.callers > 0
