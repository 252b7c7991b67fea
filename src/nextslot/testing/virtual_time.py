"""For tests, yours and ours: virtual time, seeded randomness, and a scheduler that runs its jobs at once.

    def test_my_job():
        async def main():
            scheduler = testing.scheduler(directory)
            scheduler.job_type("thumbnail")(thumbnail)
            async with scheduler:
                job = await scheduler.submit("thumbnail", {"path": "a.png"})
                await asyncio.sleep(3600)                 # an hour passes, at once
                assert (await scheduler.wait(job.job_id)).status == "COMPLETED"

        testing.run(main())

Time passes only when nothing else can happen, so a test never really sleeps and always does the same.
"""

import asyncio
import json
import math
import random
import selectors
import threading
import uuid
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from nextslot.engine.webhooks.delivery_worker import EndpointResponse
from nextslot.executors.threads import InlineThreads
from nextslot.scheduler import Scheduler
from nextslot.system.clock import Alarm, LoopAlarm, SystemClock
from nextslot.system.disk_space import DiskLimits
from nextslot.system.instant import Instant

T = TypeVar("T")

BEGINNING = Instant(1_794_726_000_000_000)  # 2026-11-15 07:00 in UTC


# The virtual loop for which a thread works: its time is also the thread's time.
_served = threading.local()


class NothingLeftToWaitFor(RuntimeError):
    """Raised if everything waits and no timer is set: on virtual time this would last for ever."""


class ExactLoop(asyncio.SelectorEventLoop):
    """An event loop that calls a timer at its instant and never before, because its time stands still until then.

    asyncio adds the resolution of the clock to the time to see what is due. A larger resolution would end a wait too
    early, and code that then waits for the rest would wait for ever. A smaller one is lost in the precision of a float
    after a year.
    """

    @property
    def _clock_resolution(self) -> float:
        return math.ulp(self.time())

    @_clock_resolution.setter
    def _clock_resolution(self, real: float) -> None:
        """Ignores the resolution of the machine's clock, which asyncio sets."""


class VirtualLoop(ExactLoop):
    """An event loop whose time jumps to the next timer as soon as nothing else can run, here or in its executors."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls_in_threads = 0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self.seconds

    # The base's signature is generic in the arguments, which are only handed on here.
    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        called = super().run_in_executor(executor, self._serve, func, *args)
        self.calls_in_threads += 1
        called.add_done_callback(self._count_down)
        return called

    def _serve(self, func: Any, *args: Any) -> Any:
        _served.loop = self
        return func(*args)

    def _count_down(self, called: "asyncio.Future[Any]") -> None:
        self.calls_in_threads -= 1


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        # While a thread works for this loop, time stands still: wait for that thread in real time.
        if self._loop.calls_in_threads and timeout != 0:
            return super().select()
        events = super().select(0)
        if not events and timeout is None:
            raise NothingLeftToWaitFor
        if not events and timeout:
            self._loop.seconds += timeout
        return events


class VirtualClock(SystemClock):
    """The wall clock of a virtual loop, whose own time is the monotonic one.

    `jump` sets the wall clock forward or back, as people, time servers and a sleeping machine do. As in a real
    scheduler, `now` shows the step from the next transaction on.
    """

    def __init__(self, beginning: Instant = BEGINNING) -> None:
        self._beginning = beginning
        self._offset = int(beginning)

    def monotonic(self) -> float:
        loop = getattr(_served, "loop", None) or asyncio.get_running_loop()
        return float(loop.time())

    def jump(self, seconds: float) -> None:
        self._beginning = self._beginning.after(seconds)

    def alarm(self, ring: Any) -> Alarm:
        return LoopAlarm(self, ring)

    def wall(self) -> Instant:
        """Returns the time of the wall clock. A scheduler follows a step of it with its next transaction."""
        return self._beginning.after(self.monotonic())

    def _wall(self) -> int:
        return self.wall()


class SeededChance:
    """Ids and fractions that are the same for the same seed. Ids have the form of UUIDv7 and are in order."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._ids = 0

    def new_id(self) -> str:
        self._ids += 1
        number = (self._ids << 80) | self._random.getrandbits(62)
        return str(uuid.UUID(int=number & ~(0xF << 76) & ~(0x3 << 62) | (0x7 << 76) | (0x2 << 62)))

    def fraction(self) -> float:
        return self._random.random()

    def secret(self) -> str:
        return self._random.randbytes(32).hex()


@dataclass(frozen=True, slots=True)
class Message:
    """A webhook message as its receiver got it."""

    url: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def content(self) -> Any:
        return json.loads(self.body)


class Mailbox:
    """Receives webhooks in a test: stores every message, and answers 200 or what `answers` has for the URL."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.answers: dict[str, EndpointResponse] = {}

    async def send(self, url: str, headers: Mapping[str, str], body: bytes, seconds: float) -> EndpointResponse:
        self.messages.append(Message(url, headers, body))
        return self.answers.get(url, EndpointResponse(200))

    async def close(self) -> None:
        pass


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def scheduler(directory: Path | str, seed: int = 0, url: str | None = None, **options: Any) -> Scheduler:
    """Creates a scheduler on a SQLite file in this directory, all in one thread, for use inside `testing.run`.

    With `url`, it uses another database, and the directory only for its files.
    """
    options = {
        "data": directory,
        "node": "local",
        "clock": VirtualClock(),
        "chance": SeededChance(seed),
        "threads": InlineThreads(),
        "sender": Mailbox(),
        "is_threaded": False,
        # A test must not depend on the disk.
        "disk": DiskLimits(warn_bytes=0, refuse_bytes=0),
        **options,
    }
    return Scheduler(url or f"sqlite:///{directory}/nextslot.db", **options)


async def settled() -> None:
    """Returns once everything that can happen now has happened; practically no time passes."""
    await asyncio.sleep(1e-6)


async def crash(victim: Scheduler) -> None:
    """Ends a scheduler as a power cut would: nothing more is stored or sent."""
    await victim._crash()
