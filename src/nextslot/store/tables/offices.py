"""Offices: converts rows of settings to values and back, one function per statement."""

from functools import lru_cache

from nextslot.domain import Office
from nextslot.store.contract import Tx

from . import column_codec
from .jobs import Place
from .rows import OFFICES


class Touched:
    """Whether this transaction has written an office, so that caches of offices must be read again after it."""

    def __init__(self, tx: Tx) -> None:
        self.is_touched = False


def insert(tx: Tx, office: Office) -> bool:
    tx.local(Touched).is_touched = True
    return tx.execute("offices.insert", **OFFICES.named(office)) == 1


def update(tx: Tx, office: Office) -> None:
    tx.local(Touched).is_touched = True
    tx.execute("offices.update", **OFFICES.changed(office))


def get(tx: Tx, office_id: str) -> Office | None:
    row = tx.row("offices.get", office_id=office_id)
    return None if row is None else _office(row)


def page(tx: Tx, after: str, limit: int) -> list[Office]:
    """Returns a page of offices, ordered by id."""
    return [_office(row) for row in tx.rows("pages.offices", after=after, limit=limit)]


def pause(tx: Tx, office_id: str, is_paused: bool) -> bool:
    return tx.execute("offices.pause", office_id=office_id, is_paused=int(is_paused)) == 1


def begin_aging(tx: Tx, office_id: str) -> None:
    """Lets `jobs.first_steps` begin at the front of the office's queue."""
    tx.execute("offices.begin_aging", office_id=office_id, aging_from="[]")


def aging(tx: Tx) -> tuple[str, float | None, Place | None] | None:
    """Returns an office whose jobs must get their first step: its id, its period, and the last place that is done."""
    row = tx.row("offices.aging")
    if row is None:
        return None
    place = column_codec.loads(row[2])
    return row[0], row[1], Place(*place) if place else None


def age_from(tx: Tx, office_id: str, place: Place | None) -> None:
    """Stores up to which place the jobs of an office have their first step; None: all of them."""
    tx.execute(
        "offices.age_from", office_id=office_id, aging_from=None if place is None else column_codec.dumps(list(place))
    )


def set_last_position(tx: Tx, office_id: str, position: int) -> None:
    tx.execute("offices.set_last_position", office_id=office_id, position=position)


# Cached, because every request reads its office and offices rarely change.
_office = lru_cache(maxsize=1024)(OFFICES.value)
