"""DeliveryWorker: sends what is in the outbox, and stores what came of each attempt. Nothing else waits for it.

A delivery stays PENDING, with the instant of its next attempt, until its result is committed: whatever is lost in
between is sent again, under the same id (at least once). Woken by commits and by the one timer; it never polls.
Each endpoint (scheme, host, port) begins with little room and gets more with each answer; one that does not answer is
left with a single attempt at a time, which then speaks for everything that is due there.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, Protocol

from nextslot.domain import Attempt, Delivery, DeliveryStatus
from nextslot.domain import webhook_delivery as policy
from nextslot.domain.webhook_delivery import SERVER, Next
from nextslot.engine.effects import DeliverySettled
from nextslot.engine.engine_context import EngineContext
from nextslot.errors import Unavailable
from nextslot.store.contract import Store, Tx
from nextslot.store.tables import deliveries
from nextslot.system.clock import Instant

from .webhook_outbox import DELETED

log = logging.getLogger(__name__)

FIRST_ROOM = 2
MOST_ROOM = 16
# How many of an endpoint are held in memory, and how many results one transaction stores.
PAGE = 32
RESULTS = 500
# How many one attempt at an endpoint that is taken for dead speaks for.
SHARED = 1000
RETRY_SECONDS = 1.0
STOP_SECONDS = 5.0
_AGENT = "nextslot"


class EndpointResponse(NamedTuple):
    """What an endpoint said; without a status, why there is none."""

    status_code: int | None = None
    error: str | None = None
    text: str | None = None
    retry_after: str | None = None
    # Not even connected: whatever else is to be sent there would meet the same.
    is_unreachable: bool = False


class Sender(Protocol):
    """Speaks HTTP: `endpoints.HttpSender`, or a mailbox in tests."""

    async def send(self, url: str, headers: Mapping[str, str], body: bytes, seconds: float) -> EndpointResponse:
        """Takes no longer than that, whatever the other end does, and does not raise."""

    async def close(self) -> None: ...


_UNSIGNED = EndpointResponse(error=DELETED)


@dataclass(slots=True)
class _Endpoint:
    """Who is at the other end, and what goes there."""

    origin: str
    next_due: Instant | None = None
    ready: deque[Delivery] = field(default_factory=deque)
    # In memory, until the result is stored: what the store still shows as due, and must not be sent twice.
    taken: set[str] = field(default_factory=set)
    in_flight: int = 0
    room: int = FIRST_ROOM
    failures: int = 0
    is_looking: bool = False

    @property
    def is_tripped(self) -> bool:
        return self.failures >= policy.BREAKER_FAILURES

    @property
    def has_room_for_more(self) -> bool:
        return not self.ready and self.in_flight < self.room and not self.is_looking

    @property
    def is_over(self) -> bool:
        return self.next_due is None and not self.taken and not self.is_looking

    def wants_by(self, at: Instant | None) -> None:
        if at is not None and (self.next_due is None or at < self.next_due):
            self.next_due = at

    def answered(self, answer: EndpointResponse) -> None:
        """A breaker that closes slowly: room grows with every answer, and is gone without."""
        if answer.status_code is None:
            self.failures += 1
            self.room = 1
        else:
            self.failures = 0
            self.room = 1 if answer.status_code in (429, 503) else min(self.room + 1, MOST_ROOM)


class _Result(NamedTuple):
    endpoint: _Endpoint
    delivery: Delivery
    attempt: Attempt
    # The clock's offset when it began: the wall clock may step before this is stored.
    clock_offset: int
    # What else this attempt speaks for: nothing, what goes to the same URL, or to the same origin.
    speaks_for: str | None
    but: frozenset[str]


class DeliveryWorker:
    def __init__(self, engine: EngineContext, open_sender: Callable[[], Sender]) -> None:
        self._clock = engine.clock
        self._timer = engine.timer
        self._service = engine.webhooks
        self._meters = engine.meters
        self._tracer = engine.tracer
        self._open_sender = open_sender
        self._sender: Sender | None = None
        self._store: Store | None = None
        self._endpoints: dict[str, _Endpoint] = {}
        self._in_flight = 0
        self._is_full = False
        self._is_closing = False
        self._results: deque[_Result] = deque()
        self._attempts: set[asyncio.Task[None]] = set()
        self._looks: set[asyncio.Task[None]] = set()
        self._recording: asyncio.Task[None] | None = None

    # Life.

    async def start(self, store: Store) -> None:
        """What the last life left PENDING is due when it was, or at once."""
        self._store = store
        self._is_closing = self._is_full = False
        self._endpoints, self._in_flight = {}, 0
        await self.refresh()

    async def refresh(self) -> None:
        """Looks in the store to whom there is something to send, whoever put it there."""
        if self._store is None:
            return
        for origin, at in (await self._store.read(deliveries.origins)).items():
            self._endpoint(origin).wants_by(at)
        self.look()

    async def close(self) -> None:
        """Attempts under way have a short while; the rest stays PENDING for the next start."""
        self._is_closing = True
        if self._attempts:
            await asyncio.wait(set(self._attempts), timeout=STOP_SECONDS)
        await self._end(self._attempts | self._looks)
        if self._recording is not None:
            await asyncio.wait([self._recording], timeout=STOP_SECONDS)
        await self.abandon()
        if self._sender is not None:
            await self._sender.close()
            self._sender = None

    def renew(self) -> None:
        """Attempts from now on go by the settings as they are now; those under way end as they began."""
        old, self._sender = self._sender, None
        if old is not None:
            self._own(self._looks, self._retire(old, set(self._attempts)), "retire")
        self.look()

    async def _retire(self, sender: Sender, attempts: set[asyncio.Task[None]]) -> None:
        if attempts:
            await asyncio.wait(attempts)
        await sender.close()

    async def abandon(self) -> None:
        """Nothing more is sent or stored."""
        self._is_closing = True
        self._store = None
        recording = {self._recording} if self._recording is not None else set()
        await self._end(self._attempts | self._looks | recording)
        self._results.clear()

    async def _end(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        running = [task for task in tasks if not task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    # What is due.

    def wake(self, origins: Iterable[str], now: Instant) -> None:
        """After a commit: there is something to send to these."""
        if self._store is None:
            return  # Another node leads, and has been told.
        for origin in origins:
            endpoint = self._endpoint(origin)
            endpoint.wants_by(now)
            self._pump(endpoint)

    def look(self) -> None:
        """Begins what is due and has room, and sets the timer for the rest."""
        for endpoint in list(self._endpoints.values()):
            self._pump(endpoint)

    def shift(self, microseconds: int) -> None:
        """Moves what is kept in memory of when something is due, after the stored times were moved by as much."""
        for endpoint in self._endpoints.values():
            if endpoint.next_due is not None:
                endpoint.next_due = Instant(endpoint.next_due + microseconds)

    def _endpoint(self, origin: str) -> _Endpoint:
        return self._endpoints.setdefault(origin, _Endpoint(origin))

    def _pump(self, endpoint: _Endpoint) -> None:
        if self._is_closing or self._store is None:
            return
        if endpoint.is_tripped and len(endpoint.taken) > len(endpoint.ready):
            return  # One at a time, and not before what the last one spoke for is stored.
        while endpoint.ready and endpoint.in_flight < endpoint.room:
            if self._in_flight >= self._service.settings.concurrency:
                self._is_full = True
                return
            self._begin(endpoint, endpoint.ready.popleft())
        if endpoint.next_due is not None and endpoint.has_room_for_more:
            if endpoint.next_due <= self._clock.now():
                endpoint.is_looking = True
                self._own(self._looks, self._fill(endpoint, self._store), "look")
            else:
                self._timer.wake_by(endpoint.next_due)
        elif endpoint.is_over:
            self._endpoints.pop(endpoint.origin, None)

    async def _fill(self, endpoint: _Endpoint, store: Store) -> None:
        """Takes what is due from the store; what was taken before, or when it was read, is not taken again."""
        now = self._clock.now()
        endpoint.next_due, before = None, set(endpoint.taken)
        try:
            limit = len(before) + PAGE
            found, upcoming = await store.read(lambda tx: _due(tx, endpoint.origin, now, limit))
        except Unavailable as error:
            log.error("webhooks: the store did not answer; trying again in %g s: %s", RETRY_SECONDS, error)
            upcoming, found = self._clock.now().after(RETRY_SECONDS), []
        finally:
            endpoint.is_looking = False
        for delivery in found:
            if delivery.delivery_id not in before and delivery.delivery_id not in endpoint.taken:
                endpoint.taken.add(delivery.delivery_id)
                endpoint.ready.append(delivery)
        endpoint.wants_by(upcoming)
        self._pump(endpoint)

    def _begin(self, endpoint: _Endpoint, delivery: Delivery) -> None:
        endpoint.in_flight += 1
        self._in_flight += 1
        self._own(self._attempts, self._attempt(endpoint, delivery), delivery.delivery_id)

    def _own(self, tasks: set[asyncio.Task[None]], work: Coroutine[object, object, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"nextslot-webhook-{name}")
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    # One attempt.

    async def _attempt(self, endpoint: _Endpoint, delivery: Delivery) -> None:
        began, since, clock_offset = self._clock.now(), self._clock.monotonic(), self._clock.offset
        is_probe = endpoint.is_tripped
        try:
            answer = await self._send(delivery, began)
        finally:
            endpoint.in_flight -= 1
            self._in_flight -= 1
        took = self._clock.monotonic() - since
        if answer is not _UNSIGNED:
            endpoint.answered(answer)
            self._meters.attempted(answer.status_code, took)
        attempt = Attempt(
            number=delivery.tries + 1,
            attempted_at=began,
            duration_seconds=took,
            status_code=answer.status_code,
            error=answer.error,
            answer=answer.text,
            retry_after_seconds=policy.retry_after(answer.status_code or 0, answer.retry_after, self._clock.now()),
        )
        speaks_for = None
        if endpoint.is_tripped:
            self._put_back(endpoint)
            if is_probe:
                speaks_for = "origin" if answer.is_unreachable else "url"
        taken = frozenset(endpoint.taken)
        self._results.append(_Result(endpoint, delivery, attempt, clock_offset, speaks_for, taken))
        self._record_soon()
        self._go_on(endpoint)

    async def _send(self, delivery: Delivery, now: Instant) -> EndpointResponse:
        body = delivery.body.encode()
        secrets = self._service.secrets_of(delivery.signers, now)
        if not secrets:
            return _UNSIGNED
        headers = {"Content-Type": "application/json", "User-Agent": _AGENT, **delivery.headers}
        headers |= policy.signed(delivery.delivery_id, body, secrets, now)
        try:
            self._sender = self._sender or self._open_sender()
            return await self._traced(self._sender, delivery, headers, body)
        except Exception as error:  # An attempt that fails in a way nobody thought of has failed, and no more.
            log.exception("delivery %s: the attempt broke", delivery.delivery_id)
            return EndpointResponse(error=f"the attempt broke: {type(error).__name__}")

    async def _traced(
        self, sender: Sender, delivery: Delivery, headers: Mapping[str, str], body: bytes
    ) -> EndpointResponse:
        number = delivery.tries + 1
        with self._tracer.attempt(delivery.delivery_id, delivery.event, delivery.job_id, number) as span:
            answer = await sender.send(delivery.url, headers, body, self._service.settings.timeout_seconds)
            span.note({"http.response.status_code": answer.status_code})
            if answer.status_code is None or answer.status_code >= 300:
                span.fail(answer.error or f"HTTP {answer.status_code}")
            return answer

    def _put_back(self, endpoint: _Endpoint) -> None:
        """What has not been begun goes back to the store, where one attempt can speak for it."""
        if endpoint.ready:
            endpoint.taken -= {one.delivery_id for one in endpoint.ready}
            endpoint.ready.clear()
            endpoint.wants_by(self._clock.now())

    def _go_on(self, endpoint: _Endpoint) -> None:
        """There is room again: for this endpoint, and for those that found everything full."""
        self._pump(endpoint)
        if self._is_full and self._in_flight < self._service.settings.concurrency:
            self._is_full = False
            for other in list(self._endpoints.values()):
                self._pump(other)

    # What came of it.

    def _record_soon(self) -> None:
        if self._recording is None or self._recording.done():
            loop = asyncio.get_running_loop()
            self._recording = loop.create_task(self._record_all(), name="nextslot-webhook-results")

    async def _record_all(self) -> None:
        """Results that come while some are being stored are stored together, next."""
        while self._results and self._store is not None:
            batch = [self._results.popleft() for _ in range(min(len(self._results), RESULTS))]
            rows = len(batch) + SHARED * sum(one.speaks_for is not None for one in batch)
            try:
                stored = await self._store.write(partial(self._record, batch), rows=rows)
            except Unavailable as error:
                self._results.extendleft(reversed(batch))
                log.error("webhooks: results cannot be stored yet: %s", error)
                await self._clock.sleep(RETRY_SECONDS)
                continue
            for result, upcoming in zip(batch, stored, strict=True):
                result.endpoint.taken.discard(result.delivery.delivery_id)
                result.endpoint.wants_by(upcoming)
            for endpoint in {id(one.endpoint): one.endpoint for one in batch}.values():
                self._pump(endpoint)

    def _record(self, batch: list[_Result], tx: Tx) -> list[Instant | None]:
        """Stores every attempt and what follows it; when the next of each is due."""
        upcoming = []
        for one in batch:
            moved = self._clock.offset - one.clock_offset
            ended = Instant(one.attempt.attempted_at.after(one.attempt.duration_seconds) + moved)
            at = self._settle(tx, one.delivery, one.attempt, ended)
            if one.speaks_for is not None:
                others = self._share(tx, one, ended)
                at = min((other for other in (at, *others) if other is not None), default=None)
            upcoming.append(at)
        return upcoming

    def _settle(self, tx: Tx, delivery: Delivery, attempt: Attempt, ended: Instant) -> Instant | None:
        following: Next = policy.after(attempt, delivery.tries + 1, ended)
        deliveries.add_attempt(tx, delivery.delivery_id, attempt)
        if not deliveries.settle(tx, delivery.delivery_id, delivery.tries + 1, following, ended):
            return ended  # It was ended, or sent again by hand, in the meantime: that is what holds.
        tx.cause(DeliverySettled(following.status))
        if following.status is not DeliveryStatus.PENDING and delivery.is_own and delivery.job_id is not None:
            deliveries.mark_job(tx, delivery.job_id)
        if attempt.status_code == 410:
            for signer in delivery.signers:
                if signer != SERVER:
                    self._service.gone(tx, signer, ended)
        return following.at

    def _share(self, tx: Tx, result: _Result, ended: Instant) -> list[Instant | None]:
        """An endpoint that is taken for dead was asked once, for everything that was due there when it was asked."""
        attempt = replace(result.attempt, error=f"not sent, another delivery there was tried: {result.attempt.error}")
        due = deliveries.due(tx, result.endpoint.origin, ended.after(-attempt.duration_seconds), SHARED)
        return [
            self._settle(tx, other, attempt, ended)
            for other in due
            if other.delivery_id not in result.but
            and (result.speaks_for == "origin" or other.url == result.delivery.url)
        ]


def _due(tx: Tx, origin: str, now: Instant, limit: int) -> tuple[list[Delivery], Instant | None]:
    """What is due, and when something is again: now, if this was not all."""
    found = deliveries.due(tx, origin, now, limit)
    return found, now if len(found) == limit else deliveries.next_due(tx, origin, now)
