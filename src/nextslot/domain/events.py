"""Events: what happened, numbered."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic

from nextslot.system.instant import Instant

from .declared_values import At, Value
from .json_types import Json


@dataclass(frozen=True, kw_only=True)
class EventFields(Value, Generic[At]):
    seq: int
    type: str
    office_id: str | None
    job_id: str | None
    run_id: str | None
    details: Mapping[str, Json]
    timestamp: At


@dataclass(frozen=True, kw_only=True)
class Event(EventFields[Instant]):
    """An event, with the time as the scheduler has it."""
