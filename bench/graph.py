"""Measures the cost of submitting a graph of jobs, of finding a cycle in it, and of running it, for each edge.

    uv run python bench/graph.py [--jobs 100,1000,10000,100000] [--run 10000] [--rounds 3]

Each job but the first waits for two earlier ones. The cost of an edge should be the same in a large graph; in the
smallest one it includes the transaction. Graphs of up to `--run` jobs are also run, with jobs that do nothing. Compare
within one run only.
"""

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from nextslot import Scheduler
from nextslot.errors import DependencyCycle
from nextslot.extensions.offices.office_service import OfficeJobService

NEAR = 1000


def graph(jobs: int) -> list[dict[str, Any]]:
    """Makes a graph with two edges a job to jobs shortly before it, as a program that splits tasks would."""
    chance = random.Random(jobs)
    return [
        {
            "key": str(n),
            "description": f"job {n}",
            "job_type": "noop",
            "depends_on": [str(m) for m in chance.sample(range(max(0, n - NEAR), n), min(n, 2))],
        }
        for n in range(jobs)
    ]


async def measure(directory: Path, jobs: int, is_run: bool) -> dict[str, float]:
    scheduler = Scheduler(f"sqlite:///{directory}/nextslot.db", synchronous="NORMAL", extensions=["offices"])

    @scheduler.job_type("noop")
    async def noop(run: Any) -> None:
        pass

    wanted = graph(jobs)
    edges = sum(len(job["depends_on"]) for job in wanted)
    async with scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=10, status="paused")
        found = {"cycle": await seconds_of_refusal(scheduler, wanted)}
        began = time.perf_counter()
        made = await scheduler.extension(OfficeJobService).submit("o", wanted)
        found["submit"] = time.perf_counter() - began
        if is_run:
            began = time.perf_counter()
            await scheduler.offices.change("o", status="active")
            for job in made:
                await scheduler.wait(job.job_id)
            found["run"] = time.perf_counter() - began
    return {**found, "edges": edges}


async def seconds_of_refusal(scheduler: Scheduler, wanted: list[dict[str, Any]]) -> float:
    """Measures a refused graph: the first job waits for the last, so the whole graph is read and nothing is stored."""
    around = [{**wanted[0], "depends_on": [wanted[-1]["key"]]}, *wanted[1:]]
    began = time.perf_counter()
    try:
        await scheduler.extension(OfficeJobService).submit("o", around)
    except DependencyCycle:
        return time.perf_counter() - began
    raise AssertionError("the cycle was not found")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--jobs", default="100,1000,10000,100000")
    arguments.add_argument("--run", type=int, default=10_000)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--json", type=Path, help="where to keep the figures")
    options = arguments.parse_args()
    table = []
    for jobs in map(int, options.jobs.split(",")):
        rounds = []
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory(prefix="nextslot-bench-") as made:
                rounds.append(asyncio.run(measure(Path(made), jobs, jobs <= options.run)))
        row = {key: statistics.median(round_[key] for round_ in rounds) for key in rounds[0]}
        table.append({"jobs": jobs, **row})
        parts = [
            f"{name} {row[name]:8.3f} s ({row[name] / row['edges'] * 1e6:7.1f} µs an edge)"
            for name in ("submit", "cycle", "run")
            if name in row
        ]
        print(f"{jobs:>7,} jobs  {int(row['edges']):>7,} edges   " + "   ".join(parts), flush=True)
    if options.json:
        options.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
