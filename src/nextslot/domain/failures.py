"""Kinds of failures, and the decisions that follow them."""

from enum import StrEnum


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
