"""Spec 5 when the server is killed with -9: what a run had written is there, and its log becomes one file again."""

import asyncio
import json
from pathlib import Path

import httpx2
import pytest

from tests.crash.server import PATIENCE, living, prepare
from tests.support import eventually

pytestmark = pytest.mark.sqlite_only("kills the only process that has the file")

CAP = 100_000
# Three times the cap, then a last line, and silence.
FLOOD = (
    f"i=0; while [ $i -lt {3 * CAP // 10} ]; do echo $((100000000 + i)); i=$((i+1)); done; echo the reason; sleep 1000"
)
TYPES = f"""
[job_types.flood]
command = ["sh", "-c", {json.dumps(FLOOD)}]
log_cap_bytes = {CAP}
"""


def test_what_a_run_wrote_before_a_kill_is_readable_after_it_in_one_file(tmp_path: Path) -> None:
    data = prepare(tmp_path / "data", TYPES)
    with living(data) as server:
        url = server.wait_until_ready()
        job = httpx2.post(f"{url}/api/jobs", json={"job_type": "flood"}).json()["job_id"]
        run = running(url, job)
        asyncio.run(eventually(lambda: tail(url, run) == "the reason\n", seconds=PATIENCE))
        before = whole(url, run)
        server.kill()
    on_disk = [path.read_bytes() for path in (data / "logs").rglob("*") if path.is_file()]

    with living(data) as server:
        after = whole(server.wait_until_ready(), run)

    assert sum(map(len, on_disk)) <= CAP
    assert any(content.endswith(b"the reason\n") for content in on_disk)
    assert after == before
    assert "bytes cut here" in after
    assert [path.read_text() for path in (data / "logs").rglob(f"{run}*.log")] == [after]
    assert not (data / "logs" / "pieces" / run).exists()


def running(url: str, job: str) -> str:
    asyncio.run(eventually(lambda: httpx2.get(f"{url}/api/jobs/{job}").json()["run"] is not None, seconds=PATIENCE))
    return str(httpx2.get(f"{url}/api/jobs/{job}").json()["run"]["run_id"])


def tail(url: str, run: str) -> str:
    return httpx2.get(f"{url}/api/job-runs/{run}/log?tail=1").text


def whole(url: str, run: str) -> str:
    return httpx2.get(f"{url}/api/job-runs/{run}/log").text
