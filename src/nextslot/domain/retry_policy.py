"""Retry policies: how often a failed run is retried, and after which delay. `retry.py` applies them."""

from enum import StrEnum
from typing import Annotated

from .bounds import Delay, number, whole
from .declared_values import Says, Value
from .failures import FailureKind


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
