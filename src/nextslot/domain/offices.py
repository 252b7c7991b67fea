"""Offices with their settings, lanes of jobs, and limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Generic, NamedTuple

from nextslot.system.instant import Instant

from .bounds import Json
from .declared_values import At, Internal, InternalLater, Says, Value
from .failures import FailureKind
from .jobs import DEFAULT_OFFICE, CancelMode, OnDependencyFailure
from .retry_policy import RetryPolicy
from .webhooks import WebhookSetting

# The failures that every office retries, because a new session may fix them (US-JS04).
OFFICE_RETRIES = (FailureKind.TIMEOUT, FailureKind.SESSION_ERROR, FailureKind.CRASH, FailureKind.INTERRUPTED)
_USUAL_RETRIES = RetryPolicy(max_attempts=2, base_delay_seconds=60, retry_on=OFFICE_RETRIES)
# How long office jobs may take if neither the job nor its type sets a timeout: by role, otherwise half an hour.
ROLE_TIMEOUTS: Mapping[str, float] = {"PO": 900, "Architect": 1200, "FE": 1800, "BE": 1800, "QA": 2700, "DevOps": 1200}
DEFAULT_TIMEOUT = 1800.0
ROLE_SETTINGS = (
    "command", "cwd", "env", "timeout_seconds", "resume_args", "resume_on", "session_id_pattern",
)  # fmt: skip


class OfficeFields(Value, Generic[At]):
    """A scope with its own jobs and settings. The office `default` always exists."""

    office_id: str
    name: str
    status: str = "active"
    max_concurrent_jobs: int = 3
    role_limits: Mapping[str, int] = field(default_factory=lambda: {"FE": 1, "BE": 1, "QA": 1, "DevOps": 1})
    timeout_seconds: Annotated[
        float | None, Says("null: the timeout of the job's role, or 30 minutes; none in `default`")
    ] = None
    retry_policy: RetryPolicy = _USUAL_RETRIES
    cancel_mode: CancelMode = CancelMode.INTERRUPT
    on_dependency_failure: OnDependencyFailure = OnDependencyFailure.WAIT
    webhook: WebhookSetting = None
    priority_aging_seconds: Annotated[
        float | None, Says("For each such period that a job is ready, the order treats its priority as one higher")
    ] = None
    created_at: At


class Office(OfficeFields):
    """An office. `status` is the stored setting; the JSON form shows `paused` for an active office that is paused."""

    is_paused: InternalLater[bool] = False  # Only a pause of the queue sets it.
    # How jobs of a role run in this office; overrides the configuration. Any of ROLE_SETTINGS; the variables may be
    # secrets.
    roles: Internal[Mapping[str, Mapping[str, Json]]] = field(default_factory=dict)

    def timeout_of(self, role: str | None) -> float | None:
        """Returns the timeout of a job that sets none itself, from its type or from the configured role."""
        if self.timeout_seconds is not None or self.office_id == DEFAULT_OFFICE:
            return self.timeout_seconds
        return ROLE_TIMEOUTS.get(role or "", DEFAULT_TIMEOUT)

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
    # What the resource of these jobs should have loaded, if the resource is dispatched by affinity.
    affinity: str | None = None
    needs: Mapping[str, int] = field(init=False)
    # The limits that every lane of the same class in this office needs.
    class_needs: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs", {**self.local, **self.shared})
        of_office = {key: units for key, units in self.local.items() if key == f"office:{self.office_id}"}
        object.__setattr__(self, "class_needs", {**of_office, **self.shared})


class Limit(NamedTuple):
    """A counted limit: 0 means no limit."""

    limit_key: str
    capacity: int
    used: int


class Quotas(Value):
    """What an admin allows an office at most. The defaults are above what normal use needs."""

    queued_jobs: Annotated[int, Says("Jobs that have not ended")] = 10_000_000
    lanes: Annotated[int, Says("Different combinations of type, role and resources of its ready jobs")] = 1_000
    batch_jobs: Annotated[int, Says("Jobs that one request of its keys may name; 0: 100,000")] = 500
    requests_per_second: Annotated[int, Says("On average; a short burst may have twice as many")] = 5_000
    streams: Annotated[
        int, Says("Open streams of events, logs and direct requests; 0: as the server allows any caller")
    ] = 0
    direct_callers: Annotated[int, Says("Direct requests that wait; 0: as `[limits] direct_waiting` says")] = 0
    delivery_places: Annotated[int, Says("Webhook attempts in progress; 0: half of what others leave")] = 0
    body_bytes: Annotated[int, Says("Bytes of request bodies in progress; 0: as the server allows any caller")] = 0
    stored_bytes: Annotated[int, Says("Bytes of logs and artifacts on each node; 0: no limit")] = 0
    max_concurrent_jobs: Annotated[int, Says("The highest limit that the office may set for itself; 0: any")] = 0
    job_types: Annotated[tuple[str, ...], Says("The job types that the office may use; empty: all")] = ()
    own_resources: Annotated[bool, Says("Whether its keys may name resources that nobody has declared")] = False
