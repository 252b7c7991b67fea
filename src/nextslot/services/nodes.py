"""Nodes: lists the machines that share the database, drains one, forgets one."""

from nextslot.domain import Node
from nextslot.engine.cluster.cluster import Cluster
from nextslot.store.contract import Tx

from .unit_of_work import UnitOfWork


class NodeService:
    def __init__(self, access: UnitOfWork, cluster: Cluster) -> None:
        self._access = access
        self._cluster = cluster
        self._registry = cluster.registry

    async def list(self) -> tuple[Node, ...]:
        """Lists every node by name, except forgotten ones."""
        return tuple(await self._access.read(self._registry.everybody))

    async def drain(self, node_id: str, undo: bool = False) -> Node:
        """Lets a node start nothing more: its runs finish, and other nodes take the queue. `undo` ends that."""

        def work(tx: Tx) -> Node:
            before, after = self._registry.drain(tx, node_id, not undo)
            self._access.audit.changed(tx, {"status": before.status}, {"status": after.status})
            return after

        drained = await self._access.write(work)
        await self._cluster.look()
        return drained

    async def forget(self, node_id: str) -> None:
        """Deletes a node that will not come back: it is no longer listed, and its resources no longer count."""

        def work(tx: Tx) -> None:
            before = self._registry.forget(tx, node_id)
            self._access.audit.changed(tx, {"status": before.status, "resources": dict(before.resources)}, {})

        await self._access.write(work)
        await self._cluster.look()
