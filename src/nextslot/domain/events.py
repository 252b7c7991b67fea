"""Numbered events, and their types."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic

from .bounds import Json
from .declared_values import At, Value


class Event(Value, Generic[At]):
    seq: int
    type: str
    office_id: str | None
    job_id: str | None
    run_id: str | None
    details: Mapping[str, Json]
    timestamp: At


class EventType(StrEnum):
    """The types of events; a filter for any other type would never match."""

    JOB_QUEUED = "job_queued"
    JOB_READY = "job_ready"
    JOB_MOVED = "job_moved"
    JOB_STARTED = "job_started"
    JOB_AWAITING_SIGNAL = "job_awaiting_signal"
    JOB_SIGNALLED = "job_signalled"
    JOB_STALLED = "job_stalled"
    JOB_COMPLETED = "job_completed"
    JOB_SKIPPED = "job_skipped"
    JOB_FAILED = "job_failed"
    JOB_PARKED = "job_parked"
    JOB_TIMEOUT = "job_timeout"
    JOB_RETRYING = "job_retrying"
    JOB_FAILED_PERMANENTLY = "job_failed_permanently"
    JOB_CANCEL_REQUESTED = "job_cancel_requested"
    JOB_CANCELLED = "job_cancelled"
    GROUP_FINISHED = "group_finished"
    QUEUE_PAUSED = "queue_paused"
    QUEUE_RESUMED = "queue_resumed"
    RESOURCE_HELD = "resource_held"
    RESOURCE_RELEASED = "resource_released"
    RESERVATION_MADE = "reservation_made"
    RESERVATION_RELEASED = "reservation_released"
    RESERVATION_EXPIRED = "reservation_expired"
    SCHEDULE_FIRED = "schedule_fired"
    SCHEDULE_SKIPPED = "schedule_skipped"
    RECOVERED = "recovered"
    NODE_JOINED = "node_joined"
    NODE_LEFT = "node_left"
    NODE_LOST = "node_lost"
    NODE_DRAINED = "node_drained"
    NODE_RESUMED = "node_resumed"
    NODE_FORGOTTEN = "node_forgotten"
