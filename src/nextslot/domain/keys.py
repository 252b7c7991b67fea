"""Keys and who holds them: what they may do through the API, and what they did."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Generic

from nextslot.system.instant import Instant

from .declared_values import (
    At,
    Id,
    Says,
    Value,
)
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


@dataclass(frozen=True, kw_only=True)
class AuditEntryFields(Value, Generic[At]):
    """Who changed what, and when; of a setting also what it was and what it became."""

    audit_id: Id
    timestamp: At
    actor: Annotated[str, Says("The name of the key; `local` on a server without keys")]
    key_id: str | None
    action: Annotated[str, Says(examples=("POST /api/jobs/{job_id}/cancel",))]
    target: str
    office_id: str | None
    details: Annotated[Mapping[str, Json] | None, Says("Of a setting: `before` and `after`")]


@dataclass(frozen=True, kw_only=True)
class AuditEntry(AuditEntryFields[Instant]):
    """An entry, with the time as the scheduler has it."""
