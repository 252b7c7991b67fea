"""Aliases: ids of other systems, each with the id of the same thing here. One function per statement."""

from collections.abc import Iterable

from nextslot.store.contract import Tx

from . import column_codec


def insert(tx: Tx, kind: str, alias: str, id: str, source: str) -> None:
    """Stores an alias. `kind` is `job`, `run`, `group`, `story` or `card`; `source` names where it was read, and is
    unique.
    """
    tx.execute("aliases.insert", kind=kind, alias=alias, id=id, source=source)


def find(tx: Tx, kind: str, alias: str) -> str | None:
    row = tx.row("aliases.find", kind=kind, alias=alias)
    return None if row is None else row[0]


def adopted(tx: Tx, kind: str, sources: Iterable[str]) -> dict[str, str]:
    """Returns those of these sources that were adopted before, each with its id here."""
    return dict(tx.rows("aliases.adopted", kind=kind, sources=column_codec.key_set(sources)))
