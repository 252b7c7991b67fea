"""Workers: the numbered slots of this node, of which a running job holds one (INV-003), and what its machine has.

A cache of what the running jobs' `worker_id` say: each transaction works on its own copy of what changes, and the
cache follows at its commit (`SlotsChanged`). The database refuses two running jobs on one worker.
"""

from collections import Counter
from collections.abc import Mapping, Set

from nextslot.domain import Lane
from nextslot.engine.effects import SlotsChanged
from nextslot.store.contract import Tx


class Workers:
    def __init__(self, node: str, most: int = 0, resources: Mapping[str, int] | None = None) -> None:
        """`most` at once, if it is not 0; and no more than the units that this machine has."""
        self.node = node
        self.most = most
        self.resources = dict(resources or {})
        # What other nodes have: a resource that one of them counts is nowhere else, and their job types run there.
        self._counted: Set[str] = self.resources.keys()
        self._elsewhere: Mapping[str, int] = {}
        self._types_elsewhere: Set[str] = frozenset()
        self._taken: set[int] = set()
        self._used: Counter[str] = Counter()
        self._lowest = 1

    def know_others(self, resources: Mapping[str, int], job_types: Set[str]) -> None:
        """Of each resource that another node counts, the most units that a live one has; and what they can run."""
        self._counted = self.resources.keys() | resources.keys()
        self._elsewhere, self._types_elsewhere = resources, job_types

    def runs_elsewhere(self, job_type: str) -> bool:
        """Whether another node has a handler for it."""
        return job_type in self._types_elsewhere

    def could_ever_fit(self, lane: Lane) -> bool:
        """Whether some machine could take such a job if nothing else ran."""
        return all(
            units <= max(self.resources.get(resource, 0), self._elsewhere.get(resource, 0))
            for resource, units in lane.resources.items()
            if resource in self._counted
        )

    def has_room(self, tx: Tx, lane: Lane) -> bool:
        """Whether this machine can take one more such job."""
        if not self.most and not self._counted:
            return True
        change = tx.local(self._new_change)
        if self.most and len((self._taken - change.freed) | change.taken) >= self.most:
            return False
        return all(
            self._used[resource] + change.units[resource] + units <= self.resources.get(resource, 0)
            for resource, units in lane.resources.items()
            if resource in self._counted
        )

    def take(self, tx: Tx, lane: Lane) -> str:
        """The lowest slot that is free in this transaction."""
        change = tx.local(self._new_change)
        slot = min([self._lowest, *change.freed])
        while (slot in self._taken and slot not in change.freed) or slot in change.taken:
            slot += 1
        self._take(change, slot, lane)
        return f"{self.node}/slot-{slot}"

    def hold(self, tx: Tx, worker_id: str, lane: Lane) -> None:
        """What runs already has its slot."""
        slot = self._slot(worker_id)
        if slot is not None:
            self._take(tx.local(self._new_change), slot, lane)

    def free(self, tx: Tx, worker_id: str | None, lane: Lane) -> None:
        slot = self._slot(worker_id)
        if slot not in self._taken:
            return  # Another node's, or of an earlier life: it was never counted in this one.
        change = tx.local(self._new_change)
        change.freed.add(slot)
        if self._counted:
            change.units.subtract(lane.resources)

    def _slot(self, worker_id: str | None) -> int | None:
        """The number of a slot of this node."""
        node, _, slot = (worker_id or "").rpartition("/slot-")
        return int(slot) if node == self.node else None

    def _take(self, change: SlotsChanged, slot: int, lane: Lane) -> None:
        change.freed.discard(slot)
        change.taken.add(slot)
        if self._counted:
            change.units.update(lane.resources)

    def forget(self) -> None:
        """A new life of the node: nothing runs."""
        self._taken, self._lowest = set(), 1
        self._used.clear()

    def _new_change(self, tx: Tx) -> SlotsChanged:
        change = SlotsChanged(self.node, set(), set(), Counter())
        tx.cause(change)
        return change

    def apply(self, node: str, taken: set[int], freed: set[int], units: Counter[str]) -> None:
        """Follows a commit."""
        self._taken -= freed
        self._taken |= taken
        self._used.update(units)
        self._lowest = min([self._lowest, *freed])
        while self._lowest in self._taken:
            self._lowest += 1
