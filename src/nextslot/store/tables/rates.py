"""Buckets of rates, one function a statement."""

from collections.abc import Iterable
from typing import NamedTuple

from nextslot.domain.limits import RateUnit
from nextslot.store.contract import Tx
from nextslot.system.instant import Instant

from . import column_codec

# A limit, and what its rate counts.
BucketKey = tuple[str, RateUnit]


class Bucket(NamedTuple):
    """When a bucket is full again, and when the timer lets work start that it holds back."""

    full_at: Instant
    wake_at: Instant | None = None


def get_many(tx: Tx, limit_keys: Iterable[str]) -> dict[BucketKey, Bucket]:
    rows = tx.rows("rates.get_many", limit_keys=column_codec.key_set(limit_keys))
    return {
        (key, RateUnit(unit)): Bucket(Instant(full_at), column_codec.instant(wake_at))
        for key, unit, full_at, wake_at in rows
    }


def put(tx: Tx, key: BucketKey, bucket: Bucket) -> None:
    limit_key, unit = key
    tx.execute("rates.put", limit_key=limit_key, unit=unit, full_at=bucket.full_at, wake_at=bucket.wake_at)


def next_wake(tx: Tx) -> Instant | None:
    row = tx.row("rates.next_wake")
    return None if row is None else column_codec.instant(row[0])


def wake(tx: Tx, now: Instant) -> list[str]:
    """Returns the limits whose buckets let work start again, and stores that nothing waits for them."""
    due = [key for (key,) in tx.rows("rates.due", now=now)]
    if due:
        tx.execute("rates.woken", now=now)
    return due
