"""Measures dispatch with many offices and with a full limit: its cost, and whether every office gets its turn.

    uv run python bench/offices.py [--offices 1000] [--jobs 1000] [--backlog 1000000] [--starts 5000] [--rounds 3]

First, many offices with many jobs each share one slot. The script compares the cost of a hand-over with that of one
office and of two, since a hand-over from one office to another writes the counters of both. It also compares the mean
gaps between two starts of each office. Second, a role's limit of one is full, and a backlog of its jobs waits. The
script submits a job of another role, and compares its start with that in an empty office. Compare within one run only.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from nextslot import Limits, NewJob, Scheduler

BATCH = 20_000


class Office:
    """A scheduler whose jobs only record their office and the time."""

    def __init__(self, directory: Path, starts: int = 0, slots: int = 1, **options: Any) -> None:
        self.scheduler = Scheduler(f"sqlite:///{directory}/nextslot.db", limits=Limits(running=slots), **options)
        self.started: list[tuple[float, str]] = []
        self.done = asyncio.Event()

        @self.scheduler.job_type("noop")
        async def noop(run: Any) -> None:
            self.started.append((time.perf_counter(), run.office_id))
            if len(self.started) == starts:
                self.done.set()

        @self.scheduler.job_type("wait")
        async def wait(run: Any) -> None:
            await asyncio.Event().wait()


async def fill(directory: Path, offices: int, jobs: int) -> None:
    scheduler = Office(directory, synchronous="NORMAL").scheduler
    async with scheduler:
        await scheduler.pause()
        wanted: list[NewJob] = []
        for number in range(offices):
            await scheduler.offices.create(f"o{number}", max_concurrent_jobs=0)
        for _ in range(jobs):
            wanted += [NewJob(job_type="noop", office_id=f"o{number}") for number in range(offices)]
            if len(wanted) >= BATCH:
                await scheduler.submit_many(wanted)
                wanted = []
        if wanted:
            await scheduler.submit_many(wanted)


async def drain(directory: Path, starts: int) -> tuple[list[tuple[float, str]], float]:
    """Returns the starts, and the CPU milliseconds of this process for each start."""
    office = Office(directory, starts)
    async with office.scheduler:
        began = time.process_time()
        await office.scheduler.resume()
        await office.done.wait()
        worked = time.process_time() - began
        await office.scheduler.pause()
    return office.started[:starts], worked / starts * 1000


def hand_over_ms(started: list[tuple[float, str]]) -> float:
    return (started[-1][0] - started[0][0]) / (len(started) - 1) * 1000


def unfairness(started: list[tuple[float, str]]) -> float:
    """Returns the longest mean gap between two starts of an office, divided by the shortest."""
    times = defaultdict(list)
    for at, office_id in started:
        times[office_id].append(at)
    gaps = [(ats[-1] - ats[0]) / (len(ats) - 1) for ats in times.values() if len(ats) > 1]
    return max(gaps) / min(gaps)


def many_offices(offices: int, jobs: int, starts: int, rounds: int) -> None:
    """Compares many offices with one and with two that have as many jobs."""
    gaps: dict[int, list[float]] = defaultdict(list)
    work: dict[int, list[float]] = defaultdict(list)
    unfair: dict[int, list[float]] = defaultdict(list)
    counts = (1, 2, offices)
    with tempfile.TemporaryDirectory(prefix="nextslot-bench-") as made:
        for count in counts:
            Path(made, str(count)).mkdir()
            asyncio.run(fill(Path(made, str(count)), count, offices * jobs // count))
        for _ in range(rounds):
            for count in counts:
                started, worked = asyncio.run(drain(Path(made, str(count)), starts))
                gaps[count].append(hand_over_ms(started))
                work[count].append(worked)
                unfair[count].append(unfairness(started))
    print("offices × jobs        ms a hand-over   of own work   work, by one   by two   largest wait ÷ smallest")
    for count in counts:
        gap, own, wait = (statistics.median(found[count]) for found in (gaps, work, unfair))
        one, two = statistics.median(work[1]), statistics.median(work[2])
        print(
            f"{count:>7,} × {offices * jobs // count:>9,} {gap:14.3f} {own:13.3f} {own / one:14.2f} {own / two:8.2f} "
            f"{wait:12.2f}",
            flush=True,
        )


async def be_jobs(directory: Path, backlog: int, jobs: int) -> list[float]:
    """Returns the seconds from the submit of a BE job to its start, while many FE jobs wait for their limit."""
    office = Office(directory, slots=0, synchronous="NORMAL")
    scheduler = office.scheduler
    async with scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=3, cancel_mode="interrupt")
        blocker = await scheduler.submit("wait", office_id="o", role="FE")
        for first in range(0, backlog, BATCH):
            count = min(BATCH, backlog - first)
            await scheduler.submit_many([NewJob(job_type="noop", office_id="o", role="FE")] * count)
        found = []
        for _ in range(jobs):
            began = time.perf_counter()
            job = await scheduler.submit("noop", office_id="o", role="BE")
            await scheduler.wait(job.job_id)
            found.append(office.started[-1][0] - began)
        await scheduler.offices.change("o", status="paused")
        await scheduler.cancel(blocker.job_id)
    return found


def full_limit(backlog: int, jobs: int, rounds: int) -> None:
    found = defaultdict(list)
    for _ in range(rounds):
        for size in (0, backlog):
            with tempfile.TemporaryDirectory(prefix="nextslot-bench-") as made:
                found[size].append(statistics.median(asyncio.run(be_jobs(Path(made), size, jobs))) * 1000)
    empty, full = (statistics.median(found[size]) for size in (0, backlog))
    print(
        f"a BE job starts after {empty:.3f} ms in an empty office, {full:.3f} ms behind {backlog:,} FE jobs "
        f"whose limit is full   ratio {full / empty:.2f}",
        flush=True,
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--offices", type=int, default=1000)
    arguments.add_argument("--jobs", type=int, default=1000)
    arguments.add_argument("--backlog", type=int, default=1_000_000)
    arguments.add_argument("--starts", type=int, default=5000)
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()
    many_offices(options.offices, options.jobs, options.starts, options.rounds)
    full_limit(options.backlog, 500, options.rounds)


if __name__ == "__main__":
    main()
