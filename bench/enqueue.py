"""Measures the cost of submitting jobs: by one producer, by many at once, and in bulk.

    uv run python bench/enqueue.py [--jobs 3000] [--producers 64] [--batch 10000] [--rounds 3]

Every job is durable, and the queue is paused. A producer awaits each `submit` before its next. Rates are by the wall
clock and depend on the disk; CPU time is that of the whole process. The three take turns; figures are medians.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from nextslot import NewJob, RunContext, Scheduler

Work = Callable[[Scheduler], Awaitable[object]]


async def measure(parent: Path, jobs: int, work: Work) -> tuple[float, float]:
    """Returns jobs a second and µs of CPU a job, in a new file."""
    with TemporaryDirectory(dir=parent) as folder:
        scheduler = Scheduler(f"sqlite:///{folder}/nextslot.db")

        @scheduler.job_type("noop")
        async def noop(run: RunContext, i: int) -> None: ...

        async with scheduler:
            await scheduler.pause()
            await scheduler.submit("noop", {"i": 0})
            began, cpu = time.perf_counter(), time.process_time()
            await work(scheduler)
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return jobs / seconds, cpu / jobs * 1e6


def producers(count: int, jobs: int) -> Work:
    async def produce(scheduler: Scheduler) -> None:
        for i in range(jobs // count):
            await scheduler.submit("noop", {"i": i})

    async def work(scheduler: Scheduler) -> None:
        await asyncio.gather(*(produce(scheduler) for _ in range(count)))

    return work


def bulk(batch: int) -> Work:
    wanted = [NewJob(job_type="noop", params={"i": i}) for i in range(batch)]
    return lambda scheduler: scheduler.submit_many(wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("--producers", type=int, default=64)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    many = options.jobs * 4 // options.producers * options.producers
    ways = {
        "one producer": (options.jobs, producers(1, options.jobs)),
        f"{options.producers} producers": (many, producers(options.producers, many)),
        f"submit_many of {options.batch:,}": (options.batch, bulk(options.batch)),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    with TemporaryDirectory(prefix="nextslot-bench-") as parent:
        for _ in range(options.rounds):
            for name, (jobs, work) in ways.items():
                found[name].append(asyncio.run(measure(Path(parent), jobs, work)))
    print(f"{'':24} {'jobs/s':>10} {'µs of CPU a job':>16}")
    for name, rounds in found.items():
        rate, cpu = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"{name:24} {rate:10,.0f} {cpu:16.1f}")


if __name__ == "__main__":
    main()
