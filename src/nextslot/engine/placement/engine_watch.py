"""EngineWatch: asks one engine, in one request, for the state of all runs that wait to begin there.

An engine that does not answer counts as a resource that fails: after five failures the engine is held, nothing more is
submitted to it, and its runs go on. Nothing is cancelled or retried because of that.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from nextslot.engine.dispatch.resource_outages import LONGEST_PAUSE, Outages
from nextslot.errors import Unavailable
from nextslot.executors.engines.contract import Engine, Key, Seen, Unreachable
from nextslot.store.contract import Store
from nextslot.system.clock import Clock

log = logging.getLogger(__name__)

T = TypeVar("T")
LONGEST_SILENCE = 30.0


class Call(Protocol):
    """Runs a blocking call in a thread, and raises what the call raises."""

    async def __call__(self, call: Callable[[], T], /) -> T: ...


class EngineWatch:
    def __init__(
        self,
        name: str,
        engine: Engine,
        poll_seconds: float,
        call: Call,
        clock: Clock,
        outages: Outages,
    ) -> None:
        self.name = name
        self.engine = engine
        self.poll_seconds = poll_seconds
        self._call = call
        self._clock = clock
        self._outages = outages
        self.store: Store | None = None
        # The engine's handles of the runs that have not begun.
        self._keys: dict[str, str] = {}
        self._seen: Mapping[str, Seen] = {}
        self._one_at_a_time = asyncio.Lock()
        self._next_ask = 0.0
        self._pause = poll_seconds
        # Why the engine did not answer the last request; None if it answered.
        self.problem: str | None = None

    def expect(self, run_id: str, handle: str) -> None:
        self._keys[run_id] = handle

    def forget(self, run_id: str) -> None:
        self._keys.pop(run_id, None)

    async def see(self, run_id: str) -> Seen | None:
        """Returns the state of a run that the engine last reported, after a new request if one is due."""
        async with self._one_at_a_time:
            if self._clock.monotonic() >= self._next_ask:
                keys = [Key(*one) for one in self._keys.items()]
                self._seen = await self.ask(lambda: self.engine.observe(keys)) or {}
                self._next_ask = max(self._next_ask, self._clock.monotonic() + self.poll_seconds)
            return None if self.problem is not None else self._seen.get(run_id)

    @property
    def is_silent(self) -> bool:
        """Returns whether the engine did not answer, and the pause before the next request has not ended."""
        return self.problem is not None and self._clock.monotonic() < self._next_ask

    async def ask(self, question: Callable[[], T]) -> T | None:
        """Sends the engine a request. If the engine does not answer, returns None and lengthens the pause."""
        try:
            answer: T = await self._call(question)
        except Unreachable as error:
            await self._note_silence(str(error))
            return None
        if self.problem is not None:
            log.info("the engine %s answers again", self.name)
            self.problem, self._pause, self._next_ask = None, self.poll_seconds, 0.0
            await self._store_answer()
        return answer

    async def probe(self) -> bool:
        """Returns whether the engine answers; the probe of its resource."""
        return await self.ask(lambda: self.engine.observe([])) is not None

    async def _note_silence(self, why: str) -> None:
        if self.problem is None:
            log.error("the engine %s does not answer: %s", self.name, why)
        self.problem = why
        self._next_ask = self._clock.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_SILENCE, LONGEST_PAUSE)
        if self.store is not None:
            try:
                await self.store.write(lambda tx: self._outages.note_silence(tx, self.name, self._clock.now()))
            except Unavailable as error:
                log.warning("that the engine %s does not answer is not stored: %s", self.name, error)

    async def _store_answer(self) -> None:
        if self.store is not None:
            try:
                await self.store.write(lambda tx: self._outages.answers_again(tx, self.name, self._clock.now()))
            except Unavailable as error:
                log.warning("that the engine %s answers again is not stored: %s", self.name, error)
