"""ConnectedCallers: the direct callers who are connected to this process, and the messages to them while they wait."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nextslot.domain import Direct
from nextslot.errors import Unavailable
from nextslot.store.contract import Store
from nextslot.store.tables import direct


@dataclass(frozen=True, slots=True)
class Update:
    """A message to a connected caller: `place`, `started`, `progress` or `output`, and `result` as the last message."""

    kind: str
    data: Mapping[str, Any]


class ConnectedCaller:
    def __init__(self, direct_id: str, run_id: str) -> None:
        self._ids = {"direct_id": direct_id, "run_id": run_id}
        self.ended: asyncio.Future[Direct] = asyncio.get_running_loop().create_future()
        self.updates: asyncio.Queue[Update | Unavailable] | None = None
        # The number of callers before this caller, if the wait timed out.
        self.ahead = 0
        self._place: int | None = None
        self.has_started = False

    def send(self, kind: str, data: Mapping[str, Any]) -> None:
        if self.updates is not None:
            self.updates.put_nowait(Update(kind, data))

    def send_place(self, ahead: int) -> None:
        """Sends the place if it has changed. Drops a place that was read before the start but arrives after it."""
        if not self.has_started and ahead != self._place:
            self._place = ahead
            self.send("place", {**self._ids, "ahead": ahead})

    def send_started(self) -> None:
        self.has_started = True
        self.send("started", self._ids)

    def fail(self, error: Unavailable) -> None:
        if self.updates is not None:
            self.updates.put_nowait(error)
        if not self.ended.done():
            self.ended.set_exception(error)
            self.ended.exception()  # Marks the error as retrieved: `stream` does not await it.


class ConnectedCallers(dict[str, ConnectedCaller]):
    """The connected callers by the id of their run."""

    def __init__(self) -> None:
        super().__init__()
        self._places_sent = 0

    def listener(self, run_id: str) -> Callable[[str, Mapping[str, Any]], None] | None:
        """Returns the function that receives progress and output of a run; None if nobody follows the run."""
        caller = self.get(run_id)
        return None if caller is None or caller.updates is None else caller.send

    def send_started(self, run_id: str) -> None:
        if (caller := self.get(run_id)) is not None:
            caller.send_started()

    def send_places(self, waiting: Sequence[str]) -> None:
        self._places_sent += 1
        for ahead, run_id in enumerate(waiting):
            if (caller := self.get(run_id)) is not None:
                caller.send_place(ahead)

    async def read_places(self, store: Store, office_id: str) -> None:
        """Reads the places of an office's callers and sends them. Reads again if others sent newer places meanwhile."""
        while True:
            sent = self._places_sent
            waiting = await store.read(lambda tx: direct.waiting_ids(tx, office_id))
            if sent == self._places_sent:
                return self.send_places(waiting)

    def send_away(self, error: Unavailable, *, is_waiting: bool) -> None:
        """Answers waiting callers, or all callers, with an error, because their end cannot be stored."""
        for run_id, caller in list(self.items()):
            if not (is_waiting and caller.has_started):
                del self[run_id]
                caller.fail(error)

    def send_ended(self, ended: Direct, ahead: int = 0) -> None:
        caller = self.pop(ended.run_id, None)
        if caller is not None:
            caller.ahead = ahead
            caller.send("result", {"direct": ended})
            if not caller.ended.done():
                caller.ended.set_result(ended)
