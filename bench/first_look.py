"""Measures how long the first look at a queue takes: `GET /api/queue`, and the forecast that follows it.

    uv run python -m bench.first_look [--queued 280 1000] [--rounds 3]

Three offices share limits and two counted resources, and have twelve lanes each; every type has 30 past runs. The
script prints milliseconds of wall time of the first answer, and of processor time of a forecast, medians of all rounds.
"""

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from typing import Any

import httpx2

from nextslot import Limits, NewJob, Scheduler
from nextslot.server.app import create_app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queued", type=int, nargs="+", default=[280, 1000], help="open jobs")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(json.dumps({str(queued): asyncio.run(measured(queued, options.rounds)) for queued in options.queued}))


async def measured(queued: int, rounds: int) -> dict[str, float]:
    looks, forecasts = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as directory:
            async with busy_scheduler(directory) as scheduler:
                await fill(scheduler, queued)
                looks.append(await first_look(scheduler))
                await scheduler.forecast.queue("x")
                began = time.process_time()
                await scheduler.forecast._made("x")
                forecasts.append((time.process_time() - began) * 1000)
                await scheduler.stop(grace_seconds=0)
    return {"first_answer_ms": statistics.median(looks), "forecast_cpu_ms": statistics.median(forecasts)}


def busy_scheduler(directory: str) -> Scheduler:
    limits = Limits(running=6, resources={"gpu": 2, "disk": 3})
    scheduler = Scheduler(f"sqlite:///{directory}/jobs.db", limits=limits)
    chance = random.Random(1)

    async def quick(run: Any) -> None:
        await asyncio.sleep(chance.uniform(0.001, 0.02))

    async def slow(run: Any) -> None:
        await asyncio.sleep(3600)

    for name in "abc":
        scheduler.job_types.add(name, quick)
    scheduler.job_types.add("slow", slow)
    return scheduler


async def fill(scheduler: Scheduler, queued: int) -> None:
    chance = random.Random(2)
    past = await scheduler.submit_many([NewJob(job_type=name) for name in "abc" for _ in range(30)])
    for job in past:
        await scheduler.wait(job.job_id)
    for office_id in "xyz":
        await scheduler.offices.create(office_id, max_concurrent_jobs=3, timeout_seconds=None)
    await scheduler.submit_many([NewJob(job_type="slow", office_id=one) for one in "xyz" for _ in range(2)])
    await scheduler.submit_many([drawn(chance) for _ in range(queued)])


def drawn(chance: random.Random) -> NewJob:
    return NewJob(
        job_type=chance.choice("abc"),
        office_id=chance.choice("xyz"),
        priority=chance.choice((0, 0, 5)),
        resources=chance.choice(({}, {}, {"gpu": 1}, {"disk": 1})),
    )


async def first_look(scheduler: Scheduler) -> float:
    """Returns the milliseconds until the first answer. The application is called without a network."""
    transport = httpx2.ASGITransport(create_app(scheduler))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        await client.get("/api/status")  # The first request of all fills caches of the framework.
        began = time.perf_counter()
        found = await client.get("/api/queue", params={"office_id": "x", "limit": 500})
        found.raise_for_status()
        return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    main()
