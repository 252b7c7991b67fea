"""Measures what rates, keys and affinities cost a hand-over, for jobs that use them and for jobs that use none.

    uv run python -m bench.rates [--jobs 300] [--rounds 5]

Each case has a database of its own and one slot, and works off jobs that do nothing; the rounds go through the cases in
turns. `others` has all three kinds of limits, which no job uses. The script prints the processor time of a hand-over,
as the median and the best round, because a busy machine lengthens the time on the clock more.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from nextslot import Limits, NewJob, Scheduler
from nextslot.domain.limits import Rate, RateUnit

PLENTY = {RateUnit.STARTS: Rate.of(10**9), RateUnit.TOKENS: Rate.of(10**9)}
ALL: dict[str, Any] = {
    "rates": {"type:mail": PLENTY},
    "limit_keys": {"customer:*": 1},
    "affinity_waits": {"gpu": 60.0},
}
# By case, the limits of the scheduler and what its jobs carry.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "none": ({}, {}),
    "others": (ALL, {}),
    "rate": ({"rates": {"type:noop": PLENTY}}, {}),
    "key": ({"limit_keys": {"customer:*": 1}}, {"limit_keys": ["customer:ada"]}),
    "resource": ({}, {"resources": {"gpu": 1}}),
    "affinity": ({"affinity_waits": {"gpu": 60.0}}, {"resources": {"gpu": 1}, "affinity": "llama"}),
}


class Counted(Scheduler):
    """A scheduler whose jobs count down."""

    left = 0
    done: asyncio.Event


def new_scheduler(directory: Path, limits: dict[str, Any]) -> Counted:
    directory.mkdir()
    scheduler = Counted(f"sqlite:///{directory}/nextslot.db", limits=Limits(**limits), synchronous="NORMAL")
    scheduler.done = asyncio.Event()

    @scheduler.job_type("noop")
    async def noop(run: Any) -> None:
        scheduler.left -= 1
        if not scheduler.left:
            scheduler.done.set()

    return scheduler


async def microseconds(scheduler: Counted, jobs: int) -> float:
    """Returns the processor time of a hand-over, in microseconds."""
    scheduler.left = jobs
    scheduler.done.clear()
    before = time.process_time()
    await scheduler.resume()
    await scheduler.done.wait()
    spent = time.process_time() - before
    await scheduler.pause()
    return spent / jobs * 1_000_000


async def measured(jobs: int, rounds: int, parent: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in CASES}
    async with AsyncExitStack() as stack:
        schedulers = {}
        for name, (limits, carried) in CASES.items():
            schedulers[name] = scheduler = await stack.enter_async_context(new_scheduler(parent / name, limits))
            await scheduler.pause()
            # The first round only warms up; some more jobs start while a round is being paused.
            await scheduler.submit_many([NewJob(job_type="noop", **carried)] * (jobs * (rounds + 1) + 100 * rounds))
        for number in range(rounds + 1):
            for name, scheduler in schedulers.items():
                one = await microseconds(scheduler, jobs)
                if number:
                    found[name].append(round(one, 1))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=300, help="hand-overs of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="where to keep the figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nextslot-bench-") as parent:
        found = asyncio.run(measured(options.jobs, options.rounds, Path(parent)))
    for name, figures in found.items():
        print(f"{name:9} {statistics.median(figures):6.0f} µs of processor time, best round {min(figures):6.0f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
