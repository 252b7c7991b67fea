"""nextslot: a durable job scheduler for work that is scarce, slow and exclusive."""

from .clock import Instant
from .errors import NextslotError
from .handlers.run import Fail, RunContext, Skip
from .model import Event, FailureKind, Group, Job, NewJob, Office, RetryPolicy, Run, State
from .policy.limits import ConcurrencyPolicy, Limits
from .scheduler import Ended, Scheduler

__all__ = [
    "ConcurrencyPolicy",
    "Ended",
    "Event",
    "Fail",
    "FailureKind",
    "Group",
    "Instant",
    "Job",
    "Limits",
    "NewJob",
    "NextslotError",
    "Office",
    "RetryPolicy",
    "Run",
    "RunContext",
    "Scheduler",
    "Skip",
    "State",
]
