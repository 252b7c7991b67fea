"""Spec 5 with a real scheduler, killed while its commands run: their trees die, and no retry runs beside one.

python -m tests.crash.test_process_trees DIRECTORY MODE [CGROUP]      is that scheduler
"""

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest

from nextslot import Scheduler
from nextslot.executors.command import register_command
from nextslot.executors.command_config import command_type
from nextslot.executors.process_tree.cgroups import own_cgroup
from nextslot.executors.process_tree.fork_server import Guardians
from nextslot.executors.process_tree.kill_tree import descendants, processes, state
from tests.crash.server import living, prepare
from tests.support import database, eventually, processes_of

COMMANDS = 10
# Each: the command, a child and its child, one that left the session, one whose parents have gone, and one more.
TREE = 6
# Notes its run and attempt; and, if it is a retry, which processes of an earlier attempt are there beside it.
COMMAND = """
import os, subprocess, sys
from pathlib import Path
run_id, attempt = os.environ["NEXTSLOT_RUN_ID"], os.environ["NEXTSLOT_ATTEMPT"]
if attempt != "1":
    first = [line.split()[0] for line in open("runs") if line.endswith(" 1\\n")]
    for entry in Path("/proc").iterdir():
        try:
            found = entry.name.isdigit() and (entry / "environ").read_text()
        except OSError:
            continue
        if found and any(one in found for one in first):
            print(entry.name, run_id, file=open("beside", "a"))
else:
    subprocess.Popen(["sh", "-c", "trap '' TERM; setsid sleep 300 & while :; do sleep 300; done"])
    subprocess.Popen(["sh", "-c", "(setsid sleep 300 &)"]).wait()
with open("runs", "a") as runs:
    runs.write(f"{run_id} {attempt}\\n")
if attempt == "1":
    subprocess.Popen(["sleep", "300"]).wait()
"""
# Leaves a process that can be found only by its limits and its cgroup: its session, parents, environment and files are
# its own. It holds a lock; a retry that cannot have the lock runs beside it.
SCRUBBED = """
import fcntl, os, subprocess, sys
lock = open("lock", "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    open("beside", "w").close()
attempt = os.environ["NEXTSLOT_ATTEMPT"]
if attempt == "1":
    null = subprocess.DEVNULL
    leave = ["env", "-i", "setsid", "sh", "-c", "(sleep 300 &) &"]
    subprocess.Popen(leave, pass_fds=[lock.fileno()], stdin=null, stdout=null, stderr=null).wait()
with open("runs", "a") as runs:
    runs.write(f"{os.environ['NEXTSLOT_RUN_ID']} {attempt}\\n")
if attempt == "1":
    subprocess.Popen(["sleep", "300"]).wait()
"""
# Keeps its guardian stopped.
STOPPING = "touch begun; (trap '' TERM; while kill -STOP $PPID; do sleep 0.01; done) & env -i setsid sleep 300 & wait"


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    for pid in processes_of(tmp_path):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("mode", ["plain", "forked"])
def test_the_trees_of_a_killed_scheduler_are_gone_within_two_seconds_and_retries_start_after(
    tmp_path: Path, mode: str
) -> None:
    scheduler = started_scheduler(tmp_path, mode)
    try:
        alive = len(processes_of(tmp_path))
        scheduler.kill()
        scheduler.wait()
        asyncio.run(eventually(lambda: not processes_of(tmp_path), seconds=2))
    finally:
        end_forked(tmp_path)

    retry_all(tmp_path)

    assert alive >= TREE * COMMANDS
    assert not (tmp_path / "beside").exists()


def test_trees_that_outlive_their_guardians_too_are_ended_before_the_retries(tmp_path: Path) -> None:
    scheduler = started_scheduler(tmp_path, "plain")
    ours = [pid for pid, _ in descendants(scheduler.pid) if pid not in processes_of(tmp_path)]
    commands = processes_of(tmp_path)
    for pid in (scheduler.pid, *ours):
        os.kill(pid, signal.SIGSTOP)
    for pid in (*ours, scheduler.pid):
        os.kill(pid, signal.SIGKILL)
    scheduler.wait()

    survivors = len(processes_of(tmp_path))
    retry_all(tmp_path)

    assert survivors == len(commands) >= TREE * COMMANDS
    assert not (tmp_path / "beside").exists()
    assert not set(processes_of(tmp_path)) & set(commands)


@pytest.mark.parametrize("cgroup", ["own", "none"])
def test_a_process_that_cleared_its_environment_is_ended_before_the_retry(tmp_path: Path, cgroup: str) -> None:
    if cgroup == "own" and own_cgroup() is None:
        pytest.skip("no cgroup (version 2) can be made here")
    with a_scheduler(tmp_path, "scrubbed", cgroup) as scheduler:
        asyncio.run(eventually(lambda: runs(tmp_path, attempt=1), seconds=30))
        ours = [pid for pid, _ in descendants(scheduler.pid) if pid not in processes_of(tmp_path)]
        # A child that has just ended may be among them.
        for number, order in ((signal.SIGSTOP, (scheduler.pid, *ours)), (signal.SIGKILL, (*ours, scheduler.pid))):
            for pid in order:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        scheduler.wait()
    assert is_locked(tmp_path / "lock")

    with a_scheduler(tmp_path, "scrubbed", cgroup):
        asyncio.run(eventually(lambda: runs(tmp_path, attempt=2), seconds=30))

    assert not (tmp_path / "beside").exists()
    assert not is_locked(tmp_path / "lock")


@pytest.mark.parametrize("also_the_server", [False, True])
def test_a_stopped_guardian_leaves_nothing_when_its_scheduler_is_killed(tmp_path: Path, also_the_server: bool) -> None:
    with a_scheduler(tmp_path, "stopping", "none") as scheduler:
        asyncio.run(eventually(lambda: (tmp_path / "begun").exists(), seconds=30))
        server = next(pid for pid, (parent, _, _) in processes().items() if parent == scheduler.pid)
        if also_the_server:
            os.kill(server, signal.SIGSTOP)

        scheduler.kill()
        scheduler.wait()

        asyncio.run(eventually(lambda: not processes_of(tmp_path) and state(server) in (None, "Z"), seconds=15))


def test_a_server_is_ended_by_TERM_also_if_a_command_keeps_its_guardian_stopped(tmp_path: Path) -> None:
    command = ["sh", "-c", STOPPING]
    table = f"[job_types.stopping]\ncommand = {command}\ngrace_seconds = 1\n[server]\nshutdown_grace_seconds = 0\n"
    data = prepare(tmp_path / "data", table)
    with living(data) as server:
        url = server.wait_until_ready()
        httpx2.post(f"{url}/api/jobs", json={"job_type": "stopping"}).raise_for_status()
        asyncio.run(eventually(lambda: (data / "begun").exists(), seconds=30))

        server.process.terminate()

        assert server.process.wait(timeout=60) == 0
    assert database(data).execute("select status, failure_kind from runs").fetchall() == [("FAILED", "interrupted")]
    assert processes_of(data) == []


@contextlib.contextmanager
def a_scheduler(directory: Path, mode: str, cgroup: str) -> Iterator["subprocess.Popen[bytes]"]:
    scheduler = subprocess.Popen([sys.executable, "-m", __name__, str(directory), mode, cgroup])
    try:
        yield scheduler
    finally:
        scheduler.kill()
        scheduler.wait()


def is_locked(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def started_scheduler(directory: Path, mode: str) -> "subprocess.Popen[bytes]":
    """Runs a scheduler in a process of its own, until all its process trees have grown."""
    scheduler = subprocess.Popen([sys.executable, "-m", __name__, str(directory), mode])
    try:
        asyncio.run(eventually(lambda: len(runs(directory, attempt=1)) == COMMANDS, seconds=30))
        asyncio.run(eventually(lambda: len(processes_of(directory)) >= TREE * COMMANDS, seconds=30))
        asyncio.run(eventually(lambda: mode == "plain" or (directory / "forked").exists(), seconds=30))
    except BaseException:
        scheduler.kill()
        raise
    return scheduler


def retry_all(directory: Path) -> None:
    """Runs the next life until it has run every command again."""
    scheduler = subprocess.Popen([sys.executable, "-m", __name__, str(directory), "plain"])
    try:
        asyncio.run(eventually(lambda: len(runs(directory, attempt=2)) == COMMANDS, seconds=30))
    finally:
        scheduler.kill()
        scheduler.wait()


def runs(directory: Path, attempt: int) -> list[str]:
    path = directory / "runs"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.split()[0] for line in lines if line.endswith(f" {attempt}")]


def end_forked(directory: Path) -> None:
    """Ends the child that the scheduler had forked. It has all of the scheduler's descriptors, and outlived it as it
    should.
    """
    path = directory / "forked"
    if path.exists():
        os.kill(int(path.read_text()), signal.SIGKILL)


async def main(directory: Path, mode: str, cgroup: str) -> None:
    scheduler = Scheduler(f"sqlite:///{directory}/nextslot.db", synchronous="NORMAL")
    scripts = {
        "scrubbed": [sys.executable, "-ISc", SCRUBBED],
        "stopping": ["sh", "-c", STOPPING],
    }
    command = command_type({"command": scripts.get(mode, [sys.executable, "-ISc", COMMAND])}, directory)
    register_command(scheduler.job_types, "tree", command, Guardians(cgroup=None if cgroup == "own" else ""))
    async with scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=COMMANDS)
        if not runs(directory, attempt=1):
            for _ in range(1 if mode in scripts else COMMANDS):
                await scheduler.submit("tree")
        if mode == "forked":
            await eventually(lambda: len(runs(directory, attempt=1)) == COMMANDS, seconds=60)
            (directory / "forked").write_text(str(forked()))
        await asyncio.sleep(120)


def forked() -> int:
    """Forks a child without exec, as some process pools do: it holds every descriptor of the scheduler open."""
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    return pid


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "own"))
