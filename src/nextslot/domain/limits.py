"""Which limits a job falls under, and how much room a limit has (OQ-001, DEC-011).

The policy can be replaced. The scheduler calls `keys` when it creates a job, `capacity` when it meets a limit for the
first time, and `room` when it dispatches. The counts are stored: transactions that start or end work change them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from . import Office

UNLIMITED = 2**31

SCHEDULER = "scheduler"


def office_key(office_id: str) -> str:
    return f"office:{office_id}"


def role_key(office_id: str, role: str) -> str:
    return f"role:{office_id}/{role}"


def type_key(job_type: str) -> str:
    return f"type:{job_type}"


def resource_key(resource: str) -> str:
    return f"resource:{resource}"


def affinity_key(office_id: str, affinity: str) -> str:
    """Returns the key that parts the lanes of jobs with different affinities; it limits nothing."""
    return f"affinity:{office_id}/{affinity}"


def is_local(limit_key: str) -> bool:
    """Whether a limit belongs to one office; all others are shared between offices."""
    return limit_key.startswith(("office:", "role:", "affinity:"))


def office_of(limit_key: str) -> str:
    """Returns the office of a local limit."""
    return limit_key.partition(":")[2].partition("/")[0]


class ConcurrencyPolicy(Protocol):
    def keys(self, office_id: str, role: str | None, job_type: str, resources: Mapping[str, int]) -> Mapping[str, int]:
        """Returns the limits of such a job, with the units that it takes of each."""

    def capacity(self, limit_key: str, office: Office) -> int:
        """Returns the capacity of a limit; 0 means no limit."""

    def room(self, limit_key: str, capacity: int, used: int) -> int:
        """Returns how many units of a limit are free."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The default policy. It limits the whole scheduler, each office, each role in an office, each job type, and the
    units of each resource."""

    running: int = 0
    job_types: Mapping[str, int] = field(default_factory=dict)
    resources: Mapping[str, int] = field(default_factory=dict)
    # By resource, for how long jobs of the affinity that it has loaded may go before the next job in order.
    affinity_waits: Mapping[str, float] = field(default_factory=dict)

    # A resource without a configured count is exclusive (CON-002); `remote` work runs elsewhere and has no limit, nor
    # has `remote:NAME`, by which the quota of one provider is held.
    NAMED = 1
    UNCOUNTED = frozenset({"remote"})

    def keys(self, office_id: str, role: str | None, job_type: str, resources: Mapping[str, int]) -> Mapping[str, int]:
        keys = {SCHEDULER: 1, office_key(office_id): 1, type_key(job_type): 1}
        if role is not None:
            keys[role_key(office_id, role)] = 1
        for resource, units in resources.items():
            keys[resource_key(resource)] = units
        return keys

    def capacity(self, limit_key: str, office: Office) -> int:
        scope, _, name = limit_key.partition(":")
        if scope == "office":
            return office.max_concurrent_jobs
        if scope == "role":
            return office.role_limits.get(name.partition("/")[2], 0)
        if scope == "affinity":
            return 0
        if scope == "type":
            return self.job_types.get(name, 0)
        if scope == "resource":
            return self.resources.get(name, 0 if name.partition(":")[0] in self.UNCOUNTED else self.NAMED)
        return self.running

    def room(self, limit_key: str, capacity: int, used: int) -> int:
        return UNLIMITED if capacity == 0 else capacity - used
