"""Measures what an office notices of its neighbour: its creates and starts alone, and while the neighbour attacks.

    uv run python bench/neighbours.py [--seconds 6] [--only bodies,streams]

The server is a process of its own, and so is each attack, which is niced. Office `a` creates a job every 40 ms; `b` has
a key of its own. Each attack is compared with the seconds before it, because the machine may be busy with other things:
p50 should stay below twice, p99 below four times the value alone. `start` is the time between the two stored times of a
job, `created_at` and the `started_at` of its run.
"""

import argparse
import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# This directory has an `http.py`, which would hide the library's `http`.
sys.path.remove(str(Path(__file__).parent))

import httpx2

NEXTSLOT = Path(sys.executable).with_name("nextslot")
CONFIGURATION = """
[job_types.noop]
handler = "handlers:noop"
[job_types.slow]
handler = "handlers:slow"
[offices.a]
max_concurrent_jobs = 4
[offices.b]
max_concurrent_jobs = 4
[webhooks]
allow_private = true
[extensions]
disabled = ["stories"]
[logs]
level = "warning"
"""
PAUSE_SECONDS = 0.04
LATER = "2999-01-01T00:00:00Z"
# As many jobs as one request of an office may name (quota `batch_jobs`).
ALLOWED = 500


HANDLERS = """
import asyncio
async def noop(run): pass
async def slow(run): await asyncio.sleep(3)
"""


class Caller:
    """A client of the server, with a key."""

    def __init__(self, url: str, key: str) -> None:
        self.url, self.key = url, key
        self.http = httpx2.AsyncClient(
            base_url=url,
            headers={"X-API-Key": key},
            timeout=300,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
        )

    async def post(self, path: str, body: Any) -> httpx2.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.http.post(path, content=content, headers={"content-type": "application/json"})


async def for_ever(count: int, act: Callable[[], Awaitable[object]]) -> None:
    async def one() -> None:
        while True:
            try:
                await act()
            except (httpx2.HTTPError, OSError):
                await asyncio.sleep(0.1)

    await asyncio.gather(*(one() for _ in range(count)))


async def bodies(b: Caller) -> None:
    job = b'{"job_type":"nothing","office_id":"b","params":{"list":[1,2,3],"text":"' + b"x" * 560 + b'"}}'
    body = b'{"jobs":[' + b",".join([job] * 95_000) + b"]}"
    await for_ever(1, lambda: b.post("/api/jobs/batch", body))


async def half_sent(b: Caller) -> None:
    address = ("127.0.0.1", int(b.url.rpartition(":")[2]))

    async def one() -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        await reader.read()
        writer.close()

    await for_ever(1100, one)


async def creates(b: Caller) -> None:
    await for_ever(100, lambda: b.post("/api/jobs", {"job_type": "noop", "office_id": "b"}))


async def refused_batches(b: Caller) -> None:
    jobs = [{"job_type": "noop", "office_id": "b", "key": str(n), "depends_on": [str((n + 1) % 1000)]}
            for n in range(1000)]  # fmt: skip
    await for_ever(20, lambda: b.post("/api/jobs/batch", {"jobs": jobs}))


async def streams(b: Caller) -> None:
    async def one() -> None:
        async with b.http.stream("GET", "/api/events", headers={"accept": "text/event-stream"}) as answer:
            if answer.status_code != 200:
                await asyncio.sleep(1)
            async for _ in answer.aiter_bytes():
                pass

    await for_ever(800, one)


async def group_cancels(b: Caller) -> None:
    jobs = [{"job_type": "noop", "office_id": "b", "scheduled_for": LATER}] * ALLOWED

    async def one() -> None:
        group = (await b.post("/api/job-groups", {"mode": "parallel", "jobs": jobs})).json()
        await b.post(f"/api/job-groups/{group['group_id']}/cancel", {})

    await for_ever(1, one)


async def large_batches(b: Caller) -> None:
    jobs = [{"job_type": "noop", "office_id": "b", "scheduled_for": LATER}] * 100_000
    await for_ever(1, lambda: b.post("/api/jobs/batch", {"jobs": jobs}))


async def batches(b: Caller) -> None:
    jobs = [{"job_type": "noop", "office_id": "b", "scheduled_for": LATER}] * ALLOWED
    await for_ever(4, lambda: b.post("/api/jobs/batch", {"jobs": jobs}))


async def direct_callers(b: Caller) -> None:
    await for_ever(50, lambda: b.post("/api/direct/noop", {"office_id": "b"}))


async def silent_webhooks(b: Caller) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/hook"
    numbers = iter(range(10**9))
    await for_ever(
        10,
        lambda: b.post(
            "/api/jobs", {"job_type": "noop", "office_id": "b", "webhook": {"url": f"{url}/{next(numbers) % 80}"}}
        ),
    )


async def guesses(b: Caller) -> None:
    """A stranger: keys that it invents, no key at all, and links that it invents."""
    numbers = iter(range(10**9))

    async def one() -> None:
        number = next(numbers)
        wrong = {"X-API-Key": f"nsk_{number}"} if number % 2 else {"Authorization": f"Bearer {number}"}
        async with b.http.stream("GET", f"/signal/{number}" if number % 10 == 0 else "/api/jobs", headers=wrong):
            pass

    del b.http.headers["X-API-Key"]
    await for_ever(200, one)


async def many_names(b: Caller) -> None:
    """Its own key, and beside it another invented one in each request."""
    numbers = iter(range(10**9))
    await for_ever(100, lambda: b.http.get("/api/jobs?limit=1", headers={"Authorization": f"Bearer {next(numbers)}"}))


async def dry_runs(b: Caller) -> None:
    """Trials of a job behind a queue of a thousand."""
    waiting = [{"job_type": "noop", "office_id": "b", "scheduled_for": LATER}] * ALLOWED
    ready = [{"job_type": "slow", "office_id": "b"}] * ALLOWED
    for jobs in (waiting, ready, ready):
        await b.post("/api/jobs/batch", {"jobs": jobs})
    await for_ever(4, lambda: b.post("/api/jobs/dry-run", {"job_type": "noop", "office_id": "b"}))


async def many_keys(b: Caller) -> None:
    """15,000 jobs with a limit key each, behind a role that is full, and creates beside them."""
    slow = [{"job_type": "slow", "office_id": "b", "role": "FE", "priority": 1}] * 100
    await b.post("/api/jobs/batch", {"jobs": slow})
    for first in range(0, 15_000, ALLOWED):
        held_back = [
            {"job_type": "noop", "office_id": "b", "role": "FE", "limit_keys": [str(first + number)]}
            for number in range(ALLOWED)
        ]
        await b.post("/api/jobs/batch", {"jobs": held_back})
    await for_ever(4, lambda: b.post("/api/jobs", {"job_type": "noop", "office_id": "b"}))


# How long an attack prepares, in seconds.
PREPARES = {"many_keys": 45.0}
ATTACKS: dict[str, Callable[[Caller], Awaitable[None]]] = {
    one.__name__: one
    for one in (
        bodies, half_sent, creates, refused_batches, streams, group_cancels, large_batches, batches, direct_callers,
        silent_webhooks, guesses, many_names, dry_runs, many_keys,
    )
}  # fmt: skip


@contextlib.contextmanager
def server(directory: Path) -> Iterator[tuple[str, int]]:
    (directory / "nextslot.toml").write_text(CONFIGURATION)
    (directory / "handlers.py").write_text(HANDLERS)
    environment = {**os.environ, "PYTHONPATH": str(directory)}
    process = subprocess.Popen(
        [NEXTSLOT, "serve", "--port", "0", "--data", directory], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        line = next(line for line in process.stdout if "http://" in line)
        yield line[line.index("http://") :].split()[0].rstrip("/"), process.pid
    finally:
        process.kill()
        process.wait()


def make_keys(url: str) -> tuple[str, str]:
    with httpx2.Client(base_url=url, timeout=60) as http:
        admin = http.post("/api/keys", json={"name": "admin", "scopes": ["admin"]}).json()["key"]
        http.headers["X-API-Key"] = admin
        made = [
            http.post("/api/keys", json={"name": office, "scopes": ["operate"], "office_id": office}).json()["key"]
            for office in ("a", "b")
        ]
    return made[0], made[1]


async def observe(a: Caller, seconds: float) -> tuple[list[float], list[float], int]:
    """Returns the sorted times of creates and starts in ms, and how many creates failed.

    A create is sent every 40 ms whether or not the last one was answered: else a stop of seconds would be one value.
    """
    times: list[float] = []
    made: list[str] = []

    async def create() -> None:
        began = time.perf_counter()
        answer = await a.post("/api/jobs", {"job_type": "noop", "office_id": "a"})
        times.append((time.perf_counter() - began) * 1000)
        answer.raise_for_status()
        made.append(answer.json()["job_id"])

    sent = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sent.append(asyncio.create_task(create()))
        await asyncio.sleep(PAUSE_SECONDS)
    failures = [one for one in await asyncio.gather(*sent, return_exceptions=True) if one is not None]
    starts = [started for job_id in made[::5] if (started := await start_of(a, job_id)) is not None]
    return sorted(times), sorted(starts), len(failures)


async def start_of(a: Caller, job_id: str) -> float | None:
    while True:
        job = (await a.http.get(f"/api/jobs/{job_id}")).json()
        if job.get("run") is not None:
            began, started = (datetime.fromisoformat(one) for one in (job["created_at"], job["run"]["started_at"]))
            return (started - began).total_seconds() * 1000
        if job.get("status") not in ("QUEUED", "RUNNING"):
            return None
        await asyncio.sleep(0.05)


def at(times: list[float], share: float) -> float:
    return times[min(int(len(times) * share), len(times) - 1)] if times else float("nan")


def memory_mb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


async def measure(attack: str, seconds: float) -> str:
    with tempfile.TemporaryDirectory() as place, server(Path(place)) as (url, pid):
        key_a, key_b = make_keys(url)
        a = Caller(url, key_a)
        await observe(a, 1)
        alone = await observe(a, seconds)
        command = ["nice", "-n", "10", sys.executable, __file__, "--attack", attack, "--url", url, "--key", key_b]
        attacker = await asyncio.create_subprocess_exec(*command, stderr=subprocess.DEVNULL)
        try:
            await asyncio.sleep(PREPARES.get(attack, 3.0))
            beside = await observe(a, seconds)
        finally:
            attacker.kill()
            await attacker.wait()
        await a.http.aclose()
        cells = [attack]
        for before, during in zip(alone[:2], beside[:2], strict=True):
            for share in (0.5, 0.99):
                one, two = at(before, share), at(during, share)
                cells.append(f"{one:.1f} → {two:.1f} ({two / one:.1f}×)")
        return "| " + " | ".join([*cells, str(beside[2]), str(memory_mb(pid))]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--only", default=",".join(ATTACKS))
    for hidden in ("--attack", "--url", "--key"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.attack:
        asyncio.run(_attack(given.attack, given.url, given.key))
        return
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, ms")
    print("| attack | create p50 | create p99 | start p50 | start p99 | failed | peak MB |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for attack in given.only.split(","):
        print(asyncio.run(measure(attack, given.seconds)), flush=True)


async def _attack(name: str, url: str, key: str) -> None:
    await ATTACKS[name](Caller(url, key))


if __name__ == "__main__":
    main()
