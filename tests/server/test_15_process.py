"""Spec 15 and spec 18 on a real process: how `nextslot serve` starts, drains, stops, reloads, and refuses to start."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from nextslot import Scheduler
from nextslot.server.app import Options
from nextslot.server.serve import Process
from tests import databases

NEXTSLOT = Path(sys.executable).with_name("nextslot")
CONFIGURATION = """
[job_types.hold]
command = ["sh", "-c", "while [ ! -e go ]; do sleep 0.05; done; echo through"]
grace_seconds = 1
[job_types.quick]
command = ["true"]
[extensions]
disabled = ["stories"]
"""


def test_sigterm_lets_running_work_finish_while_reads_go_on_and_everybody_is_told(tmp_path: Path) -> None:
    with started(tmp_path) as server:
        job = server.post("/api/jobs", {"job_type": "hold"}).json()
        server.until(lambda: server.status(job) == "RUNNING")
        stream = server.follow("/api/events")
        caller = server.in_background(lambda: server.post("/api/direct/quick", {}))
        server.until(lambda: server.get("/api/queue").json()["direct_waiting"] == 1)

        server.process.send_signal(signal.SIGTERM)
        sent_away = caller()
        server.until(lambda: server.get("/ready").status_code == 503)
        refused = server.post("/api/jobs", {"job_type": "quick"})
        still = server.status(job)
        (tmp_path / "go").touch()
        code = server.process.wait(30)

        assert (sent_away.status_code, sent_away.json()["code"]) == (503, "draining")
        assert (refused.status_code, refused.json()["code"], still) == (503, "draining", "RUNNING")
        assert code == 0
        assert stream()[-1].startswith("event: end")
    with started(tmp_path) as again:
        assert again.status(job) == "COMPLETED"


def test_a_second_signal_interrupts_what_runs_and_it_is_retried_after_the_restart(tmp_path: Path) -> None:
    with started(tmp_path) as server:
        job = server.post("/api/jobs", {"job_type": "hold"}).json()
        server.until(lambda: server.status(job) == "RUNNING")

        server.process.send_signal(signal.SIGTERM)
        server.until(lambda: server.get("/ready").status_code == 503)
        server.process.send_signal(signal.SIGINT)
        code = server.process.wait(30)

        assert code == 0
    (tmp_path / "go").touch()
    with started(tmp_path) as again:
        again.until(lambda: again.chain(job)[-1]["status"] == "COMPLETED")
        first, second = again.chain(job)
        assert (first["status"], second["attempt"]) == ("FAILED", 2)
        run = again.get(f"/api/jobs/{first['job_id']}").json()["run"]
        assert run["failure_kind"] == "interrupted"


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, database_of_the_module: str) -> Iterator[tuple[Path, "Running"]]:
    """Runs a server that other servers meet. Yields it with its directory."""
    directory = tmp_path_factory.mktemp("first")
    with started(directory) as server:
        yield directory, server


def test_a_second_server_on_the_same_data_refuses_and_names_the_first(first: tuple[Path, "Running"]) -> None:
    directory, server = first

    ended = run(directory, "serve", "--port", "0")

    assert ended.returncode == 1
    assert str(server.process.pid) in ended.stderr


def test_any_other_address_than_loopback_needs_a_key_first(tmp_path: Path) -> None:
    refused = run(tmp_path, "serve", "--host", "0.0.0.0", "--port", "0")
    run(tmp_path, "key", "add", "operator", "--scope", "admin")

    with started(tmp_path, "--host", "0.0.0.0") as server:
        answer = server.get("/api/jobs")

    assert refused.returncode == 1
    assert "nextslot key add" in refused.stderr
    assert answer.status_code == 401


def test_a_port_that_is_taken_is_told_in_a_sentence(tmp_path: Path, first: tuple[Path, "Running"]) -> None:
    _, server = first

    ended = run(tmp_path, "serve", "--port", server.url.rpartition(":")[2])

    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert "--port" in ended.stderr


def test_sighup_and_the_route_read_the_configuration_again_and_a_bad_one_changes_nothing(tmp_path: Path) -> None:
    with started(tmp_path) as server:
        (tmp_path / "nextslot.toml").write_text(CONFIGURATION + '[job_types.added]\ncommand = ["true"]\n')
        server.process.send_signal(signal.SIGHUP)
        server.until(lambda: "added" in server.types())

        (tmp_path / "nextslot.toml").write_text("[job_types.broken]\n")
        answer = server.post("/api/config/reload", {})

        assert answer.status_code == 422
        assert "broken" in answer.json()["detail"]
        assert "added" in server.types()


async def test_until_it_has_recovered_it_lives_and_is_not_ready(tmp_path: Path) -> None:
    scheduler = Scheduler(databases.url(tmp_path), data=tmp_path)
    recover, go_on = scheduler._runtime.recovery.run, asyncio.Event()

    async def slowly(*given: Any) -> Any:
        await go_on.wait()
        return await recover(*given)

    scheduler._runtime.recovery.run = slowly  # type: ignore[assignment, method-assign]
    process = Process(scheduler, Options(), "127.0.0.1", 0)
    task = asyncio.create_task(process.run())
    async with httpx2.AsyncClient(base_url=await process.listening) as client:
        health, ready, jobs = [(await client.get(path)) for path in ("/health", "/ready", "/api/jobs")]
        go_on.set()
        while (await client.get("/ready")).status_code != 200:  # noqa: ASYNC110 - the server's own time
            await asyncio.sleep(0.01)
    process.stop()
    await task

    assert (health.status_code, ready.status_code, jobs.status_code) == (200, 503, 503)
    assert "starting" in ready.json()["detail"]
    assert jobs.json()["detail"] == ready.json()["detail"]
    assert ready.headers["retry-after"]


class Running:
    """A server process, and what a test does with it."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url

    def get(self, path: str) -> httpx2.Response:
        return httpx2.get(self.url + path, timeout=30)

    def post(self, path: str, body: Any) -> httpx2.Response:
        return httpx2.post(self.url + path, json=body, timeout=60)

    def status(self, job: dict[str, Any]) -> str:
        return str(self.get(f"/api/jobs/{job['job_id']}").json()["status"])

    def chain(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        chain: list[dict[str, Any]] = self.get(f"/api/jobs/{job['job_id']}").json()["chain"]
        return chain

    def types(self) -> set[str]:
        return {one["job_type"] for one in self.get("/api/job-types").json()["items"]}

    def until(self, is_so: Any) -> None:
        end = time.monotonic() + 30
        while not is_so():
            assert time.monotonic() < end, "it did not come about"
            time.sleep(0.02)

    def in_background(self, work: Any) -> Any:
        """Begins now; what it returns waits for the end."""
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(work()))
        thread.start()

        def result() -> Any:
            thread.join(60)
            return found[0]

        return result

    def follow(self, path: str) -> Any:
        """Returns everything that a stream sent, as a list of its events, once it has ended."""
        is_open = threading.Event()

        def read() -> list[str]:
            text = ""
            headers = {"accept": "text/event-stream"}
            with httpx2.stream("GET", self.url + path, headers=headers, timeout=60) as answer:
                for piece in answer.iter_text():
                    text += piece
                    is_open.set()
            return list(_events(text))

        result = self.in_background(read)
        assert is_open.wait(30)
        return result


def _events(text: str) -> Iterator[str]:
    for block in text.strip().split("\n\n"):
        lines = [line for line in block.splitlines() if not line.startswith(("id:", ":"))]
        if lines:
            yield "\n".join(lines)


@contextmanager
def started(data: Path, *options: str) -> Iterator[Running]:
    file = data / "nextslot.toml"
    if not file.exists():
        file.write_text(CONFIGURATION)
    process = subprocess.Popen(
        [NEXTSLOT, "serve", "--data", data, "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=data,
        env={**os.environ, **databases.variables(data)},
    )
    try:
        assert process.stdout is not None
        url = next(line.split()[-1] for line in process.stdout if "listens on" in line)
        yield Running(process, url.replace("0.0.0.0", "127.0.0.1"))
    finally:
        process.kill()
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()


def run(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(NEXTSLOT), *arguments, "--data", str(data)]
    environment = {**os.environ, **databases.variables(data)}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=data, env=environment)
