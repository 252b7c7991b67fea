"""Expected starts: a forecast of when the jobs of an office start and end. `services/forecast.py` calls it.

The simulator plays the queue once with average durations and, if the queue is short, several times with durations drawn
from past runs; the medians are the forecast.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from nextslot.domain import Expected, Forecast
from nextslot.system.instant import Instant

from .forecast_simulator import MADE, DispatchRules, ForecastSimulator, PastRuns
from .queue_snapshot import Snapshot

# A short queue is simulated several times with durations drawn from past runs. For a long queue averages are used: they
# are accurate there. So no forecast simulates more starts than that of a queue of 1,000 jobs does.
FEWEST_DRAWS, MOST_DRAWS, MOST_STARTS = 3, 9, 1000


def make_forecast(snapshot: Snapshot, rules: DispatchRules, past: PastRuns) -> Forecast:
    """Returns the forecast for everything in the snapshot."""
    usual = simulated(snapshot, rules, past)
    draws = min(MOST_DRAWS, MOST_STARTS // max(len(usual), 1) - 1) if past.varies else 0
    if draws >= FEWEST_DRAWS:
        usual = medians(usual, [simulated(snapshot, rules, past, draw) for draw in range(1, draws + 1)])
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


def simulated(snapshot: Snapshot, rules: DispatchRules, past: PastRuns, draw: int = 0) -> dict[str, Expected]:
    """Simulates once: with average durations or, if `draw` is not 0, with durations drawn from past runs."""
    simulator = ForecastSimulator(snapshot, rules, past, draw)
    try:
        simulator.run()
    finally:
        simulator.close()
    return simulator.expected


def medians(usual: Mapping[str, Expected], ways: Sequence[Mapping[str, Expected]]) -> dict[str, Expected]:
    """Returns the medians of each job's starts and ends over several simulations.

    Of several runs in parallel, the first ends sooner than each does on average: averages alone would predict all short
    waits as too long.
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


def _median(instants: Iterable[Instant | None]) -> Instant | None:
    known = sorted(at for at in instants if at is not None)
    return known[len(known) // 2] if known else None
