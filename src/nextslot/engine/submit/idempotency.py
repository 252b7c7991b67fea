"""Idempotency keys: answers a repeated request with what the first request created."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from nextslot.domain import request_checks
from nextslot.errors import IdempotencyMismatch, Invalid, NextslotError
from nextslot.store.contract import Tx, Work
from nextslot.store.tables import idempotency
from nextslot.system.clock import Clock

T = TypeVar("T")

KEPT_SECONDS = 24 * 3600
# How many expired keys each new key deletes.
FORGOTTEN_AT_ONCE = 100


class Once(NamedTuple, Generic[T]):
    """What identifies a creating request, and the ids of what it created."""

    route: str
    # Two offices may use the same key.
    office_id: str | None
    # Two requests with the same key must have the same content.
    content: object
    ids_of: Callable[[T], list[str]]


class Replayed(NextslotError):
    """Raised for a request that was carried out before. Nothing happened now; `ids` are what it created then."""

    def __init__(self, ids: Sequence[str]) -> None:
        super().__init__("the request was carried out before")
        self.ids = ids


def at_most_once(work: Work[T], once: Once[T], key: str, clock: Clock) -> Work[T]:
    """Wraps a work: if a request with this key was carried out before, the new work raises `Replayed` and does
    nothing.
    """

    def checked(tx: Tx) -> T:
        problems = list(request_checks.text_problems("idempotency_key", key))
        if problems:
            raise Invalid(problems)
        content = _digest(tx, work, once.content)
        office_id, now = once.office_id or "", clock.now()
        since = now.after(-KEPT_SECONDS)
        known = idempotency.get(tx, office_id, once.route, key, since)
        if known is not None:
            if known[0] != content:
                raise IdempotencyMismatch(
                    f"the key {key!r} was used for another request; use a new key", field="idempotency_key"
                )
            raise Replayed(known[1])
        answer = work(tx)
        idempotency.forget(tx, since, FORGOTTEN_AT_ONCE)
        idempotency.put(tx, office_id, once.route, key, content, once.ids_of(answer), now)
        return answer

    return checked


def _digest(tx: Tx, work: Work[Any], content: object) -> str:
    try:
        return idempotency.digest(content)
    except (TypeError, ValueError, RecursionError):  # The content is not JSON: the work itself raises a better error.
        work(tx)
        raise
