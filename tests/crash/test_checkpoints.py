"""A server is killed (-9) while its work leaves checkpoints: the next attempt begins with the last acknowledged one, or
with a later one, and never with half of one."""

import sys
import time
from pathlib import Path

import httpx2
import pytest

from tests.crash.server import PATIENCE, Server, prepare

# A thread that was alone in two schedulers that died is not tried again.
LIVES = {"command": 4, "thread": 2, "isolated": 4}
TYPES = """
[job_types.command]
command = ["{python}", "-m", "tests.crash.checkpoint_command", "{{record}}"]
env = {{ PYTHONPATH = "{path}" }}
retry_policy = {{ max_attempts = 100 }}
[job_types.thread]
handler = "tests.crash.server_jobs:checkpoints"
retry_policy = {{ max_attempts = 100 }}
[job_types.isolated]
handler = "tests.crash.server_jobs:checkpoints"
isolate = true
retry_policy = {{ max_attempts = 100 }}
"""


@pytest.mark.parametrize("job_type", LIVES)
def test_the_attempt_after_a_kill_begins_with_the_last_acknowledged_checkpoint(tmp_path: Path, job_type: str) -> None:
    data = prepare(tmp_path / "data", TYPES.format(python=sys.executable, path=Path(__file__).parents[2]))
    record = tmp_path / "record"
    record.touch()
    for life in range(LIVES[job_type]):
        server = Server(data)
        try:
            url = server.wait_until_ready()
            if life == 0:
                wanted = {"job_type": job_type, "params": {"record": str(record)}}
                made = httpx2.post(f"{url}/api/jobs", json=wanted, timeout=60)
                assert made.status_code == 201, made.text
            _until(record, begun=life + 1, steps=3 + 4 * life)
        finally:
            server.kill()

    begun: list[int] = []
    acknowledged = written = 0
    for line in record.read_text().splitlines():
        word, number = line.split()
        if word == "began":
            begun.append(int(number))
            assert acknowledged <= int(number) <= written
        acknowledged = int(number) if word == "acknowledged" else acknowledged
        written = int(number) if word == "wrote" else written
    assert len(begun) >= LIVES[job_type]
    assert begun[-1] > 0


def _until(record: Path, begun: int, steps: int) -> None:
    """Waits until this many attempts have begun, and this many checkpoints of the last one are acknowledged."""
    end = time.monotonic() + PATIENCE
    while True:
        parts = record.read_text().split("began ")[1:]
        if len(parts) >= begun and parts[-1].count("acknowledged") >= steps:
            return
        assert time.monotonic() < end, f"no checkpoints: {record.read_text()[-500:]}"
        time.sleep(0.01)
