"""Routes with a rule that says who may use them; a route without a rule cannot be made."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from nextslot.domain import Scope
from nextslot.errors import Invalid
from nextslot.extension_api import Attached

from .auth import OfficeCheck, admit, lane_of, scheduler_for
from .fair_shares import FairShares
from .request_body import NO_BODY, Bodies

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
A = TypeVar("A", bound=Attached)


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
    # Which of its requests stream, or wait for work: they count as streams.
    is_long: Callable[[Request], bool] = lambda request: False


def needs(
    scope: Scope,
    office: OfficeCheck | None = None,
    *,
    creates: bool = False,
    conflicts: bool = False,
    is_bulk: bool = False,
    is_long: Callable[[Request], bool] = lambda request: False,
) -> Callable[[Endpoint], Endpoint]:
    return _ruled(Rule(scope, office, creates, conflicts, is_bulk, is_long))


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


def _check_query(request: Request) -> None:
    """Refuses a parameter that is given twice: the framework would silently use the last value."""
    seen: set[str] = set()
    for name, _ in request.query_params.multi_items():
        if name in seen:
            raise Invalid(f"is given more than once; separate several values by commas, as in {name}=A,B", name)
        seen.add(name)


class Route(APIRoute):
    """A route that admits the caller before it reads the body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle, rule = super().get_route_handler(), rule_of(self.endpoint)
        has_query, has_body = bool(self.dependant.query_params), self.body_field is not None

        async def admit_and_handle(request: Request) -> Response:
            await admit(request, rule.scope, rule.office)
            if has_query and request.url.query:
                _check_query(request)
            if rule.scope is None:
                return await handle(request)
            lane = lane_of(request)
            bodies: Bodies = request.app.state.bodies
            with bodies.of(lane) as reservation:
                if has_body:
                    _use_body(request, await bodies.read(request, lane, reservation, rule.is_bulk))
                return await _share(request, rule, lane, handle)

        return admit_and_handle


async def _share(
    request: Request, rule: Rule, lane: str, handle: Callable[[Request], Coroutine[Any, Any, Response]]
) -> Response:
    """Handles a request when the turn of its lane has come; counts a long one until its answer ends."""
    shares: FairShares = request.app.state.shares
    if rule.is_long(request):
        until_answered: AsyncExitStack = request.scope["fastapi_inner_astack"]
        until_answered.callback(await shares.open_stream(lane))
        async with shares.request(lane):
            await asyncio.sleep(0)  # Many who come at once begin one after the other.
        return await handle(request)
    # A request that rests keeps no other one of its caller waiting.
    async with shares.bulk(lane) if rule.is_bulk else nullcontext(), shares.request(lane):
        return await handle(request)


def _use_body(request: Request, value: Any) -> None:
    """Lets the framework use a parsed body: it asks for the bytes only to see whether there are any."""
    request._body = b"" if value is NO_BODY else b"-"
    request._json = value


def extension_of(request: Request, kind: type[A]) -> A:
    """Returns the part of an extension for the caller of this request, whose changes are audited."""
    return scheduler_for(request).extension(kind)


def router(subject: str) -> APIRouter:
    return APIRouter(route_class=Route, tags=[subject])
