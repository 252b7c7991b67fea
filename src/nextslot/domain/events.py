"""Numbered events."""

from collections.abc import Mapping
from typing import Generic

from .declared_values import At, Value
from .json_types import Json


class Event(Value, Generic[At]):
    seq: int
    type: str
    office_id: str | None
    job_id: str | None
    run_id: str | None
    details: Mapping[str, Json]
    timestamp: At
