"""Measures how accurate and how fast forecasts are. `uv run python -m bench.forecast`

Accuracy: simulates workloads on virtual time, with log-normal durations by type, three offices and mixed limits. Each
type has a number of past runs. The script builds a queue, forecasts its starts, runs it, and prints the median of the
absolute error of the expected start relative to the wait. In a *steady* mix the sigma of a type's logarithm is 0.2 to
0.5, in a *wild* one up to 1: there one run in six takes at least three times as long as usual. *With arrivals*, a
quarter more jobs come after the forecast, which it cannot know.

Time: measures the processor time of a forecast, and of `why` without one, in an office with 1,000 and with 100,000
queued jobs on a real file. Forecasts run in a thread of their own, so wall time would say less.
"""

import argparse
import asyncio
import functools
import json
import math
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from nextslot import (
    Job,
    Limits,
    NewJob,
    Scheduler,
    testing,
)

# Typical seconds and the spread of each type.
Mix = dict[str, tuple[float, float]]
MIXES: dict[str, Mix] = {
    "steady": {"quick": (8.0, 0.2), "usual": (60.0, 0.35), "slow": (400.0, 0.5)},
    "wild": {"quick": (8.0, 0.3), "usual": (60.0, 0.5), "slow": (400.0, 0.6), "any": (90.0, 1.0)},
}
QUEUED = 120


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=int, default=10, help="simulated workloads for each number of past runs")
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    options = parser.parse_args()
    results: dict[str, Any] = {"quality": quality(options.workloads), "milliseconds": asyncio.run(times())}
    if options.json:
        print(json.dumps(results, indent=2))
        return
    print("median absolute error of the expected start, relative to the wait")
    for row in results["quality"]:
        print(
            f"  {row['past_runs']:3} past runs, {row['kind']:22} {row['median_error']:6.1%}"
            f"  (bias {row['bias']:+.0%}, {row['jobs']} jobs)"
        )
    print("milliseconds of processor time (median of 5)")
    for name, value in results["milliseconds"].items():
        print(f"  {name:36} {value:8.1f}")


# How accurate a forecast is.


def quality(workloads: int) -> list[dict[str, Any]]:
    rows = []
    for mix, past_runs, arrivals in [
        *((mix, past_runs, False) for mix in MIXES for past_runs in (1, 3, 10, 50)),
        *((mix, 10, True) for mix in MIXES),
    ]:
        errors = [error for seed in range(workloads) for error in simulated(seed, MIXES[mix], past_runs, arrivals)]
        kind = f"{mix}, with arrivals" if arrivals else mix
        rows.append(
            {
                "past_runs": past_runs,
                "kind": kind,
                "median_error": statistics.median(map(abs, errors)),
                "bias": statistics.median(errors),
                "jobs": len(errors),
            }
        )
    return rows


def simulated(seed: int, mix: Mix, past_runs: int, arrivals: bool) -> list[float]:
    """Simulates one workload and returns the relative errors of its forecasts."""
    chance = random.Random(seed)
    found: list[float] = []

    async def body(directory: Path) -> None:
        async with timed_scheduler(directory, seed, chance, mix) as scheduler:
            await past(scheduler, mix, past_runs)
            for office_id, slots in (("a", 2), ("b", 3), ("c", 3)):
                await scheduler.offices.create(office_id, max_concurrent_jobs=slots, timeout_seconds=10**7)
            jobs = await scheduler.submit_many([drawn(chance, mix) for _ in range(QUEUED)])
            await asyncio.sleep(30)
            later = [drawn(chance, mix) for _ in range(QUEUED // 4)] if arrivals else []
            found.extend(await errors_of(scheduler, jobs, later))

    with tempfile.TemporaryDirectory() as directory:
        testing.run(body(Path(directory)))
    return found


def timed_scheduler(directory: Path, seed: int, chance: random.Random, mix: Mix) -> Scheduler:
    limits = Limits(running=6, resources={"gpu": 2, "disk": 3})
    scheduler = testing.scheduler(directory, seed=seed, limits=limits, synchronous="NORMAL")
    for name, (typical, sigma) in mix.items():
        scheduler.job_types.add(name, takes(typical, sigma, chance))
    return scheduler


def takes(typical: float, sigma: float, chance: random.Random) -> Any:
    async def handler(run: Any) -> None:
        await asyncio.sleep(chance.lognormvariate(math.log(typical), sigma))

    return handler


async def past(scheduler: Scheduler, mix: Mix, runs: int) -> None:
    await scheduler.offices.create("past", max_concurrent_jobs=0, timeout_seconds=10**7)
    jobs = await scheduler.submit_many([NewJob(job_type=name, office_id="past") for name in mix for _ in range(runs)])
    for job in jobs:
        await scheduler.wait(job.job_id)


def drawn(chance: random.Random, mix: Mix) -> NewJob:
    return NewJob(
        job_type=chance.choice(list(mix)),
        office_id=chance.choice("abc"),
        priority=chance.choice((0, 0, 0, 5)),
        resources=chance.choice(({}, {}, {"gpu": 1}, {"disk": 1})),
    )


async def errors_of(scheduler: Scheduler, jobs: list[Job], later: list[NewJob]) -> list[float]:
    now = scheduler._clock.now()
    prefetched = {
        job_id: expected.expected_start
        for office_id in "abc"
        for job_id, expected in (await scheduler.forecast.queue(office_id)).jobs.items()
    }
    if later:
        await scheduler.submit_many(later)
    errors = []
    for job in jobs:
        started = (await scheduler.wait(job.job_id)).job.started_at
        expected = prefetched.get(job.job_id)
        if started is not None and expected is not None and started > now.after(1):
            errors.append((expected - started) / (started - now))
    return errors


# How long a forecast takes.


async def times() -> dict[str, float]:
    results: dict[str, float] = {}
    for queued in (1_000, 100_000):
        with tempfile.TemporaryDirectory() as directory:
            scheduler = Scheduler(f"sqlite:///{directory}/jobs.db")
            scheduler.job_types.add("work", takes(3600, 0.0, random.Random(0)))
            async with scheduler:
                jobs = await scheduler.submit_many([NewJob(job_type="work")] * queued)
                await scheduler.forecast.queue()
                results[f"forecast, {queued:,} queued"] = await timed(scheduler.forecast._made, "default")
                last = functools.partial(explained, scheduler, jobs[-1])
                results[f"why without forecast, {queued:,} queued"] = await timed(scheduler._access.read, last)
                await scheduler.stop(grace_seconds=0)
    return results


def explained(scheduler: Scheduler, job: Job, tx: Any) -> object:
    return scheduler.forecast._explainer.explain(tx, job.job_id)


async def timed(call: Any, *arguments: Any) -> float:
    took = []
    for _ in range(5):
        began = time.process_time()
        await call(*arguments)
        took.append((time.process_time() - began) * 1000)
    return statistics.median(took)


if __name__ == "__main__":
    main()
