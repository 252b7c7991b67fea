"""Expected starts: forecasts when the jobs of an office start and end. `services/forecast.py` calls it.

The simulator plays the queue once with average durations. For a short queue, it also plays the queue several times with
durations drawn from past runs; the forecast is then the median of each job's times.
"""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from statistics import stdev

from nextslot.domain import Expected, Forecast
from nextslot.system.instant import Instant

from .forecast_simulator import HORIZON_SECONDS, MADE, DispatchRules, ForecastSimulator, PastRuns
from .queue_snapshot import Snapshot

# Four of five starts were within so many standard deviations of the forecast. The theoretical factor is 1.28, but the
# same past runs do not stand for all that may happen (measured by `bench/forecast.py`).
EIGHTY_PERCENT = 1.6
# The work before a start is of fewer types than all work, so that the errors of their usual durations cancel each other
# less than those of all types (measured by the same).
FEWER_TYPES = 1.5
# From here on the interval grows evenly: a wait of a moment for a run that may take long has a spread whose exponential
# is no number.
EVENLY_FROM = 1.0
# How often a short queue is simulated with durations drawn from past runs. A long queue is simulated once, because
# averages are accurate for it. So no forecast simulates more starts than that of a queue of 1,000 jobs.
FEWEST_DRAWS, MOST_DRAWS, MOST_STARTS = 3, 9, 1000


def make_forecast(snapshot: Snapshot, rules: DispatchRules, past: PastRuns) -> Forecast:
    """Returns the forecast for every job and caller in the snapshot."""
    first = simulation(snapshot, rules, past)
    usual = first.expected
    draws = min(MOST_DRAWS, MOST_STARTS // max(len(usual), 1) - 1) if past.varies else 0
    ways: list[Mapping[str, Expected]] = []
    if draws >= FEWEST_DRAWS:
        ways = [simulation(snapshot, rules, past, draw, draws).expected for draw in range(1, draws + 1)]
        usual = medians(usual, ways)
    usual = with_intervals(usual, ways, first, snapshot.now)
    if first.leaving:
        usual = {**usual, **of_leaving(snapshot, rules, past, first.leaving)}
    places = [usual.get(job_id) for job_id in snapshot.queue]
    starts = [place.expected_start for place in places if place is not None and place.expected_start is not None]
    return Forecast(
        office_id=snapshot.office_id,
        made_at=snapshot.now,
        jobs={job_id: place for job_id, place in usual.items() if not job_id.startswith(MADE)},
        is_whole=snapshot.is_whole,
        places=len(places),
        last_start=max(starts, default=None),
    )


def of_leaving(snapshot: Snapshot, rules: DispatchRules, past: PastRuns, leaving: Set[str]) -> Mapping[str, Expected]:
    """Returns when these callers, whose waits end earlier, would start if all callers stayed."""
    staying = simulation(snapshot.with_patient_callers(), rules, past)
    starts = {run_id: staying.expected[run_id] for run_id in leaving if run_id in staying.expected}
    return with_intervals(starts, [], staying, snapshot.now)


def simulation(
    snapshot: Snapshot, rules: DispatchRules, past: PastRuns, draw: int = 0, draws: int = 0
) -> ForecastSimulator:
    """Simulates the queue once: with average durations or, in one of so many draws, with durations of past runs."""
    simulator = ForecastSimulator(snapshot, rules, past, draw, draws)
    try:
        simulator.run()
    finally:
        simulator.close()
    return simulator


def medians(usual: Mapping[str, Expected], ways: Sequence[Mapping[str, Expected]]) -> dict[str, Expected]:
    """Returns the medians of each job's starts and ends over several simulations.

    The first of several parallel runs ends sooner than each of them does on average, so a forecast from averages alone
    would make all short waits too long.
    """
    found = {}
    for job_id, expected in usual.items():
        starts = [way[job_id].expected_start for way in ways if job_id in way]
        ends = [way[job_id].expected_end for way in ways if job_id in way]
        found[job_id] = replace(
            expected,
            expected_start=_median(starts) or expected.expected_start,
            expected_end=(_median(ends) or expected.expected_end) if expected.expected_end is not None else None,
        )
    return found


def with_intervals(
    usual: Mapping[str, Expected], ways: Sequence[Mapping[str, Expected]], first: ForecastSimulator, now: Instant
) -> dict[str, Expected]:
    """Adds to each expected start the interval that contains four of five starts.

    A start is uncertain for two reasons: the durations of the work before it vary, which the simulations show, and the
    usual duration of a type may be known from a few runs only.
    """
    total = sum(seconds for seconds, _ in first.shares.values())
    common = math.sqrt(sum((seconds / total * error) ** 2 for seconds, error in first.shares.values())) if total else 0
    found = {}
    for job_id, expected in usual.items():
        at = expected.expected_start
        if at is None or at <= now or job_id not in first.spreads:
            found[job_id] = expected
            continue
        wait = (at - now) / 1_000_000
        starts = [way[job_id].expected_start for way in ways if job_id in way]
        drawn = _deviation([(one - now) / 1_000_000 for one in starts if one is not None])
        spread = (drawn if drawn is not None else math.sqrt(first.spreads[job_id])) / wait
        wide = EIGHTY_PERCENT * math.hypot(spread, FEWER_TYPES * common)
        factor = math.exp(min(wide, EVENLY_FROM)) * (1 + max(wide - EVENLY_FROM, 0.0))
        latest = max(wait, min(wait * factor, HORIZON_SECONDS))
        found[job_id] = replace(expected, earliest_start=now.after(wait / factor), latest_start=now.after(latest))
    return found


def _deviation(seconds: Sequence[float]) -> float | None:
    """Returns the standard deviation of a few values, enlarged because so few values understate it."""
    return None if len(seconds) < FEWEST_DRAWS else stdev(seconds) * (1 + 1 / len(seconds))


def _median(instants: Iterable[Instant | None]) -> Instant | None:
    known = sorted(at for at in instants if at is not None)
    return known[len(known) // 2] if known else None
