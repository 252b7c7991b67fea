"""Templates, schedules that create jobs of them, and the outcome of each occurrence."""

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Generic, Literal

from nextslot.system.instant import Instant

from .bounds import Affinity, Json, LimitKeys, Priority, Seconds, Text
from .declared_values import At, Id, Internal, Says, Value
from .groups import GroupMode, OnFailure
from .jobs import DEFAULT_OFFICE
from .signals import SignalSetting
from .webhooks import JobSettings, WebhookSetting


class CatchUp(StrEnum):
    """Which missed occurrences fire."""

    LATEST = "latest"
    ALL = "all"
    NONE = "none"


class Overlap(StrEnum):
    ALLOW = "allow"
    SKIP = "skip"


class SkipReason(StrEnum):
    """Why an occurrence created no job."""

    MISSED = "missed"
    COALESCED = "coalesced"
    OVERLAP = "overlap"
    DISABLED = "disabled"
    OUTSIDE_WINDOW = "outside_window"
    # The scheduler refused the occurrence's job; `detail` has the reason.
    REFUSED = "refused"


class Template(Value, Generic[At]):
    """A reusable definition of one job, or of a group of `jobs` that may depend on each other by `key`.

    None means not given: the type or the office has the default. What the template of a group says is the default of
    its jobs, except `webhook`, which gets one message when all of them have ended.
    """

    template_id: Id
    name: Text
    job_type: Annotated[
        Text | None, Says("null: the template makes a group", asked="Required unless `jobs` is given")
    ] = None
    params: Annotated[Mapping[str, Json], Says(asked="Other required parameters must come with each job")] = field(
        default_factory=dict
    )
    priority: Priority = 0
    timeout_seconds: Seconds | None = None
    retry_policy: Mapping[str, Json] | None = None
    resources: Mapping[str, int] | None = None
    affinity: Affinity | None = None
    limit_keys: LimitKeys | None = None
    webhook: WebhookSetting = None
    await_signal: SignalSetting = None
    description: Text | None = None
    office_id: Annotated[
        str, Says("The office of its jobs and schedules", asked="The office of a template cannot change")
    ] = DEFAULT_OFFICE
    jobs: Annotated[JobSettings, Says("The jobs of a group, as in POST /api/job-groups; null: one job")] = None
    mode: Annotated[
        GroupMode | None, Says(asked="Of a group. Default: `parallel` if a job has `depends_on`, else `sequential`")
    ] = None
    on_failure: Annotated[OnFailure | None, Says(asked="Of a group. Default: `stop`")] = None
    created_at: At
    archived_at: At | None = None


class ScheduleFields(Value, Generic[At]):
    """A cron expression in a time zone that creates jobs from a template."""

    schedule_id: Id
    template_id: str
    name: str
    cron_expression: str
    timezone: str = "UTC"
    enabled: bool = True
    office_id: str = DEFAULT_OFFICE
    param_overrides: Mapping[str, Json] | None = None
    catch_up: CatchUp = CatchUp.LATEST
    catch_up_window_seconds: float = 86400
    overlap: Overlap = Overlap.ALLOW
    priority: int | None = None
    last_triggered_at: At | None = None
    next_trigger_at: Annotated[At | None, Says("null while the schedule is disabled")] = None
    created_at: At
    deleted_at: At | None = None


class Schedule(ScheduleFields[Instant]):
    """A schedule. The outcome of every occurrence up to `accounted_until` is stored; `next_trigger_at` is the first one
    after it."""

    accounted_until: Internal[Instant]


class Occurrence(Value, Generic[At]):
    """The outcome of a planned instant, or of `count` of them from `instant` to `until`."""

    schedule_id: Id
    instant: At
    until: Annotated[At | None, Says("The last instant of a span")] = None
    count: int = 1
    outcome: Literal["fired", "skipped"]
    reason: SkipReason | None = None
    detail: str | None = None
    job_id: Annotated[str | None, Says("The job that the occurrence created; for a group its first one")] = None
    group_id: Annotated[str | None, Says("The group that the occurrence created, if the template makes one")] = None


class Upcoming(Value):
    """A future occurrence, and its local time."""

    utc: Instant
    local: datetime


class Preview(Value):
    """A cron expression in words, and when it would fire."""

    cron_words: str
    items: tuple[Upcoming, ...]
