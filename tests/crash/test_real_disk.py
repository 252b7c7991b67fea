"""A disk that fails below a real server (`faulty_machine.c`): what the server reports, and that it works again
afterwards.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.crash.faulty_machine import FaultyMachine
from tests.crash.server import PATIENCE, Server, prepare

pytestmark = pytest.mark.sqlite_only("is about its files")


@contextmanager
def on_faulty_disk(directory: Path) -> Iterator[tuple[str, FaultyMachine]]:
    """Runs a server on a faulty disk. Yields its address and the function that makes its disk fail."""
    data = prepare(directory / "data")
    disk = FaultyMachine(data, directory / "control")
    server = Server(data, environment=disk.environment())
    try:
        yield server.wait_until_ready(), disk
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0
    finally:
        server.kill()


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)


def submit(url: str) -> httpx2.Response:
    return httpx2.post(f"{url}/api/jobs", json={"job_type": "tiny"}, timeout=60)


def status(url: str, job_id: str) -> str:
    answer = httpx2.get(f"{url}/api/jobs/{job_id}", timeout=60)
    return str(answer.json().get("status")) if answer.status_code == 200 else ""


def test_a_disk_that_cannot_be_read_for_a_moment_is_not_called_a_damaged_file(tmp_path: Path) -> None:
    """SQLite calls a page malformed if the disk cannot read it; but a restore of a backup loses commits."""
    with on_faulty_disk(tmp_path) as (url, disk):
        disk.fail({"read fails": 1})
        refusals = [httpx2.get(f"{url}{path}", timeout=60) for path in ("/api/jobs", "/api/audit", "/api/jobs/none")]
        disk.fail({})
        until(lambda: httpx2.get(f"{url}/ready", timeout=60).status_code == 200)
        made = submit(url)
        until(lambda: status(url, made.json()["job_id"]) == "COMPLETED")

    assert disk.happened()["read fails"] > 0
    assert {answer.status_code for answer in refusals} == {503}
    assert {answer.json()["detail"] for answer in refusals} == {
        "the disk could not read the database (input/output error); check the disk"
    }


@pytest.mark.parametrize("fault", ["write fails", "disk full", "sync fails"])
def test_a_disk_that_fails_refuses_in_words_and_takes_everything_afterwards(tmp_path: Path, fault: str) -> None:
    with on_faulty_disk(tmp_path) as (url, disk):
        before = submit(url)
        disk.fail({fault: 1})
        refused = submit(url)
        disk.fail({})
        made = submit(url)
        for answer in (before, made):
            until(lambda answer=answer: status(url, answer.json()["job_id"]) == "COMPLETED")  # type: ignore[misc]
        events = httpx2.get(f"{url}/api/events", timeout=60).json()["items"]

    assert disk.happened()[fault] > 0
    assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
    assert "the database did not store the change" in refused.json()["detail"]
    assert len([one for one in events if one["type"] == "job_queued"]) == 2


def test_short_writes_are_completed_and_nobody_notices(tmp_path: Path) -> None:
    with on_faulty_disk(tmp_path) as (url, disk):
        disk.fail({"short write": 0.5})
        made = [submit(url) for _ in range(5)]
        until(lambda: all(status(url, answer.json()["job_id"]) == "COMPLETED" for answer in made))
        disk.fail({})

    assert disk.happened()["short write"] > 0
