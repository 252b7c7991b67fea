"""The audit log: converts rows to values and back, one function per statement."""

from nextslot.domain import AuditEntry
from nextslot.store.contract import Tx

from .rows import AUDIT


def append(tx: Tx, entry: AuditEntry) -> None:
    tx.execute("audit.append", **AUDIT.named(entry))


def page(tx: Tx, before: str, limit: int) -> list[AuditEntry]:
    """Returns a page of entries, the newest first, below an id."""
    return [AUDIT.value(row) for row in tx.rows("audit.page", before=before, limit=limit)]
