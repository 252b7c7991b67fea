"""Which limits a job falls under, and how much room a limit has (OQ-001, DEC-011).

The policy can be replaced. The scheduler calls `keys` when it creates a job, `capacity` when it meets a limit for the
first time, and `room` when it dispatches. The counts are stored: transactions that start or end work change them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Protocol

from nextslot.system.instant import Instant

from . import Office

UNLIMITED = 2**31
# The capacity of a limit that only a rate bounds. It is one that is set, so offices that share it take turns.
ONLY_RATED = UNLIMITED - 1

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


def key_limit(office_id: str, name: str) -> str:
    """Returns the limit of a key that jobs of an office carry, such as `customer:7`."""
    return f"key:{office_id}/{name}"


def is_key(limit_key: str) -> bool:
    """Returns whether a limit is that of a key that jobs carry."""
    return limit_key.startswith("key:")


def is_local(limit_key: str) -> bool:
    """Whether a limit belongs to one office; all others are shared between offices."""
    return limit_key.startswith(("office:", "role:", "affinity:", "key:"))


def is_of_jobs(limit_key: str) -> bool:
    """Returns whether jobs bring this limit with them. Such limits are deleted when no lane has them any more."""
    return limit_key.startswith(("role:", "affinity:", "key:"))


def office_of(limit_key: str) -> str:
    """Returns the office of a local limit."""
    return limit_key.partition(":")[2].partition("/")[0]


class RateUnit(StrEnum):
    """What a rate counts."""

    STARTS = "starts"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class Rate:
    """A bucket of at most `burst`, which refills by `per_minute`. Starts take from it only what is there.

    The end of a run may take more tokens than are there: work then waits until the bucket has refilled.
    """

    per_minute: float
    burst: float

    @classmethod
    def of(cls, per_minute: float, burst: float | None = None) -> "Rate":
        """Makes a rate; without `burst` the bucket holds a tenth of what refills in a minute, at least one."""
        return cls(per_minute, max(per_minute / 10, 1.0) if burst is None else burst)

    def opens_at(self, full_at: Instant) -> Instant:
        """Returns from when on one can be taken from a bucket that is full again at `full_at`."""
        return Instant(full_at - math.floor((self.burst - 1) * 60_000_000 / self.per_minute))

    def after(self, full_at: Instant, taken: int, now: Instant) -> Instant:
        """Returns when the bucket is full again if so much is taken from it now; rounded up, never in favour."""
        return Instant(max(full_at, now) + math.ceil(taken * 60_000_000 / self.per_minute))


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
    # How many jobs of an office may run at once that carry the same key, by a pattern for keys (`customer:*`). Of
    # several patterns that fit, the longest counts.
    limit_keys: Mapping[str, int] = field(default_factory=dict)
    # By limit (`scheduler`, `office:NAME`, `type:NAME`, `resource:NAME`), what may start or be used in a minute.
    rates: Mapping[str, Mapping[RateUnit, Rate]] = field(default_factory=dict)

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
        capacity = self._capacity(limit_key, office)
        return ONLY_RATED if capacity == 0 and limit_key in self.rates else capacity

    def _capacity(self, limit_key: str, office: Office) -> int:
        scope, _, name = limit_key.partition(":")
        if scope == "key":
            return key_capacity(tuple(self.limit_keys.items()), name.partition("/")[2]) if self.limit_keys else 0
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


@lru_cache(maxsize=4096)
def key_capacity(patterns: tuple[tuple[str, int], ...], name: str) -> int:
    """Returns how many jobs with a key may run at once; 0: no limit. Of the patterns that fit, the longest counts."""
    found = [(len(pattern), pattern, most) for pattern, most in patterns if fnmatchcase(name, pattern)]
    return max(found)[2] if found else 0
