"""Reads a page of a list: the rows after a key that match a filter, found through an index and by checking a bounded
number of rows.

Filters combine freely (a dozen fields, several values each), so there is no fixed statement for each combination. This
module builds the `where` from fragments that this package contains. A caller's input is always bound as a value and
never becomes SQL. `filter_sql.py` chooses the fragments of each filter. The statements work on both databases.

How it finds a page: one term *drives*, which means that an index holds its rows in the order of the list. The other
terms are checked row by row, in a form for which the database uses no other index. Long stretches of rows may fail the
check, so a page reads at most BUDGET rows and then stops at any place. Its cost depends neither on the depth of the
page nor on the size of the history. If several terms could drive, the one whose BUDGET rows reach furthest is chosen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from nextslot.store.contract import Row, Tx

# Measured in bench/lists.py: a page that reads this many rows without a match takes about 30 ms.
BUDGET = 10_000

Key = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """A table and the order of its list, by columns or expressions of them. If they never change after the insert, a
    caller who reads all pages sees each item once.
    """

    table: str
    columns: str
    key: tuple[str, ...]
    is_newest_first: bool = True
    # The condition that makes a statement use the index of the whole list.
    everything: str = "1 = 1"


@dataclass(frozen=True, slots=True)
class Term:
    """A condition: one of its alternatives must hold, and no row satisfies two of them.

    `is_indexed`: for each alternative, an index has its rows in the order of the list.
    """

    alternatives: tuple[str, ...]
    values: Mapping[str, object] = field(default_factory=dict)
    is_indexed: bool = True


class Found(NamedTuple):
    """Rows in order, and the key from which to continue, if there may be more."""

    rows: list[Row]
    after: Key | None


class _Span(NamedTuple):
    """The rows after one key up to and including another; None means the beginning or the end of the list."""

    after: Key | None
    until: Key | None


def one_of(column: str, values: Sequence[str], *, is_indexed: bool = True, lead: str = "") -> Term:
    """Makes the term that a column has one of these values. `lead` is a further condition that the index needs."""
    bound = {f"{column}_{number}": str(value) for number, value in enumerate(values)}
    return Term(tuple(f"{column} = :{name}{lead}" for name in bound), bound, is_indexed)


def find(
    tx: Tx, listing: Listing, terms: Sequence[Term], after: Key | None, limit: int, until: Key | None = None
) -> Found:
    """Returns the first `limit` rows after a key, up to another key, that satisfy every term."""
    span = _Span(after, until)
    drivers = [term for term in terms if term.is_indexed] or [Term((listing.everything,))]
    driver, floor = drivers[0], None
    if any(term is not driver for term in terms):
        driver, floor = _furthest(tx, listing, drivers, span)
    checks = [term for term in terms if term is not driver]
    found = _gather(tx, listing, driver, checks, _Span(after, floor or until), limit + 1)
    rows = [row[len(listing.key) :] for row in found[:limit]]
    if len(found) > limit:
        return Found(rows, found[limit - 1][: len(listing.key)])
    return Found(rows, floor)


def _furthest(tx: Tx, listing: Listing, drivers: Sequence[Term], span: _Span) -> tuple[Term, Key | None]:
    """Returns the term whose next BUDGET rows reach furthest, and the key that they reach; None: the end of the
    list.
    """
    reach: list[tuple[Key, Term]] = []
    for driver in drivers:
        floor = _floor(tx, listing, driver, span)
        if floor is None:
            return driver, None
        reach.append((floor, driver))
    floor, driver = (min if listing.is_newest_first else max)(reach, key=lambda one: one[0])
    return driver, floor


def _floor(tx: Tx, listing: Listing, driver: Term, span: _Span) -> Key | None:
    """Returns the key at which BUDGET rows of a term end; with several alternatives, the nearest of their ends."""
    ends: list[Key] = []
    for alternative in driver.alternatives:
        where, values = _where(listing, alternative, driver.values, (), span)
        rest = f"where {where} order by {_order(listing)} limit 1 offset :skip"
        sql = f"select {_key(listing)} from {listing.table} {rest}"
        ends += tx.select(sql, {**values, "skip": BUDGET // len(driver.alternatives)})
    if not ends:
        return None
    return max(ends) if listing.is_newest_first else min(ends)


def _gather(tx: Tx, listing: Listing, driver: Term, checks: Sequence[Term], span: _Span, limit: int) -> list[Row]:
    """Reads the rows of each alternative in the order of the list, and merges them into that order."""
    found: list[Row] = []
    for alternative in driver.alternatives:
        where, values = _where(listing, alternative, driver.values, checks, span)
        columns = f"{_key(listing)}, {listing.columns}"
        sql = f"select {columns} from {listing.table} where {where} order by {_order(listing)} limit :limit"
        found += tx.select(sql, {**values, "limit": limit})
    if len(driver.alternatives) > 1:
        found.sort(key=lambda row: row[: len(listing.key)], reverse=listing.is_newest_first)
    return found[:limit]


def _where(
    listing: Listing, alternative: str, bound: Mapping[str, object], checks: Sequence[Term], span: _Span
) -> tuple[str, dict[str, object]]:
    parts = [alternative]
    values = {name: value for name, value in bound.items() if f":{name}" in alternative.split()}
    for check in checks:
        # No index can answer a `case`, so the database keeps to the driving term's index.
        parts.append(f"case when {' or '.join(f'({one})' for one in check.alternatives)} then 1 else 0 end = 1")
        values.update(check.values)
    further, back = ("<", ">=") if listing.is_newest_first else (">", "<=")
    for name, sign, key in (("after", further, span.after), ("until", back, span.until)):
        if key is not None:
            names = [f"{name}_{number}" for number in range(len(listing.key))]
            parts.append(f"({_key(listing)}) {sign} ({', '.join(f':{one}' for one in names)})")
            values.update(zip(names, key, strict=True))
    return " and ".join(parts), values


def _key(listing: Listing) -> str:
    return ", ".join(listing.key)


def _order(listing: Listing) -> str:
    return ", ".join(f"{column} desc" if listing.is_newest_first else column for column in listing.key)
