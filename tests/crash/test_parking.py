"""A server is killed (-9) while a session parks, waits and is answered: each answer counts once, and none is lost."""

import random
import time
from pathlib import Path
from typing import Any

import httpx2

from tests.crash.server import PATIENCE, Server, prepare

STEPS, LIVES = 5, 6
ASKING = """
[job_types.asks]
handler = "tests.crash.server_jobs:asks"
isolate = true
retry_policy = { max_attempts = 100, base_delay_seconds = 0 }
"""


def test_a_session_that_is_killed_while_it_parks_goes_on_and_each_answer_counts_once(tmp_path: Path) -> None:
    data, record = prepare(tmp_path / "data", ASKING), tmp_path / "record"
    record.touch()
    chance, job_id, ended = random.Random(22), "", False
    last: Any = None
    answers: list[Any] = []
    for life in range(LIVES + 1):
        server = Server(data)
        try:
            url = server.wait_until_ready()
            if not job_id:
                wanted = {"job_type": "asks", "params": {"record": str(record), "steps": STEPS}}
                job_id = httpx2.post(f"{url}/api/jobs", json=wanted, timeout=60).json()["job_id"]
            end = time.monotonic() + (chance.uniform(0.05, 1.5) if life < LIVES else PATIENCE)
            while time.monotonic() < end and not ended:
                ended = answer(url, job_id)
                time.sleep(0.02)
            if life == LIVES:
                assert ended, record.read_text()
                detail = _get(url, f"/api/jobs/{job_id}")
                last = _get(url, f"/api/jobs/{detail['chain'][-1]['job_id']}")
                answers = _get(url, f"/api/jobs/{job_id}/signals")["items"]
        finally:
            server.kill()

    assert (last["status"], last["run"]["result"]) == ("COMPLETED", STEPS)
    assert [(one["name"], one["number"], one["payload"]) for one in sorted(answers, key=lambda one: one["name"])] == [
        (f"step {step}", 1, step) for step in range(1, STEPS + 1)
    ]
    began = [line.partition(" began with ")[2] for line in record.read_text().splitlines()]
    counts = [0 if line == "nothing" else len(line.split()) for line in began]
    assert counts == sorted(counts), "no attempt begins with fewer answers than the one before"
    assert began[-1] == " ".join(f"{step}={step}" for step in range(1, STEPS + 1))


def answer(url: str, job_id: str) -> bool:
    """Answers what the last job of the chain waits for, as somebody does who repeats it until it is stored."""
    last = _get(url, f"/api/jobs/{_get(url, f'/api/jobs/{job_id}')['chain'][-1]['job_id']}")
    if last["awaiting"] is not None:
        name = last["awaiting"]["name"]
        body = {"payload": int(name.split()[1]), "signal_id": name}
        for _ in range(2):
            reply = httpx2.post(f"{url}/api/jobs/{job_id}/signals/{name}", json=body, timeout=60)
            assert reply.status_code in (200, 201), reply.text
    assert last["status"] != "FAILED" or not last["permanently_failed"], last
    return bool(last["status"] == "COMPLETED")


def _get(url: str, path: str) -> Any:
    return httpx2.get(f"{url}{path}", timeout=60).json()
