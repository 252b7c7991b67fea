"""Values of the model that several of these tests begin with."""

from typing import Any

from nextslot.domain import (
    Job,
    OnDependencyFailure,
    RetryPolicy,
    Stage,
)
from nextslot.system.instant import Instant


def a_job(at: Instant, **fields: Any) -> Job:
    """Makes a job that was queued at that instant, unless the arguments say otherwise."""
    queued: dict[str, Any] = {
        "job_id": "j",
        "office_id": "default",
        "lane_id": 1,
        "job_type": "work",
        "params": {},
        "stage": Stage.QUEUED,
        "priority": 0,
        "position": 0,
        "created_at": at,
        "queued_at": at,
        "chain_id": "j",
        "retry_policy": RetryPolicy(),
        "on_dependency_failure": OnDependencyFailure.WAIT,
        "resources": {},
    }
    return Job(**(queued | fields))
