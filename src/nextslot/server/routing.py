"""Routes with a rule that says who may use them; a route without a rule cannot be made."""

import json
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from nextslot.domain import Scope
from nextslot.errors import Invalid
from nextslot.extension_api import Attached

from .auth import OfficeCheck, admit, scheduler_for

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


def needs(
    scope: Scope, office: OfficeCheck | None = None, *, creates: bool = False, conflicts: bool = False
) -> Callable[[Endpoint], Endpoint]:
    return _ruled(Rule(scope, office, creates, conflicts))


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


# A number with fewer digits always fits 64 bits.
_LONG_NUMBER = re.compile(rb"[0-9]{19}")


class OurRequest(Request):
    """Reads JSON with a parser that bounds depth and numbers, and refuses NaN."""

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            body = await self.body()
            self._json = orjson.loads(body)
            if _LONG_NUMBER.search(body):
                _check_numbers(body)
        return self._json


def _check_numbers(body: bytes) -> None:
    """Refuses whole numbers that do not fit 64 bits: the fast parser would make floats of them, with other values.

    It raises HTTPExceptions, because the framework hides every other error that is raised while it reads a body.
    """
    try:
        json.loads(body, parse_int=_checked)
    except RecursionError:
        raise HTTPException(422, "the body is nested too deep") from None


def _checked(digits: str) -> int:
    number = int(digits)
    if not -(2**63) <= number < 2**64:
        raise HTTPException(422, f"the number {digits} does not fit 64 bits; send it as a text")
    return number


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
        has_query = bool(self.dependant.query_params)

        async def admit_and_handle(request: Request) -> Response:
            request = OurRequest(request.scope, request.receive)
            await admit(request, rule.scope, rule.office)
            if has_query and request.url.query:
                _check_query(request)
            return await handle(request)

        return admit_and_handle


def extension_of(request: Request, kind: type[A]) -> A:
    """Returns the part of an extension for the caller of this request, whose changes are audited."""
    return scheduler_for(request).extension(kind)


def router(subject: str) -> APIRouter:
    return APIRouter(route_class=Route, tags=[subject])
