"""API keys: rows to values and back, one function a statement."""

from nextslot.domain import Key, Scope
from nextslot.store.contract import Row, Tx
from nextslot.system.instant import Instant


def insert(tx: Tx, key: Key, digest: str) -> None:
    tx.execute(
        "keys.insert",
        key_id=key.key_id,
        name=key.name,
        digest=digest,
        scope=key.scope,
        office_id=key.office_id,
        created_by=key.created_by,
        created_at=key.created_at,
    )


def get(tx: Tx, key_id: str) -> Key | None:
    row = tx.row("keys.get", key_id=key_id)
    return None if row is None else _key(row)


def by_digest(tx: Tx, digest: str) -> Key | None:
    row = tx.row("keys.by_digest", digest=digest)
    return None if row is None else _key(row)


def page(tx: Tx, before: str, limit: int) -> list[Key]:
    """The newest first, from an id downwards."""
    return [_key(row) for row in tx.rows("keys.page", before=before, limit=limit)]


def admins(tx: Tx) -> int:
    row = tx.row("keys.admins")
    return row[0] if row else 0


def has_admin(tx: Tx) -> bool:
    return admins(tx) > 0


def delete(tx: Tx, key_id: str) -> None:
    tx.execute("keys.delete", key_id=key_id)


def _key(row: Row) -> Key:
    key_id, name, scope, office_id, created_by, created_at = row
    return Key(
        key_id=key_id,
        name=name,
        scope=Scope(scope),
        office_id=office_id,
        created_by=created_by,
        created_at=Instant(created_at),
    )
