"""Adapter of nextslot for the comparison harness: one process, as a user would embed it.

export BENCH_ADAPTERS=$PWD/bench/peers
python3 ../shared/bench/run.py --peers ours:sqlite,huey:sqlite --rounds 3 --out /tmp/ours.json

On PostgreSQL the worker is a node of its own beside the one that submitted.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from peers import _lib  # type: ignore[import-not-found]

from nextslot import NewJob, Scheduler

EMBEDDED = True
VARIANTS = {
    "sqlite": {
        "venv": "ours",
        "needs": (),
        "tuned": None,
        "durability": "WAL, synchronous=FULL; claimed and finished in one commit, kept with its events",
    },
    "postgres": {
        "venv": "ours",
        "needs": ("postgres",),
        "tuned": None,
        "durability": "synchronous_commit=on; claimed and finished in one commit, kept with its events",
    },
}

# The worker's concurrency once a worker is wanted; None while only a producer is wanted.
_concurrency: int | None = None
_producer: Scheduler | None = None


def init(variant: str) -> None:
    async def create() -> None:
        async with _new_scheduler(variant):
            pass

    asyncio.run(create())


async def open_producer(variant: str) -> tuple[Callable[..., Awaitable[Any]], Callable[..., Awaitable[Any]]]:
    global _producer
    scheduler = _producer = _new_scheduler(variant)
    await scheduler.start()
    if _concurrency is None:
        await scheduler.pause()
    else:
        await scheduler.offices.change("default", max_concurrent_jobs=_concurrency)

    async def one(i: int) -> None:
        await scheduler.submit("noop", {"i": i})

    async def many(ids: list[int]) -> None:
        await scheduler.submit_many([NewJob(job_type="noop", params={"i": i}) for i in ids])

    return one, many


def run_worker(variant: str, concurrency: int, tuned: bool) -> None:
    """Lets an open producer work too; without one, starts a scheduler in a thread of its own."""
    global _concurrency
    _concurrency = concurrency
    if _producer is not None:
        asyncio.run(_producer._crash())
        threading.Thread(target=lambda: asyncio.run(_work(variant, concurrency)), daemon=True).start()


async def _work(variant: str, concurrency: int) -> None:
    async with _new_scheduler(variant, "worker") as scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=concurrency)
        await scheduler.resume()
        await asyncio.Event().wait()


def _new_scheduler(variant: str, node: str = "producer") -> Scheduler:
    if variant == "postgres":
        scheduler = Scheduler(_lib.PG_DSN, data=_lib.path(node), node=node)
    else:
        scheduler = Scheduler(f"sqlite:///{_lib.path('nextslot.db')}")

    @scheduler.job_type("noop")
    async def noop(run: Any, i: int) -> None:
        _lib.noop(i)

    return scheduler
