"""Measures what affinity saves. `uv run python -m bench.affinity`

Replays seeded mixes of requests on virtual time: requests for four models arrive at one GPU in small bursts, most of
them for two of the models. A run takes 3 to 15 seconds, and loading another model takes 25. Each mix runs in plain
order and by affinity, and the script prints the swaps, the makespan, and the longest time for which the next job in
order was passed over.
"""

import argparse
import asyncio
import json
import random
import tempfile
from pathlib import Path
from typing import Any

from nextslot import Limits, NewJob, Scheduler, testing

MODELS = {"llama": 0.45, "qwen": 0.3, "mistral": 0.15, "embed": 0.1}
SWAP_SECONDS = 25.0
REQUESTS = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wait", type=float, default=120.0, help="affinity_wait_seconds")
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    options = parser.parse_args()
    rows = [{"seed": seed, **compared(seed, options.wait)} for seed in range(3)]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        for order in ("plain", "affinity"):
            one = row[order]
            print(
                f"mix {row['seed']}, {order:8}  {one['swaps']:4} swaps  makespan {one['makespan_seconds']:7.0f} s"
                f"  passed over for at most {one['longest_passed_over_seconds']:5.0f} s"
            )


def compared(seed: int, wait: float) -> dict[str, Any]:
    return {
        "plain": replayed(mix(seed), 0.0),
        "affinity": replayed(mix(seed), wait),
        "affinity_wait_seconds": wait,
    }


def mix(seed: int) -> list[tuple[float, str, float]]:
    """Returns for each request when it arrives, which model it needs, and how long it takes."""
    chance, at = random.Random(seed), 0.0
    found: list[tuple[float, str, float]] = []
    while len(found) < REQUESTS:
        at += chance.expovariate(1 / 20)
        model = chance.choices(list(MODELS), list(MODELS.values()))[0]
        found += [(at, model, chance.uniform(3, 15)) for _ in range(chance.choice((1, 1, 2, 3)))]
    return found[:REQUESTS]


def replayed(requests: list[tuple[float, str, float]], wait: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        return testing.run(_replayed(Path(directory), requests, wait))


async def _replayed(directory: Path, requests: list[tuple[float, str, float]], wait: float) -> dict[str, float]:
    limits = Limits(resources={"gpu": 1}, affinity_waits={"gpu": wait} if wait else {})
    scheduler: Scheduler = testing.scheduler(directory, limits=limits)
    loop, started, swaps, loaded = asyncio.get_running_loop(), dict[int, float](), 0, ""

    @scheduler.job_type("infer", resources=["gpu"])
    async def infer(run: Any, number: int, model: str, seconds: float) -> None:
        nonlocal swaps, loaded
        started[number] = loop.time()
        is_swap, loaded = model != loaded, model
        swaps += is_swap
        await asyncio.sleep(seconds + (SWAP_SECONDS if is_swap else 0))

    async with scheduler:
        began, jobs = loop.time(), []
        for number, (at, model, seconds) in enumerate(requests):
            await asyncio.sleep(max(began + at - loop.time(), 0))
            params = {"number": number, "model": model, "seconds": seconds}
            jobs.append(await scheduler.submit_many([NewJob(job_type="infer", params=params, affinity=model)]))
        for (job,) in jobs:
            await scheduler.wait(job.job_id)
        return {
            "swaps": swaps,
            "makespan_seconds": round(loop.time() - began, 1),
            "longest_passed_over_seconds": round(longest_passed_over(started), 1),
        }


def longest_passed_over(started: dict[int, float]) -> float:
    """Returns the longest wait of a request that was next in order: from the first start of a later request, once all
    earlier ones have started, to its own start.
    """
    longest = 0.0
    for number, at in started.items():
        next_since = max((started[one] for one in range(number)), default=0.0)
        passed = [other for later, other in started.items() if later > number and next_since <= other < at]
        if passed:
            longest = max(longest, at - min(passed))
    return longest


if __name__ == "__main__":
    main()
