"""NodeRegistry: the stored nodes: a node joins, leaves, is lost, drained or forgotten, and reads the others."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nextslot.domain import Node
from nextslot.engine.effects import NodeJoined
from nextslot.engine.engine_context import EngineContext
from nextslot.errors import Conflict, NotFound
from nextslot.store.contract import Tx
from nextslot.store.tables import nodes
from nextslot.store.tables.nodes import NodeInfo


@dataclass(frozen=True, slots=True)
class Others:
    """The largest number of units of each resource on another node, the job types of the others, and whether this node
    is being drained."""

    resources: Mapping[str, int]
    job_types: frozenset[str]
    is_draining: bool


class NodeRegistry:
    def __init__(self, engine: EngineContext, card: NodeInfo) -> None:
        self._clock = engine.clock
        self._chance = engine.chance
        self._events = engine.events
        self._job_types = engine.job_types
        self.card = card
        self.life = 0
        # A node that is alone stores no events when it joins and leaves.
        self._is_shared = False

    @property
    def node_id(self) -> str:
        return self.card.node_id

    def join(self, tx: Tx, lease_seconds: float | None) -> int:
        """Stores a new incarnation (`life`) of this node. Returns its number."""
        self._is_shared = lease_seconds is not None
        if not self._is_shared:
            nodes.replace(tx, self.node_id, self._clock.now())
        else:
            nodes.share_secret(tx, self._chance.secret())
        life = nodes.register(tx, self._card(), lease_seconds, self._clock.now())
        self._note(tx, "node_joined", self.node_id)
        tx.cause(NodeJoined(life))
        return life

    def note_life(self, life: int) -> None:
        """Remembers the number of this incarnation after its commit."""
        self.life = life

    def leave(self, tx: Tx) -> None:
        if nodes.leave(tx, self.node_id, self.life, self._clock.now()):
            self._note(tx, "node_left", self.node_id)

    def lose(self, tx: Tx) -> list[str]:
        """Marks the nodes as lost whose lease has expired. Returns their ids."""
        lost = nodes.lose(tx, self._clock.now())
        for node_id in lost:
            self._note(tx, "node_lost", node_id)
        return lost

    def drain(self, tx: Tx, node_id: str, is_draining: bool) -> tuple[Node, Node]:
        """Drains a node, which then only finishes its runs, or lets it start jobs again. Returns (before, after)."""
        found = nodes.get(tx, node_id)
        if found is None:
            raise NotFound("node", node_id)
        before = self._current(found) if node_id == self.node_id else found
        if not before.is_live:
            raise Conflict(f"node {node_id} is {before.status} since {before.ended_at}: there is nothing to drain")
        if nodes.drain(tx, node_id, is_draining):
            self._note(tx, "node_drained" if is_draining else "node_resumed", node_id)
        return before, replace(before, status="draining" if is_draining else "live")

    def forget(self, tx: Tx, node_id: str) -> Node:
        """Deletes the row and the resources of a node that will not come back. If it does, it joins like a new node."""
        gone = nodes.get(tx, node_id)
        if gone is None:
            raise NotFound("node", node_id)
        if gone.is_live:
            raise Conflict(f"node {node_id} is {gone.status}: stop it first, so that its runs can finish")
        nodes.forget(tx, node_id)
        self._note(tx, "node_forgotten", node_id)
        return gone

    def offer(self, tx: Tx) -> None:
        """Publishes the current job types of this node to the other nodes."""
        if nodes.offer(tx, self.node_id, self.life, self._card().job_types):
            nodes.settings_changed(tx)
            tx.announce("nodes")

    def everybody(self, tx: Tx) -> list[Node]:
        """Returns all nodes by name, except forgotten ones. This node has its current values, even if they are not
        stored yet."""
        return [self._current(node) if node.node_id == self.node_id else node for node in nodes.all_of_them(tx)]

    def _current(self, node: Node) -> Node:
        """Adds the current job types; and, on SQLite, that the node leads and is alive, because it has no lease."""
        node = replace(node, job_types=tuple(sorted(self.job_types)))
        if self._is_shared or not node.is_live:
            return node
        return replace(node, is_leader=True, last_seen_at=self._clock.now())

    def others(self, tx: Tx) -> Others:
        """Reads the other nodes. The resources of an absent node stay known, with 0 units, until the node is
        forgotten."""
        everybody = nodes.all_of_them(tx)
        rest = [node for node in everybody if node.node_id != self.node_id]
        return Others(
            {
                resource: max(node.resources.get(resource, 0) if node.is_live else 0 for node in rest)
                for resource in {resource for node in rest for resource in node.resources}
            },
            frozenset(job_type for node in rest if node.is_live for job_type in node.job_types),
            any(node.node_id == self.node_id and node.status == "draining" for node in everybody),
        )

    @property
    def job_types(self) -> list[str]:
        return self._job_types.names()

    def _card(self) -> NodeInfo:
        return self.card._replace(job_types=sorted(self.job_types))

    def _note(self, tx: Tx, type: str, node_id: str) -> None:
        nodes.settings_changed(tx)
        tx.announce("nodes")
        if self._is_shared:
            self._events.note(tx, type, self._clock.now(), None, details={"node_id": node_id})
