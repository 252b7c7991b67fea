"""Routes with a rule that says who may use them; a route without a rule cannot be made."""

from collections.abc import Callable, Coroutine, Iterable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette._utils import get_route_path
from starlette.types import Message, Receive, Send
from starlette.types import Scope as AsgiScope

from nextslot.domain import Scope
from nextslot.extension_api import Attached

from . import problems
from .auth import OfficeCheck, admit, lane_of, scheduler_for
from .endpoint_arguments import EndpointArguments
from .fair_shares import LONG_BEGINS_SECONDS, FairShares
from .request_body import NO_BODY, Bodies

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
A = TypeVar("A", bound=Attached)
Handler = Callable[[Request], Coroutine[Any, Any, Response]]

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_NOTHING = nullcontext()


@dataclass(frozen=True, slots=True)
class Rule:
    """Which callers may use a route, and how it answers.

    If `office` is None, the route itself checks the offices in its body or query (`auth.caller_of`).
    """

    # None: open to everybody, with or without a key.
    scope: Scope | None
    office: OfficeCheck | None = None
    # It creates something and takes an Idempotency-Key.
    creates: bool = False
    # It may answer 409.
    conflicts: bool = False
    # It may be about very many jobs: its body may be as large as that of a batch, and one at a time of a caller is
    # carried out while there are other callers.
    is_bulk: bool = False
    # One value of its body may be as large as the body, such as a message with images.
    has_large_values: bool = False
    # Which of its requests stream, or wait for work: they count as streams.
    is_long: Callable[[Request], bool] = lambda request: False


def needs(
    scope: Scope,
    office: OfficeCheck | None = None,
    *,
    creates: bool = False,
    conflicts: bool = False,
    is_bulk: bool = False,
    has_large_values: bool = False,
    is_long: Callable[[Request], bool] = lambda request: False,
) -> Callable[[Endpoint], Endpoint]:
    return _ruled(Rule(scope, office, creates, conflicts, is_bulk, has_large_values, is_long))


def always(request: Request) -> bool:
    """For `is_long` of a route whose callers wait for work."""
    return True


def open_to_all(endpoint: Endpoint) -> Endpoint:
    """Lets everybody use a route. Only for routes without data."""
    return _ruled(Rule(None))(endpoint)


def _ruled(rule: Rule) -> Callable[[Endpoint], Endpoint]:
    def mark(endpoint: Endpoint) -> Endpoint:
        endpoint.rule = rule  # type: ignore[attr-defined]
        return endpoint

    return mark


def rule_of(endpoint: Callable[..., Any]) -> Rule:
    rule = getattr(endpoint, "rule", None)
    if not isinstance(rule, Rule):
        raise TypeError(f"{endpoint} has no rule: decorate it with `needs` or `open_to_all`")
    return rule


class Route(APIRoute):
    """A route that admits the caller before it reads the body.

    The framework describes the route in the OpenAPI document; requests do not pass through the framework's layers.
    """

    def __init__(self, *declared: Any, **options: Any) -> None:
        super().__init__(*declared, **options)
        self.handler: Handler = self.get_route_handler()

    def get_route_handler(self) -> Handler:
        endpoint, rule = self.endpoint, rule_of(self.endpoint)
        arguments, has_body = EndpointArguments(self.dependant), self.body_field is not None

        async def admit_and_handle(request: Request) -> Response:
            await admit(request, rule.scope, rule.office)
            if rule.scope is None:
                response: Response = await endpoint(**arguments.of(request, NO_BODY))
                return response
            lane = lane_of(request)
            bodies: Bodies = request.app.state.bodies
            with ExitStack() as kept:
                reservation, body = kept.enter_context(bodies.of(lane)), NO_BODY
                if has_body:
                    body = await bodies.read(request, lane, reservation, rule.is_bulk, rule.has_large_values)
                answer = await _share(request, rule, lane, lambda: endpoint(**arguments.of(request, body)))
                if isinstance(answer, _LongResponse):
                    answer.at_end(kept.pop_all().close)  # A caller who waits may keep its body in memory.
                return answer

        return admit_and_handle


async def _share(
    request: Request, rule: Rule, lane: str, handle: Callable[[], Coroutine[Any, Any, Response]]
) -> Response:
    """Handles a request when the turn of its lane has come; counts a long one until its answer ends."""
    shares: FairShares = request.app.state.shares
    if rule.is_long(request):
        close = await shares.open_stream(lane)
        try:
            # Short work that is asked for without end has few places, like any request; long work does not keep them.
            async with shares.request(lane, at_most=LONG_BEGINS_SECONDS):
                return _LongResponse(await handle(), close)
        except BaseException:
            close()
            raise
    # A request that rests keeps no other one of its caller waiting.
    async with shares.bulk(lane) if rule.is_bulk else _NOTHING, shares.request(lane):
        return await handle()


class _LongResponse(Response):
    """An answer that calls `close`, and what `at_end` adds, when it has ended, however it ends."""

    def __init__(self, response: Response, close: Callable[[], None]) -> None:
        self._response = response
        self._ends = [close]

    def at_end(self, close: Callable[[], None]) -> None:
        self._ends.append(close)

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        try:
            await self._response(scope, receive, send)
        finally:
            for close in self._ends:
                close()


class Router:
    """Finds the route of a request and answers with it. The framework answers where there is none: 404, 405, redirects.

    A route is found by the first two parts of its path if they are fixed, else among all others.
    """

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        routes = [one for one in app.routes if isinstance(one, Route)]
        self._anywhere = {method: _of_method(routes, method, None) for method in METHODS}
        self._below: dict[tuple[str, str | None], list[Route]] = {
            (method, place): _of_method(routes, method, place)
            for place in {_place(one.path) for one in routes} - {None}
            for method in METHODS
        }

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        handle = self._handler(scope) if scope["type"] == "http" else None
        if handle is None:
            await self._app(scope, receive, send)
            return
        scope["app"] = self._app
        request = Request(scope, receive, send)
        answer = _Begun(send)
        try:
            response = await handle(request)
            await response(scope, receive, answer.send)
        except Exception as error:
            if answer.has_begun:
                raise
            refusal = problems.of(request, error)
            await refusal(scope, receive, answer.send)
            if problems.is_defect(error):
                raise

    def _handler(self, scope: AsgiScope) -> Handler | None:
        """Returns what handles the request, and notes the route and the values in its path."""
        path, method = get_route_path(scope), scope["method"]
        place = "/".join(path.split("/", 3)[:3])
        for route in self._below.get((method, place)) or self._anywhere.get(method) or ():
            if match := route.path_regex.match(path):
                converters = route.param_convertors
                scope["route"] = route
                scope["endpoint"] = route.endpoint
                scope["path_params"] = {
                    name: converters[name].convert(text) for name, text in match.groupdict().items()
                }
                return route.handler
        return None


@dataclass(slots=True)
class _Begun:
    """Notes whether an answer has begun."""

    _send: Send
    has_begun: bool = False

    async def send(self, message: Message) -> None:
        self.has_begun = True
        await self._send(message)


def _place(path: str) -> str | None:
    """Returns the first two parts of a path; None if a value of the path may be among them."""
    place = "/".join(path.split("/", 3)[:3])
    return None if "{" in place else place


def _of_method(routes: Iterable[Route], method: str, place: str | None) -> list[Route]:
    """Returns the routes that a request with this method and this place may take, in their order."""
    return [one for one in routes if method in (one.methods or ()) and _place(one.path) in (place, None)]


def extension_of(request: Request, kind: type[A]) -> A:
    """Returns the part of an extension for the caller of this request, whose changes are audited."""
    return scheduler_for(request).extension(kind)


def router(subject: str) -> APIRouter:
    return APIRouter(route_class=Route, tags=[subject])
