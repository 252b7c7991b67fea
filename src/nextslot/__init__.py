"""nextslot: a durable job scheduler for work that is scarce, slow and exclusive."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .client import AsyncClient, Client
    from .clock import Instant
    from .engine.direct import NewDirect, Update
    from .errors import NextslotError
    from .handlers.run import Fail, RunContext, Skip
    from .model import Direct, Event, FailureKind, Group, Job, NewJob, Office, Reservation, RetryPolicy, Run, State
    from .policy.limits import ConcurrencyPolicy, Limits
    from .scheduler import Ended, Scheduler

__all__ = [
    "AsyncClient",
    "Client",
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

_HOMES = {
    "AsyncClient": "client",
    "Client": "client",
    "Instant": "clock",
    "NewDirect": "engine.direct",
    "Update": "engine.direct",
    "NextslotError": "errors",
    "Fail": "handlers.run",
    "RunContext": "handlers.run",
    "Skip": "handlers.run",
    "ConcurrencyPolicy": "policy.limits",
    "Limits": "policy.limits",
    "Ended": "scheduler",
    "Scheduler": "scheduler",
}


def __getattr__(name: str) -> object:
    """Imported when it is asked for: the command line and the clients need no engine, and start in half the time."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f".{_HOMES.get(name, 'model')}", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
