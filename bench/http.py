"""Measures requests per second of the HTTP API and of a bare FastAPI route that does nothing, in one run.

    uv run python bench/http.py [--seconds 3] [--rows 1000000] [--rounds 3]

Both servers are processes of their own (uvicorn, uvloop, httptools); the client is another one. Every create is durable
(`synchronous=FULL`) when it is answered. The queue is paused, so that only requests are measured.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop

BARE = """
import sys, uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

class Body(BaseModel):
    job_type: str
    params: dict

app = FastAPI()

@app.post("/api/jobs", status_code=201)
async def create(body: Body):
    return {"ok": True}

uvicorn.run(app, port=int(sys.argv[1]), log_level="error", access_log=False)
"""

CONFIGURATION = """
[job_types.noop]
command = ["true"]
[extensions]
disabled = ["stories"]
[logs]
level = "error"
"""

JOB = {"job_type": "noop", "params": {}}


@contextmanager
def server(command: list[str], port: int) -> Iterator[int]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_for(port)
        yield port
    finally:
        process.terminate()
        process.wait()


def wait_for(port: int) -> None:
    import socket

    end = time.monotonic() + 60
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit(f"nothing listens on {port}")


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def request(method: str, path: str, body: object = None) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n"
    if body is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
    return head.encode() + b"\r\n" + content


class Connection:
    """An HTTP/1.1 connection that is kept alive, with only what this measurement needs."""

    @classmethod
    async def open(cls, port: int) -> "Connection":
        made = cls()
        made.reader, made.writer = await asyncio.open_connection("127.0.0.1", port, limit=2**26)
        return made

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> tuple[int, bytes]:
        self.writer.write(data)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        return int(head[9:12]), await self.reader.readexactly(length)


async def load(port: int, data: bytes, connections: int, seconds: float) -> tuple[float, float, float]:
    """Returns requests per second, and the median and 99th percentile of their time in ms."""
    times: list[float] = []
    end = time.perf_counter() + seconds

    async def one() -> None:
        line = await Connection.open(port)
        while (began := time.perf_counter()) < end:
            status, body = await line.send(data)
            assert status < 300, (status, body)
            times.append(time.perf_counter() - began)
        line.writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(connections)))
    rate = len(times) / (time.perf_counter() - began)
    times.sort()
    return rate, times[len(times) // 2] * 1000, times[int(len(times) * 0.99)] * 1000


async def fill(port: int, rows: int) -> float:
    """Fills the database, and returns jobs per second through the batch route."""
    line = await Connection.open(port)
    size = min(rows, 10_000)
    data = request("POST", "/api/jobs/batch", {"jobs": [JOB] * size})
    began = time.perf_counter()
    for _ in range(rows // size):
        status, body = await line.send(data)
        assert status == 201, body[:300]
    return rows // size * size / (time.perf_counter() - began)


async def measure(ours: int, bare: int, arguments: argparse.Namespace) -> None:
    line = await Connection.open(ours)
    while (await line.send(request("GET", "/ready")))[0] != 200:  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.1)
    await line.send(request("POST", "/api/queue/pause", {}))
    create = request("POST", "/api/jobs", JOB)
    print(f"{'connections':>12} {'bare /s':>9} {'ours /s':>9} {'ratio':>6}   ours p50 / p99 ms   bare p50 / p99 ms")
    for connections in (1, 8, 64):
        rounds = [
            (
                await load(bare, create, connections, arguments.seconds),
                await load(ours, create, connections, arguments.seconds),
            )
            for _ in range(arguments.rounds)
        ]
        theirs, own = (
            [statistics.median(values) for values in zip(*some, strict=True)] for some in zip(*rounds, strict=True)
        )
        print(
            f"{connections:>12} {theirs[0]:>9,.0f} {own[0]:>9,.0f} {own[0] / theirs[0]:>6.0%}"
            f"   {own[1]:>8.2f} / {own[2]:<8.2f} {theirs[1]:>8.2f} / {theirs[2]:<8.2f}"
        )
    print(f"batch route, 10,000 jobs a request: {await fill(ours, 100_000):,.0f} jobs/s")
    if arguments.rows:
        print(f"filling up to {arguments.rows:,} rows: {await fill(ours, arguments.rows):,.0f} jobs/s")
    line = await Connection.open(ours)
    _, body = await line.send(request("GET", "/api/jobs?limit=50"))
    job_id = json.loads(body)["items"][-1]["job_id"]
    reads = {"job": f"/api/jobs/{job_id}", "list of 50": "/api/jobs?limit=50", "by status": "/api/jobs?status=QUEUED"}
    for name, path in reads.items():
        rate, median, worst = await load(ours, request("GET", path), 8, arguments.seconds)
        print(f"GET {name}, 8 connections: {rate:,.0f}/s, p50 {median:.2f} ms, p99 {worst:.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "nextslot.toml").write_text(CONFIGURATION)
        nextslot = [str(Path(sys.executable).with_name("nextslot")), "serve", "--data", folder, "--port"]
        ours, bare = free_port(), free_port()
        with (
            server([*nextslot, str(ours)], ours),
            server([sys.executable, "-c", BARE, str(bare)], bare),
        ):
            uvloop.run(measure(ours, bare, arguments))
    print(f"load average now: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
