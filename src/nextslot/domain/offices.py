"""Offices with their settings, lanes of jobs, and limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Generic, NamedTuple

from nextslot.system.instant import Instant

from .declared_values import At, Internal, Says, Value
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


class Quotas(Value):
    """What an admin grants an office at most. The defaults are above what honest use needs."""

    queued_jobs: Annotated[int, Says("Jobs that have not ended")] = 10_000_000
    requests_per_second: Annotated[int, Says("On average; twice as many at once")] = 5_000
    streams: Annotated[int, Says("Open streams of events, logs and direct requests")] = 1_000
    direct_callers: Annotated[int, Says("Direct requests that wait; 0: as `[limits] direct_waiting` says")] = 0
    delivery_places: Annotated[int, Says("Webhook attempts in progress; 0: half of what others leave")] = 0
    max_concurrent_jobs: Annotated[int, Says("The most that the office may set for itself; 0: anything")] = 0
    job_types: Annotated[tuple[str, ...], Says("The types of its jobs; none: all")] = ()
