"""Feed: reads new events once for all followers, and keeps the newest of them in memory.

`EventLog` makes a feed for its first follower and ends it with the last one. A follower that is up to date takes its
pages from the feed; one that needs older events reads from the store until it has caught up.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from nextslot.domain import Event
from nextslot.errors import Unavailable
from nextslot.store.contract import Store
from nextslot.store.tables import events
from nextslot.system.clock import Clock

T = TypeVar("T")

PAGE = 500
# How many events a feed keeps in memory for followers that are a little slow: an estimated few MiB.
KEPT = 5_000
# How many followers are woken in one turn of the event loop: an estimated 2 ms of work.
TOGETHER = 25
# Seconds between two reads per follower. With many followers, the feed sends events in batches instead of one by one,
# so that any number of streams leaves most of the event loop to other work. With few followers, each event is sent at
# once.
REST = 0.0002
FEW = 20
# How many encodings of a page are kept. A page that is needed in more ways is encoded again for the rest.
MOST_FORMS = 32


class EventPage:
    """Events in order, each above `after`. Followers share what is computed from a page."""

    __slots__ = ("_forms", "after", "events")

    def __init__(self, after: int, found: list[Event]) -> None:
        self.after = after
        self.events = found
        self._forms: dict[Hashable, Any] = {}

    @property
    def last(self) -> int:
        return self.events[-1].seq if self.events else self.after

    def form(self, key: Hashable, make: Callable[[list[Event]], T]) -> T:
        """Returns `make` of the events, cached under the key."""
        if key in self._forms:
            found: T = self._forms[key]
            return found
        made = make(self.events)
        if len(self._forms) < MOST_FORMS:
            self._forms[key] = made
        return made

    def beyond(self, seq: int) -> "EventPage":
        """Returns the part of the page above a number."""
        return self if seq <= self.after else EventPage(seq, [one for one in self.events if one.seq > seq])


async def read_page(store: Store, after: int) -> EventPage:
    return EventPage(after, await store.read(lambda tx: events.after(tx, after, PAGE)))


class EventFeed:
    """Holds the newest committed events. Everything here runs on the event loop; only the store's reads leave it."""

    def __init__(self, store: Store, clock: Clock, is_closing: bool) -> None:
        self._store = store
        self._clock = clock
        self._is_closing = is_closing
        self._news = asyncio.Event()
        self._pages: deque[EventPage] = deque()
        self._kept = 0
        # The pages contain every event above `_start` up to `_last`; None until the reader knows its first number.
        self._start: int | None = None
        self._last = 0
        self._waiting: list[asyncio.Future[None]] = []
        self.followers = 0
        # Counts the turns of the reader. A follower notes the number before it looks for events, and passes it to
        # `wait`.
        self.turn = 0
        self.is_over = False
        self.error: Exception | None = None
        self._reader = asyncio.get_running_loop().create_task(self._run(), name="nextslot-events")

    def news(self) -> None:
        """Wakes the reader, because there may be new events."""
        self._news.set()

    def close(self) -> None:
        """Makes the reader read what is left, and then end the feed."""
        self._is_closing = True
        self._news.set()

    async def stop(self) -> None:
        """Ends the reader at once, because no follower is left."""
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    def after(self, seq: int) -> EventPage | None:
        """Returns the next events above a number, possibly none. Returns None if they are not in memory."""
        if self._start is None or seq < self._start:
            return None
        if seq >= self._last:
            return EventPage(seq, [])
        return next(page for page in reversed(self._pages) if page.after <= seq).beyond(seq)

    async def wait(self, turn: int) -> None:
        """Waits until the reader has had another turn since `turn` was noted; returns at once if it already has."""
        if self.turn == turn and not self.is_over:
            woken = asyncio.get_running_loop().create_future()
            self._waiting.append(woken)
            await woken

    async def _run(self) -> None:
        try:
            self._start = self._last = await self._store.read(events.last)
            await self._wake()
            await self._read_on()
        except Exception as error:  # Whatever ended the reader, followers must learn that it reads no more.
            if not (self._is_closing and isinstance(error, Unavailable)):
                self.error = error
        finally:
            self.is_over = True
            self._wake_now(self._waiting)

    async def _read_on(self) -> None:
        while True:
            is_last = self._is_closing
            # Cleared before the read, so that a commit during it is read in the next turn.
            self._news.clear()
            if await self._read_new():
                await self._wake()
            elif is_last:
                return
            else:
                await self._news.wait()

    async def _read_new(self) -> bool:
        """Reads new events, at most a few pages. Returns whether there were any."""
        before = self._last
        for _ in range(KEPT // PAGE):
            page = await read_page(self._store, self._last)
            if page.events:
                self._keep(page)
            if len(page.events) < PAGE:
                break
        return self._last > before

    def _keep(self, page: EventPage) -> None:
        self._pages.append(page)
        self._last = page.last
        self._kept += len(page.events)
        while self._kept > KEPT:
            self._kept -= len(self._pages.popleft().events)
        self._start = self._pages[0].after

    async def _wake(self) -> None:
        """Wakes the waiting followers, a few in each turn, then lets other tasks of the event loop run."""
        self.turn += 1
        waiting, self._waiting = self._waiting, []
        for first in range(0, len(waiting), TOGETHER):
            self._wake_now(waiting[first : first + TOGETHER])
            await self._clock.sleep(0)
        if self.followers > FEW:
            await self._clock.sleep(self.followers * REST)

    def _wake_now(self, waiting: list[asyncio.Future[None]]) -> None:
        for one in waiting:
            if not one.done():
                one.set_result(None)
