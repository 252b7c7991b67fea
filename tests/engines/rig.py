"""A scheduler with one engine, whose jobs leave evidence; and what that evidence says."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nextslot import Scheduler
from nextslot.domain import Job
from nextslot.domain.limits import Limits
from nextslot.executors.engines.contract import Engine
from nextslot.executors.engines.engines import EngineSettings
from nextslot.executors.engines.run_directory import RunDirectory, hash_of
from nextslot.executors.process_tree.kill_tree import descendants
from nextslot.executors.process_tree.run_marks import Marks
from tests import databases
from tests.engines.evidence import GO

EVIDENCE = str(Path(__file__).with_name("evidence.py"))
# How long a step may take; a Ray of 26 processes on a machine with other work takes longer than other engines.
PATIENCE = float(os.environ.get("NEXTSLOT_TEST_PATIENCE", "60"))
# More than the kills of any one job in a loop of kills.
RETRY = {"max_attempts": 50, "base_delay_seconds": 0.2, "backoff": "linear"}


class Rig:
    """Makes schedulers, one life after the other, on one database and one engine."""

    def __init__(self, place: Path, engine: Engine, **settings: Any) -> None:
        self.place, self.engine = place, engine
        self.work = place / "work"
        self.work.mkdir(exist_ok=True)
        directory = place / "engines" / "box"
        directory.mkdir(parents=True, exist_ok=True)
        given: Mapping[str, Any] = {"python": sys.executable, "poll_seconds": 0.2, "slots": 4, **settings}
        self.settings = EngineSettings(name="box", kind="test", directory=directory, **given)

    def scheduler(self, more: Mapping[str, int] | None = None, **options: Any) -> Scheduler:
        """Makes a scheduler; `more` are units of further resources."""
        made = Scheduler(
            databases.url(self.place),
            data=self.place,
            synchronous="NORMAL",
            limits=Limits(resources={"box": self.settings.slots, **(more or {})}),
            concurrency=20,
            **options,
        )
        made.job_types.engines.add(self.settings, self.engine)
        self.add(made, "work", [sys.executable, EVIDENCE, "{key}", "{seconds}"])
        self.add(made, "leave", [sys.executable, EVIDENCE, "{key}", "{seconds}", "--leave"])
        self.add(made, "script", ["sh", "-c", "{script}"])
        return made

    def add(self, scheduler: Scheduler, name: str, command: list[str]) -> None:
        options: dict[str, Any] = {"engine": "box", "grace_seconds": 1, "retry_policy": RETRY, "cwd": str(self.work)}
        scheduler.job_types.add_command(name, command, **options)

    def prepared(self, run_id: str, script: str) -> RunDirectory:
        """Returns the directory of a run that no scheduler has started, with its request."""
        directory = RunDirectory(self.settings.directory / run_id, hash_of("token"))
        directory.prepare(
            {
                "token": "token",
                "argv": ["sh", "-c", script],
                "cwd": None,
                "env": {},
                "inherited": ["PATH"],
                "inherited_prefixes": [],
                "stdin": "{}",
                "timeout_seconds": None,
                "silence_seconds": None,
                "grace_seconds": 1,
                "log_cap_bytes": 1 << 20,
                "patience_seconds": 300,
                "renew_seconds": 1,
                "tag": 1 << 61,
            }
        )
        return directory

    def let_end(self) -> None:
        """Lets the jobs end that were submitted with `"seconds": GO`."""
        (self.work / GO).touch()

    # Evidence.

    def lines(self, word: str, key: str | None = None) -> list[list[str]]:
        path = self.work / "evidence.log"
        found = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in found if line[0] == word and key in (None, line[1])]

    def processes(self, run_id: str) -> list[int]:
        """The processes of a run's tree, wherever they have gone, without those of its wrapper."""
        marks = Marks([run_id])
        return [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit() and marks.run_of(int(one.name))]

    def wrapper(self, run_id: str) -> int:
        """The process that has claimed a run."""
        import orjson

        claim = orjson.loads((self.settings.directory / run_id / "claim.json").read_bytes())
        return int(claim["pid"])

    def kill(self, run_id: str, *, with_guardian: bool) -> None:
        """Kills the wrapper of a run, at the same moment with its guardian if that is asked for."""
        wrapper = self.wrapper(run_id)
        pids = [wrapper]
        if with_guardian:
            for pid, _ in descendants(wrapper):
                os.kill(pid, signal.SIGSTOP)
            pids += [pid for pid, _ in descendants(wrapper)]
        os.kill(wrapper, signal.SIGSTOP)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def run_id_of(scheduler: Scheduler, job: Job | str) -> str:
    run = await scheduler.run_of(job)
    assert run is not None
    return run.run_id


async def until(is_so: Any, seconds: float = PATIENCE) -> None:
    """Waits until a coroutine function, or a function, says so."""
    end = time.monotonic() + seconds
    while True:
        found = is_so()
        if await found if asyncio.iscoroutine(found) else found:
            return
        assert time.monotonic() < end, "it did not come about"
        await asyncio.sleep(0.05)


async def until_running(scheduler: Scheduler, job: Job, seconds: float = PATIENCE) -> str:
    """Waits until the wrapper of a job's run was seen; returns the run's id."""

    async def is_running() -> bool:
        run = await scheduler.run_of(job)
        return run is not None and run.placement is not None and run.placement["state"] == "running"

    await until(is_running, seconds)
    return await run_id_of(scheduler, job)


async def until_ended(scheduler: Scheduler, run_id: str) -> None:
    """Waits until the end of a run is stored."""

    async def has_ended() -> bool:
        return (await scheduler.run_by_id(run_id)).finished_at is not None

    await until(has_ended)
