"""Meters: measurements of this process, as plain numbers. Passed in like the clock; there is no global registry.

The store, the event log, the runner and the delivery worker report to it; `server/metrics.py` publishes it. All reports
happen on the event loop, so there is no lock. What follows a commit is counted only after the commit.
"""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

# How many offices, job types and so on get time series of their own; all others are counted together as `other`.
MOST_NAMES = 200
OTHER = "other"

# Upper bounds in seconds. A hand-over takes one commit; a run may take hours.
QUICK = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
LONG = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0)
ANSWERS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
SIZES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)

# The number of events by (event type, office).
EventCounts = Mapping[tuple[str, str | None], int]


class Names:
    """Labels of one kind, limited in number: further names become `other` until the process ends."""

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
    """Counts values by upper bound. The last count is for values above every bound."""

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
    """A reader that follows the events, and the number of the last event it has received."""

    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        self.at = at


class Meters:
    """Receives measurements and discards them; `ProcessMeters` keeps them. No decision depends on them."""

    def seconds(self) -> float:
        """Returns the reading of a clock that is used only for differences."""
        return 0.0

    def committed(self, works: int, seconds: float, failures: int) -> None:
        """Records a group commit: the number of works, how long the first one waited, and how many works the store
        could not store."""

    def read(self, seconds: float, is_failed: bool) -> None:
        """Records a read, including its wait for a connection."""

    def count_events(self, events: Iterable[tuple[str, str | None]]) -> EventCounts:
        """Counts a transaction's events by type and office, on the thread that stores them."""
        return {}

    def count_committed(self, counts: EventCounts) -> None:
        """Adds the counts of a committed transaction."""

    def follow(self, after: int) -> Follower:
        return Follower(after)

    def leave(self, follower: Follower) -> None: ...

    def handed_over(self, seconds: float) -> None:
        """Records the time from the end of a run to the start of the next one in its slot, in the same transaction."""

    def ran(self, job_type: str, kind: str, outcome: str, failure_kind: str | None, seconds: float) -> None: ...

    def outcome_refused(self, is_given_up: bool) -> None:
        """Records that the store refused a run's outcome; `is_given_up` if a failure was stored instead."""

    def attempted(self, status_code: int | None, seconds: float) -> None:
        """Records that a webhook was sent."""

    def settled(self, status: str) -> None:
        """Records the status of a delivery after an attempt was stored."""

    def blocked(self, seconds: float) -> None:
        """Records for how long the event loop did not answer, once it answers again."""


class ProcessMeters(Meters):
    """Counts since the start of the process."""

    seconds = staticmethod(time.perf_counter)

    def __init__(self) -> None:
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

    def count_events(self, events: Iterable[tuple[str, str | None]]) -> EventCounts:
        return Counter(events)

    def count_committed(self, counts: EventCounts) -> None:
        for (event, office_id), count in counts.items():
            key = (event, "" if office_id is None else self.offices.of(office_id))
            self.events[key] = self.events.get(key, 0) + count

    def follow(self, after: int) -> Follower:
        follower = Follower(after)
        self.followers.add(follower)
        return follower

    def leave(self, follower: Follower) -> None:
        self.followers.discard(follower)

    def lag(self, last: int) -> int:
        """Returns how many events the slowest follower still has to receive."""
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
    """Requests to one application by method, route and status. A route is its template, so the number is limited."""

    def __init__(self) -> None:
        self.in_progress = 0
        self.requests: dict[tuple[str, str, int], int] = {}
        self.durations: dict[tuple[str, str], Histogram] = {}

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Records a response. `seconds` is the time until the response began, so that a long stream does not count as
        slow."""
        key = (method, route, status)
        self.requests[key] = self.requests.get(key, 0) + 1
        self.durations.setdefault((method, route), Histogram(ANSWERS)).note(seconds)
