"""Finds the route of a request, and admits the caller by the route's rule before it reads the body."""

from collections.abc import Callable, Coroutine, Iterable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette._utils import get_route_path
from starlette.routing import compile_path
from starlette.types import Message, Receive, Send
from starlette.types import Scope as AsgiScope

from nextslot.extension_api import Attached

from . import problems
from .auth import admit, lane_of, scheduler_for
from .endpoint_arguments import EndpointArguments
from .fair_shares import LONG_BEGINS_SECONDS, FairShares
from .request_body import NO_BODY, Bodies
from .request_log import PROBE_ENDS
from .route_rules import Rule, rule_of

A = TypeVar("A", bound=Attached)
Handler = Callable[[Request], Coroutine[Any, Any, Response]]

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_NOTHING = nullcontext()


class Route(APIRoute):
    """A route that admits the caller before it reads the body.

    The framework describes the route in the OpenAPI document; requests do not pass through the framework's layers.
    Until the first request or the document needs it, the framework does not analyse the endpoint: for all routes
    together that takes a fifth as long as all imports of a server.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], *, methods: Iterable[str], **options: Any) -> None:
        rule_of(endpoint)
        self.path, self.endpoint, self.methods = path, endpoint, set(methods)
        self.path_regex, self.path_format, self.param_convertors = compile_path(path)
        self._options = options

    @cached_property
    def described(self) -> APIRoute:
        """The route as the framework describes it."""
        return APIRoute(self.path, self.endpoint, methods=self.methods, **self._options)

    @cached_property
    def handler(self) -> Handler:
        return self.get_route_handler()

    def get_route_handler(self) -> Handler:
        endpoint, rule = self.endpoint, rule_of(self.endpoint)
        arguments, has_body = EndpointArguments(self.described.dependant), self.described.body_field is not None

        async def admit_and_handle(request: Request) -> Response:
            await admit(request, rule.scope, rule.office)
            lane = lane_of(request)
            if rule.scope is None:
                return await _open(request, lane, lambda: endpoint(**arguments.of(request, NO_BODY)))
            bodies: Bodies = request.app.state.bodies
            with ExitStack() as kept:
                reservation, body = kept.enter_context(bodies.of(lane)), NO_BODY
                if has_body:
                    body = await bodies.read(request, lane, reservation, rule.is_bulk, rule.has_large_values)
                answer = await _share(request, rule, lane, lambda: endpoint(**arguments.of(request, body)))
                if isinstance(answer, _LongResponse):
                    answer.at_end(kept.pop_all().close)  # A caller that waits may keep its body in memory.
                return answer

        return admit_and_handle


async def _open(request: Request, lane: str, handle: Callable[[], Coroutine[Any, Any, Response]]) -> Response:
    """Handles a request of a route for everybody in a lane by address, apart from that of wrong keys. Probes wait for
    nobody."""
    if request.scope["path"].endswith(PROBE_ENDS):
        return await handle()
    shares: FairShares = request.app.state.shares
    async with shares.request(f"open {lane}", at_most=LONG_BEGINS_SECONDS):
        return await handle()


async def _share(
    request: Request, rule: Rule, lane: str, handle: Callable[[], Coroutine[Any, Any, Response]]
) -> Response:
    """Handles a request when it is its lane's turn. A long request counts until its answer ends."""
    shares: FairShares = request.app.state.shares
    if rule.is_long(request):
        close = await shares.open_stream(lane)
        try:
            # A long request holds one of the few places only for its first moments: many short ones in a row stay
            # limited, real waits hold no place.
            async with shares.request(lane, at_most=LONG_BEGINS_SECONDS):
                return _LongResponse(await handle(), close)
        except BaseException:
            close()
            raise
    # A bulk request that waits here does not delay other requests of its caller.
    async with shares.bulk(lane) if rule.is_bulk else _NOTHING, shares.request(lane):
        return await handle()


class _LongResponse(Response):
    """An answer that calls `close`, and every function given to `at_end`, when it ends for any reason."""

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
    """Finds the route of a request and answers with it. If there is none, the framework answers: 404, 405 or a
    redirect.

    It looks up the first two parts of the path among routes where they are fixed, then searches all other routes.
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
        """Returns the handler of the request. Stores the route and the values of its path in the scope."""
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
    """Records whether an answer has begun."""

    _send: Send
    has_begun: bool = False

    async def send(self, message: Message) -> None:
        self.has_begun = True
        await self._send(message)


def _place(path: str) -> str | None:
    """Returns the first two parts of a path; None if one of them may be a parameter."""
    place = "/".join(path.split("/", 3)[:3])
    return None if "{" in place else place


def _of_method(routes: Iterable[Route], method: str, place: str | None) -> list[Route]:
    """Returns the routes that may match a request with this method and these first two parts, in their order."""
    return [one for one in routes if method in (one.methods or ()) and _place(one.path) in (place, None)]


def extension_of(request: Request, kind: type[A]) -> A:
    """Returns the part of an extension for the caller of this request, so that its changes are audited."""
    return scheduler_for(request).extension(kind)


def router(subject: str) -> APIRouter:
    return APIRouter(route_class=Route, tags=[subject])
