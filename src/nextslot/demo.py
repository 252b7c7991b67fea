"""Runs a small real workload and prints what happens: `python -m nextslot.demo`, or `./run`.

It renders a film of six frames on one gpu; its soundtrack fails once; then it encodes and publishes the film. Meanwhile
a direct caller gets a preview before the queued jobs, and a language model, if there is one, writes a story.
"""

import argparse
import asyncio
import contextlib
import os
import random
import signal
import socket
import sys
import textwrap
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, NoReturn, Protocol, runtime_checkable

from nextslot import extension
from nextslot.engine.direct.connected_callers import Update
from nextslot.executors.run_context import RunContext
from nextslot.server.app import Options
from nextslot.server.serve import Process
from nextslot.system.clock import SystemClock
from nextslot.system.instant import Instant

from .domain import (
    Direct,
    Event,
    Job,
    NewJob,
    OnDependencyFailure,
)
from .errors import NextslotError, Unavailable
from .scheduler import Scheduler

FRAMES = 6
PREVIEW = "preview, direct"
# While frames are rendered some job is always running, so a kill in this period always leaves a job to recover.
CRASH_SECONDS = (1.6, 3.8)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./run", description="A small workload on a real scheduler.")
    parser.add_argument("--data", type=Path, default=Path("nextslot-demo"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--port", type=int, default=8000, help="the port to listen on; if it is taken, a free one")
    parser.add_argument("--once", action="store_true", help="end after the film, instead of serving until Ctrl-C")
    parser.add_argument("--keep", action="store_true", help="make one film after the other, until Ctrl-C")
    parser.add_argument(
        "--crash", action="store_true", help="kill this process (kill -9) at a random moment; then run it again"
    )
    parser.add_argument("--no-story", action="store_true", help="use no language model")
    options = parser.parse_args(arguments)
    try:
        options.data.mkdir(parents=True, exist_ok=True)
        asyncio.run(_run(options))
    except (NextslotError, OSError) as error:
        print(f"nextslot demo: {error}", file=sys.stderr)
        return 1
    return 0


async def _run(options: argparse.Namespace) -> None:
    data: Path = options.data
    scheduler = Scheduler(f"sqlite:///{data}/nextslot.db", extensions=extension.names())
    _register(scheduler)
    narrator = Narrator(scheduler)
    print(f"One scheduler, one gpu, three jobs at a time. All its data is in {data}/nextslot.db.", flush=True)
    model = None if options.no_story else await asyncio.to_thread(_find_model, scheduler)
    print(f"A story is written by {model}.\n" if model else "No story: there is no language model here.\n", flush=True)
    process = Process(scheduler, Options(), "127.0.0.1", _free_port(options.port))
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
        done = await _work(scheduler, narrator, left, process.told, options, model)
        if not process.told.is_set():
            await _print_stories(scheduler, data, done)
            _print_next_steps(data, process.listening.result())
        if not options.once and not process.told.is_set():
            print("\nThe server runs until Ctrl-C.", flush=True)
            await process.told.wait()
        if not options.once:
            print("\nStopping: running jobs finish first, the others wait in the database.\n", flush=True)
        await narrator.stop()
    finally:
        if not process.told.is_set():
            process.stop()
        await serving


async def _is_ready(scheduler: Scheduler, serving: "asyncio.Task[bool]") -> bool:
    """Waits until the scheduler is ready. Returns False if it was asked to stop; raises what prevents its start."""
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


# The work.


def _register(scheduler: Scheduler) -> None:
    @scheduler.job_type("render", resources={"gpu": 1})
    async def render(run: RunContext, frame: int) -> dict[str, int]:
        for percent in (0, 50):
            run.progress(percent / 100, "tracing light" if percent else "loading the scene")
            await asyncio.sleep(0.3)
        (run.artifacts / f"frame-{frame}.txt").write_text(f"frame {frame}\n")
        return {"frame": frame}

    @scheduler.job_type("compose")
    def compose(run: RunContext) -> None:
        """Runs in a thread, since it is not async. Its first attempt fails."""
        run.log.info("attempt %d", run.attempt)
        run.wait(0.5)
        if run.attempt == 1:
            run.fail("the orchestra is not in tune")

    @scheduler.job_type("encode")
    async def encode(run: RunContext, frames: int) -> None:
        run.progress(0.1, f"reading {frames} frames")
        await asyncio.sleep(0.8)
        (run.artifacts / "film.txt").write_text(f"a film of {frames} frames\n")

    @scheduler.job_type("send")
    async def send(run: RunContext, what: str) -> None:
        run.log.info("%s", what)
        await asyncio.sleep(0.4)

    # A command: each parameter in its argv becomes exactly one argument. No shell is involved.
    pack = [sys.executable, "-m", "tarfile", "--verbose", "--create", "{to}", "{what}"]
    scheduler.job_types.add_command("pack", pack)


async def _work(
    scheduler: Scheduler,
    narrator: "Narrator",
    left: list[Job],
    end: asyncio.Event,
    options: argparse.Namespace,
    model: str | None,
) -> list[Job]:
    """Finishes the jobs that the last process left, or else makes one film or many. Returns the last jobs it ran."""
    await _wait_for(scheduler, left, end)
    is_endless = options.keep or options.crash
    while not end.is_set() and (is_endless or not left):
        left = await _order_a_film(scheduler, options.data, model)
        await _wait_for(scheduler, left, end, _ask_for_a_preview(scheduler, narrator))
    return left


async def _ask_for_a_preview(scheduler: Scheduler, narrator: "Narrator") -> None:
    """Makes a direct request. It interrupts nothing, but gets the next free slot, before queued jobs."""
    await asyncio.sleep(0.1)
    with contextlib.suppress(Unavailable):  # The scheduler is stopping and refuses the caller.
        async for update in scheduler.stream_direct("render", {"frame": 0}):
            narrator.show_update(update)


async def _order_a_film(scheduler: Scheduler, data: Path, model: str | None) -> list[Job]:
    """Submits everything but the group in one transaction, then moves one job and cancels another."""
    frames = [
        NewJob(job_type="render", title=f"frame {number}", params={"frame": number}, key=f"frame {number}")
        for number in range(1, FRAMES + 1)
    ]
    soundtrack = NewJob(
        job_type="compose", title="soundtrack", key="soundtrack", retry_policy={"base_delay_seconds": 1.5}
    )
    poster = NewJob(job_type="render", title="poster", params={"frame": 0})
    encode = NewJob(
        job_type="encode",
        title="encode",
        key="encode",
        params={"frames": FRAMES},
        depends_on=[new.key or "" for new in (*frames, soundtrack)],
        on_dependency_failure=OnDependencyFailure.CANCEL,
    )
    pack = NewJob(
        job_type="pack",
        title="pack the logs",
        params={"to": f"{data}/logs.tar.gz", "what": f"{data}/logs"},
        depends_on=["encode"],
        on_dependency_failure=OnDependencyFailure.CANCEL,
    )
    jobs = await scheduler.submit_many([*frames, soundtrack, poster, encode, pack, *_story(model)])
    ids = {job.title: job.job_id for job in jobs}
    _, members = await scheduler.submit_group(_publish(after=ids["encode"]), mode="sequential", name="publish")
    await scheduler.move(ids[f"frame {FRAMES}"], to="front")
    await scheduler.cancel(ids["poster"], reason="no poster after all")
    return [*jobs, *members]


def _story(model: str | None) -> list[NewJob]:
    if model is None:
        return []
    return [
        NewJob(
            job_type="story",
            title="story",
            params={"topic": "a lighthouse and its keeper's first film", "target_length": 400, "model": model},
            timeout_seconds=60,
            retry_policy={"max_attempts": 1, "base_delay_seconds": 1},
        )
    ]


def _publish(after: str) -> list[NewJob]:
    return [
        NewJob(
            job_type="send",
            title=title,
            params={"what": title},
            depends_on=[after] if title == "upload" else [],
            on_dependency_failure=OnDependencyFailure.CANCEL,
        )
        for title in ("upload", "announce")
    ]


async def _wait_for(
    scheduler: Scheduler, jobs: list[Job], end: asyncio.Event, *beside: Coroutine[Any, Any, None]
) -> None:
    """Waits until all jobs have ended, retries included, or until the demo is asked to stop."""
    if not jobs:
        return
    ends: asyncio.Future[Any] = asyncio.gather(*(scheduler.wait(job.job_id) for job in jobs), *beside)
    stopping: asyncio.Future[Any] = asyncio.ensure_future(end.wait())
    await asyncio.wait([ends, stopping], return_when=asyncio.FIRST_COMPLETED)
    for future in (ends, stopping):
        future.cancel()
    await asyncio.gather(ends, stopping, return_exceptions=True)


# Printing what happens.


class Narrator:
    """Prints events as they arrive, and the progress of runs, which is polled since it makes no events."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._began = SystemClock().now()
        self._known: dict[str, Job] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._print_events()), asyncio.create_task(self._print_progress())]

    async def stop(self) -> None:
        # The stream of events lags a little behind the work.
        await asyncio.wait(self._tasks, timeout=0.2)
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    def show_update(self, update: Update) -> None:
        """Prints an update that a direct caller receives."""
        data = update.data
        if update.kind == "place":
            self._print(SystemClock().now(), PREVIEW, f"waits for a slot, {data['ahead']} callers ahead of it")
        elif update.kind == "started":
            self._print(SystemClock().now(), PREVIEW, "started: after the running jobs, before the queued ones")
        elif update.kind == "result":
            ended: Direct = data["direct"]
            self._print(SystemClock().now(), PREVIEW, f"{ended.status.lower()}: it waited {ended.waited_seconds:.1f} s")

    async def _print_events(self) -> None:
        """Prints events. Reads from the first event on, to miss none of the recovery, but skips those before this
        start.
        """
        with contextlib.suppress(Unavailable):  # The scheduler has stopped.
            async for event in self._scheduler.events():
                # The direct caller itself prints what happens to its reservation.
                if event.timestamp >= self._began and not event.type.startswith("reservation_"):
                    job = await self._job(event.job_id) if event.job_id else None
                    self._print(event.timestamp, _name(event, job), _sentence(event, job))

    async def _print_progress(self) -> None:
        printed: dict[str, int] = {}
        with contextlib.suppress(Unavailable):
            while True:
                for job in await self._scheduler.running():
                    run = await self._scheduler.run_of(job.job_id)
                    fraction, text = (run and self._scheduler.progress(run.run_id)) or (None, "")
                    # A story reports progress with every word: print each quarter only.
                    if fraction and int(4 * fraction) != printed.get(job.job_id):
                        printed[job.job_id] = int(4 * fraction)
                        self._print(SystemClock().now(), _title(job), f"{fraction:.0%}: {text}")
                await asyncio.sleep(0.1)

    async def _job(self, job_id: str) -> Job:
        if job_id not in self._known:
            self._known[job_id] = await self._scheduler.job(job_id)
        return self._known[job_id]

    def _print(self, when: Instant, name: str, sentence: str) -> None:
        seconds = (when - self._began) / 1_000_000
        print(f"{seconds:6.2f} s   {name:20} {sentence}", flush=True)


def _name(event: Event, job: Job | None) -> str:
    if job is not None:
        return _title(job)
    return "group publish" if event.type == "group_finished" else "scheduler"


def _title(job: Job) -> str:
    return f"{job.title}{', retry' if job.retry_of else ''}"


def _sentence(event: Event, job: Job | None) -> str:
    """Returns the event's type as words, with its main detail."""
    data = event.details
    added = {
        "job_started": f"on {data.get('worker_id')}",
        "job_failed": f"{data.get('failure_kind')}: {data.get('error')}",
        "job_retrying": f"as a new job, in {data.get('delay_seconds', 0):g} s",
        "job_failed_permanently": str(data.get("error")),
        "job_ready": "its delay is over" if job and job.retry_of else "its dependencies are done",
        "job_moved": "to the front",
        "job_cancelled": str(data.get("reason")),
        "group_finished": str(data.get("status")),
        "recovered": f"{data.get('lost')} running when the last process died: FAILED, and retried",
    }.get(event.type)
    word = event.type.removeprefix("job_").removeprefix("group_").replace("_", " ")
    return f"{word}: {added}" if added else word


async def _print_stories(scheduler: Scheduler, data: Path, jobs: list[Job]) -> None:
    """Prints the title and the beginning of each story, and the name of its file."""
    for job in jobs:
        if job.job_type != "story":
            continue
        ended = await scheduler.wait(job.job_id)
        for artifact in ended.run.artifacts if ended.run else ():
            if artifact.name.endswith(".md"):
                file = data / artifact.path
                _, _, story = file.read_text().partition("\n---\n")
                title, *text = [line for line in story.splitlines() if line]
                begin = textwrap.wrap(" ".join(text), 100)[:4]
                print("\n    ".join(["", title, *begin, f"… in {file}"]), flush=True)


def _print_next_steps(data: Path, url: str) -> None:
    print(f"""
Where to look:
  {url}/console/    the queue, live; {url}/docs for the API
  nextslot ls           the same at a terminal ({sys.executable.rpartition("/")[0]}/nextslot ls --url {url})
  {data}/nextslot.db    the queue and all history; open it with any SQLite tool, for example
      sqlite3 {data}/nextslot.db 'select title, stage, outcome from jobs order by job_id'
  {data}/logs           the logs of the runs, one file each
  {data}/artifacts      the files that the runs produced, one directory each
  {data}/logs.tar.gz    the archive that the command made

Try next:
  ./run --crash         kills itself with SIGKILL at a random moment; the next ./run shows the recovery
  ./run --keep          one film after the other until Ctrl-C: it finishes running jobs, then stops
  ./run --no-story      the same in 6 seconds, without the language model
  docs/quickstart.md    the same in your own code
  docs/how-to.md        instructions for each of these features""")


# Ending.


def _kill_this_process() -> NoReturn:
    print("\nkill -9: this process ends here, in the middle. Run it again, without --crash.", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit  # Never reached: SIGKILL cannot be handled.


if __name__ == "__main__":
    sys.exit(main())
