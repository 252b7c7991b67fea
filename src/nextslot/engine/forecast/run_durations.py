"""Durations: a cache of how long the last completed runs of each type took. `services/forecast.py` reads it.

The first forecast fills the cache from the store, and one of several nodes fills it again from time to time, because
`execution/runner.py` adds the completed runs of its own node only.
"""

from collections import deque
from collections.abc import Iterable, Mapping

from nextslot.domain import Json
from nextslot.domain.run_estimates import Estimate, estimate
from nextslot.domain.run_sizes import Sized, SizeModel, learn, sizes_of

# How many runs of a type the cache keeps. Older runs say less about current durations.
KEPT = 50
# How many of the newest runs the first forecast reads to fill the cache.
RUNS_READ = 10_000
# After so many new runs of a type, the cache learns again how the parameters determine the duration.
LEARNED_EVERY = 5


class Durations:
    def __init__(self) -> None:
        self._past: dict[str, deque[Sized]] = {}
        self._estimates: dict[str, Estimate] = {}
        self._models: dict[str, SizeModel | None] = {}
        # By type, the number of runs since its model was learned.
        self._new: dict[str, int] = {}
        self.is_filled = False

    def note(self, job_type: str, seconds: float, params: Mapping[str, Json]) -> None:
        self._past.setdefault(job_type, deque(maxlen=KEPT)).append(Sized(seconds, sizes_of(params)))
        self._estimates.pop(job_type, None)
        self._new[job_type] = self._new.get(job_type, 0) + 1
        if self._new[job_type] >= LEARNED_EVERY:
            self._models.pop(job_type, None)

    def fill(self, newest_first: Iterable[tuple[str, float, Mapping[str, Json]]]) -> None:
        """Replaces all durations by the stored ones, once: two forecasts at the same time may both have read them."""
        if self.is_filled:
            return
        past: dict[str, deque[Sized]] = {}
        for job_type, seconds, params in newest_first:
            kept = past.setdefault(job_type, deque(maxlen=KEPT))
            if len(kept) < KEPT:
                kept.appendleft(Sized(seconds, sizes_of(params)))
        self._past, self._estimates, self._models, self.is_filled = past, {}, {}, True

    def estimates(self) -> dict[str, Estimate]:
        for job_type, kept in self._past.items():
            if job_type not in self._estimates:
                made = estimate(run.seconds for run in kept)
                assert made is not None
                self._estimates[job_type] = made
        return dict(self._estimates)

    def models(self) -> dict[str, SizeModel]:
        """Returns, by type, how parameters determine the duration; omits types whose duration they do not determine."""
        for job_type, kept in self._past.items():
            if job_type not in self._models:
                self._models[job_type], self._new[job_type] = learn(list(kept)), 0
        return {job_type: model for job_type, model in self._models.items() if model is not None}
