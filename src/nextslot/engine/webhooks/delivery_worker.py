"""DeliveryWorker: sends the deliveries in the outbox, and stores the result of each attempt. Nothing waits for it.

A delivery stays PENDING, with the time of its next attempt, until its result is committed; if the result is lost, the
message is sent again under the same id (at least once). Commits and the one timer wake the worker; it never polls. Each
endpoint (scheme, host, port) begins with a small number of concurrent attempts (`room`) and gets more with each
response. An endpoint that does not respond gets a single attempt at a time, whose result counts for everything that is
due there.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, Protocol

from nextslot.domain import Attempt, Delivery, DeliveryStatus, webhook_signature
from nextslot.domain import webhook_delivery as policy
from nextslot.domain.webhook_delivery import SERVER, Next
from nextslot.engine.effects import DeliverySettled
from nextslot.engine.engine_context import EngineContext
from nextslot.engine.settings.office_quotas import OfficeQuotas
from nextslot.errors import Unavailable
from nextslot.store.contract import Store, Tx
from nextslot.store.tables import deliveries
from nextslot.system.instant import Instant

from .webhook_outbox import DELETED

log = logging.getLogger(__name__)

FIRST_ROOM = 2
MOST_ROOM = 16
# How many deliveries of an endpoint are kept in memory, and how many results one transaction stores.
PAGE = 32
RESULTS = 500
# How many due deliveries share the result of one attempt at an endpoint that does not respond.
SHARED = 1000
RETRY_SECONDS = 1.0
STOP_SECONDS = 5.0
_AGENT = "nextslot"


class EndpointResponse(NamedTuple):
    """The response of an endpoint or, without a status code, why there is none."""

    status_code: int | None = None
    error: str | None = None
    text: str | None = None
    retry_after: str | None = None
    # The connection failed, so every other delivery to this endpoint would fail too.
    is_unreachable: bool = False


class Sender(Protocol):
    """Sends HTTP requests: `http_sender.HttpSender`, or a mailbox in tests."""

    async def send(self, url: str, headers: Mapping[str, str], body: bytes, seconds: float) -> EndpointResponse:
        """Sends a message. Takes no longer than `seconds`, and does not raise."""

    async def close(self) -> None: ...


_UNSIGNED = EndpointResponse(error=DELETED)


@dataclass(slots=True)
class _Endpoint:
    """The state of one endpoint and its deliveries."""

    origin: str
    next_due: Instant | None = None
    ready: deque[Delivery] = field(default_factory=deque)
    # Deliveries in memory whose result is not stored yet. The store still lists them as due, but they must not be sent
    # twice.
    taken: set[str] = field(default_factory=set)
    in_flight: int = 0
    room: int = FIRST_ROOM
    failures: int = 0
    is_reading: bool = False

    @property
    def is_tripped(self) -> bool:
        return self.failures >= policy.BREAKER_FAILURES

    @property
    def has_room_for_more(self) -> bool:
        return not self.ready and self.in_flight < self.room and not self.is_reading

    @property
    def is_over(self) -> bool:
        return self.next_due is None and not self.taken and not self.is_reading

    def due_by(self, at: Instant | None) -> None:
        if at is not None and (self.next_due is None or at < self.next_due):
            self.next_due = at

    def answered(self, answer: EndpointResponse) -> None:
        """Adapts the number of concurrent attempts, like a circuit breaker that closes slowly: it grows with every
        response.
        """
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
    # The clock's offset when the attempt began: the wall clock may step before the result is stored.
    clock_offset: int
    # Which other due deliveries share this result: none, those to the same URL, or those to the same origin.
    shared_by: str | None
    except_ids: frozenset[str]


class DeliveryWorker:
    def __init__(
        self, engine: EngineContext, open_sender: Callable[[], Sender], quotas: OfficeQuotas | None = None
    ) -> None:
        self._clock = engine.clock
        self._timer = engine.timer
        self._service = engine.webhooks
        self._meters = engine.meters
        self._tracer = engine.tracer
        self._open_sender = open_sender
        self._quotas = quotas or OfficeQuotas()
        self._sender: Sender | None = None
        self._store: Store | None = None
        self._endpoints: dict[str, _Endpoint] = {}
        self._in_flight = 0
        # The attempts in progress by office: no office takes all places.
        self._in_flight_of: Counter[str | None] = Counter()
        self._is_full = False
        self._is_closing = False
        self._results: deque[_Result] = deque()
        self._attempts: set[asyncio.Task[None]] = set()
        self._reads: set[asyncio.Task[None]] = set()
        self._recording: asyncio.Task[None] | None = None

    # Start and stop.

    async def start(self, store: Store) -> None:
        """Starts sending. Deliveries that were PENDING before keep their due times."""
        self._store = store
        self._is_closing = self._is_full = False
        self._endpoints, self._in_flight = {}, 0
        self._in_flight_of.clear()
        await self.refresh()

    async def refresh(self) -> None:
        """Reads from the store which endpoints have due deliveries, whichever node stored them."""
        if self._store is None:
            return
        for origin, at in (await self._store.read(deliveries.origins)).items():
            self._endpoint(origin).due_by(at)
        self.send_due()

    async def close(self) -> None:
        """Stops. Attempts in progress get a short time; the other deliveries stay PENDING for the next start."""
        self._is_closing = True
        if self._attempts:
            await asyncio.wait(set(self._attempts), timeout=STOP_SECONDS)
        await self._end(self._attempts | self._reads)
        if self._recording is not None:
            await asyncio.wait([self._recording], timeout=STOP_SECONDS)
        await self.abandon()
        if self._sender is not None:
            await self._sender.close()
            self._sender = None

    def renew(self) -> None:
        """Lets new attempts use the current settings. Attempts in progress end with the old ones."""
        old, self._sender = self._sender, None
        if old is not None:
            self._own(self._reads, self._retire(old, set(self._attempts)), "retire")
        self.send_due()

    async def _retire(self, sender: Sender, attempts: set[asyncio.Task[None]]) -> None:
        if attempts:
            await asyncio.wait(attempts)
        await sender.close()

    async def abandon(self) -> None:
        """Stops sending and storing at once."""
        self._is_closing = True
        self._store = None
        recording = {self._recording} if self._recording is not None else set()
        await self._end(self._attempts | self._reads | recording)
        self._results.clear()

    async def _end(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        running = [task for task in tasks if not task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    # Sending what is due.

    def wake(self, origins: Iterable[str], now: Instant) -> None:
        """Wakes the worker after a commit that stored deliveries to these endpoints."""
        if self._store is None:
            return  # Another node leads, and the commit has notified it.
        for origin in sorted(origins):
            endpoint = self._endpoint(origin)
            endpoint.due_by(now)
            self._pump(endpoint)

    def send_due(self) -> None:
        """Begins the attempts that are due and have a free place, and sets the timer for the others."""
        for endpoint in list(self._endpoints.values()):
            self._pump(endpoint)

    def shift(self, microseconds: int) -> None:
        """Moves the due times in memory, after the stored ones were moved by the same amount."""
        for endpoint in self._endpoints.values():
            if endpoint.next_due is not None:
                endpoint.next_due = Instant(endpoint.next_due + microseconds)

    def _endpoint(self, origin: str) -> _Endpoint:
        return self._endpoints.setdefault(origin, _Endpoint(origin))

    def _pump(self, endpoint: _Endpoint) -> None:
        if self._is_closing or self._store is None:
            return
        if endpoint.is_tripped and len(endpoint.taken) > len(endpoint.ready):
            return  # One attempt at a time, each after the shared result of the last one is stored.
        while endpoint.ready and endpoint.in_flight < endpoint.room:
            delivery = next((one for one in endpoint.ready if self._has_place(one.office_id)), None)
            if delivery is None:
                self._is_full = True
                return
            endpoint.ready.remove(delivery)
            self._begin(endpoint, delivery)
        if endpoint.next_due is not None and endpoint.has_room_for_more:
            if endpoint.next_due <= self._clock.now():
                endpoint.is_reading = True
                self._own(self._reads, self._fill(endpoint, self._store), "read")
            else:
                self._timer.wake_by(endpoint.next_due)
        elif endpoint.is_over:
            self._endpoints.pop(endpoint.origin, None)

    def _has_place(self, office_id: str | None) -> bool:
        """Returns whether an attempt for this office may begin: an office takes at most half of what others leave.

        So an office whose endpoints are all silent never takes the last places, and an office alone has half of them.
        """
        free = self._service.settings.concurrency - self._in_flight
        most = self._quotas.of(office_id).delivery_places or free + 1
        return free > 0 and self._in_flight_of[office_id] < min(most, free + 1)

    async def _fill(self, endpoint: _Endpoint, store: Store) -> None:
        """Reads due deliveries from the store, and skips those that are in memory already."""
        now = self._clock.now()
        endpoint.next_due, before = None, set(endpoint.taken)
        try:
            limit = len(before) + PAGE
            found, upcoming = await store.read(lambda tx: _due(tx, endpoint.origin, now, limit))
        except Unavailable as error:
            log.error("webhooks: due deliveries cannot be read, trying again in %g s: %s", RETRY_SECONDS, error)
            upcoming, found = self._clock.now().after(RETRY_SECONDS), []
        finally:
            endpoint.is_reading = False
        for delivery in found:
            if delivery.delivery_id not in before and delivery.delivery_id not in endpoint.taken:
                endpoint.taken.add(delivery.delivery_id)
                endpoint.ready.append(delivery)
        endpoint.due_by(upcoming)
        self._pump(endpoint)

    def _begin(self, endpoint: _Endpoint, delivery: Delivery) -> None:
        endpoint.in_flight += 1
        self._in_flight += 1
        self._in_flight_of[delivery.office_id] += 1
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
            self._in_flight_of[delivery.office_id] -= 1
            if not self._in_flight_of[delivery.office_id]:
                del self._in_flight_of[delivery.office_id]
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
        shared_by = None
        if endpoint.is_tripped:
            self._put_back(endpoint)
            if is_probe:
                shared_by = "origin" if answer.is_unreachable else "url"
        taken = frozenset(endpoint.taken)
        self._results.append(_Result(endpoint, delivery, attempt, clock_offset, shared_by, taken))
        self._record_soon()
        self._begin_more(endpoint)

    async def _send(self, delivery: Delivery, now: Instant) -> EndpointResponse:
        body = delivery.body.encode()
        secrets = self._service.secrets_of(delivery, now)
        if not secrets:
            return _UNSIGNED
        headers = {"Content-Type": "application/json", "User-Agent": _AGENT, **delivery.headers}
        headers |= webhook_signature.signed(delivery.delivery_id, body, secrets, now)
        try:
            self._sender = self._sender or self._open_sender()
            return await self._traced(self._sender, delivery, headers, body)
        except Exception as error:  # An unexpected error counts as a failed attempt.
            log.exception("delivery %s: the attempt failed unexpectedly", delivery.delivery_id)
            return EndpointResponse(error=f"the attempt failed unexpectedly: {type(error).__name__}")

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
        """Returns deliveries that were not begun to the store, where they can share the result of one attempt."""
        if endpoint.ready:
            endpoint.taken -= {one.delivery_id for one in endpoint.ready}
            endpoint.ready.clear()
            endpoint.due_by(self._clock.now())

    def _begin_more(self, endpoint: _Endpoint) -> None:
        """Begins further attempts at this endpoint, and at others that waited for a place."""
        self._pump(endpoint)
        if self._is_full and self._in_flight < self._service.settings.concurrency:
            self._is_full = False
            for other in list(self._endpoints.values()):
                self._pump(other)

    # Storing results.

    def _record_soon(self) -> None:
        if self._recording is None or self._recording.done():
            loop = asyncio.get_running_loop()
            self._recording = loop.create_task(self._record_all(), name="nextslot-webhook-results")

    async def _record_all(self) -> None:
        """Stores results. Those that arrive while some are being stored are stored together in the next transaction."""
        while self._results and self._store is not None:
            batch = [self._results.popleft() for _ in range(min(len(self._results), RESULTS))]
            rows = len(batch) + SHARED * sum(one.shared_by is not None for one in batch)
            try:
                stored = await self._store.write(partial(self._record, batch), rows=rows)
            except Unavailable as error:
                self._results.extendleft(reversed(batch))
                log.error("webhooks: results cannot be stored, trying again: %s", error)
                await self._clock.sleep(RETRY_SECONDS)
                continue
            for result, upcoming in zip(batch, stored, strict=True):
                result.endpoint.taken.discard(result.delivery.delivery_id)
                result.endpoint.due_by(upcoming)
            for endpoint in {id(one.endpoint): one.endpoint for one in batch}.values():
                self._pump(endpoint)

    def _record(self, batch: list[_Result], tx: Tx) -> list[Instant | None]:
        """Stores every attempt and its consequences. Returns when the next attempt of each is due."""
        upcoming = []
        for one in batch:
            moved = self._clock.offset - one.clock_offset
            ended = Instant(one.attempt.attempted_at.after(one.attempt.duration_seconds) + moved)
            at = self._settle(tx, one.delivery, one.attempt, ended)
            if one.shared_by is not None:
                others = self._share(tx, one, ended)
                at = min((other for other in (at, *others) if other is not None), default=None)
            upcoming.append(at)
        return upcoming

    def _settle(self, tx: Tx, delivery: Delivery, attempt: Attempt, ended: Instant) -> Instant | None:
        following: Next = policy.after(attempt, delivery.tries + 1, ended)
        deliveries.add_attempt(tx, delivery.delivery_id, attempt)
        if not deliveries.settle(tx, delivery.delivery_id, delivery.tries + 1, following, ended):
            return ended  # The delivery was ended or sent again by hand meanwhile: leave it as it is.
        tx.cause(DeliverySettled(following.status))
        if following.status is not DeliveryStatus.PENDING and delivery.is_own and delivery.job_id is not None:
            deliveries.mark_job(tx, delivery.job_id)
        if attempt.status_code == 410:
            for signer in delivery.signers:
                if signer != SERVER:
                    self._service.gone(tx, signer, ended)
        return following.at

    def _share(self, tx: Tx, result: _Result, ended: Instant) -> list[Instant | None]:
        """Stores the failed attempt for all deliveries that were due at the endpoint when it was made."""
        attempt = replace(
            result.attempt, error=f"not sent, because another delivery to this endpoint failed: {result.attempt.error}"
        )
        due = deliveries.due(tx, result.endpoint.origin, ended.after(-attempt.duration_seconds), SHARED)
        return [
            self._settle(tx, other, attempt, ended)
            for other in due
            if other.delivery_id not in result.except_ids
            and (result.shared_by == "origin" or other.url == result.delivery.url)
        ]


def _due(tx: Tx, origin: str, now: Instant, limit: int) -> tuple[list[Delivery], Instant | None]:
    """Returns the due deliveries, and when the next are due: now, if there are more."""
    found = deliveries.due(tx, origin, now, limit)
    return found, now if len(found) == limit else deliveries.next_due(tx, origin, now)
