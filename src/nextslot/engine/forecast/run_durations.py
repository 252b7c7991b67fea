"""Durations: how long the last completed runs of each type took; a cache that costs the hot path nothing.

It is filled from the store at the first query, and from then on by each completed run (`engine.execution.runner`
reports it). `services.forecast` reads it.
"""

from collections import deque
from collections.abc import Iterable

from nextslot.domain.run_estimates import Estimate, estimate

# Older runs say less about current durations.
KEPT = 50
# How many of the newest runs are read to fill the cache.
RUNS_READ = 10_000


class Durations:
    def __init__(self) -> None:
        self._seconds: dict[str, deque[float]] = {}
        self._estimates: dict[str, Estimate] = {}
        self.is_filled = False

    def note(self, job_type: str, seconds: float) -> None:
        kept = self._seconds.get(job_type)
        if kept is None:
            kept = self._seconds[job_type] = deque(maxlen=KEPT)
        kept.append(seconds)
        self._estimates.pop(job_type, None)

    def fill(self, newest_first: Iterable[tuple[str, float]]) -> None:
        """Adds stored durations. A type that has more durations in memory already keeps those."""
        found: dict[str, list[float]] = {}
        for job_type, seconds in newest_first:
            found.setdefault(job_type, []).append(seconds)
        for job_type, stored in found.items():
            if len(stored) > len(self._seconds.get(job_type, ())):
                self._seconds[job_type] = deque(reversed(stored[:KEPT]), maxlen=KEPT)
                self._estimates.pop(job_type, None)
        self.is_filled = True

    def estimates(self) -> dict[str, Estimate]:
        for job_type, kept in self._seconds.items():
            if job_type not in self._estimates:
                made = estimate(kept)
                assert made is not None
                self._estimates[job_type] = made
        return dict(self._estimates)
