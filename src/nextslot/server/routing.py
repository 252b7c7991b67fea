"""Routes with a rule that says who may use them; a route without a rule cannot be made."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from nextslot.domain import Scope
from nextslot.errors import Invalid
from nextslot.extension_api import Attached

from .auth import OfficeOf, admit, lane_of, scheduler_for
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
    office: OfficeOf | None = None
    # It creates something and takes an Idempotency-Key.
    creates: bool = False
    # It may answer 409.
    conflicts: bool = False
    # Its body may be as large as that of a batch.
    is_batch: bool = False


def needs(
    scope: Scope,
    office: OfficeOf | None = None,
    *,
    creates: bool = False,
    conflicts: bool = False,
    is_batch: bool = False,
) -> Callable[[Endpoint], Endpoint]:
    return _ruled(Rule(scope, office, creates, conflicts, is_batch))


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
            if not has_body:
                return await handle(request)
            bodies: Bodies = request.app.state.bodies
            caller = lane_of(request)
            with bodies.of(caller) as reservation:
                _use_body(request, await bodies.read(request, caller, reservation, rule.is_batch))
                return await handle(request)

        return admit_and_handle


def _use_body(request: Request, value: Any) -> None:
    """Lets the framework use a parsed body: it asks for the bytes only to see whether there are any."""
    request._body = b"" if value is NO_BODY else b"-"
    request._json = value


def extension_of(request: Request, kind: type[A]) -> A:
    """Returns the part of an extension for the caller of this request, whose changes are audited."""
    return scheduler_for(request).extension(kind)


def router(subject: str) -> APIRouter:
    return APIRouter(route_class=Route, tags=[subject])
