"""Measures the memory of a scheduler's process: idle with an empty file, then while it works through a long queue.

    uv run python bench/memory.py [--backlog 100000] [--jobs 20000]

Another process makes the queue, so that its making does not count. Prints the resident memory in MiB, including
SQLite's cache, after each of ten equal parts of the work, so that growth shows.
"""

import argparse
import asyncio
import resource
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from nextslot import NewJob, RunContext, Scheduler

BATCH = 10_000
PARTS = 10


def resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


async def fill(folder: Path, jobs: int) -> None:
    async with Scheduler(f"sqlite:///{folder}/nextslot.db", synchronous="NORMAL") as scheduler:
        scheduler.job_type("noop")(_nothing)
        await scheduler.pause()
        for first in range(0, jobs, BATCH):
            count = min(BATCH, jobs - first)
            await scheduler.submit_many([NewJob(job_type="noop", params={"i": i}) for i in range(count)])


async def _nothing(run: RunContext, i: int) -> None: ...


async def work(folder: Path, jobs: int) -> list[float]:
    """Returns the resident memory at the start, and after each part of the work."""
    scheduler = Scheduler(f"sqlite:///{folder}/nextslot.db")
    seen: list[float] = []
    done = asyncio.Event()
    count = 0

    @scheduler.job_type("noop")
    async def noop(run: RunContext, i: int) -> None:
        nonlocal count
        count += 1
        if count % (jobs // PARTS) == 0:
            seen.append(resident())
        if len(seen) > PARTS:
            done.set()

    async with scheduler:
        await asyncio.sleep(1)
        seen.append(resident())
        if jobs:
            await scheduler.offices.change("default", max_concurrent_jobs=10)
            await scheduler.resume()
            await done.wait()
            await scheduler.pause()
    return seen


def in_a_process(*arguments: object) -> list[float]:
    """Runs a measurement in a process of its own, so that earlier work does not count."""
    command = [sys.executable, __file__, "--of", *map(str, arguments)]
    return [float(part) for part in subprocess.check_output(command, text=True).split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backlog", type=int, default=100_000)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--of", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.of:
        print(*asyncio.run(work(Path(options.of[0]), int(options.of[1]))))
        return
    with TemporaryDirectory(prefix="nextslot-bench-") as folder:
        empty, full = Path(folder, "empty"), Path(folder, "full")
        empty.mkdir()
        full.mkdir()
        [idle] = in_a_process(empty, 0)
        asyncio.run(fill(full, options.backlog + options.jobs))
        began, *parts = in_a_process(full, options.jobs)
    print(f"idle, an empty file            {idle:6.1f} MiB")
    print(f"idle, {options.backlog:>9,} jobs queued   {began:6.1f} MiB")
    print(f"while {options.jobs:,} of them run:    " + "  ".join(f"{part:.1f}" for part in parts))


if __name__ == "__main__":
    main()
