"""Measures how accurate and how fast forecasts are. `uv run python -m bench.forecast`

Accuracy: simulates workloads on virtual time, with log-normal durations by type, three offices and mixed limits. Each
type has a number of past runs. The script builds a queue, forecasts its starts, runs it, and prints the median of the
absolute error of the expected start relative to the wait. In a *steady* mix the sigma of a type's logarithm is 0.2 to
0.5, in an *even* one 0.1, and in a *wild* one up to 1: there one run in six takes at least three times as long as
usual. *With arrivals*, a quarter more jobs come after the forecast, which it cannot know. *With schedules*, a schedule
of a higher priority makes a job every two minutes; the even mix shows how much of the error is due to the schedule. In
a *sized* mix, durations grow with a parameter of the job, from a tenth to the tenfold of what is typical; in a
*bimodal* one, some jobs take ten times as long, as a parameter says for one type and nothing does for another. `within`
is the share of starts that are inside their interval of 80 %.

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
    "even": {"quick": (8.0, 0.1), "usual": (60.0, 0.1), "slow": (400.0, 0.1)},
    "wild": {"quick": (8.0, 0.3), "usual": (60.0, 0.5), "slow": (400.0, 0.6), "any": (90.0, 1.0)},
}
MIXES["sized"] = {"frames": (40.0, 0.1), "tokens": (90.0, 0.2), "plain": (30.0, 0.2)}
MIXES["bimodal"] = {"modes": (60.0, 0.2), "chance": (30.0, 0.2), "plain": (60.0, 0.2)}
QUEUED = 120
# How often the schedule of a higher priority fires, and its type's seconds.
EVERY, SCHEDULED_SECONDS = "*/2 * * * *", 100.0


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
            f"  (bias {row['bias']:+.0%}, within {row['within']:.0%}, {row['jobs']} jobs)"
        )
    print("milliseconds of processor time (median of 5)")
    for name, value in results["milliseconds"].items():
        print(f"  {name:36} {value:8.1f}")


# How accurate a forecast is.


def quality(workloads: int) -> list[dict[str, Any]]:
    rows = []
    for mix, past_runs, extra in [
        *((mix, past_runs, "") for mix in ("steady", "wild") for past_runs in (1, 3, 10, 50)),
        *((mix, past_runs, "") for mix in ("sized", "bimodal") for past_runs in (10, 50)),
        *((mix, 10, "arrivals") for mix in ("steady", "wild")),
        *(("steady", past_runs, "schedules") for past_runs in (10, 50)),
        *(("even", 10, extra) for extra in ("", "schedules")),
    ]:
        found = [one for seed in range(workloads) for one in simulated(seed, MIXES[mix], past_runs, extra)]
        errors = [error for error, _ in found]
        kind = f"{mix}, with {extra}" if extra else mix
        rows.append(
            {
                "past_runs": past_runs,
                "kind": kind,
                "median_error": statistics.median(map(abs, errors)),
                "bias": statistics.median(errors),
                "within": statistics.fmean(is_within for _, is_within in found),
                "jobs": len(errors),
            }
        )
    return rows


def simulated(seed: int, mix: Mix, past_runs: int, extra: str) -> list[tuple[float, bool]]:
    """Returns of each job of one workload the relative error, and whether it started inside the interval."""
    chance = random.Random(seed)
    found: list[tuple[float, bool]] = []

    async def body(directory: Path) -> None:
        async with timed_scheduler(directory, seed, chance, mix) as scheduler:
            await past(scheduler, chance, [*mix, *(["regular"] if extra == "schedules" else [])], past_runs)
            for office_id, slots in (("a", 2), ("b", 3), ("c", 3)):
                await scheduler.offices.create(office_id, max_concurrent_jobs=slots, timeout_seconds=10**7)
            if extra == "schedules":
                template = await scheduler.templates.create("regular", job_type="regular", priority=9, office_id="a")
                await scheduler.schedules.create("regular", template.template_id, EVERY, office_id="a")
            jobs = await scheduler.submit_many([drawn(chance, mix) for _ in range(QUEUED)])
            await asyncio.sleep(30)
            later = [drawn(chance, mix) for _ in range(QUEUED // 4)] if extra == "arrivals" else []
            found.extend(await errors_of(scheduler, jobs, later))

    with tempfile.TemporaryDirectory() as directory:
        testing.run(body(Path(directory)))
    return found


def timed_scheduler(directory: Path, seed: int, chance: random.Random, mix: Mix) -> Scheduler:
    limits = Limits(running=6, resources={"gpu": 2, "disk": 3})
    scheduler = testing.scheduler(directory, seed=seed, limits=limits, synchronous="NORMAL")
    for name, (typical, sigma) in mix.items():
        scheduler.job_types.add(name, takes(typical, sigma, chance))
    scheduler.job_types.add("regular", takes(SCHEDULED_SECONDS, min(sigma for _, sigma in mix.values()), chance))
    return scheduler


def takes(typical: float, sigma: float, chance: random.Random) -> Any:
    async def handler(run: Any, **params: Any) -> None:
        factor = params.get("size", 100) / 100 * (10 if params.get("mode") == "thorough" else 1)
        if run.job_type == "chance" and chance.random() < 0.3:
            factor = 10.0
        await asyncio.sleep(factor * chance.lognormvariate(math.log(typical), sigma))

    return handler


async def past(scheduler: Scheduler, chance: random.Random, types: list[str], runs: int) -> None:
    await scheduler.offices.create("past", max_concurrent_jobs=0, timeout_seconds=10**7)
    wanted = [
        NewJob(job_type=name, office_id="past", params=params_of(chance, name)) for name in types for _ in range(runs)
    ]
    jobs = await scheduler.submit_many(wanted)
    for job in jobs:
        await scheduler.wait(job.job_id)


def drawn(chance: random.Random, mix: Mix) -> NewJob:
    job_type = chance.choice(list(mix))
    return NewJob(
        job_type=job_type,
        params=params_of(chance, job_type),
        office_id=chance.choice("abc"),
        priority=chance.choice((0, 0, 0, 5)),
        resources=chance.choice(({}, {}, {"gpu": 1}, {"disk": 1})),
    )


def params_of(chance: random.Random, job_type: str) -> dict[str, Any]:
    """Returns parameters, of which one may say how long the work takes; the others say nothing."""
    noise = {"seed": chance.randrange(10**6), "name": chance.choice(("ada", "ben"))}
    if job_type in ("frames", "tokens"):
        return {**noise, "size": round(10 * 100 ** chance.random())}
    return {**noise, "mode": chance.choice(("draft", "draft", "thorough"))} if job_type == "modes" else noise


async def errors_of(scheduler: Scheduler, jobs: list[Job], later: list[NewJob]) -> list[tuple[float, bool]]:
    now = scheduler._clock.now()
    prefetched = {
        job_id: expected
        for office_id in "abc"
        for job_id, expected in (await scheduler.forecast.queue(office_id)).jobs.items()
    }
    if later:
        await scheduler.submit_many(later)
    errors = []
    for job in jobs:
        started = (await scheduler.wait(job.job_id)).job.started_at
        expected = prefetched.get(job.job_id)
        if started is None or expected is None or expected.expected_start is None or started <= now.after(1):
            continue
        low, high = expected.earliest_start, expected.latest_start
        is_within = low is not None and high is not None and low <= started <= high
        errors.append(((expected.expected_start - started) / (started - now), is_within))
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
