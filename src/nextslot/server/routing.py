"""Routes that know who may use them: each is declared with its rule, and one without cannot be made."""

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

from .auth import OfficeOf, admit, scheduler_for

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
A = TypeVar("A", bound=Attached)


@dataclass(frozen=True, slots=True)
class Rule:
    """What a route needs, and what else there is to know about it.

    `office` None: the route itself checks the offices that its body or query names (`auth.caller_of`).
    """

    # None: open to everybody, key or not.
    scope: Scope | None
    office: OfficeOf | None = None
    # It makes something: an Idempotency-Key is honoured.
    creates: bool = False
    # It may find a state that does not allow it (409).
    conflicts: bool = False


def needs(
    scope: Scope, office: OfficeOf | None = None, *, creates: bool = False, conflicts: bool = False
) -> Callable[[Endpoint], Endpoint]:
    return _ruled(Rule(scope, office, creates, conflicts))


def open_to_all(endpoint: Endpoint) -> Endpoint:
    """For what holds no data."""
    return _ruled(Rule(None))(endpoint)


def _ruled(rule: Rule) -> Callable[[Endpoint], Endpoint]:
    def mark(endpoint: Endpoint) -> Endpoint:
        endpoint.rule = rule  # type: ignore[attr-defined]
        return endpoint

    return mark


def rule_of(endpoint: Callable[..., Any]) -> Rule:
    rule = getattr(endpoint, "rule", None)
    if not isinstance(rule, Rule):
        raise TypeError(f"the route of {endpoint} does not say who may use it: decorate it with `needs`")
    return rule


# Fewer digits always fit 64 bits.
_LONG_NUMBER = re.compile(rb"[0-9]{19}")


class OurRequest(Request):
    """JSON is read by a parser that bounds depth and numbers, and knows no NaN."""

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            body = await self.body()
            self._json = orjson.loads(body)
            if _LONG_NUMBER.search(body):
                _check_numbers(body)
        return self._json


def _check_numbers(body: bytes) -> None:
    """The fast parser makes a float of a whole number that does not fit 64 bits: other than what was sent.

    HTTPExceptions, since the framework lets no other error out of reading a body.
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
    """Of a name that is there twice the framework would take the last value, and say nothing of the others."""
    seen: set[str] = set()
    for name, _ in request.query_params.multi_items():
        if name in seen:
            raise Invalid(f"this is given more than once; several values are written by comma, as {name}=A,B", name)
        seen.add(name)


class Route(APIRoute):
    """Whoever asks is admitted before anything of the body is read."""

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
    """Returns an extension's part of the scheduler for the caller of this request: its changes are audited."""
    return scheduler_for(request).extension(kind)


def router(subject: str) -> APIRouter:
    return APIRouter(route_class=Route, tags=[subject])
