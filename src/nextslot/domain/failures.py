"""Kinds of failures, the decisions that follow them, and retry policies."""

from enum import StrEnum
from typing import Annotated

from .bounds import Delay, number, whole
from .declared_values import Says, Value


class FailureKind(StrEnum):
    ERROR = "error"
    TIMEOUT = "timeout"
    SESSION_ERROR = "session_error"
    UNAVAILABLE = "unavailable"
    QUOTA = "quota"
    CRASH = "crash"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    GIT_CONFLICT = "git_conflict"
    PERMISSION = "permission"
    DEPENDENCY = "dependency"
    INVALID = "invalid"
    PARKED = "parked"


RETRYABLE = frozenset(
    {
        FailureKind.ERROR,
        FailureKind.TIMEOUT,
        FailureKind.SESSION_ERROR,
        FailureKind.UNAVAILABLE,
        FailureKind.QUOTA,
        FailureKind.CRASH,
        FailureKind.INTERRUPTED,
    }
)


class Decision(StrEnum):
    """What follows a failed run. Recovery decides the UNDECIDED ones."""

    UNDECIDED = "undecided"
    RETRY = "retry"
    PERMANENT = "permanent"
    CANCELLED = "cancelled"


class Backoff(StrEnum):
    EXPONENTIAL = "exponential"
    LINEAR = "linear"


class RetryPolicy(Value):
    """DEC-007. `max_attempts` counts automatic retries: 3 means at most four jobs in a chain."""

    max_attempts: Annotated[int, whole(0, 1000), Says(asked="How many automatic retries")] = 3
    backoff: Backoff = Backoff.EXPONENTIAL
    base_delay_seconds: Delay = 10
    max_delay_seconds: Delay | None = None
    jitter: Annotated[float, number("", most=1)] = 0
    retry_on: tuple[FailureKind, ...] | None = None
