"""Meters: what is measured in this process, as plain numbers. Passed in like the clock; there is no global registry.

The store, the event log, the runner and the deliveries note what they do; `server/metrics.py` shows it. Everything is
noted on the event loop, so nothing here is locked; what comes after a commit is counted only if there was one.
"""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

# How many offices, job types, … have series of their own; the rest together are `other`.
MOST_NAMES = 200
OTHER = "other"

# Seconds. A hand-over is a commit, a run may last for hours.
QUICK = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
LONG = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0)
ANSWERS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
SIZES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)

# How often each (event type, office) was there.
Tally = Mapping[tuple[str, str | None], int]


class Names:
    """Labels of one kind, so many and no more: who comes too late is `other`, for as long as the process lives."""

    def __init__(self, most: int = MOST_NAMES) -> None:
        self._most = most
        self._known: dict[str, str] = {}

    def of(self, name: str) -> str:
        known = self._known.get(name)
        if known is not None:
            return known
        if len(self._known) >= self._most:
            return OTHER
        return self._known.setdefault(name, name)


class Histogram:
    """How often a value was at most so large; the last count is of those above every bound."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def note(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)


class Follower:
    """Somebody who follows the events, and the number of the last one it has taken."""

    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        self.at = at


class Meters(Protocol):
    """What the machinery tells of itself. Nothing it does depends on it."""

    def seconds(self) -> float:
        """A reading of a clock that only differences are taken of."""

    def committed(self, works: int, seconds: float, failures: int) -> None:
        """A group commit: how many works, how long the first of them waited for it, how many the store failed."""

    def read(self, seconds: float, is_failed: bool) -> None:
        """A read, with its wait for a connection."""

    def tally(self, events: Iterable[tuple[str, str | None]]) -> Tally:
        """A transaction's events, by type and office, counted on the thread that stores them."""

    def happened(self, tally: Tally) -> None:
        """They are committed."""

    def follow(self, after: int) -> Follower: ...

    def leave(self, follower: Follower) -> None: ...

    def handed_over(self, seconds: float) -> None:
        """From the end of a run to the start of the one that got its slot, in the same transaction."""

    def ran(self, job_type: str, kind: str, outcome: str, failure_kind: str | None, seconds: float) -> None: ...

    def outcome_refused(self, is_given_up: bool) -> None:
        """The store refused the outcome of a run; `is_given_up`: a failure is stored in its place."""

    def attempted(self, status_code: int | None, seconds: float) -> None:
        """A webhook was sent."""

    def settled(self, status: str) -> None:
        """What a delivery is after an attempt is stored."""

    def blocked(self, seconds: float) -> None:
        """The event loop has not answered for so long, and does again."""


class Unmeasured:
    """For those who do not look."""

    def seconds(self) -> float:
        return 0.0

    def committed(self, works: int, seconds: float, failures: int) -> None: ...

    def read(self, seconds: float, is_failed: bool) -> None: ...

    def tally(self, events: Iterable[tuple[str, str | None]]) -> Tally:
        return {}

    def happened(self, tally: Tally) -> None: ...

    def follow(self, after: int) -> Follower:
        return Follower(after)

    def leave(self, follower: Follower) -> None: ...

    def handed_over(self, seconds: float) -> None: ...

    def ran(self, job_type: str, kind: str, outcome: str, failure_kind: str | None, seconds: float) -> None: ...

    def outcome_refused(self, is_given_up: bool) -> None: ...

    def attempted(self, status_code: int | None, seconds: float) -> None: ...

    def settled(self, status: str) -> None: ...

    def blocked(self, seconds: float) -> None: ...


class ProcessMeters:
    """Counts since the process began."""

    def __init__(self, seconds: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = seconds
        self.offices = Names()
        self.job_types = Names()
        self.writes = Histogram(QUICK)
        self.groups = Histogram(SIZES)
        self.reads = Histogram(QUICK)
        self.failures = {"write": 0, "read": 0}
        # By event type and office.
        self.events: dict[tuple[str, str], int] = {}
        self.followers: set[Follower] = set()
        self.handovers = Histogram(QUICK)
        # By job type, `job` or `direct`, and outcome; failures by job type and kind.
        self.runs: dict[tuple[str, str, str], Histogram] = {}
        self.failed: dict[tuple[str, str], int] = {}
        self.refused_outcomes = {"tried_again": 0, "given_up": 0}
        self.attempts: dict[str, Histogram] = {}
        self.deliveries: dict[str, int] = {}
        self.blocks = Histogram(LONG)

    def committed(self, works: int, seconds: float, failures: int) -> None:
        self.writes.note(seconds)
        self.groups.note(works)
        if failures:
            self.failures["write"] += failures

    def read(self, seconds: float, is_failed: bool) -> None:
        self.reads.note(seconds)
        if is_failed:
            self.failures["read"] += 1

    def tally(self, events: Iterable[tuple[str, str | None]]) -> Tally:
        return Counter(events)

    def happened(self, tally: Tally) -> None:
        for (event, office_id), count in tally.items():
            key = (event, "" if office_id is None else self.offices.of(office_id))
            self.events[key] = self.events.get(key, 0) + count

    def follow(self, after: int) -> Follower:
        follower = Follower(after)
        self.followers.add(follower)
        return follower

    def leave(self, follower: Follower) -> None:
        self.followers.discard(follower)

    def lag(self, last: int) -> int:
        """How many events the slowest follower has still to take."""
        return max((last - follower.at for follower in self.followers if follower.at < last), default=0)

    def handed_over(self, seconds: float) -> None:
        self.handovers.note(seconds)

    def ran(self, job_type: str, kind: str, outcome: str, failure_kind: str | None, seconds: float) -> None:
        name = self.job_types.of(job_type)
        durations = self.runs.get((name, kind, outcome))
        if durations is None:
            durations = self.runs[name, kind, outcome] = Histogram(LONG)
        durations.note(seconds)
        if failure_kind is not None:
            self.failed[name, failure_kind] = self.failed.get((name, failure_kind), 0) + 1

    def outcome_refused(self, is_given_up: bool) -> None:
        self.refused_outcomes["given_up" if is_given_up else "tried_again"] += 1

    def attempted(self, status_code: int | None, seconds: float) -> None:
        result = "no_answer" if status_code is None else f"{status_code // 100}xx"
        self.attempts.setdefault(result, Histogram(ANSWERS)).note(seconds)

    def settled(self, status: str) -> None:
        self.deliveries[status] = self.deliveries.get(status, 0) + 1

    def blocked(self, seconds: float) -> None:
        self.blocks.note(seconds)


class HttpMeters:
    """Requests to one application, by method, route and status; a route is its template, so there are only so many."""

    def __init__(self) -> None:
        self.in_progress = 0
        self.requests: dict[tuple[str, str, int], int] = {}
        self.durations: dict[tuple[str, str], Histogram] = {}

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """`seconds` until the answer began: a stream is not slow because it is long."""
        key = (method, route, status)
        self.requests[key] = self.requests.get(key, 0) + 1
        self.durations.setdefault((method, route), Histogram(ANSWERS)).note(seconds)
