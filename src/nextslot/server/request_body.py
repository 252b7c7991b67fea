"""Reads the bodies of requests: with limits on bytes, values and time, for each body and for all bodies in progress
together.

A route calls it after it has admitted the caller, so a stranger's body is never read.
"""

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from nextslot.domain.bounds import MAX_BATCH_BYTES, MAX_BODY_BYTES

from . import json_body
from .problems import HttpProblem, overloaded
from .request_log import header

# The value for an empty body.
NO_BODY = object()
MIB = 1024 * 1024
# A body up to this size is always accepted, and parsed on the event loop in about a millisecond.
SMALL_BYTES = 16 * 1024
# The most commas and opening brackets in a body. They determine its size in memory after parsing, and its possible
# number of problems.
MOST_VALUES = 100_000
MOST_VALUES_OF_BATCH = 3_000_000
# The reader of a large body pauses each time it has read this many bytes: it reads at most 128 MiB a second.
AT_ONCE_BYTES = 256 * 1024
PAUSE_SECONDS = 0.002
# How long a body waits for other bodies in progress, and how slowly it may arrive.
WAIT_SECONDS = 10.0
FIRST_SECONDS = 10.0
BYTES_PER_SECOND = 64 * 1024


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits in bytes: of a body, of the body of a batch, of all bodies in progress of one caller, and of all
    together."""

    body: int = MAX_BODY_BYTES
    batch: int = MAX_BATCH_BYTES
    of_caller: int = 64 * MIB
    of_all: int = 256 * MIB


class Bodies:
    def __init__(self, limits: BodyLimits | None = None, wait_seconds: float = WAIT_SECONDS) -> None:
        self._limits = limits or BodyLimits()
        self._wait_seconds = wait_seconds
        # Returns another limit for a caller, such as its office's quota, or None.
        self.bytes_of: Callable[[str], int] = lambda caller: 0
        self._of_callers: Counter[str] = Counter()
        # Set and replaced each time bytes become free.
        self._freed = asyncio.Event()
        # A single thread: it parses large bodies one after the other.
        self._thread = ThreadPoolExecutor(1, "nextslot-bodies")

    @property
    def bytes_in_progress(self) -> int:
        return self._of_callers.total()

    @contextmanager
    def of(self, caller: str) -> Iterator["Reservation"]:
        """Counts the bytes that are read inside this context as in progress until the context ends."""
        reservation = Reservation()
        try:
            yield reservation
        finally:
            if reservation.bytes:
                self._release(caller, reservation.bytes)

    async def read(
        self, request: Request, caller: str, reservation: "Reservation", is_bulk: bool, has_large_values: bool = False
    ) -> Any:
        """Returns the parsed body, or NO_BODY."""
        limit = self._limits.batch if is_bulk else self._limits.body
        size = _declared(request, limit)
        if size > SMALL_BYTES:
            await self._reserve(caller, size)
            reservation.bytes = size
        try:
            async with asyncio.timeout(FIRST_SECONDS + size / BYTES_PER_SECOND):
                body = await _received(request, limit, MOST_VALUES_OF_BATCH if is_bulk else MOST_VALUES)
        except TimeoutError:
            raise HttpProblem(408, "too_slow", "the body did not arrive in time; send it again, faster") from None
        if not body:
            return NO_BODY
        most_item = limit if has_large_values else self._limits.body
        parse = functools.partial(json_body.parse, body, most_item)
        if len(body) <= SMALL_BYTES:
            return parse()
        return await asyncio.get_running_loop().run_in_executor(self._thread, parse)

    async def _reserve(self, caller: str, size: int) -> None:
        try:
            async with asyncio.timeout(self._wait_seconds):
                while not self._fits(caller, size):
                    await self._freed.wait()
        except TimeoutError:
            detail = "other bodies of this caller are in progress, or too many of all; send this one again later"
            raise overloaded(detail) from None
        self._of_callers[caller] += size

    def _fits(self, caller: str, size: int) -> bool:
        # A body that is larger than a limit is read while no other body is in progress.
        of_caller, of_all = self._of_callers[caller], self._of_callers.total()
        fits_caller = not of_caller or of_caller + size <= (self.bytes_of(caller) or self._limits.of_caller)
        return fits_caller and (not of_all or of_all + size <= self._limits.of_all)

    def _release(self, caller: str, size: int) -> None:
        self._of_callers[caller] -= size
        if not self._of_callers[caller]:
            del self._of_callers[caller]
        freed, self._freed = self._freed, asyncio.Event()
        freed.set()


@dataclass(slots=True)
class Reservation:
    bytes: int = 0


def _declared(request: Request, limit: int) -> int:
    """Returns the most bytes that a body can have: its content-length, or else its limit."""
    length = header(request.scope, b"content-length") or b""
    if not length.isdigit():
        return limit if header(request.scope, b"transfer-encoding") is not None else 0
    if int(length) > limit:
        detail = f"the body has {int(length):,} bytes; at most {limit:,} are taken here"
        raise HttpProblem(413, "too_large", detail)
    return int(length)


async def _received(request: Request, limit: int, most_values: int) -> bytearray:
    body, values, read_at_once, has_more = bytearray(), 0, 0, True
    while has_more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise HttpProblem(
                400, "malformed", "the body ended before all of its bytes had arrived; send the request again"
            )
        some, has_more = message.get("body", b""), message.get("more_body", False)
        body += some
        read_at_once += len(some)
        if read_at_once > AT_ONCE_BYTES:
            await asyncio.sleep(PAUSE_SECONDS)
            read_at_once = 0
        values += some.count(b",") + some.count(b"[") + some.count(b"{")
        if len(body) > limit:
            raise HttpProblem(
                413,
                "too_large",
                f"the body has more than {limit:,} bytes, the most that are allowed here; send less at once",
            )
        if values > most_values:
            detail = f"the body has more than {most_values:,} values, the most that are allowed here; send fewer"
            raise HttpProblem(413, "too_large", detail)
    return body
