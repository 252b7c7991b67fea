"""nextslot: a durable job scheduler for work that is scarce, slow and exclusive."""

from .clock import Instant
from .engine.direct import NewDirect, Update
from .errors import NextslotError
from .handlers.run import Fail, RunContext, Skip
from .model import Direct, Event, FailureKind, Group, Job, NewJob, Office, Reservation, RetryPolicy, Run, State
from .policy.limits import ConcurrencyPolicy, Limits
from .scheduler import Ended, Scheduler

__all__ = [
    "ConcurrencyPolicy",
    "Direct",
    "Ended",
    "Event",
    "Fail",
    "FailureKind",
    "Group",
    "Instant",
    "Job",
    "Limits",
    "NewDirect",
    "NewJob",
    "NextslotError",
    "Office",
    "Reservation",
    "RetryPolicy",
    "Run",
    "RunContext",
    "Scheduler",
    "Skip",
    "State",
    "Update",
]
