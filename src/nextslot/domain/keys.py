"""Keys and who holds them: what they may do through the API, and what they did."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from nextslot.system.clock import Instant

from .json_types import Json


class Scope(StrEnum):
    """What a key may do; each includes those before it."""

    READ = "read"
    SUBMIT = "submit"
    OPERATE = "operate"
    ADMIN = "admin"

    def includes(self, other: "Scope") -> bool:
        return _SCOPES.index(self) >= _SCOPES.index(other)


_SCOPES = list(Scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """An API key; what its holder sends is shown once and never stored, only its digest."""

    key_id: str
    name: str
    scope: Scope
    office_id: str | None = None
    created_by: str | None = None
    created_at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Who asks for a change through the API, and for which."""

    name: str
    key_id: str | None
    action: str
    target: str
    office_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """Who changed what, and when; of a setting also what it was and what it became."""

    audit_id: str
    timestamp: Instant
    actor: str
    key_id: str | None
    action: str
    target: str
    office_id: str | None
    details: Mapping[str, Json] | None
