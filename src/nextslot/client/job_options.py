"""What a caller may say of a job; scripts/make_job_options.py makes this file from `model.NewJob`."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

Json = Mapping[str, Any]
# A time with a zone, or its RFC 3339 text; an `Instant` prints as one.
Time = datetime | str


class JobOptions(TypedDict, total=False):
    scheduled_for: Time
    expires_at: Time
    role: str
    task_id: str
    title: str
    timeout_seconds: float
    stall_timeout_seconds: float
    webhook: Json
    unique_key: str
    office_id: str
    priority: int
    urgent: bool
    depends_on: Sequence[str]
    on_dependency_failure: str
    resources: Mapping[str, int] | Sequence[str]
    retry_policy: Json


class NewJob(JobOptions, total=False):
    """One of many: its type or template, its parameters, and the `key` by which others of the request depend on it."""

    job_type: str
    template_id: str
    params: Json
    key: str
