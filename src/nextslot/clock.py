"""Time as a value and as a service: `Instant`, and `Clock`, the only reader of time.

Everything that needs to know or wait for the time is given a Clock; `nextslot.testing` has a virtual one.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from .alarm_clock import AlarmClock

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Instant(int):
    """A point in time: whole microseconds since 1970 in UTC, as it is stored; prints as RFC 3339."""

    @classmethod
    def of(cls, when: datetime) -> Self:
        if when.tzinfo is None:
            raise ValueError("a time needs a time zone: use datetime.now(UTC), or another zone")
        return cls((when - _EPOCH) // _MICROSECOND)

    def as_datetime(self) -> datetime:
        return _EPOCH + timedelta(microseconds=int(self))

    def after(self, seconds: float) -> "Instant":
        return Instant(self + round(seconds * 1_000_000))

    def __str__(self) -> str:
        return self.as_datetime().isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"

    def __repr__(self) -> str:
        return f"Instant({self})"


class Alarm(Protocol):
    """Calls back once, at the instant it was last set to."""

    def set(self, at: Instant | None) -> None: ...


class Clock(Protocol):
    def now(self) -> Instant: ...

    async def sleep(self, seconds: float) -> None: ...

    def alarm(self, ring: Callable[[], None]) -> Alarm: ...


class LoopAlarm:
    """An alarm on the running event loop.

    The wait is worked out from the wall clock each time it is set, and is cut into pieces, so that a machine that
    slept, or whose clock was set, is late by no more than one of them and never by the whole wait. A clock that is
    found to have been set back rings too: what was planned by the wrong time has to be planned again.
    """

    LONGEST_WAIT = 3600.0

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._at: Instant | None = None
        self._looked_at = Instant(0)
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at: Instant | None) -> None:
        self._at = at
        if at is None:
            self._stop()
        else:
            self._looked_at = self._clock.now()
            self._wait(min(max(0.0, (at - self._looked_at) / 1_000_000), self.LONGEST_WAIT))

    def _look(self) -> None:
        at, now = self._at, self._clock.now()
        if at is None:
            return
        if self._looked_at <= now < at:
            self.set(at)
        else:
            self._at = None
            self._ring()

    def _wait(self, seconds: float) -> None:
        """Looks again after so long, and not after what was said before."""
        self._stop()
        self._handle = asyncio.get_running_loop().call_later(seconds, self._look)

    def _stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class SchedulerAlarm(LoopAlarm):
    """The alarm of production: one APScheduler job (DEC-003), which looks at the clock at least once a minute."""

    LONGEST_WAIT = 60.0

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        super().__init__(clock, ring)
        self._alarm_clock: AlarmClock | None = None

    def _wait(self, seconds: float) -> None:
        if self._alarm_clock is None:
            # Imported when something waits for a time: it takes a tenth of a second and some megabytes.
            from .alarm_clock import AlarmClock

            self._alarm_clock = AlarmClock(self._look)
        self._alarm_clock.ring_after(seconds)

    def _stop(self) -> None:
        if self._alarm_clock is not None:
            self._alarm_clock.close()
            self._alarm_clock = None


class SystemClock:
    """The machine's wall clock and the running event loop's timers."""

    def now(self) -> Instant:
        return Instant(time.time_ns() // 1000)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def alarm(self, ring: Callable[[], None]) -> Alarm:
        return SchedulerAlarm(self, ring)


class SharedClock(SystemClock):
    """The clock of a database that several machines share: each is put right by it, since their own may differ."""

    # What a network and a busy machine can be wrong by is left alone: a clock that jumps to and fro helps nobody.
    TOLERANCE_US = 100_000

    def __init__(self) -> None:
        self._ahead = 0

    def now(self) -> Instant:
        return Instant(super().now() + self._ahead)

    def adjust(self, ahead: int) -> None:
        """By how many microseconds the database's clock is ahead of this machine's."""
        if abs(ahead - self._ahead) > self.TOLERANCE_US:
            self._ahead = ahead
