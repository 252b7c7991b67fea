"""Estimates how long work takes from past runs of its type, in seconds; `engine/forecast` calls it.

Few samples, a single outlier, and work that already took longer than all past runs are normal cases.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev
from typing import NamedTuple

from . import Confidence

# The estimate when no type has ever run.
GUESS_SECONDS = 60.0
# For each degree of confidence: the least past runs, and the largest standard deviation as a share of the wait.
SURE_RUNS, SURE_SHARE = 10, 0.25
FAIR_RUNS, FAIR_SHARE = 3, 0.75
# An outlier is further than this from the median, in robust standard deviations of the logarithm.
FAR = 3.0
# From the tenth to the ninetieth percentile of a normal distribution, in standard deviations.
TENTH_TO_NINETIETH = 2.563
# Work older than all past runs, if these all took the same time, is expected to take this share of its age more.
OVERDUE_SHARE = 0.1
# The spread of the logarithm of durations that is assumed where nothing is known.
USUAL_SPREAD = 0.5
# Less reported progress is ignored as noise.
LEAST_FRACTION = 0.02


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long work of one type takes. `samples` are its past runs without outliers, shortest first."""

    samples: tuple[float, ...]
    seconds: float
    deviation: float
    # The standard error of the logarithm of `seconds`: how far what is usual may be from this estimate of it.
    uncertainty: float = 1.0

    def times(self, factor: float) -> "Estimate":
        """Returns the estimate of work that takes so many times as long."""
        samples = tuple(factor * sample for sample in self.samples)
        return Estimate(samples, factor * self.seconds, factor * self.deviation, self.uncertainty)

    @property
    def runs(self) -> int:
        return len(self.samples)

    def remaining(self, elapsed: float, fraction: float | None = None) -> float:
        """Returns the remaining time of work, by its age and the progress that it reports (0 to 1)."""
        by_age = self._after(elapsed)
        if fraction is None or fraction < LEAST_FRACTION or elapsed <= 0:
            return by_age
        by_progress = elapsed * (1 - fraction) / fraction
        # Trust reported progress more the further the work is, and alone if the type is unknown.
        trust = fraction if self.samples else 1.0
        return trust * by_progress + (1 - trust) * by_age

    def drawn(self, share: float, elapsed: float = 0.0) -> float:
        """Returns what one of the longer past runs had left at this age; `share` (0 to 1) picks the run."""
        longer = [sample for sample in self.samples if sample > elapsed]
        return longer[int(share * len(longer))] - elapsed if longer else self._after(elapsed)

    def _after(self, elapsed: float) -> float:
        longer = [sample for sample in self.samples if sample > elapsed]
        if len(longer) >= FAIR_RUNS or (longer and elapsed <= 0):
            return fmean(longer) - elapsed
        if not self.samples and elapsed < self.seconds:
            return self.seconds - elapsed
        return _lognormal_remaining(self.samples or (self.seconds,), elapsed)


def estimate(durations: Iterable[float]) -> Estimate | None:
    """Makes an estimate from past durations; None if there are none."""
    samples = _pulled_back(sorted(max(duration, 1e-6) for duration in durations))
    return Estimate(tuple(samples), fmean(samples), pstdev(samples), _uncertainty(samples)) if samples else None


def guess(known: Iterable[Estimate]) -> Estimate:
    """Makes an estimate for a type that never ran: the median of the other types, or a minute."""
    usual = [one.seconds for one in known]
    seconds = median(usual) if usual else GUESS_SECONDS
    return Estimate((), seconds, seconds)


def _uncertainty(samples: Sequence[float]) -> float:
    """Returns the variance of the mean, with one more run of a usual spread: a few runs may be alike by chance."""
    count = len(samples)
    spread = pstdev([math.log(sample) for sample in samples])
    return math.sqrt(((count - 1) * spread**2 + USUAL_SPREAD**2) / count / count)


def _pulled_back(samples: Sequence[float]) -> list[float]:
    """Replaces outliers by the largest or smallest sample that is none."""
    if len(samples) < FAIR_RUNS:
        return list(samples)
    logs = [math.log(sample) for sample in samples]
    middle = median(logs)
    spread = max(
        1.4826 * median(abs(value - middle) for value in logs),
        (_quantile(logs, 0.9) - _quantile(logs, 0.1)) / TENTH_TO_NINETIETH,
    )
    inside = [s for s, value in zip(samples, logs, strict=True) if abs(value - middle) <= FAR * spread + 1e-9]
    return [min(max(sample, inside[0]), inside[-1]) for sample in samples]


def _quantile(ordered: Sequence[float], share: float) -> float:
    """For a share below 1."""
    at = share * (len(ordered) - 1)
    below = int(at)
    return ordered[below] + (at - below) * (ordered[below + 1] - ordered[below])


def _lognormal_remaining(samples: Sequence[float], elapsed: float) -> float:
    """Returns the mean remaining time at this age if durations are log-normal."""
    logs = [math.log(sample) for sample in samples]
    mean, sigma = fmean(logs), pstdev(logs)
    if sigma < 1e-9:
        typical = median(samples)
        return typical - elapsed if elapsed < typical else OVERDUE_SHARE * elapsed
    beyond = (math.log(elapsed) - mean) / sigma
    survival = _normal_tail(beyond)
    if survival < 1e-9:
        return sigma**2 * elapsed / (math.log(elapsed) - mean)
    conditional = math.exp(mean + sigma**2 / 2) * _normal_tail(beyond - sigma) / survival
    return max(conditional - elapsed, 0.0)


def _normal_tail(z: float) -> float:
    return math.erfc(z / math.sqrt(2)) / 2


class Certainty(NamedTuple):
    """How certain an expected instant is: the fewest past runs of a type before it, and the variance so far."""

    runs: float = math.inf
    variance: float = 0.0

    def then(self, work: Estimate, share: float = 1.0) -> "Certainty":
        """Returns the certainty after more work, or a share of it, has ended."""
        return Certainty(min(self.runs, work.runs), self.variance + (share * work.deviation) ** 2)

    def confidence(self, wait: float) -> Confidence:
        """Returns the confidence in an instant that is `wait` seconds away."""
        deviation = math.sqrt(self.variance)
        if self.runs >= SURE_RUNS and deviation <= SURE_SHARE * wait:
            return Confidence.HIGH
        if self.runs >= FAIR_RUNS and deviation <= FAIR_SHARE * wait:
            return Confidence.MEDIUM
        return Confidence.LOW


def weakest(certainties: Iterable[Certainty]) -> Certainty:
    """Returns the lowest certainty of work that ends at the same instant."""
    found = list(certainties)
    return (
        Certainty(min(certainty.runs for certainty in found), max(certainty.variance for certainty in found))
        if found
        else Certainty()
    )


def linked(office_id: str, shared: Mapping[str, set[str]]) -> set[str]:
    """Returns the offices that share limits with an office, directly or through other offices.

    `shared` has the shared limits of each office that have a capacity.
    """
    reached, open_ = {office_id}, [office_id]
    while open_:
        limits = shared.get(open_.pop(), set())
        found = {other for other, others in shared.items() if other not in reached and limits & others}
        reached |= found
        open_ += found
    return reached
