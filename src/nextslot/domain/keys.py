"""API keys with their scopes."""

from enum import StrEnum
from typing import Annotated, Generic

from nextslot.system.instant import Instant

from .declared_values import At, Id, Internal, Later, Says, Value


class Scope(StrEnum):
    """What a key may do; each scope includes those before it."""

    READ = "read"
    SUBMIT = "submit"
    OPERATE = "operate"
    ADMIN = "admin"

    def includes(self, other: "Scope") -> bool:
        return _SCOPES.index(self) >= _SCOPES.index(other)


_SCOPES = list(Scope)


class KeyFields(Value, Generic[At]):
    """An API key. The scheduler shows its text once and stores only the digest."""

    key_id: Id
    name: str
    office_id: str | None = None
    created_by: str | None = None
    created_at: At
    expires_at: Annotated[At | None, Says("From then on the key is not valid")] = None
    last_used_at: Later[Annotated[At | None, Says("To the minute")]] = None
    allowed_addresses: Annotated[tuple[str, ...], Says("Networks from which the key may be used; empty: all")] = ()
    job_types: Annotated[tuple[str, ...], Says("The types of jobs that the key may create; empty: all")] = ()
    old_key_until: Later[Annotated[At | None, Says("Until then the text before the last rotation is valid too")]] = None


class Key(KeyFields):
    """A key with its scope; the JSON form also lists the scopes that it includes."""

    FIRST = ("key_id", "name", "scopes")
    WORKED_OUT = ("scopes",)

    scope: Internal[Scope]

    @property
    def scopes(self) -> list[str]:
        return [one.value for one in Scope if self.scope.includes(one)]


class NewKey(Value):
    """A request for a key: its scope, from which addresses it works, and until when."""

    name: str
    scopes: tuple[str, ...]
    office_id: str | None = None
    expires_at: Instant | None = None
    allowed_addresses: tuple[str, ...] = ()
    job_types: tuple[str, ...] = ()
