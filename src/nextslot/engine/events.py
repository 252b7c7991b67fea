"""Events: noted while a transaction works, appended in one go before it commits, and followed by whoever listens."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager

from ..clock import Instant
from ..errors import Unavailable
from ..meters import Meters, Tally, Unmeasured
from ..model import Event, Job
from ..store import events
from ..store.store import Store, Tx
from .effects import EventsAppended

PAGE = 500


class EventLog:
    """Appends a transaction's events together, and wakes the readers once it is durable."""

    def __init__(self, meters: Meters | None = None) -> None:
        self._meters = meters or Unmeasured()
        self._news = asyncio.Event()
        self._is_closing = False
        self._listeners = 0
        self._attend: Callable[[bool], None] = lambda is_listening: None

    def connect(self, attend: Callable[[bool], None]) -> None:
        """Who is told whether somebody here waits for events of other nodes."""
        self._attend = attend

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While somebody waits for what may happen on another node."""
        self._listeners += 1
        if self._listeners == 1:
            self._attend(True)
        try:
            yield
        finally:
            self._listeners -= 1
            if self._listeners == 0:
                self._attend(False)

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
        """The same event of many jobs."""
        tx.local(_Noted).events += [events.Noted(type, job.office_id, job.job_id, None, "{}", now) for job in jobs]

    def noted(self, tx: Tx) -> int:
        """How many events this transaction has noted so far."""
        return len(tx.local(_Noted).events)

    def last_number_before(self, tx: Tx) -> int:
        """The number that came before this transaction's events, once they have theirs."""
        return events.last(tx) - self.noted(tx)

    def append(self, tx: Tx) -> None:
        """The last thing a transaction does: its events get their numbers in the order they were noted."""
        noted = tx.local(_Noted).events
        if noted:
            events.append(tx, noted)
            tx.announce("events")
            tally = self._meters.tally((event.type, event.office_id) for event in noted)
            tx.cause(EventsAppended(tally))

    async def follow(self, store: Store, after: int) -> AsyncIterator[Event]:
        """Every event from a number on, oldest first, and then each new one as it comes, until the scheduler stops."""
        async with aclosing(self.follow_pages(store, after)) as pages:
            async for page in pages:
                for event in page:
                    yield event

    async def follow_pages(self, store: Store, after: int) -> AsyncGenerator[list[Event], None]:
        """The same, as many at a time as are there."""
        follower = self._meters.follow(after)
        try:
            with self.listening():
                while True:
                    news, is_closing = self._news, self._is_closing
                    page = await self._page(store, follower.at)
                    if page:
                        yield page
                        follower.at = page[-1].seq
                    if page is None or (not page and is_closing):
                        return
                    if not page:
                        await news.wait()
        finally:
            self._meters.leave(follower)

    async def _page(self, store: Store, after: int) -> list[Event] | None:
        """None: the store has gone with the scheduler; whoever comes back with its last number misses nothing."""
        try:
            return await store.read(lambda tx: events.after(tx, after, PAGE))
        except Unavailable:
            if self._is_closing:
                return None
            raise

    def open(self) -> None:
        self._is_closing = False

    def close(self) -> None:
        """Readers get what is left, and then their end."""
        self._is_closing = True
        self.wake()

    def appended(self, tally: Tally) -> None:
        """Counts the events of a commit, and wakes those who follow them."""
        self._meters.happened(tally)
        self.wake()

    def wake(self) -> None:
        """There may be something new to read."""
        self._news.set()
        self._news = asyncio.Event()


class _Noted:
    def __init__(self, tx: Tx) -> None:
        self.events: list[events.Noted] = []
