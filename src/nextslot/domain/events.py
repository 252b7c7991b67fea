"""Events: what happened, numbered."""

from collections.abc import Mapping
from dataclasses import dataclass

from nextslot.system.clock import Instant

from .json_types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    seq: int
    type: str
    office_id: str | None
    job_id: str | None
    run_id: str | None
    details: Mapping[str, Json]
    timestamp: Instant
