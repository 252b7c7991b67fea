"""KeyRing: creates and deletes API keys. The text of a key is shown once, and only its digest is stored."""

import hashlib
from collections.abc import Sequence

from nextslot.domain import Key, Scope, request_checks
from nextslot.engine.effects import KeysMade
from nextslot.errors import (
    Conflict,
    Invalid,
    NotFound,
    Problem,
)
from nextslot.store.contract import Tx
from nextslot.store.tables import keys, nodes, offices
from nextslot.system.instant import Instant
from nextslot.system.randomness import Chance

PREFIX = "nsk_"


class KeyRing:
    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        # Whether a key exists, so that every request needs one; None if that is not known.
        self.is_guarded: bool | None = None

    def create(
        self, tx: Tx, name: str, scopes: Sequence[str], office_id: str | None, created_by: str | None, now: Instant
    ) -> tuple[Key, str]:
        """Creates a key. Returns it with its text, which its holder sends."""
        scope = self._scope(tx, name, scopes, office_id)
        if scope is not Scope.ADMIN and not keys.has_admin(tx):
            raise Conflict(
                "there is no admin key yet: give the first key the scope admin, which can create and delete keys"
            )
        text = PREFIX + self._chance.secret()
        key = Key(
            key_id=self._chance.new_id(),
            name=name,
            scope=scope,
            office_id=office_id,
            created_by=created_by,
            created_at=now,
        )
        keys.insert(tx, key, digest(text))
        nodes.settings_changed(tx)
        tx.cause(KeysMade())
        return key, text

    def note_made(self) -> None:
        """Follows the commit of a key."""
        self.is_guarded = True

    def forget(self) -> None:
        """Makes the next request read again whether a key exists: another node may have created the first one."""
        if not self.is_guarded:
            self.is_guarded = None

    def delete(self, tx: Tx, key_id: str) -> Key:
        key = keys.get(tx, key_id)
        if key is None:
            raise NotFound("key", key_id)
        if key.scope is Scope.ADMIN and keys.admins(tx) == 1:
            raise Conflict(
                "this is the last admin key, without which nobody can create or delete keys: create another one first"
            )
        keys.delete(tx, key_id)
        return key

    def _scope(self, tx: Tx, name: str, scopes: Sequence[str], office_id: str | None) -> Scope:
        problems = list(request_checks.text_problems("name", name))
        unknown = [scope for scope in scopes if scope not in list(Scope)]
        if unknown or not scopes:
            problems.append(
                Problem(
                    "scopes",
                    f"has {', '.join(map(repr, unknown)) or 'nothing'}; give one or more of {', '.join(Scope)}",
                )
            )
        elif office_id is not None:
            if offices.get(tx, office_id) is None:
                problems.append(Problem("office_id", f"there is no office {office_id!r}; create it, or give another"))
            if Scope.ADMIN in scopes:
                problems.append(
                    Problem(
                        "office_id",
                        "an admin key is for the whole scheduler; leave office_id out, or give another scope",
                    )
                )
        if problems:
            raise Invalid(problems)
        return max((Scope(scope) for scope in scopes), key=list(Scope).index)


def digest(text: str) -> str:
    """Returns the digest of a key. A fast hash is enough, because 256 random bits cannot be guessed."""
    return hashlib.sha256(text.encode()).hexdigest()
