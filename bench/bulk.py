"""Measures the CPU time of a job that is submitted with many others, by the Python API and by the batch route.

    uv run python -m bench.bulk [--size 10000] [--rounds 10]

CPU time is that of the whole process, so a busy machine changes little. The queue is paused, and every batch is durable
when it is answered. The script calls the route in this process, without a socket.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nextslot import NewJob, RunContext, Scheduler
from nextslot.server.app import create_app

# A job as the comparison harness sends it, and one with more fields.
PLAIN: dict[str, Any] = {"job_type": "noop", "params": {"i": 1}}
RICH: dict[str, Any] = {
    "job_type": "noop",
    "params": {"i": 1, "path": "a/b/c.png", "sizes": [64, 128, 256], "options": {"crop": True, "quality": 0.9}},
    "priority": 5,
    "role": "FE",
    "task_id": "task-1",
    "title": "A thumbnail",
    "resources": {"disk": 1},
    "timeout_seconds": 60.0,
    "retry_policy": {"max_attempts": 2},
}


def new_scheduler(folder: Path) -> Scheduler:
    scheduler = Scheduler(f"sqlite:///{folder}/nextslot.db")

    @scheduler.job_type("noop")
    async def noop(run: RunContext, i: int, **more: Any) -> None: ...

    return scheduler


async def cpu_per_job(rounds: int, size: int, once: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """Returns the microseconds of CPU for each job: the median and the least of the rounds."""
    spent = []
    for _ in range(rounds):
        began = time.process_time()
        await once()
        spent.append((time.process_time() - began) / size * 1e6)
    return statistics.median(spent), min(spent)


async def post(app: Any, path: str, body: bytes) -> bytes:
    """Sends one request as a server would: in pieces of 64 KiB."""
    pieces = [body[start : start + 65536] for start in range(0, len(body), 65536)]
    answered: list[Any] = []

    async def receive() -> dict[str, Any]:
        if not pieces:
            await asyncio.Event().wait()  # The caller stays connected.
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(message: Any) -> None:
        answered.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
             "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers,
             "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)}  # fmt: skip
    await app(scope, receive, send)
    content = b"".join(part.get("body", b"") for part in answered)
    assert answered[0]["status"] == 201, content[:300]
    return content


async def longest_stall(work: Awaitable[object]) -> float:
    """Returns the longest time that the event loop worked without a break while `work` ran, in ms of its CPU."""
    worst, is_done = 0.0, False

    async def watch() -> None:
        nonlocal worst
        while not is_done:
            began = time.thread_time()
            await asyncio.sleep(0)
            worst = max(worst, time.thread_time() - began)

    watcher = asyncio.create_task(watch())
    await work
    is_done = True
    await watcher
    return worst * 1000


async def measure(folder: Path, size: int, rounds: int) -> None:
    async with new_scheduler(folder) as scheduler:
        await scheduler.pause()
        app = create_app(scheduler)
        for name, fields in (("plain", PLAIN), ("rich", RICH)):
            wanted = [NewJob(**fields) for _ in range(size)]
            median, least = await cpu_per_job(rounds, size, lambda wanted=wanted: scheduler.submit_many(wanted))  # type: ignore[misc]
            print(f"{name:6} submit_many: {median:6.1f} µs of CPU a job (least {least:.1f}): {1e6 / median:8,.0f}/s")
            body = json.dumps({"jobs": [fields] * size}).encode()
            median, least = await cpu_per_job(rounds, size, lambda body=body: post(app, "/api/jobs/batch", body))  # type: ignore[misc]
            print(f"{name:6} batch route: {median:6.1f} µs of CPU a job (least {least:.1f}): {1e6 / median:8,.0f}/s")
        body = json.dumps({"jobs": [PLAIN] * 100_000}).encode()
        stall = await longest_stall(post(app, "/api/jobs/batch", body))
        print(f"100,000 jobs in a request: the event loop worked {stall:.0f} ms of CPU without a break at most")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), arguments.size, arguments.rounds))


if __name__ == "__main__":
    main()
