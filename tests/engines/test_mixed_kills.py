"""Kill -9 of the scheduler, Slurm's daemons, wrappers and guardians in one loop; limits are counted from outside.

`./test --all` runs a short loop; `NEXTSLOT_KILL_SECONDS=3600 ./test tests/engines/test_mixed_kills.py -s` a longer one,
and prints its figures.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from nextslot.executors.engines.contract import Engine
from nextslot.executors.engines.local_engine import LocalEngine
from nextslot.extensions.slurm.slurm_engine import SlurmEngine
from tests.engines.evidence import is_alive
from tests.engines.rig import Rig
from tests.engines.slurm_cluster import SlurmCluster
from tests.engines.test_kills import ROOT, end_all
from tests.support import IS_ALL

SECONDS = float(os.environ.get("NEXTSLOT_KILL_SECONDS", "0"))
SLOTS = 4
# Slurm takes a job for running whose start it has lost with its controller: the start timeout ends it there.
SETTINGS: Mapping[str, Any] = {"lease_seconds": 6.0, "start_timeout_seconds": 45.0, "slots": SLOTS}
# Without these, a job takes the memory of the whole node.
ON_SLURM = {**SETTINGS, "options": {"memory": "100M", "cpus": 1}}
JOBS_OF_A_LIFE = 6

pytestmark = [
    pytest.mark.no_cover,
    pytest.mark.skipif(not IS_ALL and not SECONDS, reason="a loop of kills: a part of ./test --all"),
]


class Observer:
    """Counts the jobs at work by their lock files and processes, as nothing of nextslot does."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._is_over = threading.Event()
        self.most = self.looks = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        thread = threading.Thread(target=self._watch)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(0.02):
            self.most = max(self.most, sum(self._is_at_work(lock) for lock in self._work.glob("*.lock")))
            self.looks += 1

    def _is_at_work(self, lock: Path) -> bool:
        with suppress(FileNotFoundError):
            return any(is_alive(name) for name in lock.read_text().split())
        return False


class KillLoop:
    """Schedulers of one database, one after the other, while everything around their runs is killed."""

    def __init__(
        self,
        place: Path,
        engine: Engine,
        config: str,
        faults: Mapping[str, Callable[[], object]] | None = None,
        settings: Mapping[str, Any] = SETTINGS,
        wait_for_wrapper: float = 3.0,
    ) -> None:
        """Takes faults of the engine by name, and the settings of the engine.

        A kill of a wrapper waits so many seconds for one that lives: engines take a while to start a run.
        """
        self._settings = settings
        self.rig = Rig(place, engine, **settings)
        self.accepted: list[str] = []
        self.kills: Counter[str] = Counter()
        self._config, self._chance, self._wait_for_wrapper = config, random.Random(20), wait_for_wrapper
        self._faults: dict[str, Callable[[], object]] = {
            "wrapper": lambda: self._kill_of_run(with_guardian=False),
            "wrapper and guardian": lambda: self._kill_of_run(with_guardian=True),
            "guardian": self._kill_guardian,
            **(faults or {}),
        }
        self._next: list[str] = []

    def life(self, number: int) -> None:
        """Starts a scheduler that accepts jobs; kills what its runs need, then the scheduler."""
        argv = [sys.executable, "-m", "tests.engines.placed_server", str(self.rig.place), self._config]
        with (self.rig.place / "server.log").open("ab") as log:
            process = subprocess.Popen(
                [*argv, json.dumps(self._settings)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("".join(f"{number}-{n} 0.8\n" for n in range(JOBS_OF_A_LIFE)))
        process.stdin.close()
        for line in process.stdout:
            if line.strip() == "submitted":
                break
            self.accepted.append(line.strip())
        for _ in range(3):
            time.sleep(self._chance.uniform(0.1, 1.2))
            name = self._next_fault()
            self.kills[name] += self._faults[name]() is not False
        process.kill()
        process.wait()
        process.stdout.close()
        self.kills["scheduler"] += 1

    def _next_fault(self) -> str:
        """Returns each fault once, in an order by chance, before one comes again."""
        if not self._next:
            self._next = self._chance.sample(list(self._faults), len(self._faults))
        return self._next.pop()

    def _running(self) -> str | None:
        """Returns a run that is at work and whose wrapper lives, after a while if there is none yet."""
        end = time.monotonic() + self._wait_for_wrapper
        while time.monotonic() < end:
            begun = self.rig.settings.directory.glob("*/output/*")
            if found := sorted(path.parents[1] for path in begun if _lives(path.parents[1] / "claim.json")):
                return self._chance.choice(found).name
            time.sleep(0.02)
        return None

    def _kill_of_run(self, with_guardian: bool) -> bool:
        run_id = self._running()
        with suppress(OSError, KeyError):  # It may end at this very moment, or the scheduler has claimed it.
            if run_id is not None:
                self.rig.kill(run_id, with_guardian=with_guardian)
                return True
        return False

    def _kill_guardian(self) -> bool:
        run_id = self._running()
        with suppress(OSError, KeyError, IndexError):
            if run_id is not None:
                wrapper = self.rig.wrapper(run_id)
                children = Path(f"/proc/{wrapper}/task/{wrapper}/children").read_text().split()
                os.kill(int(children[0]), 9)
                return True
        return False

    def run(self, lives: int, help_engine: Callable[[], object] = lambda: None) -> None:
        """Runs the loop, lets every job end, and checks what was seen from outside.

        `help_engine` does what an operator of the engine does after its crashes.
        """
        observer, end, number = Observer(self.rig.work), time.monotonic() + SECONDS, 0
        with observer.watching():
            while number < lives or time.monotonic() < end:
                self.life(number)
                number += 1
            asyncio.run(self._end_all(help_engine))
        begun = len(self.rig.lines("begin"))
        sys.stdout.write(
            f"\n{number} lives, {len(self.accepted)} jobs, {begun} runs, kills: {dict(self.kills)}; at most "
            f"{observer.most} of {SLOTS} at work in {observer.looks} looks\n"
        )

        assert len(self.accepted) == JOBS_OF_A_LIFE * number
        assert {line[1] for line in self.rig.lines("end")} == {line[1] for line in self.rig.lines("begin")}
        assert 1 < observer.most <= SLOTS
        assert sum(self.kills.values()) > number

    async def _end_all(self, help_engine: Callable[[], object]) -> None:
        operator = asyncio.create_task(_repeat(help_engine))
        try:
            await end_all(self.rig, self.accepted, 300)
        finally:
            operator.cancel()


async def _repeat(call: Callable[[], object]) -> None:
    while True:
        await asyncio.to_thread(call)
        await asyncio.sleep(1)


def _lives(claim: Path) -> bool:
    """Returns whether the wrapper lives that made a claim: its number may be that of another process by now."""
    with suppress(OSError, ValueError, KeyError):
        found = json.loads(claim.read_text())
        return bool(found["by"] == "wrapper" and is_alive(f"{found['pid']}@{found['started']}"))
    return False


def test_jobs_of_the_local_engine_end_whatever_is_killed(tmp_path: Path) -> None:
    KillLoop(tmp_path, LocalEngine(), "-").run(lives=6)


def test_jobs_on_slurm_end_whatever_is_killed(tmp_path: Path, slurm: SlurmCluster) -> None:
    chance = random.Random(22)

    def kill(daemon: str, start: Callable[[], None]) -> None:
        slurm.kill(daemon)
        time.sleep(chance.uniform(0, 1))
        start()

    faults = {
        "slurmctld": lambda: kill("slurmctld", slurm.start_controller),
        "slurmd": lambda: kill("slurmd", slurm.start_busy_node),
    }
    engine = SlurmEngine({"config_file": str(slurm.config)})
    KillLoop(tmp_path, engine, str(slurm.config), faults, ON_SLURM).run(lives=4, help_engine=slurm.resume)
