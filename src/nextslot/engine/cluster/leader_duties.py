"""Leader: begins and ends the work that one node does for all, as the node gains and loses leadership.

The leader is elected in `store/postgres/lease_and_leader.py`: the node whose lease thread gets the leader's lock. A
node on SQLite is alone and always leads. Two leaders for a moment do no harm: the database decides what is stored.
"""

import logging

from nextslot.engine.execution.timeouts import TimeoutManager
from nextslot.engine.retention import Retention
from nextslot.engine.webhooks.delivery_worker import DeliveryWorker
from nextslot.store.contract import Store
from nextslot.store.tables import nodes

from .node_registry import NodeRegistry
from .recovery import Recovery

log = logging.getLogger(__name__)


class Leader:
    def __init__(
        self,
        registry: NodeRegistry,
        timeouts: TimeoutManager,
        deliveries: DeliveryWorker,
        retention: Retention,
        recovery: Recovery,
    ) -> None:
        self._registry = registry
        self._timeouts = timeouts
        self._deliveries = deliveries
        self._retention = retention
        self._recovery = recovery
        self._is_leading = False
        # What the last election decided; `follow_election` acts on it.
        self.is_elected = False

    @property
    def is_up_to_date(self) -> bool:
        return self.is_elected == self._is_leading

    async def start(self, store: Store) -> None:
        """Starts the timers and retention. Every node runs them for its own runs and files."""
        self._timeouts.is_leading = self._retention.is_leading = not store.is_shared
        await self._timeouts.start(store)
        self._retention.start(store)

    async def close(self) -> None:
        await self.resign()
        await self._retention.close()
        await self._timeouts.close()

    async def abandon(self) -> None:
        """Stops at once, as a crash would."""
        self._is_leading = False
        await self._retention.close()
        await self._deliveries.abandon()

    async def follow_election(self, store: Store) -> None:
        if self.is_elected and not self._is_leading:
            await self._begin(store)
        elif self._is_leading and not self.is_elected:
            log.warning("node %s is no longer the leader", self._registry.node_id)
            await self.resign()

    async def _begin(self, store: Store) -> None:
        if store.is_shared:
            log.info("node %s is the leader", self._registry.node_id)
            await store.write(lambda tx: nodes.lead(tx, self._registry.node_id))
            await self._recovery.lead(store)
            self._timeouts.is_leading = self._retention.is_leading = True
            await self._timeouts.tick()
        await self._deliveries.start(store)
        self._is_leading = True

    async def resign(self) -> None:
        self._is_leading = False
        self._timeouts.is_leading = self._retention.is_leading = False
        await self._deliveries.close()

    # What other nodes announce.

    async def read_timers(self, store: Store) -> None:
        if self._is_leading:
            await self._timeouts.look()

    async def read_deliveries(self, store: Store) -> None:
        if self._is_leading:
            await self._deliveries.refresh()

    async def recover_lost_nodes(self, store: Store) -> None:
        """Marks nodes as lost whose lease has expired, and recovers the runs of lost nodes and of nodes that left."""
        if not self._is_leading:
            return
        if await store.read(nodes.lapsed):
            lost = await store.write(self._registry.lose)
            log.error("nodes lost, because their lease expired: %s", ", ".join(lost))
        for node_id in await store.read(nodes.without_office):
            await self._recovery.clear_up(store, node_id)
