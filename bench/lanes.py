"""Measures hand-overs of an office with many lanes, and of another office beside it, on SQLite and PostgreSQL.

    uv run python bench/lanes.py [--lanes 10,1000,30000,100000] [--jobs 300] [--kind mixed] [--stores sqlite,postgresql]

A lane is a combination of job type, role and resources. The office `crowded` has one ready job in each of its lanes and
a single slot; `other` has a backlog in one lane and a single slot. Each is measured while the other is paused, and then
`other` once more while `crowded` works too. The gap is the time between the end of a handler and the next start of the
same office. With `--kind mixed`, half of the lanes need a resource that another job holds all the time.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from nextslot import Limits, NewJob, Scheduler
from tests.postgres import Server

# One request may have at most so many combinations.
BATCH = 1_000


class Timed(Scheduler):
    """A scheduler whose jobs only record their times, by office."""

    times: dict[str, list[tuple[float, float]]]
    wanted: dict[str, int]
    done: dict[str, asyncio.Event]
    released: asyncio.Event


def new_scheduler(url: str) -> Timed:
    scheduler = Timed(url, limits=Limits(resources={"gpu": 1}))
    scheduler.times = {"crowded": [], "other": []}
    scheduler.wanted = {"crowded": 0, "other": 0}
    scheduler.done = {name: asyncio.Event() for name in scheduler.times}
    scheduler.released = asyncio.Event()
    clock = time.perf_counter

    @scheduler.job_type("noop")
    async def noop(run: Any, office: str) -> None:
        times = scheduler.times[office]
        times.append((clock(), clock()))
        if len(times) >= scheduler.wanted[office]:
            scheduler.done[office].set()

    @scheduler.job_type("endless")
    async def endless(run: Any) -> None:
        await scheduler.released.wait()

    return scheduler


async def fill(scheduler: Timed, lanes: int, jobs: int, kind: str) -> None:
    for name in scheduler.times:
        await scheduler.offices.create(name, max_concurrent_jobs=1)
        await scheduler.pause(office_id=name)
    await scheduler.offices.grant("crowded", lanes=1_000_000)
    if kind == "mixed":
        await scheduler.submit("endless", resources={"gpu": 1})
    # With few lanes, each has several jobs.
    total = max(lanes, 4 * jobs)
    for first in range(0, total, BATCH):
        numbers = range(first, min(total, first + BATCH))
        await scheduler.submit_many([crowded(number % lanes, kind) for number in numbers])
    await scheduler.submit_many([NewJob(job_type="noop", params=OTHER, office_id="other") for _ in range(4 * jobs)])


CROWDED, OTHER = {"office": "crowded"}, {"office": "other"}


def crowded(number: int, kind: str) -> NewJob:
    needs = {"gpu": 1} if kind == "mixed" and number % 2 == 0 else None
    return NewJob(job_type="noop", params=CROWDED, office_id="crowded", role=f"role-{number}", resources=needs)


async def measured(scheduler: Timed, jobs: int, names: tuple[str, ...], of: str) -> dict[str, float]:
    """Lets offices work until one has started this number of jobs. Returns the gaps of that office and the processor
    time.
    """
    for name in names:
        scheduler.times[name].clear()
        scheduler.wanted[name] = jobs + 1 if name == of else 1 << 60
        scheduler.done[name].clear()
    before = time.process_time()
    for name in names:
        await scheduler.resume(office_id=name)
    await scheduler.done[of].wait()
    spent = time.process_time() - before
    for name in names:
        await scheduler.pause(office_id=name)
    times = scheduler.times[of]
    gaps = sorted(1000 * (start - end) for (_, end), (start, _) in pairwise(times))
    starts = sum(len(scheduler.times[name]) for name in names)
    await asyncio.sleep(0.1)
    return {
        "p50_ms": round(gaps[len(gaps) // 2], 3),
        "p99_ms": round(gaps[len(gaps) * 99 // 100], 3),
        "cpu_ms": round(1000 * spent / starts, 3),
    }


async def measure(url: str, lanes: int, jobs: int, kind: str) -> dict[str, Any]:
    async with new_scheduler(url) as scheduler:
        await fill(scheduler, lanes, jobs, kind)
        found = {
            "crowded": await measured(scheduler, jobs, ("crowded",), "crowded"),
            "other": await measured(scheduler, jobs, ("other",), "other"),
            "both": await measured(scheduler, jobs, ("crowded", "other"), "other"),
        }
        scheduler.released.set()
        return found


def addresses(stores: str, parent: str) -> Iterator[tuple[str, str]]:
    if "sqlite" in stores:
        yield "sqlite", f"sqlite:///{parent}/nextslot.db"
    if "postgresql" in stores:
        server = Server(shared_buffers="128MB")
        try:
            yield "postgresql", server.url()
        finally:
            server.remove()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--lanes", default="10,1000,30000,100000")
    arguments.add_argument("--jobs", type=int, default=300)
    arguments.add_argument("--kind", choices=["roles", "mixed"], default="roles")
    arguments.add_argument("--stores", default="sqlite,postgresql", help="PostgreSQL gets a server of its own")
    arguments.add_argument("--json", type=Path, help="where to keep the figures")
    options = arguments.parse_args()
    table = []
    for lanes in map(int, options.lanes.split(",")):
        with tempfile.TemporaryDirectory(prefix="nextslot-bench-") as parent:
            for store, url in addresses(options.stores, parent):
                found = asyncio.run(measure(url, lanes, options.jobs, options.kind))
                for who, figures in found.items():
                    table.append({"lanes": lanes, "kind": options.kind, "store": store, "who": who, **figures})
                    print(json.dumps(table[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
