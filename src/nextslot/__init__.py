"""nextslot: a durable job scheduler for work that is scarce, slow and exclusive."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nextslot.domain.limits import ConcurrencyPolicy, Limits
    from nextslot.engine.direct.connected_callers import Update
    from nextslot.engine.direct.direct_requests import NewDirect
    from nextslot.executors.run_context import Fail, QuotaExceeded, RunContext, Skip
    from nextslot.system.instant import Instant

    from .client import AsyncClient, Client
    from .domain import Direct, Event, FailureKind, Group, Job, JobStatus, NewJob, Office, Reservation, RetryPolicy, Run
    from .errors import NextslotError
    from .scheduler import Ended, Scheduler
    from .submitter import AsyncSubmitter, Submitter, enqueue, enqueue_async

__all__ = [
    "AsyncClient", "AsyncSubmitter", "Client", "ConcurrencyPolicy", "Direct", "Ended", "Event", "Fail", "FailureKind",
    "Group", "Instant", "Job", "JobStatus", "Limits", "NewDirect", "NewJob", "NextslotError", "Office", "QuotaExceeded",
    "Reservation", "RetryPolicy", "Run", "RunContext", "Scheduler", "Skip", "Submitter", "Update", "enqueue",
    "enqueue_async",
]  # fmt: skip

_HOMES = {
    "AsyncClient": "client",
    "AsyncSubmitter": "submitter",
    "Submitter": "submitter",
    "enqueue": "submitter",
    "enqueue_async": "submitter",
    "Client": "client",
    "Instant": "system.instant",
    "NewDirect": "engine.direct.direct_requests",
    "Update": "engine.direct.connected_callers",
    "NextslotError": "errors",
    "Fail": "executors.run_context",
    "QuotaExceeded": "executors.run_context",
    "RunContext": "executors.run_context",
    "Skip": "executors.run_context",
    "ConcurrencyPolicy": "domain.limits",
    "Limits": "domain.limits",
    "Ended": "scheduler",
    "Scheduler": "scheduler",
}


def __getattr__(name: str) -> object:
    """Imported when it is asked for: the command line and the clients need no engine, and start in half the time."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f".{_HOMES.get(name, 'domain')}", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
