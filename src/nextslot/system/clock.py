"""Clocks: only a Clock reads the time. `Instant` is the value.

Code that needs the time or waits for it receives a Clock; `nextslot.testing` has a virtual one.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from .instant import Instant

if TYPE_CHECKING:
    from .alarm_clock import AlarmClock


class Alarm(Protocol):
    """Calls back once, at the instant to which it was last set."""

    def set(self, at: Instant | None) -> None: ...


class Clock(Protocol):
    def now(self) -> Instant:
        """Returns the wall time. A step of the wall clock becomes visible once `follow` has been called."""

    def monotonic(self) -> float:
        """Returns seconds since an arbitrary start. Steps do not change them; they stop while the machine sleeps."""

    @property
    def offset(self) -> int:
        """Returns by how many microseconds `now` is ahead of `monotonic`. Only `follow` changes it."""

    def follow(self) -> None:
        """Lets `now` follow a step of the wall clock, if there was one."""

    def adjust(self, server: int, sent: float, received: float) -> None:
        """Adopts the time of the database's clock, which was read between these two monotonic times. Only a clock that
        follows the database does this."""

    async def sleep(self, seconds: float) -> None: ...

    def alarm(self, ring: Callable[[], None]) -> Alarm: ...


class LoopAlarm:
    """An alarm on the running event loop.

    It computes the wait from the wall clock and splits a long wait into parts. After each part it compares the wall
    clock with the monotonic clock, and fires if it finds a step, because due times must then be computed again.
    """

    LONGEST_WAIT = 3600.0

    def __init__(self, clock: "SystemClock", ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._at: Instant | None = None
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at: Instant | None) -> None:
        self._at = at
        if at is None:
            self._stop()
        else:
            self._wait(min(max(0.0, (at - self._clock.now()) / 1_000_000), self.LONGEST_WAIT))

    def _check(self) -> None:
        at = self._at
        if at is None:
            return
        if self._clock.now() < at and not self._clock.has_stepped:
            self.set(at)
        else:
            self._at = None
            self._ring()

    def _wait(self, seconds: float) -> None:
        """Replaces the current wait: checks the time again after this many seconds."""
        self._stop()
        self._handle = asyncio.get_running_loop().call_later(seconds, self._check)

    def _stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class SchedulerAlarm(LoopAlarm):
    """The alarm in production: one APScheduler job (DEC-003), which checks the clock at least once a minute."""

    LONGEST_WAIT = 60.0

    def __init__(self, clock: "SystemClock", ring: Callable[[], None]) -> None:
        super().__init__(clock, ring)
        self._alarm_clock: AlarmClock | None = None

    def _wait(self, seconds: float) -> None:
        if self._alarm_clock is None:
            # Imported on first use, since it takes a tenth of a second and some megabytes.
            from .alarm_clock import AlarmClock

            self._alarm_clock = AlarmClock(self._check)
        self._alarm_clock.ring_after(seconds)

    def _stop(self) -> None:
        if self._alarm_clock is not None:
            self._alarm_clock.close()
            self._alarm_clock = None


class SystemClock:
    """The machine's wall clock and monotonic clock, and the running event loop's timers.

    A step is a change of the difference between the two clocks: the wall clock was set, or the machine slept. Until
    `follow` is called, `now` continues by the monotonic clock, so that all times stored by one transaction have the
    same base (`engine.cluster.clock_steps` calls it first in each transaction).
    """

    # A smaller difference is no step, and `now` shows it at once. Small differences that add up to this are a step.
    STEP_US = 1_000_000
    # Reads the two clocks again if the process paused for longer than this between the readings.
    PRECISION_SECONDS = 0.01

    def __init__(self) -> None:
        self._offset = self._measure()

    def now(self) -> Instant:
        wall, expected = self._wall(), _microseconds(self.monotonic()) + self._offset
        return Instant(wall if abs(wall - expected) <= self.STEP_US else expected)

    def monotonic(self) -> float:
        return time.monotonic()

    @property
    def has_stepped(self) -> bool:
        """Returns whether there was a step that `now` does not show yet."""
        if abs(self._wall() - _microseconds(self.monotonic()) - self._offset) <= self.STEP_US:
            return False
        return abs(self._measure() - self._offset) > self.STEP_US

    @property
    def offset(self) -> int:
        return self._offset

    def adjust(self, server: int, sent: float, received: float) -> None:
        """Does nothing: this clock follows the machine's clock."""

    def follow(self) -> None:
        if self.has_stepped:
            self._offset = self._measure()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def alarm(self, ring: Callable[[], None]) -> Alarm:
        return SchedulerAlarm(self, ring)

    def _wall(self) -> int:
        """Reads the wall clock, in microseconds."""
        return time.time_ns() // 1000

    def _measure(self) -> int:
        """Returns by how many microseconds the wall clock is ahead of the monotonic clock now."""
        while True:
            before, wall, after = self.monotonic(), self._wall(), self.monotonic()
            if after - before <= self.PRECISION_SECONDS:
                return wall - _microseconds(before)


class SharedClock(SystemClock):
    """The clock of a database that several machines share, continued by this machine's monotonic clock.

    Uses the machine's own wall clock only until the database server has first been asked for its time.
    """

    # Ignores smaller differences, which a network can cause: the time must not jump back and forth.
    TOLERANCE_US = 100_000

    def __init__(self) -> None:
        self._server: int | None = None
        super().__init__()

    def adjust(self, server: int, sent: float, received: float) -> None:
        """Adopts the server's time, in microseconds, which was read between these two monotonic times."""
        earliest, latest = server - _microseconds(received), server - _microseconds(sent)
        known = self._server
        # A slow response is imprecise: keep the known time unless the response contradicts it.
        if known is None or not earliest - self.TOLERANCE_US <= known <= latest + self.TOLERANCE_US:
            self._server = (earliest + latest) // 2

    def _wall(self) -> int:
        return super()._wall() if self._server is None else self._server + _microseconds(self.monotonic())


def _microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)
