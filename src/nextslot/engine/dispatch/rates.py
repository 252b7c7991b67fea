"""Rates: buckets that refill. Each start takes one from the bucket of each of its limits, and its tokens when it ends.

A bucket is one stored instant, that at which it is full again; it is changed in the transaction of the start or end. So
no crash and no other node lets a rate be exceeded. Work that a bucket holds back waits for one alarm, at the instant at
which the bucket has something again. Like work on a resource that does not answer, it is not passed over, and no units
are held for it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from nextslot.domain import Json, Lane
from nextslot.domain.limits import Rate, RateUnit
from nextslot.store.contract import Tx
from nextslot.store.tables import rates
from nextslot.store.tables.rates import Bucket, BucketKey
from nextslot.system.instant import Instant

Rates = Mapping[str, Mapping[RateUnit, Rate]]
NO_RATES: Rates = {}
_FULL = Bucket(Instant(0))


class UsedUp(NamedTuple):
    """A bucket without anything in it, and when it has something again."""

    limit_key: str
    unit: RateUnit
    rate: Rate
    until: Instant


class TransactionBuckets:
    """The buckets that a transaction has read, and what it takes from them."""

    def __init__(self, tx: Tx, of_policy: Rates) -> None:
        self._tx = tx
        self._rates = of_policy
        self._stored: dict[BucketKey, Bucket] = {}
        self._taken: Counter[BucketKey] = Counter()
        # Those that hold work back.
        self._refusing: set[BucketKey] = set()
        # The time of the transaction's dispatch round.
        self.now = Instant(0)

    def are_open(self, limit_keys: Mapping[str, int]) -> bool:
        """Returns whether no rate of these limits is used up. If one is, the timer looks again when it is not."""
        closed = [(one.limit_key, one.unit) for one in self.used_up(limit_keys)]
        self._refusing.update(closed)
        return not closed

    def used_up(self, limit_keys: Mapping[str, int]) -> Iterator[UsedUp]:
        """Yields the rates of these limits that are used up."""
        for limit_key in limit_keys:
            for unit, rate in self._rates.get(limit_key, {}).items():
                until = rate.opens_at(self._full_at((limit_key, unit), rate))
                if until > self.now:
                    yield UsedUp(limit_key, unit, rate, until)

    def take(self, lane: Lane) -> None:
        """Takes one start from the buckets of a lane."""
        self._take(lane, RateUnit.STARTS, 1)

    def take_tokens(self, lane: Lane, result: Json) -> None:
        """Takes the tokens that a result says were used."""
        if tokens := used_tokens(result):
            self._take(lane, RateUnit.TOKENS, tokens)

    def _take(self, lane: Lane, unit: RateUnit, number: int) -> None:
        for limit_key in lane.needs:
            if unit in self._rates.get(limit_key, {}):
                self._taken[limit_key, unit] += number

    def forget(self) -> None:
        """Lets the buckets be read again, because the transaction has entered another office."""
        self._stored = {}

    def save(self) -> Instant | None:
        """Writes the buckets that have changed. Returns when the first of those that hold work back has something."""
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
    """Returns how many tokens a result says were used, as OpenAI's protocol says it: `usage.total_tokens`."""
    usage = result.get("usage") if isinstance(result, dict) else None
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    return total if isinstance(total, int) and not isinstance(total, bool) and total > 0 else 0
