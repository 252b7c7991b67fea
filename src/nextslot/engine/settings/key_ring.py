"""KeyRing: creates and deletes API keys. The text of a key is shown once, and only its digest is stored."""

import hashlib
from collections.abc import Callable, Collection, Iterator

from nextslot.domain import Key, NewKey, Office, Scope, addresses, request_checks
from nextslot.domain.signals import BY_DEADLINE, BY_LINK
from nextslot.engine.effects import KeysEnded, KeysMade
from nextslot.errors import Conflict, Invalid, NotFound, Problem
from nextslot.store.contract import Tx
from nextslot.store.tables import keys, nodes, offices
from nextslot.system.instant import Instant
from nextslot.system.randomness import Chance

PREFIX = "nsk_"
LONGEST_OVERLAP_SECONDS = 30 * 86_400.0


class KeyRing:
    def __init__(self, chance: Chance, declared: Collection[str] = ()) -> None:
        self._chance = chance
        # The offices of the configuration: before the first start, the first key of one creates it.
        self._declared = declared
        # Whether any key exists, so that every request needs one; None if unknown.
        self.is_guarded: bool | None = None
        # Called when a key or one of its texts has become invalid, so that streams that use it end.
        self.watchers: set[Callable[[], None]] = set()

    def create(self, tx: Tx, wanted: NewKey, created_by: str | None, now: Instant) -> tuple[Key, str]:
        """Creates a key. Returns it with its text, which its holder sends."""
        scope = self._scope(tx, wanted, now)
        if (scope is not Scope.ADMIN or wanted.expires_at is not None) and not keys.lasting_admins(tx):
            raise Conflict(
                "there is no admin key yet: give the first key the scope admin, which can create and delete keys, "
                "and no expiry"
            )
        text = PREFIX + self._chance.secret()
        key = Key(
            key_id=self._chance.new_id(),
            name=wanted.name,
            scope=scope,
            office_id=wanted.office_id,
            created_by=created_by,
            created_at=now,
            expires_at=wanted.expires_at,
            allowed_addresses=wanted.allowed_addresses,
            job_types=wanted.job_types,
        )
        keys.insert(tx, key, digest(text))
        nodes.settings_changed(tx)
        tx.cause(KeysMade())
        return key, text

    def note_made(self) -> None:
        """Remembers after the commit that a key exists."""
        self.is_guarded = True

    def forget(self) -> None:
        """Makes the next request read again whether any key exists: another node may have created the first one."""
        if not self.is_guarded:
            self.is_guarded = None

    def delete(self, tx: Tx, key_id: str) -> Key:
        key = keys.get(tx, key_id)
        if key is None:
            raise NotFound("key", key_id)
        if key.scope is Scope.ADMIN and key.expires_at is None and keys.lasting_admins(tx) == 1:
            raise Conflict(
                "this is the last admin key that does not expire, without which nobody can create or delete keys: "
                "create another one first"
            )
        keys.delete(tx, key_id)
        tx.cause(KeysEnded())
        return key

    def rotate(self, tx: Tx, key_id: str, overlap_seconds: float, now: Instant) -> tuple[Key, str]:
        """Gives a key a new text and returns both. The old text stays valid for `overlap_seconds`."""
        if not request_checks.is_number(overlap_seconds, above=-1e-9) or overlap_seconds > LONGEST_OVERLAP_SECONDS:
            raise Invalid("is not a number of seconds from 0 to 30 days; give for example 3600", "overlap_seconds")
        if keys.get(tx, key_id) is None:
            raise NotFound("key", key_id)
        text = PREFIX + self._chance.secret()
        keys.rotate(tx, key_id, digest(text), now.after(overlap_seconds))
        tx.cause(KeysEnded())
        changed = keys.get(tx, key_id)
        assert changed is not None
        return changed, text

    def note_ended(self) -> None:
        """Lets every open stream check its key again, after the commit that invalidated a key or one of its texts."""
        for check_again in list(self.watchers):
            check_again()

    def _scope(self, tx: Tx, wanted: NewKey, now: Instant) -> Scope:
        scopes, office_id = wanted.scopes, wanted.office_id
        problems = [*request_checks.text_problems("name", wanted.name), *_limit_problems(wanted, now)]
        if wanted.name in (BY_DEADLINE, BY_LINK):
            problem = f"is {wanted.name!r}: answers that no key has sent are stored under this name; give another name"
            problems.append(Problem("name", problem))
        unknown = [scope for scope in scopes if scope not in list(Scope)]
        if unknown or not scopes:
            problems.append(
                Problem(
                    "scopes",
                    f"has {', '.join(map(repr, unknown)) or 'nothing'}; give one or more of {', '.join(Scope)}",
                )
            )
        elif office_id is not None:
            if offices.get(tx, office_id) is None and office_id in self._declared:
                offices.insert(tx, Office(office_id=office_id, name=office_id, created_at=now))
            elif offices.get(tx, office_id) is None:
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


def _limit_problems(wanted: NewKey, now: Instant) -> Iterator[Problem]:
    if wanted.expires_at is not None and wanted.expires_at <= now:
        yield Problem("expires_at", f"is {wanted.expires_at}, which has passed; give a later time")
    for address in wanted.allowed_addresses:
        if addresses.network(address) is None:
            problem = f"has {address!r}, which is neither an address nor a network; give for example 10.0.0.0/8"
            yield Problem("allowed_addresses", problem)
    for job_type in wanted.job_types:
        yield from request_checks.text_problems("job_types", job_type)


def digest(text: str) -> str:
    """Returns the digest of a key. A fast hash is enough, because 256 random bits cannot be guessed."""
    return hashlib.sha256(text.encode()).hexdigest()
