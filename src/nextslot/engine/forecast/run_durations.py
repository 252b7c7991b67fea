"""Durations: how long the last completed runs of each type took. `services/forecast.py` reads it.

It is filled from the store by the first forecast, and from then on `execution/runner.py` adds each completed run.
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
        self._seconds.setdefault(job_type, deque(maxlen=KEPT)).append(seconds)
        self._estimates.pop(job_type, None)

    def fill(self, newest_first: Iterable[tuple[str, float]]) -> None:
        """Adds stored durations, once: two forecasts at the same time may both have read them."""
        if self.is_filled:
            return
        for job_type, seconds in newest_first:
            kept = self._seconds.setdefault(job_type, deque(maxlen=KEPT))
            if len(kept) < KEPT:
                kept.appendleft(seconds)
        self.is_filled = True

    def estimates(self) -> dict[str, Estimate]:
        for job_type, kept in self._seconds.items():
            if job_type not in self._estimates:
                made = estimate(kept)
                assert made is not None
                self._estimates[job_type] = made
        return dict(self._estimates)
