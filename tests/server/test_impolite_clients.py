"""A refused request changes nobody else's answer and nobody else's work: impolite clients beside polite ones.

One real `nextslot serve`, whose polite clients submit single jobs and batches with dependents, while others send what
must be refused, much of it after the transaction was touched. All of them meet in the same group commits.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests import databases
from tests.crash.server import Server
from tests.support import IS_ALL

# `./test --all` takes its time.
SECONDS = 30.0 if IS_ALL else 4.0
# For a machine that is busy with other things.
PATIENCE = 300.0
CONFIGURATION = """
[job_types.true]
command = ["/bin/true"]
[offices.default]
max_concurrent_jobs = 0
[node]
running = 8
[extensions]
disabled = ["stories"]
"""
BATCH = [
    {"job_type": "true", "key": "first"},
    *({"job_type": "true", "depends_on": ["first"]} for _ in range(3)),
]
CYCLE = [
    {"job_type": "true", "key": "a", "depends_on": ["b"]},
    {"job_type": "true", "key": "b", "depends_on": ["a"]},
]
NOBODY = "0199a000-0000-7000-8000-000000000000"


def test_a_refused_request_changes_nobody_elses_answer_and_nobody_elses_work(tmp_path: Path) -> None:
    asyncio.run(meet(tmp_path))


async def meet(directory: Path) -> None:
    async with serving(directory) as url:
        clients = Clients(url)
        await clients.load(SECONDS)
        states = await clients.ended()

    assert clients.wrong == [], "each request is answered as if it were alone"
    assert states == {"COMPLETED": clients.jobs}
    assert all(clients.refused[impolite] > 0 for impolite in IMPOLITE)


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[str]:
    (directory / "nextslot.toml").write_text(CONFIGURATION)
    server = Server(directory, environment=databases.variables(directory))
    try:
        yield await asyncio.to_thread(server.wait_until_ready)
    finally:
        await asyncio.to_thread(server.kill)


class Clients:
    def __init__(self, url: str) -> None:
        self._url = url
        self.jobs = 0
        self.refused: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def load(self, seconds: float) -> None:
        polite = [self._submit_one, self._submit_batch] * 5
        impolite = [self._impolite(name) for name in IMPOLITE for _ in range(2 if name == "cycle" else 1)]
        end = time.monotonic() + seconds
        async with httpx2.AsyncClient(base_url=self._url, timeout=60, limits=httpx2.Limits(max_connections=50)) as http:
            await asyncio.gather(*(self._again_and_again(http, act, end) for act in [*polite, *impolite]))

    async def _again_and_again(
        self, http: httpx2.AsyncClient, act: Callable[[httpx2.AsyncClient], Awaitable[None]], end: float
    ) -> None:
        while time.monotonic() < end:
            await act(http)

    async def _submit_one(self, http: httpx2.AsyncClient) -> None:
        self._heard(await http.post("/api/jobs", json={"job_type": "true"}), 1)

    async def _submit_batch(self, http: httpx2.AsyncClient) -> None:
        self._heard(await http.post("/api/jobs/batch", json={"jobs": BATCH}), len(BATCH))

    def _heard(self, answer: httpx2.Response, jobs: int) -> None:
        if answer.status_code == 201:
            self.jobs += jobs
        else:
            self.wrong.append(f"{answer.status_code} {answer.text[:300]}")

    def _impolite(self, name: str) -> Callable[[httpx2.AsyncClient], Awaitable[None]]:
        method, path, body, expected = IMPOLITE[name]

        async def act(http: httpx2.AsyncClient) -> None:
            answer = await http.request(method, path, json=body, headers={"Idempotency-Key": "taken"})
            if answer.status_code == expected:
                self.refused[name] += 1
            else:
                self.wrong.append(f"{name}: {answer.status_code} {answer.text[:300]}")

        return act

    async def ended(self) -> dict[str, int]:
        """Returns how many jobs have which status, once all of them have ended."""
        end = time.monotonic() + PATIENCE
        async with httpx2.AsyncClient(base_url=self._url, timeout=60) as http:
            while True:
                states = await counted(http)
                if not states.keys() & {"WAITING", "QUEUED", "RUNNING"} or time.monotonic() > end:
                    return states
                await asyncio.sleep(0.1)


async def counted(http: httpx2.AsyncClient) -> dict[str, int]:
    counts: dict[str, int] = {}
    for status in ("WAITING", "QUEUED", "RUNNING", "COMPLETED", "FAILED", "SKIPPED", "CANCELLED"):
        cursor, found = None, 0
        while True:
            asked = {"status": status, "limit": 500, **({"cursor": cursor} if cursor else {})}
            page = (await http.get("/api/jobs", params=asked)).json()
            found += len(page["items"])
            cursor = page["next_cursor"]
            if cursor is None:
                break
        if found:
            counts[status] = found
    return counts


def a_batch(*jobs: dict[str, Any]) -> dict[str, Any]:
    return {"jobs": [{"job_type": "true"}, *jobs]}


# What is refused: method, path, body, status. The key of all of them is one that was never used for such a request.
IMPOLITE: dict[str, tuple[str, str, Any, int]] = {
    "cycle": ("POST", "/api/jobs/batch", {"jobs": CYCLE}, 422),
    "unknown prerequisite": ("POST", "/api/jobs/batch", a_batch({"job_type": "true", "depends_on": [NOBODY]}), 422),
    "unknown office": ("POST", "/api/jobs/batch", a_batch({"job_type": "true", "office_id": "nowhere"}), 404),
    "unknown job type": ("POST", "/api/jobs", {"job_type": "nothing"}, 422),
    "unknown job": ("POST", f"/api/jobs/{NOBODY}/move", {"to": "front"}, 404),
    "unknown caller's office": ("POST", "/api/direct/true", {"office_id": "nowhere"}, 404),
}
