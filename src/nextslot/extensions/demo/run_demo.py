"""Runs a small real workload on a real server and prints what happens.

It renders a film of six frames on one gpu; its soundtrack fails once; then it encodes and publishes the film. Meanwhile
a direct caller gets a preview before the queued jobs, and a language model, if there is one, writes a story.
"""

import asyncio
import contextlib
import os
import random
import signal
import socket
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol, runtime_checkable

from nextslot import Job, Scheduler
from nextslot.errors import Unavailable
from nextslot.extension_api import used_by_server
from nextslot.server import app as server
from nextslot.server.serve import Process

from .film import FRAMES, film_jobs, publishing_jobs
from .narrator import Narrator, print_next_steps, print_stories

# While frames are rendered some job is always running, so a kill in this period always leaves a job to recover.
CRASH_SECONDS = (1.6, 3.8)


@dataclass(frozen=True, slots=True)
class Options:
    data: Path
    port: int
    once: bool
    keep: bool
    crash: bool
    no_story: bool


async def run_demo(options: Options) -> None:
    data = options.data
    scheduler = Scheduler(f"sqlite:///{data}/nextslot.db", extensions=[*used_by_server(), "demo"])
    narrator = Narrator(scheduler)
    print(f"One scheduler, one gpu, three jobs at a time. All its data is in {data}/nextslot.db.", flush=True)
    model = None if options.no_story else await asyncio.to_thread(_find_model, scheduler)
    print(f"A story is written by {model}.\n" if model else "No story: there is no language model here.\n", flush=True)
    process = Process(scheduler, server.Options(), "127.0.0.1", _free_port(options.port))
    serving = asyncio.create_task(process.run(), name="demo-server")
    try:
        if not await _is_ready(scheduler, serving):
            return
        await scheduler.offices.change("default", max_concurrent_jobs=3)
        print(f"It listens on {process.listening.result()}: /console/ to watch it, /docs for its API.\n", flush=True)
        left = [*await scheduler.running(), *await scheduler.queue()]
        if left:
            print(f"The last run left {len(left)} jobs unfinished. They continue now.\n", flush=True)
        narrator.start()
        if options.crash:
            asyncio.get_running_loop().call_later(random.uniform(*CRASH_SECONDS), _kill_this_process)
        done = await _work(scheduler, narrator, left, process.stopping, options, model)
        if not process.stopping.is_set():
            await print_stories(scheduler, data, done)
            print_next_steps(data, process.listening.result())
        if not options.once and not process.stopping.is_set():
            print("\nThe server runs until Ctrl-C.", flush=True)
            await process.stopping.wait()
        if not options.once:
            print("\nStopping: running jobs finish first, the others wait in the database.\n", flush=True)
        await narrator.stop()
    finally:
        if not process.stopping.is_set():
            process.stop()
        await serving


async def _is_ready(scheduler: Scheduler, serving: "asyncio.Task[bool]") -> bool:
    """Waits until the scheduler is ready. Returns False if a signal stops it first; raises what prevents its start."""
    while await scheduler.readiness() is not None:
        await asyncio.wait([serving], timeout=0.02)
        if serving.done():
            await serving
            return False
    return True


def _free_port(wanted: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            return 0
    return wanted


@runtime_checkable
class FindsModels(Protocol):
    """What the extension `stories` offers, if it is there."""

    def find_model(self) -> str | None: ...


def _find_model(scheduler: Scheduler) -> str | None:
    stories = scheduler.attached.get("stories")
    return stories.find_model() if isinstance(stories, FindsModels) else None


async def _work(
    scheduler: Scheduler,
    narrator: Narrator,
    left: list[Job],
    end: asyncio.Event,
    options: Options,
    model: str | None,
) -> list[Job]:
    """Finishes the jobs that the last process left, or else makes one film or many. Returns the last jobs it ran."""
    await _wait_for(scheduler, left, end)
    is_endless = options.keep or options.crash
    while not end.is_set() and (is_endless or not left):
        left = await _order_a_film(scheduler, options.data, model)
        await _wait_for(scheduler, left, end, _ask_for_a_preview(scheduler, narrator))
    return left


async def _ask_for_a_preview(scheduler: Scheduler, narrator: Narrator) -> None:
    """Makes a direct request. It interrupts nothing, but gets the next free slot, before queued jobs."""
    await asyncio.sleep(0.1)
    with contextlib.suppress(Unavailable):  # The scheduler is stopping and refuses the caller.
        async for update in scheduler.stream_direct("render", {"frame": 0}):
            narrator.show_update(update)


async def _order_a_film(scheduler: Scheduler, data: Path, model: str | None) -> list[Job]:
    """Submits everything but the group in one transaction, then moves one job and cancels another."""
    jobs = await scheduler.submit_many(film_jobs(data, model))
    ids = {job.title: job.job_id for job in jobs}
    _, members = await scheduler.submit_group(publishing_jobs(after=ids["encode"]), mode="sequential", name="publish")
    await scheduler.move(ids[f"frame {FRAMES}"], to="front")
    await scheduler.cancel(ids["poster"], reason="no poster after all")
    return [*jobs, *members]


async def _wait_for(
    scheduler: Scheduler, jobs: list[Job], end: asyncio.Event, *beside: Coroutine[Any, Any, None]
) -> None:
    """Waits until all jobs have ended, retries included, or until a signal stops the demo."""
    if not jobs:
        return
    ends: asyncio.Future[Any] = asyncio.gather(*(scheduler.wait(job.job_id) for job in jobs), *beside)
    stopping: asyncio.Future[Any] = asyncio.ensure_future(end.wait())
    await asyncio.wait([ends, stopping], return_when=asyncio.FIRST_COMPLETED)
    for future in (ends, stopping):
        future.cancel()
    await asyncio.gather(ends, stopping, return_exceptions=True)


def _kill_this_process() -> NoReturn:
    print("\nkill -9: this process ends here, in the middle. Run it again, without --crash.", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit  # Never reached: SIGKILL cannot be handled.
