"""EventLog: collects events during a transaction, stores them together before its commit, and lets readers follow
them.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager

from nextslot.domain import Event, Job
from nextslot.engine.effects import EventsAppended
from nextslot.errors import Unavailable
from nextslot.store.contract import Store, Tx
from nextslot.store.tables import events
from nextslot.system.clock import Clock, SystemClock
from nextslot.system.instant import Instant
from nextslot.telemetry.meters import EventCounts, Meters

from .event_feed import EventFeed, EventPage, read_page


class EventLog:
    def __init__(self, meters: Meters | None = None, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._meters = meters or Meters()
        self._feed: EventFeed | None = None
        self._is_closing = False
        self._listeners = 0
        self._store: Store | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Lets this node receive the events of other nodes inside this context."""
        self._listeners += 1
        self._follow_other_nodes()
        try:
            yield
        finally:
            self._listeners -= 1
            self._follow_other_nodes()

    def _follow_other_nodes(self) -> None:
        """Switches the events of other nodes on or off in the store."""
        if self._store is not None and self._listeners <= 1:
            self._store.follow(self._listeners == 1)

    def note(
        self,
        tx: Tx,
        type: str,
        now: Instant,
        office_id: str | None,
        job_id: str | None = None,
        run_id: str | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        tx.local(_Noted).events.append(events.noted(type, now, office_id, job_id, run_id, details))

    def note_jobs(self, tx: Tx, type: str, now: Instant, jobs: Iterable[Job]) -> None:
        tx.local(_Noted).events += [events.Noted(type, job.office_id, job.job_id, None, "{}", now) for job in jobs]

    def noted(self, tx: Tx) -> int:
        """Returns how many events this transaction has noted so far."""
        return len(tx.local(_Noted).events)

    def last_number_before(self, tx: Tx) -> int:
        """Returns the last event number before those of this transaction. Call it after `append`."""
        return events.last(tx) - self.noted(tx)

    def append(self, tx: Tx) -> None:
        """Stores the noted events in their order, which gives them their numbers. Runs at the end of a transaction."""
        noted = tx.local(_Noted).events
        if noted:
            events.append(tx, noted)
            tx.announce("events")
            counts = self._meters.count_events((event.type, event.office_id) for event in noted)
            tx.cause(EventsAppended(counts))

    async def follow(self, store: Store, after: int) -> AsyncGenerator[Event, None]:
        """Yields every event after a number, oldest first, and then each new one, until the scheduler stops."""
        async with aclosing(self.follow_pages(store, after)) as pages:
            async for page in pages:
                for event in page.events:
                    yield event

    async def follow_pages(self, store: Store, after: int) -> AsyncGenerator[EventPage, None]:
        """Yields the same events in pages. Followers that are up to date share a page."""
        follower = self._meters.follow(after)
        try:
            async with self._joined(store) as feed:
                while True:
                    # Noted before the page is read. If the feed reads something afterwards, `wait` returns at once.
                    turn, is_over = feed.turn, feed.is_over
                    page = feed.after(follower.at)
                    if page is None:
                        page = await self._page(store, follower.at)
                    if page is not None and page.events:
                        yield page
                        follower.at = page.last
                    elif page is None or is_over:
                        break
                    else:
                        await feed.wait(turn)
                if feed.error is not None:
                    raise Unavailable(f"new events cannot be read; follow again from {follower.at}") from feed.error
        finally:
            self._meters.leave(follower)

    @asynccontextmanager
    async def _joined(self, store: Store) -> AsyncIterator[EventFeed]:
        """Gives a follower the shared feed. The first follower starts it, the last one stops it."""
        if self._feed is None or self._feed.is_over:
            self._feed = EventFeed(store, self._clock, self._is_closing)
        feed = self._feed
        feed.followers += 1
        try:
            with self.listening():
                yield feed
        finally:
            feed.followers -= 1
            if feed.followers == 0:
                if self._feed is feed:
                    self._feed = None
                await feed.stop()

    async def _page(self, store: Store, after: int) -> EventPage | None:
        """Reads a page. Returns None if the scheduler is stopping: a follower that returns later misses nothing."""
        try:
            return await read_page(store, after)
        except Unavailable:
            if self._is_closing:
                return None
            raise

    def open(self, store: Store) -> None:
        self._store = store
        self._is_closing = False
        # A feed from before a restart ends with its own followers.
        self._feed = None

    def close(self) -> None:
        """Lets followers read the remaining events, then ends them."""
        self._is_closing = True
        if self._feed is not None:
            self._feed.close()

    def appended(self, counts: EventCounts) -> None:
        """Counts the events of a commit, and wakes the followers."""
        self._meters.count_committed(counts)
        self.wake()

    def wake(self) -> None:
        """Wakes the feed, because there may be new events."""
        if self._feed is not None:
            self._feed.news()


class _Noted:
    def __init__(self, tx: Tx) -> None:
        self.events: list[events.Noted] = []
