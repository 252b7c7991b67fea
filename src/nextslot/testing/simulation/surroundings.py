"""The environment of a simulated scheduler: handlers that fail, hang or ignore a cancel, unreliable endpoints."""

import asyncio
import base64
import hashlib
import hmac
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from nextslot.domain import FailureKind
from nextslot.engine.webhooks.delivery_worker import EndpointResponse
from nextslot.errors import NextslotError
from nextslot.executors.run_context import Fail, QuotaExceeded, RunContext, Skip
from nextslot.scheduler import Scheduler
from nextslot.store.contract import Tx

from . import signal_oracle

# After these failures the simulated sessions go on, as those of a role do.
RESUMED = (FailureKind.PARKED, FailureKind.CRASH, FailureKind.INTERRUPTED, FailureKind.QUOTA)

T = TypeVar("T")

# The name of one office begins with that of another.
OFFICES = ("default", "a", "ab", "b")
TYPES = ("work", "work", "render", "thread", "heavy")
# A run of such a job ends after this many seconds without a report.
STALL_SECONDS = 6.0
# The time after which a provider says that it renews its quota.
QUOTA_SECONDS = 45.0
# How soon after its answer a message may be sent again, and the largest difference between clocks that is no step
# (clock.py).
SHORTEST_DELAY, TOLERANCE = 5.0, 1.01
# How long a node may sign with a secret that was rotated at another one: it may be stopped, with a message to send.
LEARNS_WITHIN = 300.0
ENDPOINTS = ("http://127.0.0.1:9001/hook", "http://127.0.0.1:9002/hook", "http://127.0.0.1:9003/hook")


class Witness:
    """Records the start of every handler, and checks that its run is stored as running."""

    def __init__(self) -> None:
        self.began: dict[str, str] = {}
        # In monotonic time: when each run began, and how long each ended run took.
        self.began_at: dict[str, float] = {}
        self.took: dict[str, float] = {}
        # Runs that were told to stop, runs that report progress, and runs that ignore a stop.
        self.stopped: set[str] = set()
        self.reporting: set[str] = set()
        self.stubborn: set[str] = set()
        # Whether no slow commit has held up the event loop. During such a commit a stall cannot be noticed.
        self.is_exact = True
        self.broken: list[str] = []
        self.is_under_way: Callable[[str], bool] = lambda run_id: True
        self.sessions = signal_oracle.Sessions()
        # Calls a function with a transaction that reads the store as it is now.
        self.read: Callable[[Callable[[Tx], Any]], Any] = lambda work: None

    def begins(self, run: RunContext) -> None:
        if run.run_id in self.began:
            self.broken.append(f"run {run.run_id} began twice")
        if run.job_id in self.began.values():
            self.broken.append(f"job {run.job_id} was run twice")
        if not self.is_under_way(run.run_id):
            self.broken.append(f"run {run.run_id} began, but is not stored as running")
        self.began[run.run_id] = run.job_id
        self.began_at[run.run_id] = asyncio.get_running_loop().time()

    def ends(self, run: RunContext, do: str = "ok") -> None:
        took = self.took[run.run_id] = asyncio.get_running_loop().time() - self.began_at[run.run_id]
        if run.is_stopped:
            self.stopped.add(run.run_id)
        if do == "silent" and self.is_exact and took > STALL_SECONDS + 0.1:
            self.broken.append(f"run {run.run_id} was silent for {took} seconds, and was not stopped")


class SlowThreads:
    """Threads of a simulated scheduler: each call takes some virtual time and has its effect at the end."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    async def run(self, call: Callable[[], T]) -> T:
        await asyncio.sleep(self._random.choice((0.0, 0.0, 0.2, 8.0)))
        return call()


def register(scheduler: Scheduler, witness: Witness) -> None:
    """Registers the same handler for each type. The parameters decide what the handler does."""

    async def work(run: RunContext, do: str = "ok", seconds: float = 1.0, times: int = 1, tokens: int = 0) -> Any:
        witness.begins(run)
        try:
            if do == "stubborn":
                witness.stubborn.add(run.run_id)
                await _ignoring_signals(seconds)
            elif do == "report":
                witness.reporting.add(run.run_id)
                await _reporting(run, seconds)
            elif do == "silent":
                run.progress(0.1)
                await asyncio.sleep(10 * STALL_SECONDS)
            else:
                await asyncio.sleep(1e9 if do == "hang" else seconds)
        finally:
            witness.ends(run, do)
        if do == "skip":
            raise Skip("nothing to do")
        if do not in ("ok", "stubborn", "report", "silent") and run.attempt <= times:
            if do == "quota_until":
                raise QuotaExceeded(retry_after=QUOTA_SECONDS)
            raise Fail(f"simulated failure: {do}", "error" if do == "fail" else do)
        return _result(run, tokens)

    def work_in_thread(run: RunContext, do: str = "ok", seconds: float = 1.0, times: int = 1, tokens: int = 0) -> Any:
        witness.begins(run)
        witness.stubborn.add(run.run_id)  # A thread's handler cannot be interrupted.
        witness.ends(run)
        del witness.took[run.run_id]  # The thread decides how long the call takes.
        if do == "fail" and run.attempt <= times:
            raise Fail("simulated failure: fail")
        return _result(run, tokens)

    async def session(run: RunContext, do: str = "ok", seconds: float = 1.0, times: int = 1, asks: int = 1) -> Any:
        witness.begins(run)
        try:
            if do == "early" and run.attempt <= times:
                raise Fail("simulated failure before the first question")
            await _session(run, witness.sessions, witness.read, seconds, asks)
        finally:
            witness.ends(run, do)
        if do not in ("ok", "early") and run.attempt <= times:
            raise Fail(f"simulated failure: {do}", "error" if do == "fail" else do)
        return {"attempt": run.attempt}

    scheduler.job_types.register("session", session, has_session=True)
    scheduler.job_type("work")(work)
    scheduler.job_type("thread")(work_in_thread)
    scheduler.job_type("render", resources={"gpu": 1})(work)
    scheduler.job_type("heavy", infer_resources=_needs)(work)


def _result(run: RunContext, tokens: int) -> dict[str, Any]:
    return {"attempt": run.attempt} | ({"usage": {"total_tokens": tokens}} if tokens else {})


def _needs(params: Mapping[str, Any]) -> dict[str, int]:
    """Returns the resources of a job: long jobs need the disk, so a change of the duration changes the limits of a
    job.
    """
    return {"disk": 1} if params.get("seconds", 0) > 1 else {}


async def _session(
    run: RunContext, sessions: signal_oracle.Sessions, read: Callable[..., Any], seconds: float, asks: int
) -> None:
    """Goes on with the session before if it may, and asks its questions in turn; before each it leaves a checkpoint."""
    chain_id = read(lambda tx: sessions.begins(run, tx))
    assert run.set_session is not None
    earlier = run.earlier_session
    resumes = earlier is not None and earlier[1] in RESUMED
    name = earlier[0] if earlier is not None and resumes else run.session_id
    sessions.names.pop(chain_id, None)  # Until the answer comes, either may be stored.
    await run.set_session(name or "")
    run.session_id = sessions.names[chain_id] = name or ""
    for number in range(1, asks + 1):
        if f"step {number}" in run.signals:
            continue
        await asyncio.sleep(seconds)
        await _leave(run, sessions, chain_id)
        if number % 2:
            run.park(f"step {number}", question="Go on?", deadline_seconds=600.0, on_deadline="approve")
        run.park(f"step {number}", answered_by=["ada"], deadline_seconds=60.0)
    if asks % 2:
        await _leave(run, sessions, chain_id)
    else:  # The end of its run must not overtake it.
        number = sessions.left[chain_id] = sessions.left[chain_id] + 1
        run.checkpoint(signal_oracle.content(number))


async def _leave(run: RunContext, sessions: signal_oracle.Sessions, chain_id: str) -> None:
    """Leaves the next checkpoint; one that could not be stored is not acknowledged."""
    number = sessions.left[chain_id] = sessions.left[chain_id] + 1
    try:
        await run.checkpoint(signal_oracle.content(number))
    except NextslotError:
        return
    sessions.kept[chain_id] = max(number, sessions.kept.get(chain_id, 0))


async def _reporting(run: RunContext, seconds: float) -> None:
    for step in range(5):
        run.progress(step / 5)
        await asyncio.sleep(min(seconds / 5 + 1, 0.7 * STALL_SECONDS))


async def _ignoring_signals(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while (left := end - loop.time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue


class Endpoints:
    """Receives webhooks. Sometimes it is slow, refuses, asks for a retry later, or is unreachable."""

    def __init__(self, seed: int, is_timed: bool = True) -> None:
        """`is_timed`: whether only one scheduler sends, which therefore knows what it has sent and when."""
        self._random = random.Random(seed)
        self._is_timed = is_timed
        self.is_well = False
        # The ids of the received and acknowledged messages.
        self.received: set[str] = set()
        # By URL: the secret that must sign now, and the office whose events a subscription may get; URLs of deleted
        # subscriptions.
        self.secrets: dict[str, str] = {}
        # By URL: the secret before that, and since when it is replaced.
        self._replaced: dict[str, tuple[str, float]] = {}
        self.offices: dict[str, str | None] = {}
        self.deleted: set[str] = set()
        self.broken: list[str] = []
        # The received contents, and when each origin last got a message.
        self.contents: list[Any] = []
        self.sent_at: dict[str, float] = {}
        self.in_flight: Counter[str] = Counter()
        # For each message, in this life of the scheduler: the earliest time at which it may be sent again; never, once
        # received.
        self._not_before: dict[str, float] = {}

    def restarted(self) -> None:
        """Allows every message again: the scheduler has forgotten what was not stored."""
        self._not_before.clear()

    def rotates(self, url: str) -> None:
        """Allows either secret until the answer comes. A node that is stopped meanwhile learns of the new one late."""
        old = self.secrets.pop(url, None)
        if old is not None and not self._is_timed:
            self._replaced[url] = (old, asyncio.get_running_loop().time())

    def _secrets_of(self, url: str) -> list[str]:
        old, since = self._replaced.get(url, ("", 0.0))
        is_valid = bool(old) and asyncio.get_running_loop().time() - since < LEARNS_WITHIN
        return [self.secrets[url], *([old] if is_valid else [])]

    def sent_again(self, delivery_id: str) -> None:
        """Allows a message again, because somebody requested it."""
        self._not_before.pop(delivery_id, None)

    async def send(self, url: str, headers: Mapping[str, str], body: bytes, seconds: float) -> EndpointResponse:
        self._check(url, headers, body)
        self._check_time(headers["webhook-id"])
        origin = "/".join(url.split("/")[:3])
        self.in_flight[origin] += 1
        try:
            return await self._answer(headers, seconds)
        finally:
            self.in_flight[origin] -= 1
            self.sent_at[origin] = asyncio.get_running_loop().time()

    async def _answer(self, headers: Mapping[str, str], seconds: float) -> EndpointResponse:
        answer, delay = (EndpointResponse(200), 0.0) if self.is_well else self._misbehave(seconds)
        if delay:
            await asyncio.sleep(delay)
        if answer.status_code == 200:
            self.received.add(headers["webhook-id"])
        wait = float("inf") if answer.status_code == 200 else max(SHORTEST_DELAY, float(answer.retry_after or 0))
        self._not_before[headers["webhook-id"]] = asyncio.get_running_loop().time() + wait
        return answer

    def idle_seconds(self) -> dict[str, float]:
        """Returns for how long each origin has received nothing; 0 while a message is under way."""
        now = asyncio.get_running_loop().time()
        return {origin: 0.0 if self.in_flight[origin] else now - at for origin, at in self.sent_at.items()}

    def _check_time(self, delivery_id: str) -> None:
        """Checks that a message does not arrive twice at once, too early again, or after it was acknowledged."""
        early = self._not_before.get(delivery_id, 0.0) - asyncio.get_running_loop().time()
        if early > TOLERANCE and self._is_timed:
            self.broken.append(f"the message {delivery_id} comes again {early:.3f} seconds too early")
        self._not_before[delivery_id] = float("inf")  # While the message is under way.

    def _check(self, url: str, headers: Mapping[str, str], body: bytes) -> None:
        """Checks what a receiver can check: whether it still subscribes, whether its own secret signs, and whose event
        it is.
        """
        if url in self.deleted:
            self.broken.append(f"{url} got a message after its subscription was deleted")
        if url in self.secrets and not any(_is_signed(one, headers, body) for one in self._secrets_of(url)):
            self.broken.append(f"{url} got a message that its secret does not sign")
        wanted = self.offices.get(url)
        content = json.loads(body)
        self.contents.append(content)
        office = next((content[key].get("office_id") for key in ("job", "group", "schedule") if key in content), None)
        if wanted is not None and office not in (None, wanted):
            self.broken.append(f"{url} got a message of {office}, and is for {wanted}")

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


def _is_signed(secret: str, headers: Mapping[str, str], body: bytes) -> bool:
    """Verifies the signature of a message by the text of the standard (Standard Webhooks)."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    signature = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    return f"v1,{signature}" in headers["webhook-signature"].split()
