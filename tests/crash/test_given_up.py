"""Handlers that take their server down, on real servers: one inside it is given up, one apart from it does no harm."""

import contextlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx2

from tests.crash.server import PATIENCE, Server, living, prepare

LEAVE = """
[job_types.leave]
handler = "tests.nodes.blocking_jobs:leave"
isolate = {isolate}
retry_policy = {{ max_attempts = 5, base_delay_seconds = 0 }}
[job_types.wait]
handler = "tests.nodes.blocking_jobs:wait"
[job_types.long]
command = ["sh", "-c", "echo awake; exec sleep 600"]
retry_policy = {{ max_attempts = 9 }}
"""


def test_a_handler_that_ends_its_server_does_so_twice_and_no_more(tmp_path: Path) -> None:
    data = prepare(tmp_path, LEAVE.format(isolate="false"))
    with living(data) as server:
        submit(server.wait_until_ready(), "leave")
        assert server.process.wait(PATIENCE) == 9
    with living(data) as server:
        server.wait_until_ready_or_dead()
        assert server.process.wait(PATIENCE) == 9

    with living(data) as server:
        url = server.wait_until_ready()
        jobs = found(url, "leave")
        [run] = [one for one in runs(url) if "died twice" in one["error"]]

    assert [(job["status"], job["permanently_failed"]) for job in jobs] == [("FAILED", False), ("FAILED", True)]
    assert run["failure_kind"] == "crash"
    assert "isolate = true" in run["error"]


def test_a_handler_that_ends_its_server_beside_others_is_isolated_after_two_deaths_and_so_are_they(
    tmp_path: Path,
) -> None:
    data = prepare(tmp_path, LEAVE.format(isolate="false"))
    with living(data) as server:
        url = server.wait_until_ready()
        submit(url, "wait", seconds=2)
        until(server, partial(is_running, url, "wait"))
        submit(url, "leave")
        assert server.process.wait(PATIENCE) == 9
    with living(data) as server:
        server.wait_until_ready_or_dead()
        assert server.process.wait(PATIENCE) == 9

    with living(data) as server:
        url = server.wait_until_ready()
        until(server, lambda: [job["permanently_failed"] for job in found(url, "leave")][-1:] == [True])
        until(server, lambda: [job["status"] for job in found(url, "wait")][-1:] == ["COMPLETED"])
        ends = [run["failure_kind"] for run in runs(url)]
        third = runs(url)[2]["run_id"]
        log = httpx2.get(f"{url}/api/job-runs/{third}/log", timeout=60).text

    assert ends == ["crash", "crash", "error", "error", "error", "error"]
    assert "runs in a separate process: the scheduler died" in log


def test_an_isolated_handler_that_ends_its_process_harms_nothing_else(tmp_path: Path) -> None:
    data = prepare(tmp_path, LEAVE.format(isolate="true"))
    with living(data) as server:
        url = server.wait_until_ready()
        submit(url, "leave")
        until(server, lambda: [job["permanently_failed"] for job in found(url, "leave")][-1:] == [True])

        assert {run["failure_kind"] for run in runs(url)} == {"error"}
        assert len(found(url, "leave")) == 6


def test_a_command_is_retried_however_often_its_server_is_killed(tmp_path: Path) -> None:
    data = prepare(tmp_path, LEAVE.format(isolate="false"))
    for life in range(4):
        with living(data) as server:
            url = server.wait_until_ready()
            if life == 0:
                submit(url, "long")
            until(server, partial(is_running, url))

            assert len(found(url, "long")) == life + 1


def test_a_run_that_died_with_its_server_names_the_log_that_it_left(tmp_path: Path) -> None:
    data = prepare(tmp_path, LEAVE.format(isolate="false"))
    with living(data) as server:
        url = server.wait_until_ready()
        submit(url, "long")
        run_id = runs(url, "long")[0]["run_id"]
        until(server, lambda: "awake" in httpx2.get(f"{url}/api/job-runs/{run_id}/log", timeout=60).text)
        server.kill()

    with living(data) as server:
        run = runs(server.wait_until_ready(), "long")[0]

    assert (run["run_id"], run["failure_kind"]) == (run_id, "crash")
    assert "awake" in (data / run["log_path"]).read_text()


def is_running(url: str, job_type: str = "long") -> bool:
    return [job["status"] for job in found(url, job_type)][-1:] == ["RUNNING"]


def submit(url: str, job_type: str, **params: object) -> None:
    # It is started by the commit that stores it, and may be quicker than the answer.
    with contextlib.suppress(httpx2.TransportError):
        httpx2.post(f"{url}/api/jobs", json={"job_type": job_type, "params": params}, timeout=60)


def found(url: str, job_type: str) -> list[dict[str, Any]]:
    """Returns the jobs, the oldest first."""
    answer = httpx2.get(f"{url}/api/jobs", params={"job_type": job_type}, timeout=60).json()
    return sorted(answer["items"], key=lambda job: str(job["created_at"]))


def runs(url: str, job_type: str = "leave") -> list[dict[str, Any]]:
    jobs = found(url, job_type)
    return [httpx2.get(f"{url}/api/jobs/{job['job_id']}", timeout=60).json()["run"] for job in jobs]


def until(server: Server, is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end, "it never came"
        assert server.process.poll() is None, "the server ended"
        time.sleep(0.05)
