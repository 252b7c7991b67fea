"""The values of the domain: what is stored, frozen; their statuses, and which moves between them are legal.

Every layer uses these values. They decide nothing; `lifecycle` and `policy` do. One file a subject; all of them are
imported from here.
"""

from .audit import Actor, AuditEntry
from .bounds import MAX_PRIORITY, URGENT, Json
from .direct import Direct, DirectFields, DirectStatus, Reservation
from .events import Event
from .failures import RETRYABLE, Decision, FailureKind
from .fingerprints import Failure, FailurePage
from .forecast import Confidence, Expected, Forecast, Reason, Why
from .groups import Group, GroupDetail, GroupMode, GroupStatus, NewGroup, OnFailure
from .jobs import (
    DEFAULT_OFFICE,
    TRANSITIONS,
    AnyJob,
    CancelMode,
    ChainEnd,
    Job,
    JobFields,
    JobStatus,
    NewJob,
    OnDependencyFailure,
    Stage,
    id_of,
)
from .keys import Key, KeyFields, NewKey, Scope
from .lists_and_status import Held, JobDetail, Listed, OfficeStatus, Page, Placed, QueuePage, SchedulerStatus
from .nodes import Node
from .offices import ROLE_SETTINGS, ROLE_TIMEOUTS, Lane, Limit, Office, OfficeFields, Quotas, default_office
from .request_context import PYTHON, RequestContext
from .retry_policy import Backoff, RetryPolicy
from .rollups import Series, SeriesPoint
from .runs import Artifact, Checkpoint, Outcome, Run, RunStatus
from .schedules import CatchUp, Occurrence, Overlap, Preview, Schedule, ScheduleFields, SkipReason, Template, Upcoming
from .signals import Answer, Signal
from .webhooks import Attempt, Delivery, DeliveryFields, DeliveryStatus, Webhook

__all__ = [
    "DEFAULT_OFFICE",
    "MAX_PRIORITY",
    "PYTHON",
    "RETRYABLE",
    "ROLE_SETTINGS",
    "ROLE_TIMEOUTS",
    "TRANSITIONS",
    "URGENT",
    "Actor",
    "Answer",
    "AnyJob",
    "Artifact",
    "Attempt",
    "AuditEntry",
    "Backoff",
    "CancelMode",
    "CatchUp",
    "ChainEnd",
    "Checkpoint",
    "Confidence",
    "Decision",
    "Delivery",
    "DeliveryFields",
    "DeliveryStatus",
    "Direct",
    "DirectFields",
    "DirectStatus",
    "Event",
    "Expected",
    "Failure",
    "FailureKind",
    "FailurePage",
    "Forecast",
    "Group",
    "GroupDetail",
    "GroupMode",
    "GroupStatus",
    "Held",
    "Job",
    "JobDetail",
    "JobFields",
    "JobStatus",
    "Json",
    "Key",
    "KeyFields",
    "Lane",
    "Limit",
    "Listed",
    "NewGroup",
    "NewJob",
    "NewKey",
    "Node",
    "Occurrence",
    "Office",
    "OfficeFields",
    "OfficeStatus",
    "OnDependencyFailure",
    "OnFailure",
    "Outcome",
    "Overlap",
    "Page",
    "Placed",
    "Preview",
    "QueuePage",
    "Quotas",
    "Reason",
    "RequestContext",
    "Reservation",
    "RetryPolicy",
    "Run",
    "RunStatus",
    "Schedule",
    "ScheduleFields",
    "SchedulerStatus",
    "Scope",
    "Series",
    "SeriesPoint",
    "Signal",
    "SkipReason",
    "Stage",
    "Template",
    "Upcoming",
    "Webhook",
    "Why",
    "default_office",
    "id_of",
]  # fmt: skip
