"""A process to be killed: submits and runs tiny jobs on one file until all of them are done.

    python -m tests.crash.worker DIRECTORY JOBS LIFE [PLANTED]

It says what it did in files beside the database, each line in one write: `starts` when it is about to open the store,
`executions` when a handler begins, `acknowledged` when `submit` has returned. What a process has written outlives it.
"""

import asyncio
import contextlib
import os
import random
import sys
from pathlib import Path
from typing import Any

import apsw

from nextslot import NewJob, RunContext, Scheduler
from nextslot.errors import Conflict
from nextslot.store.sqlite import sqlite_store

OFFICE = "crash"
LIMIT = 3
# Few enough that the queue is still being filled at the last kill, enough that it is never empty before.
BACKLOG = 200
# A killed process loses nothing that the system has taken; FULL would only tell a power cut apart, and is slower.
SYNCHRONOUS = "NORMAL"


class Witness:
    """Writes down, once each, which runs began and which jobs were acknowledged."""

    def __init__(self, directory: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._starts = os.open(directory / "starts", flags)
        self._executions = os.open(directory / "executions", flags)
        self._acknowledged = os.open(directory / "acknowledged", flags)
        self._seen: set[str] = set()

    def starts(self) -> None:
        os.write(self._starts, b".")

    def began(self, job_id: str, run_id: str) -> None:
        if run_id not in self._seen:
            self._seen.add(run_id)
            os.write(self._executions, f"{job_id} {run_id}\n".encode())

    def acknowledged(self, job_ids: list[str]) -> None:
        new = [job_id for job_id in job_ids if job_id not in self._seen]
        self._seen.update(new)
        os.write(self._acknowledged, "".join(f"{job_id}\n" for job_id in new).encode())


class Life:
    """One life of the process, from the first look at the file to the last job, or to the kill."""

    def __init__(self, directory: Path, jobs: int, life: int) -> None:
        self.path = directory / "nextslot.db"
        self.url = os.environ.get("NEXTSLOT_CRASH_URL") or f"sqlite:///{self.path}"
        self.scheduler = Scheduler(self.url, data=directory, synchronous=SYNCHRONOUS)
        self.witness = Witness(directory)
        self._random = random.Random(life)
        self._wanted = jobs
        self._open = 0
        self.scheduler.job_type("tiny", retry_policy={"max_attempts": 100})(self._tiny)

    async def _tiny(self, run: RunContext) -> None:
        self.witness.began(run.job_id, run.run_id)
        await asyncio.sleep(0.001)
        self._open -= 1

    async def run(self) -> None:
        self.witness.starts()
        async with self.scheduler as scheduler:
            with contextlib.suppress(Conflict):
                await scheduler.offices.create(OFFICE, max_concurrent_jobs=LIMIT)
            self._count()
            await asyncio.gather(*(self._submit(batch) for batch in (1, 1, 1, 20)))
            while last := (await scheduler.running(OFFICE) + await scheduler.queue(OFFICE, limit=10 * BACKLOG))[-1:]:
                await scheduler.wait(last[0].job_id)

    def _count(self) -> None:
        """Counts the jobs that earlier lives have left to submit and to run."""
        connection: Any
        if self.url.startswith("sqlite:"):
            connection = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READONLY)
        else:
            from tests import databases  # Which brings much that the many lives on SQLite need not wait for.

            connection = databases.Plain(self.url)
        self._wanted -= connection.execute("select count(*) from jobs where retry_of is null").get
        self._open = connection.execute("select count(*) from jobs where finished_at is null").get
        connection.close()

    async def _submit(self, batch: int) -> None:
        """Submits jobs as long as there are some, a few at a time, so that no kill finds all of them done."""
        while self._wanted > 0:
            if self._open >= BACKLOG:
                await asyncio.sleep(0.002)
                continue
            count = min(batch, self._wanted)
            self._wanted -= count
            self._open += count
            priority = self._random.choice((0, 0, 0, 7))
            if count == 1:
                jobs = [await self.scheduler.submit("tiny", office_id=OFFICE, priority=priority)]
            else:
                new = NewJob(job_type="tiny", office_id=OFFICE, priority=priority)
                jobs = await self.scheduler.submit_many([new] * count)
            self.witness.acknowledged([job.job_id for job in jobs])


def main(directory: str, jobs: str, number: str, *planted: str) -> None:
    if int(number) % 2:
        # Every other life has a disk that seems slow, so that its commits are made in the writer's thread.
        sqlite_store.SLOW_COMMIT = sqlite_store.QUICK_COMMIT = 0.0
    life = Life(Path(directory), int(jobs), int(number))
    if planted:
        from tests.crash.planted import DEFECTS

        DEFECTS[planted[0]](life)
    asyncio.run(life.run())


if __name__ == "__main__":
    main(*sys.argv[1:])
