"""docs/architecture.md says what the code does: the trace is walked by a real job, the files are there."""

import asyncio
import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.server.support import serving

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/nextslot"
PAGE = (ROOT / "docs/architecture.md").read_text()


@dataclass(frozen=True)
class Hop:
    number: int
    file: str
    function: str
    called_by: str


def hops() -> list[Hop]:
    rows = re.findall(r"^\| (\d+) \| `(\S+): (\S+)` \| ([^|]+) \|", PAGE, re.MULTILINE)
    return [Hop(int(number), file, function, called_by) for number, file, function, called_by in rows]


def test_the_trace_has_about_ten_hops_in_order() -> None:
    assert [hop.number for hop in hops()] == list(range(1, 11))


@pytest.mark.parametrize("hop", hops(), ids=lambda hop: hop.function)
def test_a_hop_exists(hop: Hop) -> None:
    module = importlib.import_module("nextslot." + hop.file.removesuffix(".py").replace("/", "."))

    function: Any = module
    for name in hop.function.split("."):
        function = getattr(function, name)

    assert Path(function.__code__.co_filename) == SOURCE / hop.file
    assert function.__code__.co_qualname == hop.function


@pytest.mark.real_time
async def test_a_job_walks_the_trace_in_order_and_each_hop_is_called_by_whom_the_page_says(tmp_path: Path) -> None:
    calls = Calls()

    # In one thread, so that one profile sees all of it.
    async with serving(tmp_path, is_threaded=False) as server:
        sys.setprofile(calls.note)
        try:
            job = (await server.client.post("/api/jobs", json={"job_type": "echo"})).json()
            await server.scheduler.wait(job["job_id"])
        finally:
            sys.setprofile(None)

    assert [hop.function for hop in sorted(hops(), key=calls.order)] == [hop.function for hop in hops()]
    callers = {hop.number: hop for hop in hops()}
    for hop in hops():
        if hop.called_by.isdigit():
            assert calls.is_below(hop, callers[int(hop.called_by)]), hop
        else:
            assert not any(calls.is_below(hop, other) for other in hops() if other != hop), hop


# The aim is 30. Lower the bound with every step towards it. Three of them count the end of a job for the statistics.
MOST_FILES_OF_A_JOB = 73


@pytest.mark.real_time
async def test_a_job_goes_from_its_route_to_its_stored_end_through_few_files(tmp_path: Path) -> None:
    jobs: list[set[str]] = []

    async with serving(tmp_path, is_threaded=False) as server:
        for _ in range(3):
            files = FilesOfAJob()
            sys.setprofile(files.note)
            try:
                await server.client.post("/api/jobs", json={"job_type": "echo"})
                await files.is_stored.wait()
            finally:
                sys.setprofile(None)
            jobs.append(files.seen)

    # The files of every job: the first one fills caches, and the server may do something else meanwhile.
    found = set.intersection(*jobs)
    assert {"server/routes/jobs.py", "engine/dispatch/fairness.py", "engine/finish/job_finisher.py"} <= found
    assert len(found) <= MOST_FILES_OF_A_JOB, "\n".join(sorted(found))


def test_every_file_is_on_the_map_once_and_every_file_on_the_map_is_there() -> None:
    section = PAGE.split("\n## The files\n")[1].split("\n## ")[0]
    first_cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)

    listed = [name for cell in first_cells for name in re.findall(r"`([^`]+)`", cell)]

    files = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if path.name != "__init__.py"}
    assert sorted(listed) == sorted(files)


def test_every_everyday_change_begins_in_a_file_that_is_there() -> None:
    section = PAGE.split("\n## Everyday changes\n")[1].split("\n## ")[0]

    listed = [
        name for cell in re.findall(r"\| ([^|]+) \|$", section, re.MULTILINE) for name in re.findall(r"`(.+?)`", cell)
    ]

    assert len(listed) >= 40
    assert [name for name in listed if not (SOURCE / name).is_file()] == []


def test_the_map_for_contributors_shows_every_directory() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text().split("\n## Where things live\n")[1].split("\n## ")[0]

    listed = set(re.findall(r"`([a-z_/]+)`", section))

    directories = {path.parent.relative_to(SOURCE) for path in SOURCE.rglob("*.py")} - {Path()}
    shown = {path.as_posix() for path in directories if path.parts[0] != "extensions"}
    assert shown - listed == set()
    extensions = {path.name for path in directories if path.parts[0] == "extensions"} - {"extensions"}
    assert extensions - listed == set()


class FilesOfAJob:
    """The files of nextslot whose functions are called from the route of a new job until its outcome is stored."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.is_stored = asyncio.Event()

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        path, function = Path(frame.f_code.co_filename), frame.f_code.co_qualname
        if self.is_stored.is_set() or not path.is_relative_to(SOURCE):
            return
        name = path.relative_to(SOURCE).as_posix()
        is_within = event == "call" and (self.seen or function == "create_job")
        if is_within and name not in self.seen and not _is_below_the_watchdog(frame):
            self.seen.add(name)
        # A coroutine also "returns" when it waits; the outcome is stored once the finisher was called.
        is_finished = "engine/finish/job_finisher.py" in self.seen
        if event == "return" and function == "Runner._record" and is_finished:
            self.is_stored.set()


def _is_below_the_watchdog(frame: FrameType | None) -> bool:
    """Returns whether the watchdog calls this function: it checks the event loop from time to time."""
    while frame is not None:
        if frame.f_code.co_filename.endswith("system/watchdog.py"):
            return True
        frame = frame.f_back
    return False


class Calls:
    """The first call of each function of nextslot: when, and below which functions on the stack."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], tuple[int, list[tuple[str, str]]]] = {}

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        name = self._name(frame)
        if event == "call" and name is not None and name not in self._first:
            self._first[name] = (len(self._first), list(self._stack(frame.f_back)))

    def order(self, hop: Hop) -> int:
        return self._first[hop.file, hop.function][0]

    def is_below(self, hop: Hop, caller: Hop) -> bool:
        """Returns whether the function was called by `caller`, by something that `caller` calls, or by a function that
        `caller` gave to the store.
        """
        _, stack = self._first[hop.file, hop.function]
        return any(
            file == caller.file and (name == caller.function or name.startswith(f"{caller.function}.<locals>."))
            for file, name in stack
        )

    def _stack(self, frame: FrameType | None) -> Iterator[tuple[str, str]]:
        while frame is not None:
            name = self._name(frame)
            if name is not None:
                yield name
            frame = frame.f_back

    def _name(self, frame: FrameType) -> tuple[str, str] | None:
        path = Path(frame.f_code.co_filename)
        if not path.is_relative_to(SOURCE):
            return None
        return path.relative_to(SOURCE).as_posix(), frame.f_code.co_qualname
