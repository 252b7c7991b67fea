"""Measures how many events a second a reader gets: stored and new ones, in the process and over HTTP.

    uv run python -m bench.stream [--events 30000] [--rounds 3]

Stored events are those of jobs that were queued before the reader began. New events are read while jobs are submitted
in batches of 1,000, so their rate is that of writing and reading together. The HTTP server (uvicorn) and its reader are
in one process, so the figures include the work of both. Figures are medians of the rounds.
"""

import argparse
import asyncio
import socket
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import uvicorn

from nextslot import NewJob, RunContext, Scheduler
from nextslot.server.app import create_app

BATCH = 1000


@asynccontextmanager
async def opened(folder: str) -> AsyncIterator[Scheduler]:
    scheduler = Scheduler(f"sqlite:///{folder}/nextslot.db", synchronous="NORMAL")

    @scheduler.job_type("noop")
    async def noop(run: RunContext, i: int) -> None: ...

    async with scheduler:
        await scheduler.pause()
        yield scheduler


async def fill(scheduler: Scheduler, jobs: int) -> None:
    """Stores an event for each job."""
    for first in range(0, jobs, BATCH):
        await scheduler.submit_many([NewJob(job_type="noop", params={"i": i}) for i in range(min(BATCH, jobs - first))])


async def read_here(scheduler: Scheduler, events: int) -> None:
    async with aclosing(scheduler.events()) as followed:  # type: ignore[type-var]
        async for _ in followed:
            events -= 1
            if events == 0:
                return


async def read_over_http(port: int, events: int) -> None:
    """Reads and only counts lines, so that the reader costs little."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
    while events > 0:
        events -= (await reader.read(1 << 20)).count(b"data:")
    writer.close()


@asynccontextmanager
async def served(scheduler: Scheduler) -> AsyncIterator[int]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(create_app(scheduler), log_level="error", timeout_graceful_shutdown=1))
        task = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started:  # noqa: ASYNC110 (it has nothing to wait for)
            await asyncio.sleep(0.01)
        yield listening.getsockname()[1]
        server.should_exit = True
        await task


async def measure(parent: Path, events: int, is_http: bool, is_stored: bool) -> float:
    """Returns events a second."""
    with TemporaryDirectory(dir=parent) as folder:
        async with opened(folder) as scheduler, served(scheduler) as port:
            if is_stored:
                await fill(scheduler, events)
            began = time.perf_counter()
            reading = asyncio.create_task(read_over_http(port, events) if is_http else read_here(scheduler, events))
            if not is_stored:
                await fill(scheduler, events)
            await reading
            return events / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    ways = [(is_http, is_stored) for is_http in (False, True) for is_stored in (True, False)]
    found: dict[tuple[bool, bool], list[float]] = {way: [] for way in ways}
    with TemporaryDirectory(prefix="nextslot-bench-") as parent:
        for _ in range(options.rounds):
            for way in ways:
                found[way].append(asyncio.run(measure(Path(parent), options.events, *way)))
    print(f"{'events a second':16} {'stored':>10} {'new':>10}")
    for is_http, name in ((False, "in the process"), (True, "over HTTP")):
        stored, new = (statistics.median(found[is_http, is_stored]) for is_stored in (True, False))
        print(f"{name:16} {stored:10,.0f} {new:10,.0f}")


if __name__ == "__main__":
    main()
