"""The FastAPI application of docs/web-applications.md, started twice by uvicorn as a reader starts it."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs/web-applications.md"
# What the test adds: a schedule, and an address that shows what is stored.
MORE = """
from datetime import timedelta

@scheduler.cron(every=timedelta(days=1), name="clean")
async def clean() -> None: ...

@app.get("/stored")
async def stored(job_id: str):
    ended = await scheduler.wait(job_id, timeout=30)
    return {"result": ended.result, "schedules": [one.name for one in (await scheduler.schedules.page()).items]}
"""


def test_an_application_whose_lifespan_runs_the_scheduler_starts_a_second_time(tmp_path: Path) -> None:
    (block,) = re.findall(
        r"```python\n(.*?)```", PAGE.read_text().partition("## One process")[2].partition("\n## ")[0], re.S
    )
    (tmp_path / "app.py").write_text(block + MORE)

    for number in (1, 2):
        with application(tmp_path) as url:
            job_id = asked(f"{url}/pictures?path={number}.png", method="POST")["job_id"]

            assert asked(f"{url}/stored?job_id={job_id}") == {
                "result": f"{number}.png is small",
                "schedules": ["clean"],
            }


@contextmanager
def application(directory: Path) -> Iterator[str]:
    """Runs the application until the end of the block, and then stops it as a service manager does."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    log = directory / "uvicorn.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "app:app", "--port", str(port)],
            cwd=directory, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            until = time.monotonic() + 60
            while "Uvicorn running on" not in log.read_text():
                assert server.poll() is None, log.read_text()
                assert time.monotonic() < until, log.read_text()
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
            server.send_signal(signal.SIGTERM)
            server.wait(60)
            assert "Application shutdown complete" in log.read_text()
        finally:
            server.kill()
            server.wait()


def asked(url: str, method: str = "GET") -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=60) as answer:
        return json.loads(answer.read())
