"""Routes of the gateway, and the answers of its requests: a wait that shows the place, then the upstream's answer."""

import asyncio
import math
import secrets
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any

import orjson
from fastapi import Request, Response
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from nextslot.domain import Direct, FailureKind, Scope
from nextslot.errors import NextslotError, SlotBusy
from nextslot.server import schemas
from nextslot.server.auth import caller_of, scheduler_for
from nextslot.server.problems import problem_of
from nextslot.server.responses import KeyCheck, answer
from nextslot.server.route_rules import always, needs
from nextslot.server.routes.direct import refusal_of
from nextslot.server.routing import extension_of, router
from nextslot.system.instant import Instant

from .error_form import ProtocolError, of_problem
from .gateway_service import JOB_TYPE, Answer, Call, GatewayService, Opened, Part, Piece
from .protocol import CHAT, COMPLETIONS, EMBEDDINGS

gateway = router("Gateway")

# After so long without an answer a stream begins with comments; a comment follows as often while it waits.
FIRST_COMMENT_SECONDS = 5.0
COMMENT_SECONDS = 5.0
KEEP_ALIVE_SECONDS = 15.0
# How long a comment or a refusal waits for a forecast.
FORECAST_SECONDS = 1.0
# How long before the end of its wait a plain caller's start is forecast: a forecast is kept for up to five seconds.
EARLY_FORECAST_SECONDS = 6.0
MOST_WAIT_SECONDS = 86_400
# The status that is counted for a caller who hung up.
LEFT = 499
LATER = {"Retry-After": "5"}
MOST_LATER_SECONDS = 3600
KEY_ENDED = "the key of this stream opens nothing any more; ask an admin for another one"
WAIT_HEADER, WAITED_HEADER = "x-nextslot-wait", "x-nextslot-waited"

_EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
_STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}


class Model(schemas.ResponseModel):
    id: str
    object: str
    created: int
    owned_by: str


class Models(schemas.ResponseModel):
    object: str
    data: list[Model]


@gateway.get("/v1/models", response_model=Models)
@needs(Scope.READ)
async def list_models(request: Request) -> Response:
    """Lists the models of all upstreams that answer."""
    return answer({"object": "list", "data": await extension_of(request, GatewayService).models()})


@gateway.get("/v1/models/{model:path}", response_model=Model)
@needs(Scope.READ)
async def get_model(model: str, request: Request) -> Response:
    """Shows one model."""
    service = extension_of(request, GatewayService)
    found = await service.model(model)
    return _refused(service.unknown(model)) if found is None else answer(found)


@gateway.post("/v1/chat/completions", responses=_STREAMED, response_model=dict[str, Any])
@needs(Scope.SUBMIT, is_bulk=True, has_large_values=True, is_long=always)
async def create_chat_completion(body: dict[str, Any], request: Request) -> Response:
    """Waits for the next slot of the model, and answers as the upstream does; with `stream`, event by event.

    `X-Nextslot-Wait` says how many seconds to wait for the slot; `x-nextslot-waited` how many it took.
    """
    return await _asked(request, CHAT, body)


@gateway.post("/v1/completions", responses=_STREAMED, response_model=dict[str, Any])
@needs(Scope.SUBMIT, is_bulk=True, has_large_values=True, is_long=always)
async def create_completion(body: dict[str, Any], request: Request) -> Response:
    """Does the same for a text that the model completes."""
    return await _asked(request, COMPLETIONS, body)


@gateway.post("/v1/embeddings", response_model=dict[str, Any])
@needs(Scope.SUBMIT, is_bulk=True, has_large_values=True, is_long=always)
async def create_embedding(body: dict[str, Any], request: Request) -> Response:
    """Does the same for embeddings of texts."""
    return await _asked(request, EMBEDDINGS, body)


async def _asked(request: Request, endpoint: str, body: object) -> Response:
    service = extension_of(request, GatewayService)
    try:
        wait_seconds = _wait_seconds(request, service.settings.wait_seconds)
        call = await service.call(f"v1-{secrets.token_hex(12)}", endpoint, body)
    except ProtocolError as error:
        return _refused(error)
    return Relay(request, service, call, wait_seconds)


def _refused(error: ProtocolError) -> Response:
    return Response(error.content, error.status, dict(error.headers), media_type="application/json")


def _wait_seconds(request: Request, default: float) -> float:
    given = request.headers.get(WAIT_HEADER)
    if given is None:
        return default
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= MOST_WAIT_SECONDS:
        wanted = f"a number of seconds from 0 to {MOST_WAIT_SECONDS:,}"
        raise ProtocolError(400, f"the header {WAIT_HEADER} is {given[:50]!r}; it must be {wanted}", "invalid_value")
    return seconds


class Relay(Response):
    """The answer of one request. It ends when the upstream's answer does, and then waits until that is stored.

    Three tasks: one passes on what comes, one writes comments and checks the key, one waits for a hang-up.
    """

    def __init__(self, request: Request, service: GatewayService, call: Call, wait_seconds: float) -> None:
        self._service = service
        self._call = call
        self._scheduler = scheduler = scheduler_for(request)
        caller = caller_of(request)
        named = service.office_of(caller.name) if caller.key_id is not None else None
        self._office_id = caller.narrowed_to(caller.office_id or named)
        options: dict[str, Any] = {
            "office_id": self._office_id,
            "direct_id": call.call_id,
            "wait_timeout_seconds": wait_seconds,
            "timeout_seconds": service.settings.timeout_seconds,
        }
        if caller.key_id is not None:
            options["created_by"] = caller.name
            if service.settings.limit_callers:
                options["limit_keys"] = [f"caller:{caller.name}"]
        self._options = options
        self._updates = scheduler.stream_direct(JOB_TYPE, call.params, **options)
        self._wait_seconds = wait_seconds
        self._key = KeyCheck(request)
        self._close: Callable[[], None] = lambda: None
        if call.is_stream:
            self._close = request.app.state.office_rate_limits.open_stream(caller.office_id, caller.key_id)
        self._began_at = self._sent_at = asyncio.get_running_loop().time()
        self._started_at: float | None = None
        self._ahead, self._run_id = 0, ""
        self._expected_start: Instant | None = None
        self._has_begun = self._is_answered = False

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        with self._service.connected(self._call):
            relay = asyncio.ensure_future(self._relay(send))
            left = asyncio.ensure_future(_hang_up(receive))
            beside = asyncio.ensure_future(self._comment(send) if self._call.is_stream else self._forecast_early())
            try:
                await asyncio.wait([relay, left, beside], return_when=asyncio.FIRST_COMPLETED)
                if beside.done() or (left.done() and not self._is_answered):
                    relay.cancel()  # The key has ended, or the caller has hung up: so does its place or its work.
                    await asyncio.wait([relay])
                await _unless_cancelled(beside if beside.done() else relay)
            finally:
                for task in (relay, left, beside):
                    task.cancel()
                await asyncio.gather(relay, left, beside, return_exceptions=True)
                self._close()
                if not self._is_answered:
                    self._service.note_answer(self._call, LEFT)

    # What comes from the scheduler and from the upstream.

    async def _relay(self, send: Send) -> None:
        try:
            async with aclosing(self._updates) as updates:
                async for update in updates:
                    match update.kind:
                        case "place":
                            self._ahead, self._run_id = update.data["ahead"], update.data["run_id"]
                        case "started":
                            self._started_at = asyncio.get_running_loop().time()
                        case "answer":
                            await self._pass_on(update.data["part"], send)
                        case "result" if not self._is_answered:
                            await self._end_without_answer(update.data["direct"], send)
        except NextslotError as error:
            if not self._is_answered:
                await self._refuse(error, send)

    async def _pass_on(self, part: Part | ProtocolError, send: Send) -> None:
        match part:
            case Answer():
                await self._answer(200, part.body, part.headers, send)
            case Opened():
                await self._begin(send, part.headers)
            case Piece():
                if part.data:
                    await self._event(send, part.data, is_last=part.is_last)
                    self._call.note_sent(len(part.data))
            case ProtocolError():
                await self._fail(part, send)

    async def _fail(self, error: ProtocolError, send: Send) -> None:
        """Answers with the error; a stream that has begun has it as its last event."""
        if self._has_begun:
            await self._event(send, error.event, is_last=True, status=error.status)
        else:
            await self._answer(error.status, error.content, error.headers, send)

    async def _answer(self, status: int, body: bytes, headers: Mapping[str, str], send: Send) -> None:
        self._has_begun = self._is_answered = True
        self._service.note_answer(self._call, status)
        all_headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *self._with_wait(headers),
        ]
        await send({"type": "http.response.start", "status": status, "headers": all_headers})
        await send({"type": "http.response.body", "body": body})

    async def _begin(self, send: Send, headers: Mapping[str, str]) -> None:
        if not self._has_begun:
            self._has_begun = True
            await send({"type": "http.response.start", "status": 200, "headers": [*_EVENTS, *self._with_wait(headers)]})
            # At once, so that the caller knows that it is connected.
            await send({"type": "http.response.body", "body": b"", "more_body": True})

    async def _event(self, send: Send, data: bytes, *, is_last: bool = False, status: int = 200) -> None:
        await self._begin(send, {})
        if is_last:
            self._is_answered = True
            self._service.note_answer(self._call, status)
        self._sent_at = asyncio.get_running_loop().time()
        await send({"type": "http.response.body", "body": data, "more_body": not is_last})

    def _with_wait(self, more: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
        ended = self._started_at if self._started_at is not None else asyncio.get_running_loop().time()
        waited = {WAITED_HEADER: f"{ended - self._began_at:.3f}"}
        return [
            (name.lower().encode(), value.encode("latin-1", "replace")) for name, value in {**waited, **more}.items()
        ]

    # Comments and forecasts, while the answer has not come.

    async def _comment(self, send: Send) -> None:
        """Writes comments while the answer does not come. Ends the stream, and returns, when its key has ended."""
        stop = self._key.begin()
        try:
            pause = FIRST_COMMENT_SECONDS
            while True:
                await self._key.wait_for(pause)
                if await self._key.is_over():
                    await self._fail(ProtocolError(401, KEY_ENDED, "invalid_api_key"), send)
                    return
                pause = COMMENT_SECONDS if self._started_at is None else KEEP_ALIVE_SECONDS
                silent = asyncio.get_running_loop().time() - self._sent_at
                if not self._is_answered and silent >= (FIRST_COMMENT_SECONDS if not self._has_begun else pause) - 0.1:
                    text = await self._situation()
                    if not self._is_answered:
                        await self._event(send, f": {text}\n\n".encode())
        finally:
            stop()

    async def _situation(self) -> str:
        if self._started_at is not None:
            return "the model works" if self._has_begun else "started, the model has not answered yet"
        await self._forecast()
        if self._expected_start is None:
            return f"place {self._ahead + 1}"
        return f"place {self._ahead + 1}, expected start in {self._seconds_to_start()} s"

    async def _forecast_early(self) -> None:
        """Keeps the expected start for the refusal of a caller whose wait is nearly over; then waits for ever."""
        await asyncio.sleep(max(self._wait_seconds - EARLY_FORECAST_SECONDS, self._wait_seconds / 2))
        while self._wait_seconds and self._started_at is None and self._expected_start is None:
            await self._forecast()
            await asyncio.sleep(FORECAST_SECONDS)  # A kept forecast may be older than this caller.
        await asyncio.get_running_loop().create_future()

    async def _forecast(self) -> None:
        try:
            made = await self._scheduler.forecast.queue_within(self._office_id, FORECAST_SECONDS)
        except NextslotError:
            return  # The store does not answer: the caller learns that by itself.
        found = None if made is None else made.jobs.get(self._run_id)
        self._expected_start = self._expected_start if found is None else found.expected_start

    def _seconds_to_start(self) -> int:
        assert self._expected_start is not None
        return max(1, math.ceil((self._expected_start - self._service.host.clock.now()) / 1_000_000))

    # Errors.

    async def _end_without_answer(self, ended: Direct, send: Send) -> None:
        refusal = refusal_of(ended, self._ahead)
        if refusal is not None:
            await self._refuse(refusal, send)
        else:
            await self._fail(self._error_of(ended), send)

    async def _refuse(self, error: NextslotError, send: Send) -> None:
        """Answers with a refusal. A refusal for want of a slot says when the work would have started."""
        now = self._service.host.clock.now()
        if isinstance(error, SlotBusy) and (self._expected_start is None or self._expected_start <= now):
            self._expected_start = await self._service.start_of_next(self._office_id, self._call, self._next_start)
        hold = await self._hold() if isinstance(error, SlotBusy) else ""
        if not self._is_answered:
            await self._fail(self._shown(error, hold), send)

    async def _hold(self) -> str:
        """Returns why nothing that needs the resource of the model starts now; empty if it is not held."""
        resource = self._call.target.resource
        try:
            held = (await self._scheduler.lists.status()).held
        except NextslotError:
            return ""  # The store does not answer.
        found = next((one for one in held if one.resource == resource), None)
        if found is None:
            return ""
        if found.quota_until is not None:
            return f"; the quota of {resource!r} is used up until {found.quota_until}"
        return f"; {resource!r} has not answered since {found.since}"

    async def _next_start(self) -> Instant | None:
        options = {**self._options, "direct_id": None}
        try:
            return await self._scheduler.expected_direct_start(
                JOB_TYPE, self._call.params, wait_seconds=FORECAST_SECONDS, **options
            )
        except NextslotError:
            return None  # Such as a store that does not answer: the refusal then names no start.

    def _error_of(self, ended: Direct) -> ProtocolError:
        """Returns why work ended without an answer."""
        if ended.failure_kind is FailureKind.TIMEOUT:
            return ProtocolError(504, f"the request {ended.error}; it was stopped", "timeout")
        why = ended.error or ended.reason or f"it was {ended.status.lower()}"
        return ProtocolError(503, f"the request ended without an answer: {why}", "interrupted", headers=LATER)

    def _shown(self, error: NextslotError, hold: str) -> ProtocolError:
        status, content = of_problem(problem_of(error))
        shown = orjson.loads(content)["error"]
        headers: Mapping[str, str] = LATER if status in (429, 503) else {}
        more: dict[str, Any] = {}
        message = shown["message"] + hold
        if isinstance(error, SlotBusy):
            more = {"ahead": self._ahead, "expected_start": None}
            if self._expected_start is not None:
                headers = {"Retry-After": str(min(self._seconds_to_start(), MOST_LATER_SECONDS))}
                more["expected_start"] = str(self._expected_start)
                message += f"; the expected start is {self._expected_start}"
        return ProtocolError(status, message, shown["code"], shown["param"], headers, more)


async def _unless_cancelled(task: "asyncio.Future[None]") -> None:
    """Returns when the task has ended; raises its error, but not that we have cancelled it."""
    if not (task.done() and task.cancelled()):
        await task


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
