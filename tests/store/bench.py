"""What tests of the stores share: a store whose transactions are counted, and works to hand in."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from nextslot.engine.effects import Interpreter
from nextslot.errors import Conflict
from nextslot.store.contract import Tx
from nextslot.store.open_store import open_store
from nextslot.store.tables import events
from nextslot.system.instant import Instant
from tests import databases


class Update(NamedTuple):
    """An effect of these tests that the committing thread calls before the next transaction."""

    call: Callable[[], object]


class Call(NamedTuple):
    """An effect of these tests that is called on the event loop."""

    call: Callable[[], object]


def carry_out(call: Callable[[], object]) -> None:
    call()


EFFECTS = Interpreter({Update: carry_out}, {Call: carry_out})


class Bench:
    """A store whose transactions are counted, and another connection that sees what is committed."""

    def __init__(self, directory: Path, *, threaded: bool) -> None:
        self.directory = directory
        self.closings = 0
        self.commits = 0
        self.at_closing: Callable[[Tx], None] = lambda tx: None
        # A test may add effects of the engine, and who carries them out.
        self.actions: dict[type, Callable[..., None]] = {Call: carry_out}
        effects = Interpreter({Update: carry_out}, self.actions)
        url = databases.url(directory)
        self.store: Any = open_store(url, self._closing, effects=effects, threaded=threaded, synchronous="FULL")
        databases.watched(self.store, self._committed)
        self.other: Any = databases.plain(directory)

    def _closing(self, tx: Tx) -> None:
        self.closings += 1
        self.at_closing(tx)

    def _committed(self) -> None:
        self.commits += 1

    def stored(self) -> list[str]:
        """Returns the committed words, as another connection sees them."""
        return [str(row[0]) for row in self.other.execute("select type from events order by seq")]


NewBench = Callable[[], AbstractAsyncContextManager[Bench]]


@asynccontextmanager
async def opened_bench(directory: Path, *, threaded: bool) -> AsyncIterator[Bench]:
    bench = Bench(directory, threaded=threaded)
    try:
        yield bench
    finally:
        await bench.store.close()
        bench.other.close()


class Noted:
    """Something that lives with a transaction."""

    def __init__(self, tx: Tx) -> None:
        self.values: list[events.Noted] = []


def event(word: str, details: str = "{}") -> events.Noted:
    return events.noted(word, Instant(1), None)._replace(details=details)


def say(word: str, *, answer: Any = "said", details: str = "{}") -> Callable[[Tx], Any]:
    """Makes a work that stores a word."""

    def work(tx: Tx) -> Any:
        events.append(tx, [event(word, details)])
        return answer

    return work


def say_and_raise(word: str, error: Exception) -> Callable[[Tx], Any]:
    def work(tx: Tx) -> None:
        say(word)(tx)
        raise error

    return work


def refuse(tx: Tx) -> None:
    raise Conflict("no")


def words(tx: Tx) -> list[str]:
    return [row[1] for row in tx.rows("events.after", after=0, limit=1000)]


async def together(bench: Bench, *works: Callable[[Tx], Any], rows: int = 1) -> list[Any]:
    """Submits works at once. Returns the result or error of each."""
    return await asyncio.gather(*(bench.store.write(work, rows=rows) for work in works), return_exceptions=True)


def is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def needs_the_event_loop() -> Callable[[Tx], None]:
    """Makes a work that cannot end unless the event loop continues in the meantime."""
    loop, went_on = asyncio.get_running_loop(), threading.Event()

    def work(tx: Tx) -> None:
        loop.call_soon_threadsafe(went_on.set)
        assert went_on.wait(5), "the event loop stood still"

    return work
