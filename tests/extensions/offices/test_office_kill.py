"""Spec 14 with a real scheduler, killed while ten sessions of an office run: none is lost, none runs twice.

python -m tests.extensions.offices.test_office_kill DIRECTORY       is that scheduler
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from nextslot import Scheduler
from nextslot.errors import Conflict
from tests.extensions.offices.support import office_jobs
from tests.support import database, eventually, processes_of

SESSIONS = 10
WAITING = 5
# Says that it has begun, and ends when it may.
AGENT = """
import os, sys, time
from pathlib import Path
with open("sessions", "a") as sessions:
    sessions.write(os.environ["NEXTSLOT_JOB_ID"] + " " + os.environ["NEXTSLOT_SESSION_ID"] + "\\n")
while not Path("end").exists():
    time.sleep(0.02)
"""


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    for pid in processes_of(tmp_path):
        os.kill(pid, signal.SIGKILL)


def test_ten_processing_jobs_survive_a_kill_none_lost_none_twice_and_go_again_within_ten_seconds(
    tmp_path: Path,
) -> None:
    first = subprocess.Popen([sys.executable, "-m", __name__, str(tmp_path)])
    until(lambda: len(sessions(tmp_path)) == SESSIONS, seconds=120)
    before = set(sessions(tmp_path))
    first.kill()
    first.wait()

    second = subprocess.Popen([sys.executable, "-m", __name__, str(tmp_path)])
    until(lambda: len(sessions(tmp_path)) == 2 * SESSIONS, seconds=10)
    beside = [one for one in processes_of(tmp_path) if environment(one) & before]
    (tmp_path / "end").touch()
    until(lambda: second.poll() is not None, seconds=120)

    assert second.returncode == 0
    assert beside == []
    assert attempts(tmp_path) == [["FAILED", "COMPLETED"]] * SESSIONS + [["COMPLETED"]] * WAITING
    # Each attempt had one session of its own: nothing was started that is not stored, and nothing twice.
    assert len(sessions(tmp_path)) == len(set(sessions(tmp_path))) == 2 * SESSIONS + WAITING
    assert set(sessions(tmp_path)) == stored_sessions(tmp_path)


def until(is_so: Callable[[], object], seconds: float) -> None:
    asyncio.run(eventually(is_so, seconds))


def sessions(directory: Path) -> list[str]:
    """Returns the sessions that began, as they wrote it down themselves."""
    path = directory / "sessions"
    return [line.split()[1] for line in path.read_text().splitlines()] if path.exists() else []


def environment(pid: int) -> set[str]:
    with suppress(OSError):
        found = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        return {part.partition("=")[2] for part in found.split("\0") if part.startswith("NEXTSLOT_SESSION_ID=")}
    return set()


def stored_sessions(directory: Path) -> set[str]:
    return {row[0] for row in database(directory).execute("select session_id from runs").fetchall()}


def attempts(directory: Path) -> list[list[str]]:
    """Returns how the attempts of each job ended, in the order in which the jobs were made."""
    rows = database(directory).execute(
        "select jobs.chain_id, runs.status from jobs left join runs on runs.job_id = jobs.job_id"
        " order by jobs.chain_id, jobs.created_at, jobs.job_id"
    )
    found: dict[str, list[str]] = {}
    for chain_id, status in rows.fetchall():
        found.setdefault(chain_id, []).append(status)
    return list(found.values())


async def main(directory: Path) -> None:
    """Runs one life: submits the jobs unless an earlier life has, and runs until all of them are done."""
    scheduler = Scheduler(f"sqlite:///{directory}/nextslot.db", synchronous="NORMAL", extensions=["offices"])
    agent = {"command": [sys.executable, "-ISc", AGENT], "cwd": str(directory)}
    office_jobs(scheduler).use_roles({"PO": agent})
    async with scheduler:
        with suppress(Conflict):
            await scheduler.offices.create("o", max_concurrent_jobs=SESSIONS)
            job = {"description": "a session", "role": "PO"}
            await office_jobs(scheduler).submit("o", [job] * (SESSIONS + WAITING))
        for job_ in (await office_jobs(scheduler).jobs("o")).items:
            await scheduler.wait(job_.job_id)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
