"""A page of a list: the rows after a key that a filter lets through, found by an index and by looking at so many rows.

Filters combine freely (a dozen fields, several values each), so there is no fixed statement for each question: the
`where` is put together here, from fragments that are written in this package; what a caller says is always bound as a
value and never becomes SQL. `filters.py` says which fragments a filter becomes; the statements are plain enough for
both databases.

How a page is found. One term *drives*: an index holds its rows in the order of the list. The others are checked row by
row, and are written so that the database does not take another index for them. Since what is checked may let nothing
through for a long while, a page looks at no more than BUDGET rows and then stops, wherever it is: its work depends
neither on the depth of the page nor on the size of the history. Of several terms that could drive, the one that comes
furthest with that many rows does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from nextslot.store.contract import Row, Tx

# Measured in bench/lists.py: a page that looks at so many rows and finds none takes about 30 ms.
BUDGET = 10_000

Key = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """A table in an order that never changes for a row: by columns that are written once."""

    table: str
    columns: str
    key: tuple[str, ...]
    is_newest_first: bool = True
    # What leads a statement to the index of the whole list.
    everything: str = "1 = 1"


@dataclass(frozen=True, slots=True)
class Term:
    """A condition: one of its alternatives, no two of which hold for the same row.

    `is_indexed` says that for each alternative there is an index with its rows in the order of the list.
    """

    alternatives: tuple[str, ...]
    values: Mapping[str, object] = field(default_factory=dict)
    is_indexed: bool = True


class Found(NamedTuple):
    """Rows in order, and the key to go on from, if there may be more."""

    rows: list[Row]
    after: Key | None


class _Span(NamedTuple):
    """From after a key to another, which is included; None is the end of the list on that side."""

    after: Key | None
    until: Key | None


def one_of(column: str, values: Sequence[str], *, is_indexed: bool = True, lead: str = "") -> Term:
    """A column has one of these values; `lead` is what its index wants to be told besides."""
    bound = {f"{column}_{number}": str(value) for number, value in enumerate(values)}
    return Term(tuple(f"{column} = :{name}{lead}" for name in bound), bound, is_indexed)


def find(
    tx: Tx, listing: Listing, terms: Sequence[Term], after: Key | None, limit: int, until: Key | None = None
) -> Found:
    """The first `limit` rows after a key, and down to another, that satisfy every term."""
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
    """The term whose next BUDGET rows lead furthest, and to where; None: to the end."""
    reach: list[tuple[Key, Term]] = []
    for driver in drivers:
        floor = _floor(tx, listing, driver, span)
        if floor is None:
            return driver, None
        reach.append((floor, driver))
    floor, driver = (min if listing.is_newest_first else max)(reach, key=lambda one: one[0])
    return driver, floor


def _floor(tx: Tx, listing: Listing, driver: Term, span: _Span) -> Key | None:
    """Where so many rows of a term end; of its alternatives, where the first of them does."""
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
    """Each alternative is read in the order of the list; together they are put into that order again."""
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
        # A case is nothing that an index could answer.
        parts.append(f"case when {' or '.join(f'({one})' for one in check.alternatives)} then 1 else 0 end = 1")
        values.update(check.values)
    further, back = ("<", ">=") if listing.is_newest_first else (">", "<=")
    for name, sign, key in (("after", further, span.after), ("until", back, span.until)):
        if key is not None:
            names = [f"{name}_{column}" for column in listing.key]
            parts.append(f"({_key(listing)}) {sign} ({', '.join(f':{one}' for one in names)})")
            values.update(zip(names, key, strict=True))
    return " and ".join(parts), values


def _key(listing: Listing) -> str:
    return ", ".join(listing.key)


def _order(listing: Listing) -> str:
    return ", ".join(f"{column} desc" if listing.is_newest_first else column for column in listing.key)
