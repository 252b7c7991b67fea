"""ClusterCapacity: the slots of all live nodes, for a forecast; the simulator starts work on any node with room."""

from collections import Counter
from collections.abc import Sequence

from nextslot.domain import Lane, Node
from nextslot.engine.dispatch.limits_and_slots import Workers
from nextslot.store.contract import Tx


class ClusterCapacity(Workers):
    def __init__(self, nodes: Sequence[Node]) -> None:
        super().__init__("(machines)")
        # If any node, even one that is away, lists a resource, then nodes that do not list it have none of it.
        counted = {resource: 0 for node in nodes for resource in node.resources}
        self._types: dict[str, frozenset[str]] = {}
        self._capacity: dict[str, Workers] = {}
        for node in nodes:
            if node.status == "live":
                machine = Workers(node.node_id, node.max_running, node.resources)
                machine.know_others(counted, frozenset())
                self._capacity[node.node_id] = machine
                self._types[node.node_id] = frozenset(node.job_types)

    def runs_elsewhere(self, job_type: str) -> bool:
        return any(job_type in types for types in self._types.values())

    def could_ever_fit(self, lane: Lane) -> bool:
        return any(machine.could_ever_fit(lane) for machine in self._for(lane))

    def has_room(self, tx: Tx, lane: Lane) -> bool:
        return any(machine.has_room(tx, lane) for machine in self._for(lane))

    def take(self, tx: Tx, lane: Lane) -> str:
        """Takes a slot on a node with room; the dispatcher has checked that there is one."""
        return next(machine for machine in self._for(lane) if machine.has_room(tx, lane)).take(tx, lane)

    def hold(self, tx: Tx, worker_id: str, lane: Lane) -> None:
        for machine in self._capacity.values():
            machine.hold(tx, worker_id, lane)

    def free(self, tx: Tx, worker_id: str | None, lane: Lane) -> None:
        for machine in self._capacity.values():
            machine.free(tx, worker_id, lane)

    def apply(self, node: str, taken: set[int], freed: set[int], units: Counter[str]) -> None:
        self._capacity[node].apply(node, taken, freed, units)

    def _for(self, lane: Lane) -> list[Workers]:
        return [machine for name, machine in self._capacity.items() if lane.job_type in self._types[name]]
