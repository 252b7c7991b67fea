"""Measures how quickly `/health` answers while many streams follow the events and many callers create jobs.

    uv run python -m bench.health [--streams 500] [--creators 200] [--seconds 10] [--out FILE]

The server (`nextslot serve`, SQLite, synchronous=FULL, queue paused) is a process of its own; the streams, the creators
and the probe of `/health` are three more, so that none of them waits for another one's work. The probe asks every
20 ms, over a new connection each time, as an orchestrator does. At the end each stream must have all events (every
25th stream checks their order too); `caught_up_s` says how long after the last create the slowest one had them.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from bench.http import CONFIGURATION, JOB, Connection, free_port, load, request, wait_for

PROBE_SECONDS = 0.02
CATCH_UP_SECONDS = 120.0
_ID = re.compile(rb"^id: (\d+)$", re.MULTILINE)


async def probe(port: int, seconds: float) -> dict[str, float]:
    times = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        line = await Connection.open(port)
        status, _ = await line.send(request("GET", "/health"))
        assert status == 200
        line.writer.close()
        times.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(PROBE_SECONDS)
    times.sort()
    return {"p50_ms": times[len(times) // 2], "p99_ms": times[int(len(times) * 0.99)], "max_ms": times[-1]}


class Stream:
    """Counts the received events. With `is_strict` it reads their numbers: a gap or a wrong order is an error."""

    def __init__(self, after: int, is_strict: bool) -> None:
        self.last = after
        self._is_strict = is_strict

    async def read(self, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
        head = f"GET /api/events?after={self.last} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
        writer.write(head.encode())
        rest = b""
        while piece := await reader.read(2**20):
            # The last separator stays with the bytes after it, so that no separator is cut in two.
            lines, found, rest = (rest + piece).rpartition(b"\n\n")
            rest = found + rest
            if not self._is_strict:
                self.last += lines.count(b"\nid: ")
                continue
            for number in map(int, _ID.findall(lines)):
                assert number == self.last + 1, f"{number} after {self.last}"
                self.last = number


async def follow(port: int, count: int) -> None:
    """Prints `ready` once all streams are open, then waits until all have the number that it reads from stdin."""
    after = await last_event(port)
    streams = [Stream(after, is_strict=number % 25 == 0) for number in range(count)]
    tasks = [asyncio.create_task(one.read(port)) for one in streams]
    await asyncio.sleep(1)
    print("ready", flush=True)
    wanted = int(await asyncio.to_thread(sys.stdin.readline))
    behind, began = sum(one.last < wanted for one in streams), time.perf_counter()
    while any(one.last < wanted for one in streams):
        failed = next((task for task in tasks if task.done()), None)
        assert failed is None, failed
        assert time.perf_counter() - began < CATCH_UP_SECONDS, f"streams are at {sorted(one.last for one in streams)}"
        await asyncio.sleep(0.01)
    print(json.dumps({"behind": behind, "caught_up_s": time.perf_counter() - began}), flush=True)
    for task in tasks:
        task.cancel()


async def last_event(port: int) -> int:
    _, body = await (await Connection.open(port)).send(request("GET", "/api/me"))
    return int(json.loads(body)["last_event"])


async def create(port: int, creators: int, seconds: float) -> dict[str, float]:
    found = await load(port, request("POST", "/api/jobs", JOB), creators, seconds)
    return {
        "creates_per_s": found["per_second"],
        "create_p50_ms": found["p50_ms"],
        "create_p99_ms": found["p99_ms"],
    }


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def part(role: str, port: int, arguments: argparse.Namespace) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "bench.health", "--role", role, "--port", str(port)]
    command += ["--streams", str(arguments.streams), "--creators", str(arguments.creators)]
    command += ["--seconds", str(arguments.seconds)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def answer(process: "subprocess.Popen[str]", said: str | None = None) -> dict[str, float]:
    out, _ = process.communicate(said)
    assert process.returncode == 0, process.args
    found: dict[str, float] = json.loads(out.splitlines()[-1])
    return found


def measure(port: int, pid: int, arguments: argparse.Namespace) -> dict[str, float]:
    streams = part("follow", port, arguments)
    assert streams.stdout is not None
    assert streams.stdout.readline() == "ready\n"
    before = cpu_seconds(pid)
    creators, prober = part("create", port, arguments), part("probe", port, arguments)
    found = answer(creators) | answer(prober)
    found["server_cpu"] = (cpu_seconds(pid) - before) / arguments.seconds
    return found | answer(streams, f"{asyncio.run(last_event(port))}\n")


def serve_and_measure(arguments: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="nextslot-bench-") as folder:
        Path(folder, "nextslot.toml").write_text(CONFIGURATION)
        port = free_port()
        serve = [str(Path(sys.executable).with_name("nextslot")), "serve", "--data", folder, "--port", str(port)]
        server = subprocess.Popen(serve, stdout=subprocess.DEVNULL)
        try:
            wait_for(port)
            asyncio.run(prepare(port))
            return measure(port, server.pid, arguments)
        finally:
            server.terminate()
            server.wait()


async def prepare(port: int) -> None:
    line = await Connection.open(port)
    while (await line.send(request("GET", "/ready")))[0] != 200:  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.1)
    await line.send(request("POST", "/api/queue/pause", {}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--creators", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--role", choices=["follow", "create", "probe"])
    parser.add_argument("--port", type=int)
    arguments = parser.parse_args()
    if arguments.role == "follow":
        uvloop.run(follow(arguments.port, arguments.streams))
    elif arguments.role == "create":
        print(json.dumps(uvloop.run(create(arguments.port, arguments.creators, arguments.seconds))))
    elif arguments.role == "probe":
        print(json.dumps(uvloop.run(probe(arguments.port, arguments.seconds))))
    else:
        found = {"streams": arguments.streams, "creators": arguments.creators} | serve_and_measure(arguments)
        found |= {"cores": os.cpu_count() or 0, "load_average": os.getloadavg()[0]}
        text = json.dumps({name: round(value, 2) for name, value in found.items()}, indent=2)
        print(text)
        if arguments.out is not None:
            arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
