"""A process to be killed: a scheduler with many schedules that all fire each minute, on a clock that runs faster.

    python -m tests.crash.schedule_worker DIRECTORY SCHEDULES

The first life makes the schedules and pauses the queue, so that the process does nothing but fire. It writes `ready`
beside the database when it has recovered, in each life once more.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nextslot import RunContext, Scheduler
from nextslot.system.clock import Alarm, LoopAlarm, SystemClock


def minute(count: int) -> float:
    """Returns the real seconds of a minute on this clock: one, but at least as long as the schedules need to fire.
    Otherwise each life would have to catch up with more.
    """
    return max(1.0, count / 1500)


class FastClock(SystemClock):
    """Runs from the same beginning in every life, so that the time between two lives has passed too."""

    def __init__(self, directory: Path, speed: float) -> None:
        self._speed = speed
        origin = directory / "origin"
        if not origin.exists():
            origin.write_text(str(time.time()))
        self._origin = float(origin.read_text())
        self._began = (time.time() - self._origin) * speed - self.monotonic()
        super().__init__()

    def monotonic(self) -> float:
        return time.monotonic() * self._speed

    def _wall(self) -> int:
        return round((self._origin + self._began + self.monotonic()) * 1_000_000)

    def alarm(self, ring: Callable[[], None]) -> Alarm:
        return _FastAlarm(self, ring, self._speed)


class _FastAlarm(LoopAlarm):
    def __init__(self, clock: SystemClock, ring: Callable[[], None], speed: float) -> None:
        super().__init__(clock, ring)
        self._speed = speed

    def _wait(self, seconds: float) -> None:
        super()._wait(seconds / self._speed)


async def main(directory: Path, count: int) -> None:
    clock = FastClock(directory, speed=60 / minute(count))
    scheduler = Scheduler(f"sqlite:///{directory}/nextslot.db", clock=clock, synchronous="NORMAL")

    @scheduler.job_type("nothing")
    async def nothing(run: RunContext) -> None: ...

    await scheduler.start()
    if not (await scheduler.templates.page()).items:
        await scheduler.pause()
        await make(scheduler, count)
    with (directory / "ready").open("a") as ready:
        ready.write(f"{os.getpid()}\n")
    await asyncio.Event().wait()


async def make(scheduler: Scheduler, count: int) -> None:
    template = await scheduler.templates.create(name="nothing", job_type="nothing")
    fields: dict[str, Any] = {
        "template_id": template.template_id,
        "cron_expression": "* * * * *",
        "catch_up": "all",
    }
    settings, now = scheduler.schedules._settings, scheduler._clock.now()
    every = [{**fields, "name": f"each minute {number}"} for number in range(count)]
    await scheduler._access.write(lambda tx: [settings.create(tx, one, now) for one in every], rows=count)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
