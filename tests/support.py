"""What tests of the engine share: a scheduler on virtual time, and handlers that do as they are told."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw

from nextslot import Fail, Job, Scheduler, Skip, testing
from nextslot.model import Event

Main = Callable[[Scheduler], Awaitable[None]]


def with_scheduler(directory: Path, main: Main, **options: Any) -> None:
    """Runs `main` with a started scheduler that has the handlers below, on virtual time."""

    async def body() -> None:
        scheduler = new_scheduler(directory, **options)
        async with scheduler:
            await main(scheduler)

    testing.run(body())


def new_scheduler(directory: Path, **options: Any) -> Scheduler:
    scheduler = testing.scheduler(directory, **options)
    register_handlers(scheduler)
    return scheduler


def register_handlers(scheduler: Scheduler) -> None:
    @scheduler.job_type("work")
    async def work(run: Any, seconds: float = 1, **anything: Any) -> Any:
        """Takes a while, and returns what it was given."""
        await asyncio.sleep(seconds)
        return anything or None

    @scheduler.job_type("fail")
    async def fail(run: Any, kind: str = "error", times: int = 1_000_000) -> Any:
        """Fails the first so many times of a chain."""
        if run.attempt <= times:
            raise Fail(f"failed as asked, {kind}", kind)

    @scheduler.job_type("skip")
    async def skip(run: Any, reason: str = "nothing to do") -> Any:
        raise Skip(reason)

    @scheduler.job_type("stubborn")
    async def stubborn(run: Any, seconds: float = 100) -> Any:
        """Ignores its signal until its time is up."""
        end = asyncio.get_running_loop().time() + seconds
        while (left := end - asyncio.get_running_loop().time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                continue


async def states(scheduler: Scheduler, *jobs: Job) -> list[str]:
    return [(await scheduler.job(job.job_id)).state.value for job in jobs]


async def history(scheduler: Scheduler) -> list[Event]:
    """Every event so far."""
    from nextslot.store import events

    return await scheduler._read(lambda tx: events.after(tx, 0, 1_000_000))


def database(directory: Path) -> apsw.Connection:
    """Another connection to the same file, for plain SQL."""
    return apsw.Connection(str(directory / "nextslot.db"))
