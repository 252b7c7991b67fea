"""Lets one piece of work at a time begin, with a rest after each: for work that others notice."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

# Ends a turn. The next one begins after so many times as long as this one took.
EndTurn = Callable[[float], None]


class TurnsWithRest:
    def __init__(self, longest_rest: float) -> None:
        self._longest_rest = longest_rest
        self._lock = asyncio.Lock()
        self._rests_until = 0.0

    async def turn(self, seconds: float | None = None) -> EndTurn | None:
        """Waits for a turn. Returns what ends it, or None if the turn has not come within these seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._lock.acquire()
                try:
                    await self._rest()
                except BaseException:
                    self._lock.release()
                    raise
        except TimeoutError:
            return None
        began = asyncio.get_running_loop().time()

        def end(rests: float) -> None:
            now = asyncio.get_running_loop().time()
            self._rests_until = now + min(rests * (now - began), self._longest_rest)
            self._lock.release()

        return end

    @asynccontextmanager
    async def one(self, rests: float) -> AsyncIterator[None]:
        end = await self.turn()
        assert end is not None
        try:
            yield
        finally:
            end(rests)

    async def _rest(self) -> None:
        rest = self._rests_until - asyncio.get_running_loop().time()
        if rest > 0:
            await asyncio.sleep(rest)
