"""The values of the domain: what is stored, frozen; their statuses, and which moves between them are legal.

Every layer speaks in these. They decide nothing; `lifecycle` and `policy` do. One file a subject; all of them are
imported from here.
"""

from .bounds import MAX_PRIORITY, URGENT
from .direct import (
    Direct,
    DirectFields,
    DirectStatus,
    Reservation,
    ReservationFields,
)
from .events import Event, EventFields
from .failures import (
    RETRYABLE,
    Backoff,
    Decision,
    FailureKind,
    RetryPolicy,
)
from .forecast import (
    Confidence,
    Expected,
    Forecast,
    Reason,
    Why,
)
from .groups import (
    Group,
    GroupFields,
    GroupMode,
    GroupStatus,
    OnFailure,
)
from .jobs import (
    DEFAULT_OFFICE,
    TRANSITIONS,
    CancelMode,
    ChainEnd,
    Job,
    JobFields,
    JobStatus,
    NewJob,
    OnDependencyFailure,
    Stage,
)
from .json_types import Json
from .keys import (
    Actor,
    AuditEntry,
    AuditEntryFields,
    Key,
    Scope,
)
from .nodes import Node
from .offices import (
    Lane,
    Limit,
    Office,
    default_office,
)
from .request_context import PYTHON, RequestContext
from .runs import (
    Artifact,
    Outcome,
    Run,
    RunFields,
    RunStatus,
)
from .schedules import (
    CatchUp,
    Occurrence,
    OccurrenceFields,
    Overlap,
    Schedule,
    ScheduleFields,
    SkipReason,
    Template,
    TemplateFields,
    Upcoming,
)
from .views import (
    Held,
    JobDetail,
    Listed,
    OfficeStatus,
    Page,
    Placed,
    QueuePage,
    SchedulerStatus,
)
from .webhooks import (
    Attempt,
    AttemptFields,
    Delivery,
    DeliveryFields,
    DeliveryStatus,
    Webhook,
    WebhookFields,
)

__all__ = [
    "DEFAULT_OFFICE",
    "MAX_PRIORITY",
    "PYTHON",
    "RETRYABLE",
    "TRANSITIONS",
    "URGENT",
    "Actor",
    "Artifact",
    "Attempt",
    "AttemptFields",
    "AuditEntry",
    "AuditEntryFields",
    "Backoff",
    "CancelMode",
    "CatchUp",
    "ChainEnd",
    "Confidence",
    "Decision",
    "Delivery",
    "DeliveryFields",
    "DeliveryStatus",
    "Direct",
    "DirectFields",
    "DirectStatus",
    "Event",
    "EventFields",
    "Expected",
    "FailureKind",
    "Forecast",
    "Group",
    "GroupFields",
    "GroupMode",
    "GroupStatus",
    "Held",
    "Job",
    "JobDetail",
    "JobFields",
    "JobStatus",
    "Json",
    "Key",
    "Lane",
    "Limit",
    "Listed",
    "NewJob",
    "Node",
    "Occurrence",
    "OccurrenceFields",
    "Office",
    "OfficeStatus",
    "OnDependencyFailure",
    "OnFailure",
    "Outcome",
    "Overlap",
    "Page",
    "Placed",
    "QueuePage",
    "Reason",
    "RequestContext",
    "Reservation",
    "ReservationFields",
    "RetryPolicy",
    "Run",
    "RunFields",
    "RunStatus",
    "Schedule",
    "ScheduleFields",
    "SchedulerStatus",
    "Scope",
    "SkipReason",
    "Stage",
    "Template",
    "TemplateFields",
    "Upcoming",
    "Webhook",
    "WebhookFields",
    "Why",
    "default_office",
]
