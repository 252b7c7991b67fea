"""Learns from past runs of a type which parameter says how long its work takes; `engine/forecast` calls it.

A parameter is used only if it predicts runs that were held back much better than no parameter does. So a parameter that
says nothing changes nothing.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, NamedTuple

from .run_estimates import Estimate, estimate

# What a parameter says about size: a number, the length of a list or of a long text, or a word.
Size = float | str
Sizes = Mapping[str, Size]
# Returns the seconds of a size; None if it says nothing about this one.
Curve = Callable[[Size], float | None]

# So many parameters of a job are looked at.
MOST_PARAMS = 12
# A longer text counts by its length.
LONGEST_WORD = 40
# Fewer runs say nothing about parameters.
FEWEST_RUNS = 8
# A parameter is used if the error with it is at most this share of that without.
LARGEST_SHARE = 0.75
MOST_WORDS = 8
FOLDS = 4
SHORTEST = 1e-6
# No prediction is longer, however far a size is from those of the past runs.
LONGEST = 400 * 24 * 3600.0


class Sized(NamedTuple):
    """A past run: its seconds, and what its parameters say about size."""

    seconds: float
    sizes: Sizes


@dataclass(frozen=True, slots=True)
class SizeModel:
    """One parameter says how long work takes. `ratio` has the past runs as shares of what it predicts of them."""

    name: str
    curve: Curve
    ratio: Estimate

    def of(self, sizes: Sizes) -> Estimate | None:
        """Returns the estimate of work with these parameters; None if they do not say enough."""
        seconds = _predicted(self.curve, self.name, sizes)
        return None if seconds is None else self.ratio.times(seconds)


def sizes_of(params: Mapping[str, Any]) -> dict[str, Size]:
    """Returns what parameters say about size, by the name of each."""
    found: dict[str, Size] = {}
    for name, value in list(params.items())[:MOST_PARAMS]:
        if isinstance(value, bool):
            found[name] = str(value)
        elif isinstance(value, (int, float)):
            found[name] = float(value)
        elif isinstance(value, str):
            found[name] = value if len(value) <= LONGEST_WORD else float(len(value))
        elif isinstance(value, (list, tuple)):
            found[name] = float(len(value))
    return found


def learn(past: Sequence[Sized]) -> SizeModel | None:
    """Returns the parameter that predicts past runs best; None if none predicts them well."""
    if len(past) < FEWEST_RUNS:
        return None
    middle = _error(past, "", _same)
    found = [
        (error, name, fit)
        for name in sorted({name for run in past for name in run.sizes})
        for fit in (_power, _line, _words)
        if (error := _error(past, name, fit)) is not None
    ]
    error, name, fit = min(found, key=lambda one: one[0], default=(math.inf, "", _same))
    curve = fit(name, past)
    if curve is None or middle is None or error > LARGEST_SHARE * middle:
        return None
    ratios = [run.seconds / told for run in past if (told := _predicted(curve, name, run.sizes)) is not None]
    ratio = estimate(ratios)
    return None if ratio is None else SizeModel(name, curve, ratio)


Fit = Callable[[str, Sequence[Sized]], Curve | None]


def _error(past: Sequence[Sized], name: str, fit: Fit) -> float | None:
    """Returns the mean error of the logarithm for held-back runs, None if nothing fits. Unknown sizes count too."""
    errors = []
    for fold in range(FOLDS):
        rest = [run for number, run in enumerate(past) if number % FOLDS != fold]
        curve, usual = fit(name, rest), _same("", rest)("") or SHORTEST
        if curve is None:
            return None
        for run in past[fold::FOLDS]:
            told = _predicted(curve, name, run.sizes) or usual
            errors.append(abs(math.log(max(run.seconds, SHORTEST) / told)))
    return fmean(errors)


def _predicted(curve: Curve, name: str, sizes: Sizes) -> float | None:
    size = sizes.get(name, "" if name == "" else None)
    seconds = None if size is None else curve(size)
    return None if seconds is None else min(max(seconds, SHORTEST), LONGEST)


# What a size may mean.


def _same(name: str, past: Sequence[Sized]) -> Curve:
    """Predicts the median duration for every run."""
    usual = math.exp(median(math.log(max(run.seconds, SHORTEST)) for run in past))
    return lambda size: usual


def _power(name: str, past: Sequence[Sized]) -> Curve | None:
    """Predicts a duration that grows with a power of the size."""
    points = _points(name, past)
    if any(size <= 0 for size, _ in points):
        return None
    line = _robust_line([(math.log(size), math.log(max(seconds, SHORTEST))) for size, seconds in points])
    if line is None:
        return None
    slope, level = line
    return lambda size: (
        math.exp(min(level + slope * math.log(size), math.log(LONGEST)))
        if isinstance(size, float) and size > 0
        else None
    )


def _line(name: str, past: Sequence[Sized]) -> Curve | None:
    """Predicts a fixed time plus a time for each unit of the size, but at least half of the shortest run."""
    points = _points(name, past)
    line = _robust_line(points)
    if line is None:
        return None
    slope, level = line
    shortest = min(seconds for _, seconds in points) / 2
    return lambda size: max(level + slope * size, shortest) if isinstance(size, float) else None


def _words(name: str, past: Sequence[Sized]) -> Curve | None:
    """Predicts a duration for each value of a parameter that has few values."""
    by_value: dict[Size, list[float]] = {}
    for run in past:
        if name in run.sizes:
            by_value.setdefault(run.sizes[name], []).append(run.seconds)
    if not 1 <= len(by_value) <= MOST_WORDS:
        return None
    usual = {value: median(seconds) for value, seconds in by_value.items()}
    return usual.get


def _points(name: str, past: Sequence[Sized]) -> list[tuple[float, float]]:
    found = [(size, run.seconds) for run in past if isinstance(size := run.sizes.get(name), float)]
    return found if len(found) == len(past) else []


def _robust_line(points: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Returns slope and level of a line that a few outliers do not move: medians over pairs of points far apart."""
    ordered = sorted(points)
    half = len(ordered) // 2
    pairs = list(zip(ordered[:half], ordered[len(ordered) - half :], strict=True))
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in pairs if x2 > x1]
    if len(slopes) < max(half * 3 // 4, 2):
        return None
    slope = median(slopes)
    level = median(y - slope * x for x, y in ordered)
    # Sizes at the end of what a number can be have differences that it cannot be.
    return (slope, level) if math.isfinite(slope) and math.isfinite(level) else None
