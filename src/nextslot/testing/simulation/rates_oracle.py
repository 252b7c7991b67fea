"""Checks rates by buckets of its own: nothing starts from an empty one, and what a rate holds back starts in time.

The buckets follow the loop's own time, whatever the wall clock does.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from nextslot.domain.limits import Limits, Rate, RateUnit
from nextslot.store.contract import Tx

from . import check_reads
from .broken import Broken
from .check_reads import LaneNeeds

MINUTE = 60_000_000
SECONDS_IN_A_MINUTE = 60.0
TOLERANCE = 1_000_000
# Clocks do not treat a smaller difference as a step (clock.py), so a bucket may be ahead by what refills meanwhile.
NO_STEP_SECONDS = 1.01


def used_up(tx: Tx, limits: Limits, now: int) -> set[str]:
    """Returns the limits whose rate lets nothing start now, by the stored buckets, or is about to: the timer's next
    transaction looks at the work that they hold back.
    """
    if not limits.rates:
        return set()
    return {
        key
        for key, unit, full_at, wake_at in tx.rows("rates.all")
        if wake_at is not None
        or (
            (rate := limits.rates.get(key, {}).get(RateUnit(unit))) is not None
            and rate.burst - max(full_at - now, 0) * rate.per_minute / MINUTE < 1 - 1e-9
        )
    }


def late(tx: Tx, now: int) -> Iterator[Broken]:
    """Finds work that a rate holds back although it was to start. Only for times in which no fault delays anything."""
    for key, unit, _, wake_at in tx.rows("rates.all"):
        if (wake_at or now) < now - TOLERANCE:
            yield Broken("what a rate holds back starts in time", f"{key} {unit} at {wake_at}, it is {now}")


class _Bucket(NamedTuple):
    left: float
    at: float


class Buckets:
    """What is left of each rate, in the time of the loop."""

    def __init__(self, rates: Mapping[str, Mapping[RateUnit, Rate]]) -> None:
        self._rates = rates
        self._left: dict[tuple[str, RateUnit], _Bucket] = {}
        # The runs whose tokens were taken, and by how much the wall clock was ahead of the loop at the last commit.
        self._counted: set[str] = set()
        self._offset: float | None = None
        self._has_restarted = False

    def restarted(self, tx: Tx) -> None:
        """Takes no tokens for runs whose end was committed by the last life, but not seen."""
        self._has_restarted = True
        if self._rates:
            self._counted = {run_id for run_id, _, _ in check_reads.token_uses(tx)}

    def committed(
        self, tx: Tx, needs: Mapping[int, LaneNeeds], started: Sequence[tuple[str, int]], at: float, offset: float
    ) -> Iterator[Broken]:
        """Checks a commit at a time of the loop: the ends of runs come before the starts."""
        if not self._rates:
            return
        if self._has_restarted and self._offset is not None and abs(offset - self._offset) > 1.0:
            self._left.clear()  # After a restart the stored times count, and the clock was set meanwhile.
        self._has_restarted, self._offset = False, offset
        for run_id, lane_id, tokens in check_reads.token_uses(tx):
            if run_id not in self._counted:
                self._counted.add(run_id)
                for key in self._with_rate(needs[lane_id], RateUnit.TOKENS):
                    self._take(key, RateUnit.TOKENS, tokens, at)
        for what, lane_id in started:
            for unit in RateUnit:
                for key in self._with_rate(needs[lane_id], unit):
                    rate, left = self._rates[key][unit], self._now(key, unit, at)
                    if left < 1 - NO_STEP_SECONDS * rate.per_minute / SECONDS_IN_A_MINUTE:
                        yield Broken("nothing starts from an empty bucket", f"{what} with {left:.6f} {unit} of {key}")
            for key in self._with_rate(needs[lane_id], RateUnit.STARTS):
                self._take(key, RateUnit.STARTS, 1, at)

    def _with_rate(self, lane: LaneNeeds, unit: RateUnit) -> list[str]:
        return [key for key in lane.units if unit in self._rates.get(key, {})]

    def _now(self, key: str, unit: RateUnit, at: float) -> float:
        rate = self._rates[key][unit]
        before = self._left.get((key, unit), _Bucket(rate.burst, at))
        return min(rate.burst, before.left + (at - before.at) * rate.per_minute / SECONDS_IN_A_MINUTE)

    def _take(self, key: str, unit: RateUnit, number: int, at: float) -> None:
        self._left[key, unit] = _Bucket(self._now(key, unit, at) - number, at)
