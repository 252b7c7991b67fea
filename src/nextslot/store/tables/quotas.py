"""Quotas of offices: converts rows to values and back, one function per statement."""

from collections.abc import Iterable, Mapping

from nextslot.domain import Json
from nextslot.store.contract import Tx

from . import column_codec


def all_of_them(tx: Tx) -> dict[str, Mapping[str, Json]]:
    return {office_id: column_codec.loads(text) for office_id, text in tx.rows("quotas.all")}


def put(tx: Tx, office_id: str, quotas: Mapping[str, Json]) -> None:
    tx.execute("quotas.put", office_id=office_id, quotas=column_codec.dumps(quotas))


def open_chains(tx: Tx, office_id: str) -> int:
    """Returns how many chains had not ended when the transaction began."""
    row = tx.row("quotas.open_chains", office_id=office_id)
    return int(row[0]) if row else 0


def classes(tx: Tx, office_id: str) -> int:
    """Returns how many classes of lanes an office has, those that this transaction added included."""
    row = tx.row("quotas.classes", office_id=office_id)
    assert row is not None
    count: int = row[0]
    return count


def live_classes(tx: Tx, office_id: str) -> int:
    """Returns of how many classes an office has jobs that have not ended."""
    row = tx.row("quotas.live_classes", office_id=office_id)
    return row[0] if row else 0


def crowded(tx: Tx, most: int) -> list[str]:
    """Returns the offices that have lanes of more classes than this."""
    return [office_id for (office_id,) in tx.rows("quotas.crowded", most=most)]


def lanes(tx: Tx, office_id: str) -> int:
    """Returns how many lanes of an office had ready jobs before this transaction."""
    row = tx.row("quotas.lanes", office_id=office_id)
    return int(row[0]) if row else 0


def offices_of(tx: Tx, run_ids: Iterable[str]) -> dict[str, str]:
    """Returns the office of each of these runs and direct executions that is stored."""
    return dict(tx.rows("quotas.offices_of", run_ids=column_codec.key_set(run_ids)))
