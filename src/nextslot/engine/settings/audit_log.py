"""AuditLog: stores who changed what, in the transaction of the change."""

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
        """Adds the values before and after a change of settings. They must contain no secrets."""
        tx.local(_Changes).settings = {"before": before, "after": after}

    def note(self, tx: Tx, actor: Actor | None, now: Instant) -> None:
        """Stores the audit entry of a caller, unless `actor` is None. Drops the collected changes in both cases, so
        that the next work in the transaction does not get them. Runs after the work, so a refused work gets no entry.
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
