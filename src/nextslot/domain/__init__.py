"""The values of the domain: what is stored, frozen; their statuses, and which moves between them are legal.

Every layer speaks in these. They decide nothing; `lifecycle` and `policy` do. One file a subject; all of them are
imported from here.
"""

from .direct import Direct, DirectStatus, Reservation
from .events import Event
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
    GroupMode,
    GroupStatus,
    OnFailure,
)
from .jobs import (
    DEFAULT_OFFICE,
    MAX_PRIORITY,
    TRANSITIONS,
    URGENT,
    CancelMode,
    ChainEnd,
    Job,
    JobStatus,
    NewJob,
    OnDependencyFailure,
    State,
)
from .json_types import Json
from .keys import (
    Actor,
    AuditEntry,
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
from .runs import (
    Artifact,
    Outcome,
    Run,
    RunStatus,
)
from .schedules import (
    CatchUp,
    Occurrence,
    Overlap,
    Schedule,
    SkipReason,
    Template,
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
    Delivery,
    DeliveryStatus,
    Webhook,
)

__all__ = [
    "DEFAULT_OFFICE",
    "MAX_PRIORITY",
    "RETRYABLE",
    "TRANSITIONS",
    "URGENT",
    "Actor",
    "Artifact",
    "Attempt",
    "AuditEntry",
    "Backoff",
    "CancelMode",
    "CatchUp",
    "ChainEnd",
    "Confidence",
    "Decision",
    "Delivery",
    "DeliveryStatus",
    "Direct",
    "DirectStatus",
    "Event",
    "Expected",
    "FailureKind",
    "Forecast",
    "Group",
    "GroupMode",
    "GroupStatus",
    "Held",
    "Job",
    "JobDetail",
    "JobStatus",
    "Json",
    "Key",
    "Lane",
    "Limit",
    "Listed",
    "NewJob",
    "Node",
    "Occurrence",
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
    "Reservation",
    "RetryPolicy",
    "Run",
    "RunStatus",
    "Schedule",
    "SchedulerStatus",
    "Scope",
    "SkipReason",
    "State",
    "Template",
    "Upcoming",
    "Webhook",
    "Why",
    "default_office",
]
