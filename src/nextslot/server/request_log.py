"""Gives every request an id, a span, a line in the log and a count in the metrics.

It is the outermost layer, so that it also sees the requests that the guard refuses. It records the method, the template
of the route, the status, the time and the caller's name. It never records a query, a header or a body.
"""

import logging
import re
from collections.abc import Callable
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nextslot.system.randomness import Chance, SystemChance
from nextslot.telemetry.logs import bound
from nextslot.telemetry.meters import HttpMeters
from nextslot.telemetry.tracing import Span, Tracer

from .log_throttle import Throttle

log = logging.getLogger(__name__)

HEADER = "X-Request-ID"
# Machines request these every few seconds: they are logged at DEBUG and never traced.
PROBES = frozenset({"/health", "/ready", "/metrics"})
PROBE_ENDS = tuple(PROBES)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# The label of requests that match no route, because their paths could be anything.
UNMATCHED = "unmatched"
# The status that is counted for a caller who hung up before the answer, as nginx counts it.
LEFT = 499

_HEADER = HEADER.lower().encode()
# Answers may contain what only this key may see, so browsers must not store them. Pages and scripts contain no data and
# set their own header.
_SAFE = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))
_NO_TRACER = Tracer()
_SANE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")


class RequestLog:
    def __init__(
        self,
        app: ASGIApp,
        meters: HttpMeters,
        seconds: Callable[[], float],
        tracer: Tracer | None = None,
        chance: Chance | None = None,
    ) -> None:
        self._app = app
        self._meters = meters
        self._seconds = seconds
        self._tracer = tracer or Tracer()
        self._chance = chance or SystemChance()
        self._throttle = Throttle(seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = self._id(header(scope, _HEADER))
        tracer = _NO_TRACER if scope["path"].endswith(PROBE_ENDS) else self._tracer
        with bound(request_id=request_id), tracer.request(_method(scope), Headers(scope=scope)) as span:
            answer = _LoggedResponse(send, request_id, self._seconds)
            self._meters.in_progress += 1
            try:
                await self._app(scope, receive, answer.send)
            except Exception:
                # The framework has answered 500 and raises the error again for the server.
                answer.fail()
                raise
            finally:
                self._meters.in_progress -= 1
                self._record(scope, answer, span, request_id)

    def _id(self, given: bytes | None) -> str:
        text = None if given is None else given.decode("latin-1")
        return text if text is not None and _SANE.fullmatch(text) else self._chance.new_id()

    def _record(self, scope: Scope, answer: "_LoggedResponse", span: Span, request_id: str) -> None:
        method, route, status = _method(scope), route_of(scope), answer.status or LEFT
        self._meters.answered(method, route, status, answer.seconds_to_begin())
        span.rename(f"{method} {route}")
        span.note({"http.route": route, "http.response.status_code": status, "nextslot.request_id": request_id})
        if status >= 500:
            span.fail(f"HTTP {status}")
        if not log.isEnabledFor(_level(route, status)):
            return
        about: dict[str, Any] = {
            "method": method,
            "route": route,
            "status": status,
            "duration_ms": round(answer.seconds_so_far() * 1000, 3),
        }
        caller = scope.get("state", {}).get("caller")
        if caller is not None:
            about["caller"] = caller.name
        line = f"{method} {route} {status}"
        # Each of our failures gets a line of its own. A caller can repeat a refusal at will, so refusals get one line a
        # second.
        is_refusal = 400 <= status < 500 or status == 503
        left_out = self._throttle.left_out(f"{line} {about.get('caller')}") if is_refusal else ""
        if left_out is not None:
            log.log(_level(route, status), "%s%s", line, left_out, extra=about)


class _LoggedResponse:
    """Sends an answer with the request's id, and notes its status and when it began."""

    def __init__(self, send: Send, request_id: str, seconds: Callable[[], float]) -> None:
        self._send = send
        self._request_id = request_id
        self._seconds = seconds
        self._began = seconds()
        self._answered: float | None = None
        self.status: int | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._answered = self._seconds()
            given = {name for name, _ in message["headers"]}
            own = ((_HEADER, self._request_id.encode()), *_SAFE)
            message["headers"] = [*message["headers"], *(one for one in own if one[0] not in given)]
        await self._send(message)

    def fail(self) -> None:
        self.status = self.status or 500

    def seconds_to_begin(self) -> float:
        return (self._seconds() if self._answered is None else self._answered) - self._began

    def seconds_so_far(self) -> float:
        return self._seconds() - self._began


def header(scope: Scope, name: bytes) -> bytes | None:
    """Returns the first value of a header of a request, by its name in small letters."""
    return next((value for found, value in scope["headers"] if found == name), None)


def note_probe(meters: HttpMeters, route: str, request_id: str, seconds: float) -> None:
    """Counts and logs a probe that the acceptor answered with 200."""
    meters.answered("GET", route, 200, seconds)
    about = {"method": "GET", "route": route, "status": 200, "duration_ms": round(seconds * 1000, 3)}
    with bound(request_id=request_id):
        log.debug("GET %s 200", route, extra=about)


def route_of(scope: Scope) -> str:
    """Returns the template of the route, such as `/api/jobs/{job_id}`; the router stores it in the scope."""
    return str(getattr(scope.get("route"), "path", UNMATCHED))


def _method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in METHODS else "OTHER"


def _level(route: str, status: int) -> int:
    # A 503 is an ordinary answer of `/ready`.
    if route in PROBES and status != 500:
        return logging.DEBUG
    # Busy, starting and stopping are not failures. Other causes of a 503 are logged where they occur.
    if status == 503:
        return logging.WARNING
    return logging.ERROR if status >= 500 else logging.INFO
