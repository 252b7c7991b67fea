"""The keyword arguments of the verbs, with the names of the API; type checkers read them through `Unpack`."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypedDict

from nextslot.domain import AnyJob, RetryPolicy
from nextslot.system.instant import Instant

from .values import Json

# A time with a zone, or its RFC 3339 text.
Time = datetime | str | Instant
# One value, or several.
Values = str | Sequence[str]


class JobChanges(TypedDict, total=False):
    params: Json
    priority: int
    urgent: bool
    scheduled_for: Time | None
    title: str | None


class DirectOptions(TypedDict, total=False):
    wait_timeout_seconds: float
    timeout_seconds: float | None
    detach: bool
    affinity: str | None
    limit_keys: Sequence[str] | None
    direct_id: str | None
    webhook: Json | None
    office_id: str


class WebhookChanges(TypedDict, total=False):
    url: str
    events: Sequence[str]
    office_id: str | None
    format: str | None
    enabled: bool


class FailureChanges(TypedDict, total=False):
    muted: bool
    note: str | None


# From here on, scripts/make_keyword_arguments.py writes this file from the declarations in `domain`.
class JobOptions(TypedDict, total=False):
    scheduled_for: Time | None
    expires_at: Time | None
    role: str | None
    task_id: str | None
    title: str | None
    timeout_seconds: float | None
    stall_timeout_seconds: float | None
    affinity: str | None
    limit_keys: Sequence[str] | None
    webhook: Json | None
    await_signal: Json | None
    unique_key: str | None
    office_id: str
    priority: int | None
    urgent: bool
    depends_on: Sequence[AnyJob]
    on_dependency_failure: str | None
    resources: Mapping[str, int] | Sequence[str] | None
    retry_policy: Json | RetryPolicy | None


class NewJob(JobOptions, total=False):
    """One of many: its type or template, its parameters, and the `key` by which others of the request depend on it."""

    template_id: str | None
    job_type: str | None
    params: Json
    key: str | None


class JobFilter(TypedDict, total=False):
    status: Values
    job_type: Values
    office_id: Values
    role: Values
    task_id: Values
    template_id: Values
    schedule_id: Values
    group_id: Values
    retry_of: Values
    fingerprint: Values
    created_after: Time
    created_before: Time
    awaiting_signal: bool
    finished_after: Time
    finished_before: Time
    q: str


class RunFilter(TypedDict, total=False):
    status: Values
    job_type: Values
    office_id: Values
    job_id: Values
    failure_kind: Values
    started_after: Time
    started_before: Time


class EventFilter(TypedDict, total=False):
    type: Values
    office_id: Values
    job_id: Values


class OfficeOptions(TypedDict, total=False):
    name: str
    status: str
    max_concurrent_jobs: int
    role_limits: Mapping[str, int]
    timeout_seconds: float | None
    retry_policy: Json | RetryPolicy
    cancel_mode: str
    on_dependency_failure: str
    webhook: Json | None
    priority_aging_seconds: float | None
    roles: Mapping[str, Json]


class QuotaChanges(TypedDict, total=False):
    queued_jobs: int | None
    lanes: int | None
    batch_jobs: int | None
    requests_per_second: int | None
    streams: int | None
    direct_callers: int | None
    delivery_places: int | None
    body_bytes: int | None
    stored_bytes: int | None
    max_concurrent_jobs: int | None
    job_types: list[str] | None
    own_resources: bool | None


class TemplatePutOptions(TypedDict, total=False):
    params: Json
    priority: int
    timeout_seconds: float | None
    retry_policy: Json | RetryPolicy | None
    resources: Mapping[str, int] | Sequence[str] | None
    affinity: str | None
    limit_keys: Sequence[str] | None
    webhook: Json | None
    await_signal: Json | None
    description: str | None
    jobs: Sequence[NewJob] | None
    mode: str | None
    on_failure: str | None


class TemplateOptions(TemplatePutOptions, total=False):
    office_id: str


class TemplateChanges(TemplateOptions, total=False):
    name: str
    job_type: str | None


class SchedulePutOptions(TypedDict, total=False):
    timezone: str
    enabled: bool
    param_overrides: Json | None
    catch_up: str
    catch_up_window_seconds: float
    overlap: str
    priority: int | None


class ScheduleOptions(SchedulePutOptions, total=False):
    office_id: str


class ScheduleChanges(ScheduleOptions, total=False):
    template_id: str
    name: str
    cron_expression: str
