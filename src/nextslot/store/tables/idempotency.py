"""Idempotency keys: what was answered to a creating request, kept for a day."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass

from nextslot.store.contract import Tx
from nextslot.system.instant import Instant

from . import column_codec

KEPT_SECONDS = 24 * 3600


def digest(content: object) -> str:
    """The same for the same content, in whatever order the keys of its objects come."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=_plain).encode()).hexdigest()


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return repr(value)


def get(tx: Tx, office_id: str, route: str, key: str, now: Instant) -> tuple[str, list[str]] | None:
    """(digest of the request, ids of what it created), if it was less than a day ago."""
    row = tx.row("idempotency.get", office_id=office_id, route=route, idempotency_key=key)
    if row is None or row[2] <= now.after(-KEPT_SECONDS):
        return None
    return row[0], column_codec.loads(row[1])


def put(tx: Tx, office_id: str, route: str, key: str, digest: str, answer: list[str], now: Instant) -> None:
    tx.execute("idempotency.forget", before=now.after(-KEPT_SECONDS), limit=100)
    tx.execute(
        "idempotency.put",
        office_id=office_id,
        route=route,
        idempotency_key=key,
        digest=digest,
        answer=column_codec.dumps(answer),
        now=now,
    )
