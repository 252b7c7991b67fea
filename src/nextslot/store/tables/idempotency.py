"""Idempotency keys: stores the answers to creating requests."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass

from nextslot.store.contract import Tx
from nextslot.system.instant import Instant

from . import column_codec


def digest(content: object) -> str:
    """Returns a digest that is equal for equal content, whatever the order of object keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=_plain).encode()).hexdigest()


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return repr(value)


def get(tx: Tx, office_id: str, route: str, key: str, since: Instant) -> tuple[str, list[str]] | None:
    """Returns the digest of a request and the ids of what it created, if it was stored after `since`."""
    row = tx.row("idempotency.get", office_id=office_id, route=route, idempotency_key=key)
    if row is None or row[2] <= since:
        return None
    return row[0], column_codec.loads(row[1])


def put(tx: Tx, office_id: str, route: str, key: str, digest: str, answer: list[str], now: Instant) -> None:
    tx.execute(
        "idempotency.put",
        office_id=office_id,
        route=route,
        idempotency_key=key,
        digest=digest,
        answer=column_codec.dumps(answer),
        now=now,
    )


def forget(tx: Tx, before: Instant, limit: int) -> None:
    """Deletes some of the keys that were stored before an instant."""
    tx.execute("idempotency.forget", before=before, limit=limit)
