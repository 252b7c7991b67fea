"""Feed: reads new events once for all followers, and keeps the newest of them in memory.

`EventLog` makes a feed for its first follower and ends it with the last one. A follower that is up to date takes its
pages from the feed; one that is behind the pages which are kept reads from the store until it has caught up.
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
# How many events a feed keeps for followers that are a little slow: some MiB, by estimate.
KEPT = 5_000
# Followers that are woken in one turn of the event loop: by estimate, 2 ms of work.
TOGETHER = 25
# Seconds between two reads, for each follower: with many of them, events are sent together and not one by one, so that
# streams leave most of the event loop to others however many there are. A few followers get each event at once.
REST = 0.0002
FEW = 20
# Forms of one page that are kept; a page that is shown in more ways is made anew for the rest.
MOST_FORMS = 32


class EventPage:
    """Events in their order, each above `after`; what followers make of the page is made once for all of them."""

    __slots__ = ("_forms", "after", "events")

    def __init__(self, after: int, found: list[Event]) -> None:
        self.after = after
        self.events = found
        self._forms: dict[Hashable, Any] = {}

    @property
    def last(self) -> int:
        return self.events[-1].seq if self.events else self.after

    def form(self, key: Hashable, make: Callable[[list[Event]], T]) -> T:
        """Returns what `make` makes of the events, and keeps it for later calls with the same key."""
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
    """The newest committed events. Everything here happens on the event loop; only the store's reads leave it."""

    def __init__(self, store: Store, clock: Clock, is_closing: bool) -> None:
        self._store = store
        self._clock = clock
        self._is_closing = is_closing
        self._news = asyncio.Event()
        self._pages: deque[EventPage] = deque()
        self._kept = 0
        # Every event above `_start` and up to `_last` is in the pages; None until the reader knows where it begins.
        self._start: int | None = None
        self._last = 0
        self._waiting: list[asyncio.Future[None]] = []
        self.followers = 0
        # Counts what the reader has done. A follower takes it before it looks for events, and gives it to `wait`.
        self.turn = 0
        self.is_over = False
        self.error: Exception | None = None
        self._reader = asyncio.get_running_loop().create_task(self._run(), name="nextslot-events")

    def news(self) -> None:
        """Makes the reader read: there may be new events."""
        self._news.set()

    def close(self) -> None:
        """Makes the reader read what is left, and then end the feed."""
        self._is_closing = True
        self._news.set()

    async def stop(self) -> None:
        """Ends the reader at once: nobody follows any more."""
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    def after(self, seq: int) -> EventPage | None:
        """Returns the next events above a number, perhaps none; None if they are not in memory."""
        if self._start is None or seq < self._start:
            return None
        if seq >= self._last:
            return EventPage(seq, [])
        return next(page for page in reversed(self._pages) if page.after <= seq).beyond(seq)

    async def wait(self, turn: int) -> None:
        """Returns once the reader has done something since `turn` was taken: at once, if it has already."""
        if self.turn == turn and not self.is_over:
            woken = asyncio.get_running_loop().create_future()
            self._waiting.append(woken)
            await woken

    async def _run(self) -> None:
        try:
            self._start = self._last = await self._store.read(events.last)
            await self._wake()
            await self._read_on()
        except Exception as error:  # Followers must learn that nobody reads for them any more, whatever the cause.
            if not (self._is_closing and isinstance(error, Unavailable)):
                self.error = error
        finally:
            self.is_over = True
            self._wake_now(self._waiting)

    async def _read_on(self) -> None:
        while True:
            is_last = self._is_closing
            # Before the read: a commit that comes during it is read in the next turn.
            self._news.clear()
            if await self._read_new():
                await self._wake()
            elif is_last:
                return
            else:
                await self._news.wait()

    async def _read_new(self) -> bool:
        """Reads what is new, a few pages at most; whether there was something."""
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
        """Wakes the waiting followers, some in each turn of the event loop; then leaves the loop to others."""
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
