"""Measures how many jobs a second several nodes on one PostgreSQL start together.

    uv run python bench/nodes.py [--url postgresql://…] [--nodes 1,2,4] [--offices 1,4] [--apart] [--jobs 4000]
        [--slots 12] [--rounds 1] [--store results.json]

Each node is a process with its share of the slots; the queue is filled while it is paused, and drained. The jobs are
spread over offices that share no limit. Numbers of nodes and offices take turns in each round. Without --url the script
starts a server of its own, as in bench/postgres.py. Nodes, server and this program share the machine's
processors: on two of them more nodes cannot be faster, and the figures show what sharing a database costs.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psycopg

sys.path.insert(0, str(Path(__file__).parents[1]))

from nextslot import Limits, NewJob, Scheduler
from tests.postgres import Server


def scheduler_of(url: str, name: str, directory: str, slots: int, offices: Iterable[int]) -> Scheduler:
    """Makes a scheduler that takes only its share; otherwise the first node would take all jobs. It runs the jobs of
    these offices."""
    scheduler = Scheduler(url, node=name, data=f"{directory}/{name}", limits=Limits(), node_running=slots)

    async def noop(run: Any) -> None: ...

    for office in offices:
        scheduler.job_type(f"noop{office}")(noop)
    return scheduler


async def work(url: str, name: str, directory: str, slots: int, offices: Iterable[int]) -> None:
    async with scheduler_of(url, name, directory, slots, offices):
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


async def fill(url: str, directory: str, offices: int, jobs: int, slots: int) -> None:
    async with scheduler_of(url, "filler", directory, slots, range(offices)) as scheduler:
        await scheduler.pause()
        for number in range(offices):
            await scheduler.offices.create(f"o{number}", max_concurrent_jobs=0)
        numbers = [number % offices for number in range(jobs)]
        await scheduler.submit_many([NewJob(job_type=f"noop{one}", office_id=f"o{one}") for one in numbers])


def drained(url: str, nodes: int, offices: int, is_apart: bool, jobs: int, slots: int) -> tuple[float, list[int]]:
    """Drains the queue. Returns jobs per second, and how many jobs each node has run. With `is_apart`, each office is
    run by one node.
    """
    with tempfile.TemporaryDirectory() as directory, psycopg.connect(url, autocommit=True) as connection:
        connection.execute("drop schema public cascade; create schema public")
        asyncio.run(fill(url, directory, offices, jobs, slots))
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--work", url, f"n{number}", directory, str(slots // nodes)]
                + [str(office) for office in range(offices) if not is_apart or office % nodes == number],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for number in range(nodes)
        ]
        for process in processes:
            process.stdout.readline()  # type: ignore[union-attr]
        asyncio.run(resumed(url, directory))
        left = "select count(*) from jobs where finished_at is null"
        while connection.execute(left).fetchone() != (0,):
            time.sleep(0.1)
        [(first, last)] = connection.execute("select min(started_at), max(finished_at) from runs")
        shares = connection.execute("select count(*) from jobs group by split_part(worker_id, '/', 1) order by 1 desc")
        found = jobs / ((last - first) / 1_000_000), [count for (count,) in shares]
        for process in processes:
            process.communicate(b"\n")
    return found


async def resumed(url: str, directory: str) -> None:
    scheduler = Scheduler(url, node="starter", data=f"{directory}/starter", limits=Limits())
    async with scheduler:
        await scheduler.resume()
        await asyncio.sleep(0.5)


def _numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def main() -> None:
    if sys.argv[1:2] == ["--work"]:
        url, name, directory, slots, *offices = sys.argv[2:]
        asyncio.run(work(url, name, directory, int(slots), map(int, offices)))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url")
    parser.add_argument("--nodes", default="1,2,4")
    parser.add_argument("--offices", default="1,4")
    parser.add_argument("--apart", action="store_true", help="each office is run by one node")
    parser.add_argument("--jobs", type=int, default=4000)
    parser.add_argument("--slots", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--store", type=Path)
    chosen = parser.parse_args()
    server = None if chosen.url else Server(shared_buffers="128MB")
    turns = [(nodes, offices) for offices in _numbers(chosen.offices) for nodes in _numbers(chosen.nodes)]
    found: list[dict[str, Any]] = []
    try:
        for nodes, offices in turns * chosen.rounds:
            url = chosen.url or server.url()  # type: ignore[union-attr]
            rate, shares = drained(url, nodes, offices, chosen.apart, chosen.jobs, chosen.slots)
            what = {"nodes": nodes, "offices": offices, "is_apart": chosen.apart}
            found.append(
                {**what, "jobs_a_second": round(rate), "run_by_each": shares, "load": round(os.getloadavg()[0], 1)}
            )
            print(f"{nodes} nodes, {offices} offices: {rate:,.0f} jobs/s   run by each: {shares}", flush=True)
            if chosen.store is not None:
                chosen.store.write_text(json.dumps(found, indent=1) + "\n")
    finally:
        if server is not None:
            server.remove()


if __name__ == "__main__":
    main()
