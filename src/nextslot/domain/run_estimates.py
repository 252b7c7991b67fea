"""How long work takes, judged by past runs of its type, and how sure that is. Pure; called by `engine.replay`.

Seconds everywhere. Few samples, a single odd one and work that has outlived all others are the normal case here.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev
from typing import NamedTuple

from . import Confidence

# Of nothing that was ever run the length is unknown; a minute keeps what follows it in order.
GUESS_SECONDS = 60.0
# Past runs and the share of the wait that one standard deviation may be, for each degree of confidence.
SURE_RUNS, SURE_SHARE = 10, 0.25
FAIR_RUNS, FAIR_SHARE = 3, 0.75
# A sample further away than this from the median, in robust standard deviations of the logarithm, is pulled back.
FAR = 3.0
# The distance of the tenth and the ninetieth percentile of a normal distribution, in standard deviations.
TENTH_TO_NINETIETH = 2.563
# What has outlived everything known, and shows no spread to go by, is given a tenth of its age more.
OVERDUE_SHARE = 0.1
# So much reported progress is worth more than its noise.
LEAST_FRACTION = 0.02


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long work of one type takes. `samples` are its past runs, odd ones pulled back, the shortest first."""

    samples: tuple[float, ...]
    seconds: float
    deviation: float

    @property
    def runs(self) -> int:
        return len(self.samples)

    def remaining(self, elapsed: float, fraction: float | None = None) -> float:
        """How much longer work takes that has taken so long, and says that it is so far (0 to 1)."""
        by_age = self._after(elapsed)
        if fraction is None or fraction < LEAST_FRACTION or elapsed <= 0:
            return by_age
        by_progress = elapsed * (1 - fraction) / fraction
        # The further it is, the more its own account is worth; of an unknown type it is all there is.
        trust = fraction if self.samples else 1.0
        return trust * by_progress + (1 - trust) * by_age

    def drawn(self, share: float, elapsed: float = 0.0) -> float:
        """One of the past runs that lasted longer than this, by its place among them (0 to 1): what it had left."""
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
    """From past durations; None if there are none."""
    samples = _pulled_back(sorted(max(duration, 1e-6) for duration in durations))
    return Estimate(tuple(samples), fmean(samples), pstdev(samples)) if samples else None


def guess(known: Iterable[Estimate]) -> Estimate:
    """For a type that never ran: what is usual here, or a minute; it could as well be twice that."""
    usual = [one.seconds for one in known]
    seconds = median(usual) if usual else GUESS_SECONDS
    return Estimate((), seconds, seconds)


def _pulled_back(samples: Sequence[float]) -> list[float]:
    """Odd ones are taken for the largest (or smallest) that is not odd, so that one stray run does not spoil all."""
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
    """The mean of what is left, given that it has lasted so long, if durations are log-normal: long work stays long."""
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
    """What an expected instant rests on: the runs known of the least known type on its way, and the variance so far."""

    runs: float = math.inf
    variance: float = 0.0

    def then(self, work: Estimate, share: float = 1.0) -> "Certainty":
        """After work of this estimate, or a share of it, has ended too."""
        return Certainty(min(self.runs, work.runs), self.variance + (share * work.deviation) ** 2)

    def confidence(self, wait: float) -> Confidence:
        """Of an instant that is so many seconds away."""
        deviation = math.sqrt(self.variance)
        if self.runs >= SURE_RUNS and deviation <= SURE_SHARE * wait:
            return Confidence.HIGH
        if self.runs >= FAIR_RUNS and deviation <= FAIR_SHARE * wait:
            return Confidence.MEDIUM
        return Confidence.LOW


def weakest(certainties: Iterable[Certainty]) -> Certainty:
    """Of what ends at the same instant: the least that can be said for all of it."""
    found = list(certainties)
    return (
        Certainty(min(certainty.runs for certainty in found), max(certainty.variance for certainty in found))
        if found
        else Certainty()
    )


def linked(office_id: str, shared: Mapping[str, set[str]]) -> set[str]:
    """The offices whose jobs can be in each other's way: reached from one through the limits that they share.

    `shared` are the limits between offices that can be full at all, by office.
    """
    reached, open_ = {office_id}, [office_id]
    while open_:
        limits = shared.get(open_.pop(), set())
        found = {other for other, others in shared.items() if other not in reached and limits & others}
        reached |= found
        open_ += found
    return reached
