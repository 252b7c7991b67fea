"""Rates: buckets that refill. A start takes one from the bucket of each of its limits; an end takes the tokens it
reports.

A bucket is stored as one instant, at which the bucket is full again. The transaction of the start or the end changes
this instant, so neither a crash nor another node lets a rate be exceeded. All work that a bucket holds back waits for
one alarm, at the instant at which the bucket is no longer empty. Such work does not count as passed over and gets no
units held, like work on a resource that does not answer.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from nextslot.domain import Json, Lane, Outcome
from nextslot.domain.limits import Rate, RateUnit
from nextslot.store.contract import Tx
from nextslot.store.tables import rates
from nextslot.store.tables.rates import Bucket, BucketKey
from nextslot.system.instant import Instant

Rates = Mapping[str, Mapping[RateUnit, Rate]]
NO_RATES: Rates = {}
_FULL = Bucket(Instant(0))


class UsedUp(NamedTuple):
    """A bucket that is empty, and the instant at which it is no longer empty."""

    limit_key: str
    unit: RateUnit
    rate: Rate
    until: Instant


class TransactionBuckets:
    """The buckets that a transaction has read, and what the transaction takes from them."""

    def __init__(self, tx: Tx, of_policy: Rates) -> None:
        self._tx = tx
        self._rates = of_policy
        self._stored: dict[BucketKey, Bucket] = {}
        self._taken: Counter[BucketKey] = Counter()
        # The empty buckets that hold work back.
        self._refusing: set[BucketKey] = set()
        # The time of the transaction's dispatch round.
        self.now = Instant(0)

    def are_open(self, limit_keys: Mapping[str, int]) -> bool:
        """Returns whether no rate of these limits is used up. Notes empty buckets, so that a timer dispatches later."""
        closed = [(one.limit_key, one.unit) for one in self.used_up(limit_keys)]
        self._refusing.update(closed)
        return not closed

    def used_up(self, limit_keys: Mapping[str, int]) -> Iterator[UsedUp]:
        """Yields the rates of these limits whose bucket is empty."""
        for limit_key in limit_keys:
            for unit, rate in self._rates.get(limit_key, {}).items():
                until = rate.opens_at(self._full_at((limit_key, unit), rate))
                if until > self.now:
                    yield UsedUp(limit_key, unit, rate, until)

    def take(self, lane: Lane) -> None:
        """Takes one start from the buckets of a lane."""
        self._take(lane, RateUnit.STARTS, 1)

    def take_tokens(self, lane: Lane, outcome: Outcome) -> None:
        """Takes the tokens that a run has used from the buckets of a lane: as its result says, else as it has counted
        itself.
        """
        if tokens := used_tokens(outcome.result) or max(outcome.used_tokens, 0):
            self._take(lane, RateUnit.TOKENS, tokens)

    def _take(self, lane: Lane, unit: RateUnit, number: int) -> None:
        for limit_key in lane.needs:
            if unit in self._rates.get(limit_key, {}):
                self._taken[limit_key, unit] += number

    def forget(self) -> None:
        """Forgets the buckets, so that they are read again: the transaction has entered another office."""
        self._stored = {}

    def save(self) -> Instant | None:
        """Writes the changed buckets. Returns when the first bucket that holds work back is no longer empty."""
        first: Instant | None = None
        for key in sorted(self._taken.keys() | self._refusing):
            rate = self._rates[key[0]][key[1]]
            full_at = self._full_at(key, rate)
            before, wake_at = self._stored[key], self._stored[key].wake_at
            if key in self._refusing and (opens := rate.opens_at(full_at)) > self.now:
                wake_at = opens
                first = opens if first is None else min(first, opens)
            if (after := Bucket(full_at, wake_at)) != before:
                rates.put(self._tx, key, after)
        return first

    def _full_at(self, key: BucketKey, rate: Rate) -> Instant:
        if key not in self._stored:
            found = rates.get_many(self._tx, {key[0]})
            self._stored.update({(key[0], unit): _FULL for unit in self._rates[key[0]]} | found)
        stored = self._stored[key].full_at
        return rate.after(stored, self._taken[key], self.now) if key in self._taken else stored


def used_tokens(result: Json) -> int:
    """Returns how many tokens a result reports, in the form of OpenAI's protocol: `usage.total_tokens`."""
    usage = result.get("usage") if isinstance(result, dict) else None
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    return total if isinstance(total, int) and not isinstance(total, bool) and total > 0 else 0
