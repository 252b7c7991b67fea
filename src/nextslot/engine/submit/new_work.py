"""NewWork: what the works of a transaction have created, so that a caller's limits are checked before the commit."""

from collections.abc import Iterable
from typing import NamedTuple

from nextslot.store.contract import Tx


class Created(NamedTuple):
    """Jobs, or a direct request, of one type in one office."""

    office_id: str
    job_type: str
    number: int


class NewWork:
    def __init__(self, tx: Tx) -> None:
        self.created: list[Created] = []


def note(tx: Tx, created: Iterable[Created]) -> None:
    tx.local(NewWork).created.extend(created)
