"""Offices with their settings, lanes of jobs, and limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple

from nextslot.system.instant import Instant

from .declared_values import At, Internal, Value
from .failures import FailureKind, RetryPolicy
from .jobs import DEFAULT_OFFICE, CancelMode, OnDependencyFailure
from .json_types import Json

# What every office retries: what a new session may mend (US-JS04).
OFFICE_RETRIES = (FailureKind.TIMEOUT, FailureKind.SESSION_ERROR, FailureKind.CRASH, FailureKind.INTERRUPTED)
_USUAL_RETRIES = RetryPolicy(max_attempts=2, base_delay_seconds=60)


class OfficeFields(Value, Generic[At]):
    """A scope with its own jobs and settings. The office `default` always exists."""

    office_id: str
    name: str
    status: str = "active"
    max_concurrent_jobs: int = 3
    role_limits: Mapping[str, int] = field(default_factory=lambda: {"FE": 1, "BE": 1, "QA": 1, "DevOps": 1})
    timeout_seconds: float | None = 1800
    retry_policy: RetryPolicy = _USUAL_RETRIES
    cancel_mode: CancelMode = CancelMode.INTERRUPT
    on_dependency_failure: OnDependencyFailure = OnDependencyFailure.WAIT
    webhook: Mapping[str, Json] | None = None
    created_at: At


class Office(OfficeFields):
    """An office; `status` is what its settings say, and its JSON form says `paused` of an active one that is paused."""

    is_paused: Internal[bool] = False

    def to_dict(self) -> dict[str, Json]:
        is_paused = self.is_paused and self.status == "active"
        return super().to_dict() | ({"status": "paused"} if is_paused else {})


def default_office(now: Instant) -> Office:
    """Returns the office that always exists: one job at a time (DEC-011), and a cancel lets running work finish."""
    return Office(
        office_id=DEFAULT_OFFICE,
        name="Default",
        max_concurrent_jobs=1,
        role_limits={},
        timeout_seconds=None,
        retry_policy=RetryPolicy(),
        cancel_mode=CancelMode.FINISH,
        created_at=now,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """All jobs of an office with the same limits: a full limit holds back all of them.

    `local` has the limits of the office and its roles, `shared` those across offices, both as units by limit key. Lanes
    of different offices with the same `class_key` share type, resources and shared limits.
    """

    lane_id: int
    office_id: str
    job_type: str
    resources: Mapping[str, int]
    local: Mapping[str, int]
    shared: Mapping[str, int]
    class_key: str
    needs: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs", {**self.local, **self.shared})


class Limit(NamedTuple):
    """A counted limit: 0 means no limit."""

    limit_key: str
    capacity: int
    used: int
