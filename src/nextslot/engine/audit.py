"""Audit: who changed what through the API, stored in the transaction of the change itself."""

from collections.abc import Mapping

from ..chance import Chance
from ..clock import Instant
from ..model import Actor, AuditEntry, Json
from ..store import audit
from ..store.store import Tx


class AuditLog:
    def __init__(self, chance: Chance) -> None:
        self._chance = chance

    def begin(self, tx: Tx) -> None:
        """Works of several callers may share a transaction: what one of them changed is not another's."""
        tx.local(_Changes).settings = None

    def changed(self, tx: Tx, before: Mapping[str, Json] | None, after: Mapping[str, Json] | None) -> None:
        """A setting was changed: what it was, and what it is. Secrets do not belong here."""
        tx.local(_Changes).settings = {"before": before, "after": after}

    def note(self, tx: Tx, actor: Actor, now: Instant) -> None:
        audit.append(
            tx,
            AuditEntry(
                audit_id=self._chance.new_id(),
                timestamp=now,
                actor=actor.name,
                key_id=actor.key_id,
                action=actor.action,
                target=actor.target,
                office_id=actor.office_id,
                details=tx.local(_Changes).settings,
            ),
        )


class _Changes:
    def __init__(self, tx: Tx) -> None:
        self.settings: Mapping[str, Json] | None = None
