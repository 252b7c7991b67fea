"""The environment of a simulated scheduler: handlers that fail, hang or ignore a cancel, unreliable endpoints."""

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

from nextslot.engine.webhooks.delivery_worker import EndpointResponse
from nextslot.executors.run_context import Fail, RunContext, Skip
from nextslot.scheduler import Scheduler

OFFICES = ("default", "a", "b")
TYPES = ("work", "render")
ENDPOINTS = ("http://127.0.0.1:9001/hook", "http://127.0.0.1:9002/hook", "http://127.0.0.1:9003/hook")


class Witness:
    """Records the start of every handler, and checks that its run is stored as running."""

    def __init__(self) -> None:
        self.began: dict[str, str] = {}
        # In monotonic time: when each run began, and how long the ended ones took.
        self.began_at: dict[str, float] = {}
        self.took: dict[str, float] = {}
        self.broken: list[str] = []
        self.is_under_way: Callable[[str], bool] = lambda run_id: True

    def begins(self, run: RunContext) -> None:
        if run.run_id in self.began:
            self.broken.append(f"run {run.run_id} began twice")
        if run.job_id in self.began.values():
            self.broken.append(f"job {run.job_id} was run twice")
        if not self.is_under_way(run.run_id):
            self.broken.append(f"run {run.run_id} began, but is not stored as running")
        self.began[run.run_id] = run.job_id
        self.began_at[run.run_id] = asyncio.get_running_loop().time()

    def ends(self, run: RunContext) -> None:
        self.took[run.run_id] = asyncio.get_running_loop().time() - self.began_at[run.run_id]


def register(scheduler: Scheduler, witness: Witness) -> None:
    """Registers the same handler for each type; its parameters decide what it does."""

    async def work(run: RunContext, do: str = "ok", seconds: float = 1.0, times: int = 1) -> Any:
        witness.begins(run)
        try:
            if do == "stubborn":
                await _ignoring_signals(seconds)
            else:
                await asyncio.sleep(1e9 if do == "hang" else seconds)
        finally:
            witness.ends(run)
        if do == "skip":
            raise Skip("nothing to do")
        if do not in ("ok", "stubborn") and run.attempt <= times:
            raise Fail(f"simulated failure: {do}", "error" if do == "fail" else do)
        return {"attempt": run.attempt}

    scheduler.job_type("work")(work)
    scheduler.job_type("render", resources={"gpu": 1})(work)


async def _ignoring_signals(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while (left := end - loop.time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue


class Endpoints:
    """Receives webhooks; at times it is slow, refuses, asks for a retry later, or is unreachable."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.is_well = False
        # The ids of the messages that were received and acknowledged.
        self.received: set[str] = set()

    async def send(self, url: str, headers: Mapping[str, str], body: bytes, seconds: float) -> EndpointResponse:
        answer, delay = (EndpointResponse(200), 0.0) if self.is_well else self._misbehave(seconds)
        if delay:
            await asyncio.sleep(delay)
        if answer.status_code == 200:
            self.received.add(headers["webhook-id"])
        return answer

    def _misbehave(self, seconds: float) -> tuple[EndpointResponse, float]:
        kind = self._random.random()
        if kind < 0.55:
            return EndpointResponse(200), self._random.choice((0.0, 0.0, 0.3, 9.0))
        if kind < 0.7:
            return EndpointResponse(500), 0.1
        if kind < 0.8:
            return EndpointResponse(None, error="timed out"), seconds
        if kind < 0.9:
            return EndpointResponse(None, error="refused", is_unreachable=True), 0.0
        if kind < 0.97:
            return EndpointResponse(503, retry_after="30"), 0.0
        return EndpointResponse(410), 0.0

    async def close(self) -> None:
        pass
