"""The audit log: rows to values and back, one function a statement."""

from nextslot.domain import AuditEntry
from nextslot.store.contract import Row, Tx
from nextslot.system.clock import Instant

from . import column_codec


def append(tx: Tx, entry: AuditEntry) -> None:
    tx.execute(
        "audit.append",
        audit_id=entry.audit_id,
        timestamp=entry.timestamp,
        actor=entry.actor,
        key_id=entry.key_id,
        action=entry.action,
        target=entry.target,
        office_id=entry.office_id,
        details=column_codec.optional(entry.details),
    )


def page(tx: Tx, before: str, limit: int) -> list[AuditEntry]:
    """The newest first, from an id downwards."""
    return [_entry(row) for row in tx.rows("audit.page", before=before, limit=limit)]


def _entry(row: Row) -> AuditEntry:
    audit_id, timestamp, actor, key_id, action, target, office_id, details = row
    return AuditEntry(
        audit_id=audit_id,
        timestamp=Instant(timestamp),
        actor=actor,
        key_id=key_id,
        action=action,
        target=target,
        office_id=office_id,
        details=column_codec.parsed(details),
    )
