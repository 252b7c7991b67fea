"""API keys: converts rows to values and back, one function per statement."""

from collections.abc import Iterable

from nextslot.domain import Key
from nextslot.store.contract import Tx
from nextslot.system.instant import Instant

from . import column_codec
from .rows import KEYS


def insert(tx: Tx, key: Key, digest: str) -> None:
    tx.execute("keys.insert", **KEYS.named(key), digest=digest)


def get(tx: Tx, key_id: str) -> Key | None:
    row = tx.row("keys.get", key_id=key_id)
    return None if row is None else KEYS.value(row)


def by_digest(tx: Tx, digests: Iterable[str], now: Instant) -> dict[str, Key]:
    """Finds keys by the digests of their texts, or of their previous texts until those expire."""
    rows = tx.rows("keys.by_digest", digests=column_codec.key_set(digests), now=now)
    return {row[0]: KEYS.value(row[1:]) for row in rows}


def page(tx: Tx, before: str, limit: int) -> list[Key]:
    """Returns a page of keys, the newest first, below an id."""
    return [KEYS.value(row) for row in tx.rows("keys.page", before=before, limit=limit)]


def admins(tx: Tx) -> int:
    row = tx.row("keys.admins")
    return row[0] if row else 0


def has_admin(tx: Tx) -> bool:
    return admins(tx) > 0


def lasting_admins(tx: Tx) -> int:
    """Returns how many admin keys never expire."""
    row = tx.row("keys.lasting_admins")
    return row[0] if row else 0


def rotate(tx: Tx, key_id: str, digest: str, until: Instant) -> None:
    tx.execute("keys.rotate", key_id=key_id, digest=digest, until=until)


def note_use(tx: Tx, key_id: str, now: Instant) -> None:
    tx.execute("keys.note_use", key_id=key_id, now=now)


def delete(tx: Tx, key_id: str) -> None:
    tx.execute("keys.delete", key_id=key_id)
