"""Direct executions and reservations: converts rows to values and back, one function per statement."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from nextslot.domain import (
    Direct,
    DirectStatus,
    FailureKind,
    Json,
    Outcome,
    Reservation,
)
from nextslot.domain.devices import Devices
from nextslot.store.contract import Tx
from nextslot.system.instant import Instant

from . import column_codec
from .rows import DIRECT, RESERVATIONS


class WaitingCaller(NamedTuple):
    """The first waiting caller of a lane. It holds the reservation of its office if `reserved_at` is set."""

    reserved_at: int | None
    run_id: str
    office_id: str
    lane_id: int
    node_id: str


class StartedDirect(NamedTuple):
    params: str
    timeout_seconds: float
    stall_timeout_seconds: float | None
    # None in the in-memory copy of a forecast.
    direct_id: str | None


class EndedDirect(NamedTuple):
    office_id: str
    lane_id: int
    worker_id: str | None


def insert(tx: Tx, direct: Direct, webhook: Mapping[str, Json] | None) -> None:
    tx.execute("direct.insert", **DIRECT.named(direct), webhook=column_codec.optional(webhook))


def get(tx: Tx, run_id: str) -> Direct | None:
    row = tx.row("direct.get", run_id=run_id)
    return None if row is None else DIRECT.value(row)


def find(tx: Tx, direct_id: str, office_id: str) -> Direct | None:
    """Finds one by the id that its caller chose in this office, or by the id of its run."""
    row = tx.row("direct.find", direct_id=direct_id, office_id=office_id)
    return None if row is None else DIRECT.value(row)


def webhook(tx: Tx, run_id: str) -> Mapping[str, Json] | None:
    row = tx.row("direct.webhook", run_id=run_id)
    found: Mapping[str, Json] | None = None if row is None else column_codec.parsed(row[0])
    return found


def waiting_ids(tx: Tx, office_id: str) -> list[str]:
    return [row[0] for row in tx.rows("direct.waiting_ids", office_id=office_id)]


def waiting_direct_ids(tx: Tx, office_id: str) -> list[str]:
    return [row[0] for row in tx.rows("direct.waiting_direct_ids", office_id=office_id)]


def waiting_lanes(tx: Tx, office_id: str) -> Counter[int]:
    """Returns how many callers of an office wait in each lane."""
    return Counter(dict(tx.rows("direct.waiting_lanes", office_id=office_id)))


def first_waiting(tx: Tx) -> list[WaitingCaller]:
    """Returns the first caller of each lane. Those with a reservation come first, the oldest reservation first."""
    return [WaitingCaller(*row) for row in tx.rows("direct.first_waiting")]


def start(tx: Tx, run_id: str, worker_id: str, devices: Devices, now: Instant) -> StartedDirect | None:
    stored = column_codec.dumps(devices) if devices else None
    row = tx.row("direct.start", run_id=run_id, worker_id=worker_id, devices=stored, now=now)
    return None if row is None else StartedDirect(*row)


def finish(tx: Tx, run_id: str, outcome: Outcome, now: Instant) -> EndedDirect | None:
    """Stores the outcome once. Returns None if the execution had ended already."""
    row = tx.row(
        "direct.finish",
        run_id=run_id,
        now=now,
        **column_codec.outcome_values(outcome),
        artifacts=column_codec.dumps([[a.name, a.path, a.size] for a in outcome.artifacts])
        if outcome.artifacts
        else None,
    )
    return None if row is None else EndedDirect(*row)


def give_up(tx: Tx, run_id: str, status: DirectStatus, reason: str, kind: FailureKind | None, now: Instant) -> None:
    """Ends the wait of a caller without an execution."""
    error = None if kind is None else reason
    tx.execute("direct.give_up", run_id=run_id, status=status, reason=reason, error=error, failure_kind=kind, now=now)


def over(tx: Tx, node_id: str | None, now: Instant, limit: int) -> list[str]:
    """Returns the executions whose wait is over, of one node or of all nodes, like the functions below."""
    return [row[0] for row in tx.rows("direct.over", node_id=node_id, now=now, limit=limit)]


def overdue(tx: Tx, node_id: str | None, now: Instant, limit: int) -> list[str]:
    return [row[0] for row in tx.rows("direct.overdue", node_id=node_id, now=now, limit=limit)]


def unfinished(tx: Tx, node_id: str | None = None) -> list[Direct]:
    return [DIRECT.value(row) for row in tx.rows("direct.unfinished", node_id=node_id)]


def request_cancel(tx: Tx, run_id: str, now: Instant) -> None:
    """Stores that an execution must stop; the node that runs it sees this."""
    tx.execute("direct.request_cancel", run_id=run_id, now=now)


def reserve(tx: Tx, reservation_id: str, run_id: str, expires_at: Instant, now: Instant) -> None:
    """Reserves the next slot for a caller, on the node to which the caller is connected."""
    tx.execute("direct.reserve", reservation_id=reservation_id, run_id=run_id, expires_at=expires_at, now=now)


def is_reserved(tx: Tx, office_id: str) -> bool:
    return tx.row("direct.is_reserved", office_id=office_id) is not None


def release(tx: Tx, run_id: str, status: str) -> str | None:
    """Ends a caller's reservation. Returns its id, or None if the caller held none."""
    row = tx.row("direct.release", run_id=run_id, status=status)
    return row[0] if row else None


def expire_orphaned(tx: Tx) -> list[tuple[str, str | None, str]]:
    """Ends the reservations that belong to no waiting execution. Returns (reservation, its run if it has one,
    office).
    """
    rows = tx.rows("direct.expire_orphaned")
    return [(reservation_id, run_id, office_id) for reservation_id, run_id, office_id in rows]


def renew(tx: Tx, run_id: str, expires_at: Instant) -> None:
    tx.execute("direct.renew", run_id=run_id, expires_at=expires_at)


def expiring(tx: Tx, node_id: str | None, by: Instant) -> list[tuple[str, Instant]]:
    rows = tx.rows("direct.expiring", node_id=node_id, by=by)
    return [(run_id, Instant(expires_at)) for run_id, expires_at in rows]


def active_reservation(tx: Tx, office_id: str) -> Reservation | None:
    row = tx.row("pages.active_reservation", office_id=office_id)
    return None if row is None else RESERVATIONS.value(row)


def counts(tx: Tx) -> dict[str, tuple[int, int]]:
    """Returns for each office how many callers wait and how many run."""
    return {office_id: (waiting, running) for office_id, waiting, running in tx.rows("pages.direct_counts")}


def next_instants(tx: Tx, node_id: str | None, now: Instant) -> tuple[Instant | None, Instant | None, Instant | None]:
    """Returns when the first caller's wait ends, when the first running work times out, and when the first reservation
    expires.
    """
    row = tx.row("direct.next_instants", node_id=node_id, now=now)
    assert row is not None
    return column_codec.instant(row[0]), column_codec.instant(row[1]), column_codec.instant(row[2])


def set_silent(tx: Tx, run_id: str, since: Instant | None) -> bool:
    """Stores since when running work is silent; None if it is not."""
    return tx.execute("direct.set_silent", run_id=run_id, since=since) == 1
