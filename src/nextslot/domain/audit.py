"""The caller of a change, and the entry of the audit log about it."""

from collections.abc import Mapping
from typing import Annotated, Generic

from .bounds import Json
from .declared_values import At, Id, Says, Value


class Actor(Value):
    """The caller of a change, with its action and target."""

    name: str
    key_id: str | None
    action: str
    target: str
    office_id: str | None = None


class AuditEntry(Value, Generic[At]):
    """Who changed what, and when; for a setting also its value before and after."""

    audit_id: Id
    timestamp: At
    actor: Annotated[str, Says("The name of the key; `local` on a server without keys")]
    key_id: str | None
    action: Annotated[str, Says(examples=("POST /api/jobs/{job_id}/cancel",))]
    target: str
    office_id: str | None
    details: Annotated[
        Mapping[str, Json] | None, Says("Of a setting: its value `before`, `after`; of a signal: its answer")
    ]
