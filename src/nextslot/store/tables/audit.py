"""The audit log: rows to values and back, one function a statement."""

from nextslot.domain import AuditEntry
from nextslot.store.contract import Tx

from .rows import AUDIT


def append(tx: Tx, entry: AuditEntry) -> None:
    tx.execute("audit.append", **AUDIT.named(entry))


def page(tx: Tx, before: str, limit: int) -> list[AuditEntry]:
    """The newest first, from an id downwards."""
    return [AUDIT.value(row) for row in tx.rows("audit.page", before=before, limit=limit)]
