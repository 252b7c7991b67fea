"""Measures how a long history changes a hand-over, a list, a search and a purge.

    uv run python -m bench.growth [--ended 100000 1000000] [--rounds 3] [--save FILE]

Makes a database with each number of ended jobs, in plain SQL as `bench.lists` does, with their full text, and measures
the databases in turns. Figures are medians of the rounds, of processor time, since a busy machine changes it less than
the wall clock: of a hand-over at one slot, of the newest page of 50 jobs, of those that failed, of a search for a word
of every title and for one of a single title, and of one purged job.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw

from bench import lists
from nextslot import NewJob, Scheduler
from nextslot.domain.filters import JobFilter
from nextslot.engine.retention import Keep
from nextslot.store.sqlite import sqlite_store
from nextslot.store.tables import search

HANDED_OVER = 1_000
CALLS = 50
# How many of the oldest jobs each round purges. `bench.lists` planted one every 300 seconds from 1970 on.
PURGED = 1_000
APART_SECONDS = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ended", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", type=Path, help="write the figures of all rounds to this file")
    options = parser.parse_args()
    found: dict[int, list[dict[str, float]]] = {ended: [] for ended in options.ended}
    with tempfile.TemporaryDirectory(prefix="nextslot-bench-") as made:
        for ended in options.ended:
            fill(Path(made, str(ended)), ended)
        for number in range(1, options.rounds + 1):
            for ended in options.ended:
                found[ended].append(asyncio.run(measured(Path(made, str(ended)), ended, number)))
    for name in found[options.ended[0]][0]:
        row = [statistics.median(one[name] for one in found[ended]) for ended in options.ended]
        figures = "   ".join(f"{value:9,.0f}" for value in row)
        print(f"{name:<28} {figures}   {row[-1] / row[0]:.2f} times")
    if options.save:
        about = {"what": "python -m bench.growth, µs of processor time", "load_average": os.getloadavg()[0]}
        options.save.write_text(json.dumps({**about, "ended": found}, indent=1) + "\n")


def fill(directory: Path, ended: int) -> None:
    began = time.perf_counter()
    directory.mkdir()
    asyncio.run(lists.fill(directory, ended))
    path = str(directory / "nextslot.db")
    with apsw.Connection(path) as connection:
        connection.execute("insert into maintenance values ('bench', 1)")
        search.fill(sqlite_store.SqliteTx(connection))
        connection.execute("delete from maintenance")
    with apsw.Connection(path) as connection:
        connection.execute("analyze")
    size = sum(one.stat().st_size for one in directory.iterdir()) / 2**20
    print(f"{ended:,} jobs planted in {time.perf_counter() - began:.0f} s, {size:,.0f} MiB", flush=True)


async def measured(directory: Path, ended: int, number: int) -> dict[str, float]:
    async with lists.new_scheduler(directory) as scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=1)
        await idle()
        return {
            "hand-over": await hand_overs(scheduler),
            "newest 50 jobs": await calls(lambda: scheduler.lists.jobs()),
            "newest 50 failed": await calls(lambda: scheduler.lists.jobs(JobFilter(status="FAILED"))),
            "search, a word of all": await calls(lambda: scheduler.lists.jobs(JobFilter(q="number"))),
            "search, two words of one": await calls(lambda: scheduler.lists.jobs(JobFilter(q=f"number {ended // 2}"))),
            "a purged job": await purge(scheduler, number),
        }


async def idle() -> None:
    """Waits for the check of a large file, which a store makes in the background after it was opened."""
    spent = time.process_time()
    while True:
        await asyncio.sleep(1)
        if time.process_time() - spent < 0.02:
            return
        spent = time.process_time()


async def hand_overs(scheduler: Scheduler) -> float:
    await scheduler.pause()
    jobs = await scheduler.submit_many([NewJob(job_type="noop", title="Job number none")] * HANDED_OVER)
    began = time.process_time()
    await scheduler.resume()
    await scheduler.wait(jobs[-1].job_id)
    return (time.process_time() - began) / HANDED_OVER * 1e6


async def calls(ask: Callable[[], Awaitable[Any]]) -> float:
    assert (await ask()).items, "nothing was found"
    began = time.process_time()
    for _ in range(CALLS):
        await ask()
    return (time.process_time() - began) / CALLS * 1e6


async def purge(scheduler: Scheduler, number: int) -> float:
    age = datetime.now(UTC).timestamp() - number * PURGED * APART_SECONDS
    scheduler.retention.keep = Keep(jobs_days=age / 86_400)
    began = time.process_time()
    purged = await scheduler.retention.purge()
    assert purged.jobs, "nothing was purged"
    return (time.process_time() - began) / purged.jobs * 1e6


if __name__ == "__main__":
    main()
