"""Shares the server between callers: how many requests of each are in progress, how fast they come, how many stream.

A *lane* is whose share a request uses (`auth.lane_of`). Nothing here is stored: each server process counts for itself.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from .problems import HttpProblem, overloaded

# A lane that was active in the last second shares the server with the others.
ACTIVE_SECONDS = 1.0
# How long a lane rests after a request about many jobs, in times of its duration, and at most in seconds.
RESTS = 3.0
MOST_REST_SECONDS = 30.0
# How long a long request pauses for others, in times of what it worked.
PAUSES = 2.0
# A lane with more requests in progress than this, on average over about a second, is busy. While another lane gets at
# most half as much, its places rest after each request: in times of the request's duration, at most so long.
BUSY = 0.5
PLACE_RESTS = 2.0
MOST_PLACE_REST_SECONDS = 0.25
# How long a stream, or a direct caller who waits for work, counts as a request in progress: as short work takes.
LONG_BEGINS_SECONDS = 0.025
# Refusals of streams are spread over twice their time, in so many steps: else all who are refused come back at once.
REFUSAL_STEPS = 32
# Lanes that are remembered before those without requests are forgotten.
MANY_LANES = 1000


@dataclass(frozen=True, slots=True)
class ShareLimits:
    # Requests in progress of all lanes, and of one lane while another one is active too.
    in_progress: int = 64
    in_progress_beside_others: int = 2
    # Requests of a lane that wait for their turn; further ones get 429.
    waiting: int = 1000
    # Requests per second of a lane, on average over two seconds; 0: no limit.
    per_second: float = 10_000
    # Streams, and direct callers who wait: of a lane, and of all.
    streams_of_lane: int = 100
    streams: int = 1000
    # How long the refusal of a stream takes.
    refused_seconds: float = 5.0


@dataclass(slots=True)
class _Lane:
    name: str
    tokens: float
    seen: float
    in_progress: int = 0
    # Places that rest after a request, and the requests in progress on average, as of an instant.
    resting: int = 0
    load: float = 0.0
    load_at: float = 0.0
    # How many requests of the last second or so have begun, as of an instant.
    begun: float = 0.0
    begun_at: float = 0.0
    streams: int = 0
    # Of requests about many jobs: one at a time, and when the rest after the last one ends.
    one_bulk: asyncio.Lock = field(default_factory=asyncio.Lock)
    rests_until: float = 0.0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)

    def recent(self, now: float) -> float:
        """Returns how many requests have begun, those of the last second above all."""
        return self.begun * math.exp(self.begun_at - now)


@dataclass(slots=True)
class _Place:
    """A request in progress."""

    lane: _Lane
    began: float
    has_ended: bool = False


class FairShares:
    def __init__(
        self,
        limits: ShareLimits | None = None,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits or ShareLimits()
        self._seconds = seconds
        self._lanes: dict[str, _Lane] = {}
        self.in_progress = self.waiting = self.streams = 0
        self._refusals = 0

    @asynccontextmanager
    async def request(self, name: str, at_most: float | None = None) -> AsyncIterator[None]:
        """Waits for the caller's turn; raises 429 if too many wait already, or come too fast.

        The block is in progress until it ends, or for `at_most` seconds.
        """
        lane = self._lane(name)
        self._take_token(lane)
        if lane.waiting or not self._has_room(lane):
            await self._wait(lane)
        else:
            self._begin(lane)
        place = _Place(lane, self._seconds())
        timer = asyncio.get_running_loop().call_later(at_most, self._end, place) if at_most is not None else None
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
            self._end(place)

    @asynccontextmanager
    async def bulk(self, name: str) -> AsyncIterator[None]:
        """Waits for the end of the lane's last request about many jobs and, if other lanes are active, for a rest.

        The transaction of one such request keeps all writers waiting, so a lane may fill a quarter of the time.
        """
        lane = self._lane(name)
        async with lane.one_bulk:
            while (rest := lane.rests_until - self._seconds()) > 0 and self.has_others(name):  # noqa: ASYNC110 - time
                await asyncio.sleep(min(rest, ACTIVE_SECONDS))
            began = self._seconds()
            try:
                yield
            finally:
                ended = self._seconds()
                lane.rests_until = ended + min(RESTS * (ended - began), MOST_REST_SECONDS)

    async def pause(self, name: str, worked: float) -> None:
        """Lets others pass in the midst of a long request: after as long as it worked, if there are others."""
        await asyncio.sleep(PAUSES * worked if self.has_others(name) else 0)

    def _end(self, place: _Place) -> None:
        """Gives a place back. The place of a busy lane rests first, so that others find the event loop idle."""
        if place.has_ended:
            return
        place.has_ended = True
        lane, now = place.lane, self._seconds()
        lane.in_progress -= 1
        self.in_progress -= 1
        lane.load = self._load(lane, now) + now - place.began
        lane.load_at = now
        if self._must_rest(lane, now):
            lane.resting += 1
            rest = min(PLACE_RESTS * (now - place.began), MOST_PLACE_REST_SECONDS)
            asyncio.get_running_loop().call_later(rest, self._rested, lane)
        self._begin_next()

    def _rested(self, lane: _Lane) -> None:
        lane.resting -= 1
        self._begin_next()

    def _load(self, lane: _Lane, now: float) -> float:
        """Returns how many requests of a lane were in progress on average, those of the last second above all."""
        return lane.load * math.exp(lane.load_at - now)

    def _must_rest(self, lane: _Lane, now: float) -> bool:
        """Returns whether a lane is busy while another one, active in the last second, gets at most half as much."""
        return self._load(lane, now) > BUSY and any(
            now - one.seen < ACTIVE_SECONDS and 2 * one.recent(now) <= lane.recent(now)
            for one in self._lanes.values()
            if one is not lane
        )

    def has_others(self, name: str) -> bool:
        """Returns whether another lane was active in the last second."""
        now, own = self._seconds(), self._lanes.get(name)
        return any(lane is not own and self._is_active(lane, now) for lane in self._lanes.values())

    async def open_stream(self, name: str) -> Callable[[], None]:
        """Counts a stream; returns what ends it. Raises 429 if there are too many, after a while: a caller who tries
        again at once is slowed down.
        """
        lane = self._lane(name)
        self._take_token(lane)
        if lane.streams >= self._limits.streams_of_lane or self.streams >= self._limits.streams:
            whose = "this caller has" if lane.streams >= self._limits.streams_of_lane else "all callers together have"
            self._refusals += 1
            later = self._refusals % REFUSAL_STEPS / REFUSAL_STEPS
            await asyncio.sleep(self._limits.refused_seconds * (1 + later))
            raise overloaded(f"{whose} too many streams and waiting calls open; end some of them", 5)
        lane.streams += 1
        self.streams += 1

        def close() -> None:
            lane.streams -= 1
            self.streams -= 1

        return close

    def _lane(self, name: str) -> _Lane:
        now = self._seconds()
        if len(self._lanes) > MANY_LANES:
            self._lanes = {known: lane for known, lane in self._lanes.items() if self._is_active(lane, now)}
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = _Lane(name, tokens=max(2 * self._limits.per_second, 1.0), seen=now)
        return lane

    def _take_token(self, lane: _Lane) -> None:
        """Takes one token of a bucket that holds two seconds' worth of them, and at least one."""
        now, rate = self._seconds(), self._limits.per_second
        lane.tokens = min(max(2 * rate, 1.0), lane.tokens + rate * (now - lane.seen))
        lane.seen = now
        if not rate:
            return
        if lane.tokens < 1:
            later = (1 - lane.tokens) / rate
            detail = f"more than {rate:g} requests a second came from this caller; send it again in {later:.1f} s"
            raise HttpProblem(429, "over_quota", detail, headers={"Retry-After": str(max(1, round(later)))})
        lane.tokens -= 1

    def _has_room(self, lane: _Lane) -> bool:
        if self.in_progress >= self._limits.in_progress:
            return False
        if lane.in_progress + lane.resting < self._limits.in_progress_beside_others:
            return True
        now = self._seconds()
        others = [one for one in self._lanes.values() if one is not lane and self._is_active(one, now)]
        if not others:
            return True
        # A lane that got less than another one has more places: on a slow machine it needs them for a few requests.
        places = 2 * self._limits.in_progress_beside_others * (len(others) + 1)
        return self.in_progress < places and any(one.recent(now) > lane.recent(now) for one in others)

    def _is_active(self, lane: _Lane, now: float) -> bool:
        return (
            bool(lane.in_progress or lane.waiting or lane.resting or lane.streams) or now - lane.seen < ACTIVE_SECONDS
        )

    def _begin(self, lane: _Lane) -> None:
        now = self._seconds()
        lane.begun, lane.begun_at = lane.recent(now) + 1, now
        lane.in_progress += 1
        self.in_progress += 1

    async def _wait(self, lane: _Lane) -> None:
        if len(lane.waiting) >= self._limits.waiting:
            raise overloaded("too many requests of this caller wait already; send this one again later")
        turn = asyncio.get_running_loop().create_future()
        lane.waiting.append(turn)
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # Its turn had come: it goes to the next one.
                lane.in_progress -= 1
                self.in_progress -= 1
                self._begin_next()
            else:
                lane.waiting.remove(turn)
            raise
        finally:
            self.waiting -= 1

    def _begin_next(self) -> None:
        """Lets requests begin, each time one of the lane with the fewest in progress."""
        while self.waiting:
            lanes = [lane for lane in self._lanes.values() if lane.waiting and self._has_room(lane)]
            if not lanes:
                return
            lane = min(lanes, key=lambda one: one.in_progress)
            turn = lane.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._begin(lane)
