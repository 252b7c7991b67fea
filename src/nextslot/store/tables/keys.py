"""API keys: rows to values and back, one function a statement."""

from nextslot.domain import Key, Scope
from nextslot.store.contract import Row, Tx
from nextslot.system.instant import Instant

from . import column_codec


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
        expires_at=key.expires_at,
        allowed_addresses=column_codec.dumps(key.allowed_addresses) if key.allowed_addresses else None,
        job_types=column_codec.dumps(key.job_types) if key.job_types else None,
    )


def get(tx: Tx, key_id: str) -> Key | None:
    row = tx.row("keys.get", key_id=key_id)
    return None if row is None else _key(row)


def by_digest(tx: Tx, digest: str, now: Instant) -> Key | None:
    """Finds a key by its text, or by the text before its last rotation while that one still opens."""
    row = tx.row("keys.by_digest", digest=digest, now=now)
    return None if row is None else _key(row)


def page(tx: Tx, before: str, limit: int) -> list[Key]:
    """The newest first, from an id downwards."""
    return [_key(row) for row in tx.rows("keys.page", before=before, limit=limit)]


def admins(tx: Tx) -> int:
    row = tx.row("keys.admins")
    return row[0] if row else 0


def has_admin(tx: Tx) -> bool:
    return admins(tx) > 0


def lasting_admins(tx: Tx) -> int:
    """Counts the admin keys that do not expire."""
    row = tx.row("keys.lasting_admins")
    return row[0] if row else 0


def rotate(tx: Tx, key_id: str, digest: str, until: Instant) -> None:
    tx.execute("keys.rotate", key_id=key_id, digest=digest, until=until)


def note_use(tx: Tx, key_id: str, now: Instant) -> None:
    tx.execute("keys.note_use", key_id=key_id, now=now)


def delete(tx: Tx, key_id: str) -> None:
    tx.execute("keys.delete", key_id=key_id)


def _key(row: Row) -> Key:
    key_id, name, scope, office_id, created_by, created_at, expires_at, last_used_at, addresses, job_types, until = row
    return Key(
        key_id=key_id,
        name=name,
        scope=Scope(scope),
        office_id=office_id,
        created_by=created_by,
        created_at=Instant(created_at),
        expires_at=column_codec.instant(expires_at),
        last_used_at=column_codec.instant(last_used_at),
        allowed_addresses=tuple(column_codec.loads(addresses)) if addresses else (),
        job_types=tuple(column_codec.loads(job_types)) if job_types else (),
        old_key_until=column_codec.instant(until),
    )
