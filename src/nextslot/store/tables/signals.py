"""Signals, the answers for which jobs wait: converts rows to values and back, one function per statement."""

from nextslot.domain import Signal
from nextslot.store.contract import Tx

from .rows import SIGNALS


def insert(tx: Tx, signal: Signal) -> None:
    tx.execute("signals.insert", **SIGNALS.named(signal))


def last(tx: Tx, chain_id: str, name: str) -> Signal | None:
    row = tx.row("signals.last", chain_id=chain_id, name=name)
    return None if row is None else SIGNALS.value(row)


def sent(tx: Tx, chain_id: str, name: str, signal_id: str) -> Signal | None:
    row = tx.row("signals.sent", chain_id=chain_id, name=name, signal_id=signal_id)
    return None if row is None else SIGNALS.value(row)


def kept(tx: Tx, chain_id: str) -> int:
    """Returns how many answers of a chain nothing has waited for."""
    row = tx.row("signals.kept", chain_id=chain_id)
    return 0 if row is None else int(row[0])


def of_chain(tx: Tx, chain_id: str) -> list[Signal]:
    return [SIGNALS.value(row) for row in tx.rows("signals.of_chain", chain_id=chain_id)]


def use(tx: Tx, kept: Signal, job_id: str) -> None:
    tx.execute("signals.use", chain_id=kept.chain_id, name=kept.name, number=kept.number, job_id=job_id)
