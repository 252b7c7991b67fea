"""Events: noted while a transaction works, appended in one go before it commits, and followed by whoever listens."""

import asyncio
from collections.abc import AsyncIterator, Mapping

from ..clock import Instant
from ..errors import Unavailable
from ..model import Event
from ..store import events
from ..store.store import Store, Tx

PAGE = 500


class EventLog:
    """Appends a transaction's events together, and wakes the readers once it is durable."""

    def __init__(self) -> None:
        self._news = asyncio.Event()
        self._is_closing = False

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
        """Every event from a number on, oldest first, and then each new one as it comes, until the scheduler stops."""
        while True:
            news, is_closing = self._news, self._is_closing
            try:
                page = await store.read(lambda tx, seq=after: events.after(tx, seq, PAGE))  # type: ignore[misc]
            except Unavailable:
                if self._is_closing:
                    return  # Whoever comes back with its last number misses nothing.
                raise
            for event in page:
                after = event.seq
                yield event
            if not page and is_closing:
                return
            if not page:
                await news.wait()

    def open(self) -> None:
        self._is_closing = False

    def close(self) -> None:
        """Readers get what is left, and then their end."""
        self._is_closing = True
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class _Noted:
    def __init__(self, tx: Tx) -> None:
        self.events: list[events.Values] = []
