"""Remembers which keys were accepted lately, and looks up all others together, so that guesses cost few reads.

Nothing here opens anything: the store decides about the key of every request (`auth.identify`). The layers that run
before that decision use `KnownKeys` to tell callers apart, because a header that nobody has checked may say anything.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from starlette.datastructures import Headers

from nextslot.domain import Key
from nextslot.engine.settings.key_ring import digest

# Keys that are remembered; those that were accepted first are forgotten first.
MOST_KNOWN = 10_000
# Between two reads that look up keys that were not accepted lately: so there are at most 50 a second, each for as many.
PAUSE_SECONDS = 0.02
MOST_AT_ONCE = 1000

# Returns the keys of these digests, by digest.
FindKeys = Callable[[Sequence[str]], Awaitable[Mapping[str, Key]]]


def key_text(headers: Headers) -> str | None:
    """Returns the text of the key that a request carries, which is not checked yet."""
    given = headers.get("x-api-key")
    if given:
        return given
    kind, _, text = headers.get("authorization", "").partition(" ")
    return text.strip() if kind.lower() == "bearer" and text.strip() else None


class KnownKeys:
    """One for each server process. Only for its event loop."""

    def __init__(self) -> None:
        # The lanes of keys that were accepted, by the digest of their texts.
        self._lanes: dict[str, str] = {}
        # The lookups that wait for the next read, and the task that reads.
        self._wanted: dict[str, asyncio.Future[Key | None]] = {}
        self._looking: asyncio.Task[None] | None = None
        # How many reads have looked up keys that were not known.
        self.reads = 0

    def lane(self, text: str | None) -> str | None:
        """Returns the lane of a key that was accepted lately; None for all others."""
        return None if text is None else self._lanes.get(digest(text))

    def accepted(self, text: str, lane: str) -> None:
        self._lanes[digest(text)] = lane
        if len(self._lanes) > MOST_KNOWN:
            del self._lanes[next(iter(self._lanes))]

    def refused(self, text: str) -> None:
        self._lanes.pop(digest(text), None)

    async def find(self, text: str, find: FindKeys) -> Key | None:
        """Finds a key: a known one with a read of its own, another one with the next read for all of these."""
        wanted = digest(text)
        if wanted in self._lanes:
            return (await find([wanted])).get(wanted)
        if wanted not in self._wanted:
            self._wanted[wanted] = asyncio.get_running_loop().create_future()
        answer = self._wanted[wanted]
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_up(find), name="nextslot-unknown-keys")
        return await asyncio.shield(answer)

    async def _look_up(self, find: FindKeys) -> None:
        try:
            while self._wanted:
                asked = {one: self._wanted.pop(one) for one in list(self._wanted)[:MOST_AT_ONCE]}
                await self._answer(asked, find)
                await asyncio.sleep(PAUSE_SECONDS)
        finally:
            self._looking = None
            for answer in self._wanted.values():  # Only if the loop ends: its callers end too.
                answer.cancel()

    async def _answer(self, asked: Mapping[str, asyncio.Future[Key | None]], find: FindKeys) -> None:
        self.reads += 1
        try:
            found = await find(list(asked))
        except Exception as error:  # Each caller gets it: that of a store that does not answer, above all.
            for answer in asked.values():
                answer.set_exception(error)
                answer.exception()  # A caller may have hung up, and then nobody else fetches it.
        else:
            for one, answer in asked.items():
                answer.set_result(found.get(one))
