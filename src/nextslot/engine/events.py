"""Events: noted while a transaction works, appended in one go before it commits, and followed by whoever listens."""

import asyncio
from collections.abc import AsyncIterator, Mapping

from ..clock import Instant
from ..model import Event
from ..store import events
from ..store.store import Store, Tx

PAGE = 500


class EventLog:
    """Appends a transaction's events together, and wakes the readers once it is durable."""

    def __init__(self) -> None:
        self._news = asyncio.Event()

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
        tx.local(_Noted).events.append(events.values(type, now, office_id, job_id, run_id, details))

    def append(self, tx: Tx) -> None:
        """The last thing a transaction does: its events get their numbers in the order they were noted."""
        noted = tx.local(_Noted).events
        if noted:
            events.append(tx, noted)
            tx.after_commit(self._wake)

    async def follow(self, store: Store, after: int) -> AsyncIterator[Event]:
        """Every event from a number on, oldest first, and then each new one as it comes."""
        while True:
            news = self._news
            page = await store.read(lambda tx, seq=after: events.after(tx, seq, PAGE))  # type: ignore[misc]
            for event in page:
                after = event.seq
                yield event
            if not page:
                await news.wait()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class _Noted:
    def __init__(self, tx: Tx) -> None:
        self.events: list[events.Values] = []
