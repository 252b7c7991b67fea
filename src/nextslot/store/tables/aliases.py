"""Aliases, the ids of other systems that lead to ours: one function a statement."""

from collections.abc import Iterable

from nextslot.store.contract import Tx

from . import column_codec


def insert(tx: Tx, kind: str, alias: str, id: str, source: str) -> None:
    """`kind` is `job`, `run`, `group`, `story` or `card`; `source` says where it was read, once for each thing."""
    tx.execute("aliases.insert", kind=kind, alias=alias, id=id, source=source)


def find(tx: Tx, kind: str, alias: str) -> str | None:
    row = tx.row("aliases.find", kind=kind, alias=alias)
    return None if row is None else row[0]


def adopted(tx: Tx, kind: str, sources: Iterable[str]) -> dict[str, str]:
    """Which of these were adopted before: the id by the source."""
    return dict(tx.rows("aliases.adopted", kind=kind, sources=column_codec.key_set(sources)))
