"""Measures the time from a start after a crash to the first dispatch, by the number of queued and of running jobs.

uv run python bench/recovery.py [--queued 1000,1000000] [--running 1000]
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from nextslot import NewJob, Scheduler

BATCH = 20_000


def new_scheduler(directory: Path, **options: Any) -> Scheduler:
    scheduler = Scheduler(f"sqlite:///{directory}/nextslot.db", **options)

    @scheduler.job_type("wait")
    async def wait(run: Any, i: int) -> None:
        await asyncio.Event().wait()

    return scheduler


async def fill(directory: Path, queued: int, running: int) -> None:
    """Runs a scheduler that dies without a shutdown while this number of jobs is running."""
    scheduler = new_scheduler(directory, synchronous="NORMAL")
    await scheduler.start()
    await scheduler.offices.change("default", max_concurrent_jobs=running)
    for first in range(0, queued + running, BATCH):
        count = min(BATCH, queued + running - first)
        await scheduler.submit_many([NewJob(job_type="wait", params={"i": first + i}) for i in range(count)])
    await asyncio.sleep(0)
    await scheduler._crash()


async def recover(directory: Path) -> tuple[float, int]:
    scheduler = new_scheduler(directory)
    began = time.perf_counter()
    recovered = await scheduler.start()
    seconds = time.perf_counter() - began
    await scheduler._crash()
    return seconds, recovered.lost


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--queued", default="1000,1000000")
    arguments.add_argument("--running", type=int, default=1000)
    options = arguments.parse_args()
    for queued in map(int, options.queued.split(",")):
        with tempfile.TemporaryDirectory(prefix="nextslot-bench-") as made:
            asyncio.run(fill(Path(made), queued, options.running))
            seconds, lost = asyncio.run(recover(Path(made)))
            print(
                f"queued {queued:>9,}  running {lost:>5,}  recovered and dispatching again in {seconds:.2f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
