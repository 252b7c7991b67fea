"""Measures the HTTP API beside a bare FastAPI route, and beside another version, in turns in one run.

    uv run python bench/http.py [--seconds 2] [--rounds 5] [--beside DIRECTORY] [--rows 10000] [--save FILE]

The bare route parses the same body, makes an answer of the same size, and stores nothing. All servers are processes of
their own (uvicorn, uvloop, httptools); the client is another one. Every create is durable (`synchronous=FULL`) when it
is answered. The queue is paused, so that only requests are measured. Processor time is that of the server's process:
a busy machine changes it less than the rate. `--beside` names the `src` of another version of nextslot.
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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

BARE = """
import json, sys, uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

class Body(BaseModel):
    job_type: str
    params: dict

app = FastAPI()
ANSWER = json.loads(sys.argv[2])

@app.post("/api/jobs", status_code=201)
async def create(body: Body):
    return ANSWER

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
# The fields of a job in an answer, so that the bare route's answer is as large as ours.
ANSWER_BYTES = 1100
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Server:
    name: str
    port: int
    pid: int

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


@contextmanager
def started(name: str, command: list[str], port: int, source: str | None = None) -> Iterator[Server]:
    environment = {**os.environ, **({} if source is None else {"PYTHONPATH": source})}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        wait_for(port)
        yield Server(name, port, process.pid)
    finally:
        process.terminate()
        process.wait()


def wait_for(port: int) -> None:
    import socket

    end = time.monotonic() + 120
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
    """Keeps one HTTP/1.1 connection open, with only what this measurement needs."""

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


async def load(port: int, data: bytes, connections: int, seconds: float) -> dict[str, float]:
    """Returns how many requests were answered, how many a second, and their times in ms."""
    times: list[float] = []
    lines = [await Connection.open(port) for _ in range(connections)]
    end = time.perf_counter() + seconds

    async def one(line: Connection) -> None:
        while (began := time.perf_counter()) < end:
            status, body = await line.send(data)
            assert status < 300, (status, body)
            times.append(time.perf_counter() - began)
        line.writer.close()

    began = time.perf_counter()
    await asyncio.gather(*map(one, lines))
    rate = len(times) / (time.perf_counter() - began)
    times.sort()
    return {
        "requests": len(times),
        "per_second": rate,
        "p50_ms": times[len(times) // 2] * 1000,
        "p99_ms": times[int(len(times) * 0.99)] * 1000,
    }


async def in_turns(
    what: str, asked: dict[Server, bytes], connections: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Measures each server, one after the other, several times; prints the medians."""
    rounds: dict[str, list[dict[str, float]]] = {server.name: [] for server in asked}
    for _ in range(arguments.rounds):
        for server, data in asked.items():
            cpu = server.cpu_seconds()
            found = await load(server.port, data, connections, arguments.seconds)
            found["cpu_us"] = (server.cpu_seconds() - cpu) / found["requests"] * 1e6
            rounds[server.name].append(found)
    medians = {
        name: {key: statistics.median(one[key] for one in some) for key in some[0]} for name, some in rounds.items()
    }
    for name, found in medians.items():
        first = next(iter(medians.values()))
        print(
            f"{what:<22} {connections:>3} {name:<8} {found['per_second']:>8,.0f}/s"
            f" ({found['per_second'] / first['per_second']:>4.0%}) {found['cpu_us']:>7.0f} µs of processor"
            f" ({first['cpu_us'] / found['cpu_us']:>4.0%})   {found['p50_ms']:.2f} / {found['p99_ms']:.2f} ms",
            flush=True,
        )
    return {"what": what, "connections": connections, "rounds": rounds, "medians": medians}


async def prepare(server: Server, rows: int) -> str:
    """Pauses the queue and fills it; returns the id of a job."""
    line = await Connection.open(server.port)
    while (await line.send(request("GET", "/ready")))[0] != 200:  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.1)
    await line.send(request("POST", "/api/queue/pause", {}))
    size = min(rows, 10_000)
    for _ in range(rows // size):
        status, body = await line.send(request("POST", "/api/jobs/batch", {"jobs": [JOB] * size}))
        assert status == 201, body[:300]
    _, body = await line.send(request("GET", "/api/jobs?limit=50"))
    return str(json.loads(body)["items"][-1]["job_id"])


async def measure(bare: Server, versions: list[Server], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    ids = {server: await prepare(server, arguments.rows) for server in versions}
    create = request("POST", "/api/jobs", JOB)
    found = [
        await in_turns("create", dict.fromkeys([bare, *versions], create), connections, arguments)
        for connections in (1, 8, 64)
    ]
    paths = {"job": "/api/jobs/{}", "list of 50": "/api/jobs?limit=50"}
    for name, path in paths.items():
        asked = {server: request("GET", path.format(ids[server])) for server in versions}
        found.append(await in_turns(f"GET {name}", asked, 8, arguments))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--beside", help="the `src` of another version")
    parser.add_argument("--folder", help="where the databases are; by default a temporary folder")
    parser.add_argument("--save", type=Path, help="write the figures of all rounds to this file")
    arguments = parser.parse_args()
    sources = {"before": arguments.beside} if arguments.beside else {}
    sources["ours"] = None
    with ExitStack() as stack:
        port = free_port()
        answer = json.dumps({"text": "x" * ANSWER_BYTES})
        bare = stack.enter_context(started("bare", [sys.executable, "-c", BARE, str(port), answer], port))
        versions = []
        for name, source in sources.items():
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.folder))
            Path(folder, "nextslot.toml").write_text(CONFIGURATION)
            port = free_port()
            command = [str(Path(sys.executable).with_name("nextslot")), "serve", "--data", folder, "--port", str(port)]
            versions.append(stack.enter_context(started(name, command, port, source)))
        found = uvloop.run(measure(bare, versions, arguments))
    load_average = os.getloadavg()[0]
    print(f"load average now: {load_average:.1f}")
    if arguments.save:
        arguments.save.write_text(json.dumps({"load_average": load_average, "figures": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
