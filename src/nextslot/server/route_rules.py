"""The rule of a route: who may use it, how large its body may be, and whether its callers wait.

Each endpoint is decorated with its rule; declaring a route without a rule is an error.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request

from nextslot.domain import Scope

from .auth import OfficeCheck

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Rule:
    """Which callers may use a route, and the form of its answers.

    If `office` is None, the endpoint itself checks the offices in its body or query (`auth.caller_of`).
    """

    # None: everybody may use it, with or without a key.
    scope: Scope | None
    office: OfficeCheck | None = None
    # Whether it creates something and takes an Idempotency-Key.
    creates: bool = False
    # Whether it may answer 409.
    conflicts: bool = False
    # Whether it may concern very many jobs. Its body may then be as large as that of a batch, and a caller gets only
    # one such request at a time while there are other callers.
    is_bulk: bool = False
    # Whether one value of its body may be as large as the whole body, such as a message with images.
    has_large_values: bool = False
    # Returns whether a request streams or waits for work, and so counts as a stream.
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
    """Used as `is_long` by routes whose callers always wait for work."""
    return True


def open_to_all(endpoint: Endpoint) -> Endpoint:
    """Lets everybody use a route. Only for routes without data, and for those that check a signature themselves."""
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
