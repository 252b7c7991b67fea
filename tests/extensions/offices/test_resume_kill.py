"""A server that is killed (-9) again and again while sessions of a role run: after each start the same ones go on."""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.crash.server import PATIENCE, Server, prepare
from tests.support import processes_of

LIVES = 2
# Two, because a chain that was alone in two schedulers that died is not retried.
SESSIONS = 2
# Writes down who it is and how it was started, and ends when it may.
AGENT = """
import json, os, sys, time
from pathlib import Path
line = [json.load(sys.stdin)["task_id"], int(os.environ["NEXTSLOT_ATTEMPT"]), os.environ["NEXTSLOT_SESSION_ID"]]
with open("sessions", "a") as file:
    file.write(json.dumps([*line, sys.argv[1:]]) + "\\n")
while not Path("end").exists():
    time.sleep(0.02)
"""


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    for pid in processes_of(tmp_path):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.timeout(900)
def test_a_session_goes_on_after_each_kill_of_its_server(tmp_path: Path) -> None:
    command = json.dumps([sys.executable, "-ISc", AGENT])
    role = f'[roles.FE]\ncommand = {command}\ncwd = "{tmp_path}"\nresume_args = ["--resume", "{{session_id}}"]\n'
    data, chance = prepare(tmp_path / "data", role), random.Random(22)
    jobs: list[str] = []
    chains: list[Any] = []
    for life in range(LIVES + 1):
        server = Server(data)
        try:
            url = server.wait_until_ready()
            jobs = jobs or _submit(url)
            _until(lambda now=SESSIONS * (life + 1): len(_begun(tmp_path)) == now)
            if life < LIVES:
                time.sleep(chance.uniform(0, 0.3))
                continue
            (tmp_path / "end").touch()
            _until(partial(_have_completed, url, jobs))
            chains = [_runs(url, one) for one in jobs]
        finally:
            server.kill()

    for number, runs in enumerate(chains):
        begun = [one for one in _begun(tmp_path) if one[0] == f"t{number}"]
        name = begun[0][2]
        assert [one[1] for one in begun] == list(range(1, LIVES + 2))
        assert [one[2] for one in begun] == [name] * (LIVES + 1)
        assert [one[3] for one in begun] == [[], *[["--resume", name]] * LIVES]
        assert [one["failure_kind"] for one in runs] == ["crash"] * LIVES + [None]
        assert {one["session_id"] for one in runs} == {name}
    assert len({one[2] for one in _begun(tmp_path)}) == SESSIONS


def _submit(url: str) -> list[str]:
    limits = {"maxRetries": 2 * LIVES, "maxConcurrentJobs": SESSIONS, "maxConcurrentByRole": {"FE": SESSIONS}}
    _ask("POST", f"{url}/api/offices", {"office_id": "o"})
    _ask("PATCH", f"{url}/api/offices/o/scheduler/config", limits)
    job = {"description": "d", "role": "FE"}
    wanted = [{"task_id": f"t{number}", "jobs": [job]} for number in range(SESSIONS)]
    return [_ask("POST", f"{url}/api/offices/o/jobs", one)["items"][0]["job_id"] for one in wanted]


def _ask(method: str, url: str, body: Any) -> Any:
    answer = httpx2.request(method, url, json=body, timeout=60)
    assert answer.is_success, answer.text
    return answer.json()


def _begun(directory: Path) -> list[Any]:
    path = directory / "sessions"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _until(is_so: Any) -> None:
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def _have_completed(url: str, jobs: list[str]) -> bool:
    return all(_get(url, _get(url, one)["chain"][-1]["job_id"])["status"] == "COMPLETED" for one in jobs)


def _runs(url: str, job_id: str) -> list[Any]:
    return [_get(url, one["job_id"])["run"] for one in _get(url, job_id)["chain"]]


def _get(url: str, job_id: str) -> Any:
    return httpx2.get(f"{url}/api/jobs/{job_id}", timeout=60).json()
