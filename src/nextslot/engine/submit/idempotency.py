"""Idempotency keys: a creating request that is sent again is answered with what it made the first time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nextslot.domain import request_checks
from nextslot.errors import IdempotencyMismatch, Invalid, NextslotError
from nextslot.store.contract import Tx
from nextslot.store.tables import idempotency
from nextslot.system.clock import Instant

# Of a request's content: the same for the same content, in whatever order its keys come.
digest = idempotency.digest


@dataclass(frozen=True, slots=True)
class Once:
    """A creating request that its sender may repeat, and how to name what it made."""

    office_id: str
    route: str
    key: str
    digest: str
    id_of: Callable[[Any], str]


class Replayed(NextslotError):
    """This request was carried out before: nothing was done now, and this is what it made then."""

    def __init__(self, ids: Sequence[str]) -> None:
        super().__init__("carried out before")
        self.ids = ids


def replay(tx: Tx, office_id: str, route: str, key: str, digest: str, now: Instant) -> list[str] | None:
    """The ids of what the request made the first time; None if this is the first time."""
    problems = list(request_checks.text_problems("idempotency_key", key))
    if problems:
        raise Invalid(problems)
    known = idempotency.get(tx, office_id, route, key, now)
    if known is None:
        return None
    if known[0] != digest:
        raise IdempotencyMismatch(f"the key {key!r} was used for another request", field="idempotency_key")
    return known[1]


def remember(tx: Tx, office_id: str, route: str, key: str, digest: str, ids: list[str], now: Instant) -> None:
    idempotency.put(tx, office_id, route, key, digest, ids, now)
