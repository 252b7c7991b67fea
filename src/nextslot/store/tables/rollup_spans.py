"""Adds ends of jobs to rollups, merges rollups of small spans of time into larger ones, and compares them with history.

`engine/rollups.py` and `doctor` call it. Rollups are read, added up and written in one transaction; only one writes at
a time, on PostgreSQL too.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from nextslot.domain.rollups import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    STORED_STEPS,
    End,
    RollupKey,
    Totals,
    floor,
    is_outdated,
    stored_step,
)
from nextslot.store.contract import Tx

from . import rollups

_NONE = Totals()
LARGER = tuple(pairwise(STORED_STEPS))
BEYOND = 1 << 62


class Difference(NamedTuple):
    """A rollup that differs from history."""

    at: int
    key: RollupKey
    stored: Totals
    counted: Totals


def fold(tx: Tx, minute: int, now: int) -> None:
    """Moves the ends of recent minutes into rollups, and merges the oldest rollups into larger spans.

    Merges at most one larger span per call, so that no transaction takes long. It runs once in each minute with work,
    so it merges spans faster than new ones are added.
    """
    add(tx, rollups.take_recent(tx, minute), now)
    for step, larger in LARGER:
        oldest = rollups.oldest(tx, step)
        if oldest is not None and is_outdated(oldest, step, larger, now):
            at = floor(oldest, larger)
            _merge(tx, larger, at, ((one.key, one.totals) for one in rollups.take(tx, step, at, _end(at, larger))))
        oldest = rollups.oldest_depth(tx, step)
        if oldest is not None and is_outdated(oldest, step, larger, now):
            rollups.keep_depth(tx, step, larger, oldest, oldest, _end(floor(oldest, larger), larger))


def add(tx: Tx, ends: Iterable[tuple[End, int]], now: int) -> None:
    """Adds ends, each with its number, to the rollups of their time."""
    spans: dict[tuple[int, int], dict[RollupKey, Totals]] = {}
    for end, jobs in ends:
        step = stored_step(end.minute, now)
        span = spans.setdefault((step, floor(end.minute, step)), {})
        span.setdefault(end.key, Totals()).count(end, jobs)
    for (step, at), totals in sorted(spans.items()):
        _merge(tx, step, at, totals.items())


def _merge(tx: Tx, step: int, at: int, added: Iterable[tuple[RollupKey, Totals]]) -> None:
    totals: dict[RollupKey, Totals] = {}
    for key, more in added:
        totals.setdefault(key, Totals()).add(more)
    for one in rollups.stored(tx, step, at, at + 1):
        if one.key in totals:
            totals[one.key].add(one.totals)
    for key in sorted(totals):
        rollups.put(tx, step, at, key, totals[key])


def _end(at: int, step: int) -> int:
    return at + step * SECOND


# History.


def differences(tx: Tx) -> list[Difference]:
    """Compares the rollups with history, from the first day that both cover as a whole."""
    begin = _next_day(max(rollups.bounds(tx)))
    larger = rollups.larger_spans(tx)
    stored: dict[tuple[int, RollupKey], Totals] = {}
    for at, key, totals in _stored(tx):
        if at >= begin:
            stored.setdefault((_span(at, larger), key), Totals()).add(totals)
    counted: dict[tuple[int, RollupKey], Totals] = {}
    for end in rollups.history(tx):
        if end.minute >= begin:
            counted.setdefault((_span(end.minute, larger), end.key), Totals()).count(end, 1)
    return [
        Difference(at, key, has, right)
        for at, key in sorted(stored.keys() | counted.keys())
        if (has := stored.get((at, key), _NONE)) != (right := counted.get((at, key), _NONE))
    ]


def rebuild(tx: Tx) -> None:
    """Makes the rollups again from history, from the first day that history covers as a whole."""
    begin = _next_day(rollups.bounds(tx)[0])
    rollups.clear_from(tx, begin)
    ends = Counter(end for end in rollups.history(tx) if end.minute >= begin)
    add(tx, ends.items(), max((end.minute for end in ends), default=0))


def is_behind_history(tx: Tx) -> bool:
    """Returns whether history goes further back than the rollups, because an older release counted nothing."""
    history_from, written_from = rollups.bounds(tx)
    return written_from > history_from and any(
        _next_day(history_from) <= end.minute < written_from for end in rollups.history(tx)
    )


def _stored(tx: Tx) -> Iterator[tuple[int, RollupKey, Totals]]:
    for step in STORED_STEPS:
        for one in rollups.stored(tx, step, 0, BEYOND):
            yield one.at, one.key, one.totals
    for end, jobs in rollups.recent(tx, 0, BEYOND):
        totals = Totals()
        totals.count(end, jobs)
        yield end.minute, end.key, totals


def _span(at: int, larger: set[tuple[int, int]]) -> int:
    """Returns the beginning of the largest stored span around a time: ends within one span cannot be distinguished."""
    return next((floor(at, step) for step in (DAY, HOUR) if (step, floor(at, step)) in larger), floor(at, MINUTE))


def _next_day(at: int) -> int:
    return -(floor(-at, DAY))
