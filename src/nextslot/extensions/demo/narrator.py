"""Prints the events of the demo as they arrive, the progress of its runs, and where to find the results afterwards."""

import asyncio
import contextlib
import sys
import textwrap
from pathlib import Path

from nextslot import Direct, Event, Instant, Job, Scheduler, Update
from nextslot.errors import Unavailable
from nextslot.system.clock import SystemClock

PREVIEW = "preview, direct"


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


async def print_stories(scheduler: Scheduler, data: Path, jobs: list[Job]) -> None:
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


def print_next_steps(data: Path, url: str) -> None:
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
