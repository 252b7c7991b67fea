"""ClusterCapacity: the slots of all live nodes in a forecast. The simulator starts work on any node with room."""

from collections import Counter
from collections.abc import Sequence

from nextslot.domain import Lane, Node
from nextslot.engine.dispatch.limits_and_slots import Workers
from nextslot.store.contract import Tx


class ClusterCapacity(Workers):
    def __init__(self, nodes: Sequence[Node]) -> None:
        super().__init__("(machines)")
        # If any node, even one that is away, lists a resource, then nodes that do not list it have no units of it.
        counted = {resource: 0 for node in nodes for resource in node.resources}
        # The live nodes that run each job type.
        self._for: dict[str, list[Workers]] = {}
        self._capacity: dict[str, Workers] = {}
        for node in nodes:
            if node.status == "live":
                machine = Workers(node.node_id, node.max_running, node.resources)
                machine.know_others(counted, frozenset())
                self._capacity[node.node_id] = machine
                for job_type in node.job_types:
                    self._for.setdefault(job_type, []).append(machine)

    def runs_elsewhere(self, job_type: str) -> bool:
        return job_type in self._for

    def could_ever_fit(self, lane: Lane) -> bool:
        return any(machine.could_ever_fit(lane) for machine in self._for.get(lane.job_type, ()))

    def has_room(self, tx: Tx, lane: Lane, is_placed: bool = False) -> bool:
        return self._with_room(tx, lane, is_placed) is not None

    def take(self, tx: Tx, lane: Lane, is_placed: bool = False) -> str:
        """Takes a slot on a node with room; the dispatcher has checked that such a node exists."""
        found = self._with_room(tx, lane, is_placed)
        assert found is not None
        return found.take(tx, lane, is_placed)

    def hold(self, tx: Tx, worker_id: str, lane: Lane) -> None:
        for machine in self._capacity.values():
            machine.hold(tx, worker_id, lane)

    def free(self, tx: Tx, worker_id: str | None, lane: Lane) -> None:
        for machine in self._capacity.values():
            machine.free(tx, worker_id, lane)

    def apply(self, node: str, taken: set[int], freed: set[int], units: Counter[str]) -> None:
        self._capacity[node].apply(node, taken, freed, units)

    def _with_room(self, tx: Tx, lane: Lane, is_placed: bool) -> Workers | None:
        for machine in self._for.get(lane.job_type, ()):
            if machine.has_room(tx, lane, is_placed):
                return machine
        return None
