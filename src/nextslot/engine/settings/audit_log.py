"""Audit: who changed what through the API, stored in the transaction of the change itself."""

from collections.abc import Mapping

from nextslot.domain import Actor, AuditEntry, Json
from nextslot.store.contract import Tx
from nextslot.store.tables import audit
from nextslot.system.instant import Instant
from nextslot.system.randomness import Chance


class AuditLog:
    def __init__(self, chance: Chance) -> None:
        self._chance = chance

    def changed(self, tx: Tx, before: Mapping[str, Json] | None, after: Mapping[str, Json] | None) -> None:
        """A setting was changed: what it was, and what it is. Secrets do not belong here."""
        tx.local(_Changes).settings = {"before": before, "after": after}

    def note(self, tx: Tx, actor: Actor | None, now: Instant) -> None:
        """Ends the work of a caller, if it is to be named: what one changed is not the next one's in the transaction.

        Called after the work and not before it: a work that is refused at once has not touched its transaction.
        """
        changes = tx.local(_Changes)
        details, changes.settings = changes.settings, None
        if actor is None:
            return
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
                details=details,
            ),
        )


class _Changes:
    def __init__(self, tx: Tx) -> None:
        self.settings: Mapping[str, Json] | None = None
