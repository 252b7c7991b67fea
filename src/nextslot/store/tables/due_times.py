"""Moves all due times that count from the moment at which they were stored, when the wall clock steps."""

from nextslot.store.contract import Tx


def offset(tx: Tx, node_id: str) -> int | None:
    """Returns the clock offset, in microseconds, on which the stored due times of a node are based."""
    row = tx.row("due_times.offset", node_id=node_id)
    return None if row is None else row[0]


def count_by(tx: Tx, node_id: str, clock_offset: int) -> None:
    tx.execute("due_times.count_by", node_id=node_id, clock_offset=clock_offset)


def shift_own(tx: Tx, node_id: str, shift: int) -> None:
    """Moves the due times of what a node runs, and of the callers connected to it."""
    _with_rules_suspended(tx, "due_times.shift_runs", node_id=node_id, shift=shift)
    tx.execute("due_times.shift_callers", node_id=node_id, shift=shift)
    tx.execute("due_times.shift_reservations", node_id=node_id, shift=shift)


def shift_common(tx: Tx, shift: int) -> None:
    """Moves the due times, and the ages that decide an order, that belong to no single node."""
    _with_rules_suspended(tx, "due_times.shift_reservation_ages", shift=shift)
    tx.execute("due_times.shift_ages", shift=shift)
    tx.execute("due_times.shift_steps", shift=shift)
    tx.execute("due_times.shift_retries", shift=shift)
    tx.execute("due_times.shift_answers", shift=shift)
    tx.execute("due_times.shift_deliveries", shift=shift)
    tx.execute("due_times.shift_probes", shift=shift)
    tx.execute("due_times.shift_affinities", shift=shift)
    tx.execute("due_times.shift_rates", shift=shift)


def _with_rules_suspended(tx: Tx, statement: str, **values: object) -> None:
    """Runs a statement that the rules of the database allow only during maintenance."""
    tx.execute("maintenance.begin", reason="the wall clock has stepped")
    tx.execute(statement, **values)
    tx.execute("maintenance.end")
