"""Nodes over a transaction: a node joins, leaves, is lost, drained or forgotten; and what one knows of the others."""

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
    """The most that another node has of each resource, what they can run, and whether this one is being drained."""

    resources: Mapping[str, int]
    job_types: frozenset[str]
    is_draining: bool


class NodeRegistry:
    def __init__(self, engine: EngineContext, card: NodeInfo) -> None:
        self._clock = engine.clock
        self._events = engine.events
        self._job_types = engine.job_types
        self.card = card
        self.life = 0
        # Where nobody else can be, nobody wants to hear that this one comes and goes.
        self._is_shared = False

    @property
    def node_id(self) -> str:
        return self.card.node_id

    def join(self, tx: Tx, lease_seconds: float | None) -> int:
        """A new life of this node begins; its number."""
        self._is_shared = lease_seconds is not None
        if not self._is_shared:
            nodes.replace(tx, self.node_id, self._clock.now())
        life = nodes.register(tx, self._card(), lease_seconds, self._clock.now())
        self._note(tx, "node_joined", self.node_id)
        tx.cause(NodeJoined(life))
        return life

    def note_life(self, life: int) -> None:
        """Follows a commit."""
        self.life = life

    def leave(self, tx: Tx) -> None:
        if nodes.leave(tx, self.node_id, self.life, self._clock.now()):
            self._note(tx, "node_left", self.node_id)

    def lose(self, tx: Tx) -> list[str]:
        """Takes those for lost whose lease is over."""
        lost = nodes.lose(tx, self._clock.now())
        for node_id in lost:
            self._note(tx, "node_lost", node_id)
        return lost

    def drain(self, tx: Tx, node_id: str, is_draining: bool) -> tuple[Node, Node]:
        """Before and after. A node that is drained starts nothing more; what runs there goes on."""
        found = nodes.get(tx, node_id)
        if found is None:
            raise NotFound("node", node_id)
        before = self._as_it_is(found) if node_id == self.node_id else found
        if not before.is_live:
            raise Conflict(f"node {node_id} is {before.status} since {before.ended_at}: there is nothing to drain")
        if nodes.drain(tx, node_id, is_draining):
            self._note(tx, "node_drained" if is_draining else "node_resumed", node_id)
        return before, replace(before, status="draining" if is_draining else "live")

    def forget(self, tx: Tx, node_id: str) -> Node:
        """One that is gone for good, as it was: it is not listed any more, and what it had is not counted. If it comes
        back all the same, it is a node like any other."""
        gone = nodes.get(tx, node_id)
        if gone is None:
            raise NotFound("node", node_id)
        if gone.is_live:
            raise Conflict(f"node {node_id} is {gone.status}: stop it first, and what runs there finishes")
        nodes.forget(tx, node_id)
        self._note(tx, "node_forgotten", node_id)
        return gone

    def offer(self, tx: Tx) -> None:
        """The job types that this node has now, for others to know."""
        if nodes.offer(tx, self.node_id, self.life, self._card().job_types):
            nodes.settings_changed(tx)
            tx.announce("nodes")

    def everybody(self, tx: Tx) -> list[Node]:
        """Every node that was seen and not forgotten, by name; of this one what may not be stored."""
        return [self._as_it_is(node) if node.node_id == self.node_id else node for node in nodes.all_of_them(tx)]

    def _as_it_is(self, node: Node) -> Node:
        """What it can run now; and where it is alone it leads, and has no lease to be seen by."""
        node = replace(node, job_types=tuple(sorted(self.job_types)))
        if self._is_shared or not node.is_live:
            return node
        return replace(node, is_leader=True, last_seen_at=self._clock.now())

    def others(self, tx: Tx) -> Others:
        """Resources are counted where they were, also while their node is away, until it is forgotten."""
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
