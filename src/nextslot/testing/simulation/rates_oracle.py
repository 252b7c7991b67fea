"""Checks rates and keys from what is stored of starts alone: never more than a rate allows, never two of a key."""

from collections.abc import Iterator, Mapping
from itertools import pairwise

from nextslot.domain.limits import Limits, Rate, RateUnit
from nextslot.store.contract import Tx
from nextslot.store.tables import column_codec

from . import check_reads
from .broken import Broken

MINUTE = 60_000_000


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


def exceeded(tx: Tx, limits: Limits) -> Iterator[Broken]:
    """Finds spans of time in which more started than the burst of a rate and what refills in the span."""
    needs = check_reads.needs(tx)
    starts: dict[str, list[int]] = {}
    for lane_id, started_at, _, _, _ in tx.rows("inspection.starts"):
        for key in needs[lane_id].units.keys() & limits.rates.keys():
            starts.setdefault(key, []).append(started_at)
    for key, at in starts.items():
        rate = limits.rates[key].get(RateUnit.STARTS)
        if rate is not None and (how := _too_many(sorted(at), rate)) is not None:
            yield Broken("no more starts than a rate allows", f"{key}: {how}")


def _too_many(at: list[int], rate: Rate) -> str | None:
    """Replays the starts on a bucket of its own; it never gives more than any span allows."""
    left, before = rate.burst, at[0]
    for start in at:
        left = min(rate.burst, left + (start - before) * rate.per_minute / MINUTE) - 1
        before = start
        if left < -1e-6:
            return f"the start at {start} was {-left:.6f} too many"
    return None


def overlapping(tx: Tx, most: Mapping[str, int]) -> Iterator[Broken]:
    """Finds jobs of an office with the same key that ran at the same time, of keys that allow one."""
    runs: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for _, started_at, finished_at, office_id, keys in tx.rows("inspection.starts"):
        for key in column_codec.loads(keys) if keys is not None else ():
            if most.get(f"{key.partition(':')[0]}:*") == 1:
                runs.setdefault((office_id, key), []).append((started_at, finished_at or 2**62))
    for (office_id, key), spans in runs.items():
        for (_, end), (start, _) in pairwise(sorted(spans)):
            if start < end:
                yield Broken("jobs with the same key run one after the other", f"{key} of {office_id} at {start}")
