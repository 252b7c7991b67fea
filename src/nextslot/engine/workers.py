"""Workers: the numbered slots of this node, of which a running job holds one (INV-003).

A cache of what the running jobs' `worker_id` say; the database refuses two running jobs on one worker.
"""

from ..store.store import Tx


class Workers:
    def __init__(self, node: str) -> None:
        self._node = node
        self._taken: set[int] = set()
        self._lowest = 1

    def take(self, tx: Tx) -> str:
        """The lowest slot that is free in this transaction."""
        change = tx.local(self._new_change)
        slot = min([self._lowest, *change.freed])
        while (slot in self._taken and slot not in change.freed) or slot in change.taken:
            slot += 1
        change.freed.discard(slot)
        change.taken.add(slot)
        return f"{self._node}/slot-{slot}"

    def free(self, tx: Tx, worker_id: str | None) -> None:
        node, _, slot = (worker_id or "").rpartition("/slot-")
        if node == self._node:
            change = tx.local(self._new_change)
            number = int(slot)
            change.taken.discard(number)
            change.freed.add(number)

    def _new_change(self, tx: Tx) -> "_Change":
        change = _Change()
        tx.after_commit(lambda: self._apply(change))
        return change

    def _apply(self, change: "_Change") -> None:
        self._taken -= change.freed
        self._taken |= change.taken
        self._lowest = min([self._lowest, *change.freed])
        while self._lowest in self._taken:
            self._lowest += 1


class _Change:
    def __init__(self) -> None:
        self.taken: set[int] = set()
        self.freed: set[int] = set()
