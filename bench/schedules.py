"""Measures how long one process takes to fire many schedules that are due at once, and what an idle minute costs.

    uv run python -m bench.schedules [SCHEDULES]

The script makes the schedules in a new directory, all due a few seconds later. The queue is paused, so that only firing
is measured. Then it waits for a minute in which nothing is due.
"""

import asyncio
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import apsw

from nextslot import RunContext, Scheduler
from nextslot.system.clock import SystemClock
from nextslot.system.instant import Instant


class MovedClock(SystemClock):
    """The machine's clock, put forward so that the next full minute is a few seconds away."""

    def __init__(self, seconds_before: float) -> None:
        now = datetime.now(UTC)
        minute = (now + timedelta(minutes=1)).replace(second=0, microsecond=0)
        self._ahead = (minute - now).total_seconds() - seconds_before
        super().__init__()

    def _wall(self) -> int:
        return super()._wall() + round(self._ahead * 1_000_000)


async def measure(directory: Path, count: int) -> None:
    clock = MovedClock(seconds_before=count / 500 + 3)
    scheduler = Scheduler(f"sqlite:///{directory}/nextslot.db", clock=clock)

    @scheduler.job_type("nothing")
    async def nothing(run: RunContext) -> None: ...

    async with scheduler:
        await scheduler.pause()
        due = await made(scheduler, count)
        print(f"{count:,} schedules are due in {(due - clock.now()) / 1e6:.1f} s")
        await asyncio.sleep(max(0.0, (due - clock.now()) / 1e6 - 0.01))
        await until_fired(directory, count)
        report(directory, due)
        await idle(scheduler)


async def made(scheduler: Scheduler, count: int) -> Instant:
    """Makes schedules for the next full minute in many time zones; none fires again for a day."""
    now = scheduler._clock.now()
    at = now.as_datetime() + timedelta(minutes=1)
    template = await scheduler.templates.create(name="nothing", job_type="nothing")
    fields: dict[str, Any] = {"template_id": template.template_id, "cron_expression": f"{at.minute} {at.hour} * * *"}
    settings = scheduler.schedules._settings
    for start in range(0, count, 500):
        names = [f"number {number}" for number in range(start, min(start + 500, count))]
        await scheduler._access.write(
            lambda tx, names=names: [settings.create(tx, {**fields, "name": name}, now) for name in names],  # type: ignore[misc]
            rows=len(names),
        )
    return Instant.of(at.replace(second=0, microsecond=0))


async def until_fired(directory: Path, count: int) -> None:
    connection = apsw.Connection(str(directory / "nextslot.db"), flags=apsw.SQLITE_OPEN_READONLY)
    while connection.execute("select count(*) from occurrences").get < count:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    connection.close()


def report(directory: Path, due: Instant) -> None:
    connection = apsw.Connection(str(directory / "nextslot.db"), flags=apsw.SQLITE_OPEN_READONLY)
    found: list[Any] = connection.execute(
        "select count(*), count(distinct job_id), min(created_at), max(created_at), count(distinct created_at)"
        " from occurrences join jobs using (job_id)"
    ).fetchall()
    [(fired, jobs, first, last, batches)] = found
    connection.close()
    print(f"fired {fired:,}, jobs {jobs:,}, in {batches} transactions of about {fired // batches} jobs")
    print(f"the first batch began {(first - due) / 1e6:.3f} s after the minute, the last {(last - due) / 1e6:.3f} s")


async def idle(scheduler: Scheduler, seconds: float = 60) -> None:
    await asyncio.sleep(1)
    before, began = time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    used, passed = time.process_time() - before, time.monotonic() - began
    print(f"an idle minute: {used * 1000:.1f} ms of CPU in {passed:.0f} s")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with TemporaryDirectory() as directory:
        asyncio.run(measure(Path(directory), count))


if __name__ == "__main__":
    main()
