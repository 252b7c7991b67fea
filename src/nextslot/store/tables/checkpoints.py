"""Checkpoints, which an attempt leaves for the next one: converts rows to values and back, one function per
statement.
"""

from nextslot.domain import Checkpoint
from nextslot.store.contract import Tx
from nextslot.system.instant import Instant

from .rows import CHECKPOINTS


def keep(tx: Tx, run_id: str, value: str, now: Instant) -> bool:
    """Stores JSON text as the checkpoint of the chain. Returns False if the run has ended."""
    return tx.execute("checkpoints.keep", run_id=run_id, value=value, now=now) == 1


def of_chain(tx: Tx, chain_id: str) -> Checkpoint | None:
    row = tx.row("checkpoints.of_chain", chain_id=chain_id)
    return None if row is None else CHECKPOINTS.value(row)
