"""Outages: resources that do not answer, one function per statement."""

from typing import NamedTuple

from nextslot.store.contract import Tx
from nextslot.system.instant import Instant

from . import column_codec


class Outage(NamedTuple):
    """A resource that has failed to answer. It is held once `held_since` is set."""

    resource: str
    failures: int
    held_since: Instant | None
    probe_at: Instant | None
    pause_seconds: float
    is_probed: bool
    # When its quota is renewed, if it is held for that reason; and how often in a row its quota was used up.
    quota_until: Instant | None
    quota_answers: int


def failed(tx: Tx, resource: str, first_pause: float) -> tuple[int, bool, float]:
    """Counts one more failure. Returns (failures in a row, whether the resource is held, its pause)."""
    row = tx.row("outages.failed", resource=resource, pause_seconds=first_pause)
    assert row is not None
    return row[0], row[1] is not None, row[2]


def hold(tx: Tx, resource: str, pause_seconds: float, now: Instant) -> None:
    probe_at = now.after(pause_seconds)
    tx.execute("outages.hold", resource=resource, now=now, probe_at=probe_at, pause_seconds=pause_seconds)


def answered(tx: Tx, resource: str) -> bool:
    """Stores that a resource answers. Returns whether it was held."""
    row = tx.row("outages.answered", resource=resource)
    return row is not None and row[0] is not None


def all_of_them(tx: Tx) -> list[Outage]:
    return [_outage(*row) for row in tx.rows("outages.all")]


def get(tx: Tx, resource: str) -> Outage | None:
    row = tx.row("outages.get", resource=resource)
    return None if row is None else _outage(*row)


def use_up(tx: Tx, resource: str, until: Instant, first_pause: float, now: Instant) -> Instant:
    """Stores that a resource's quota is used up. Returns when the hold ends; an earlier answer may have named a later
    instant.
    """
    row = tx.row("outages.use_up", resource=resource, until=until, pause_seconds=first_pause, now=now)
    assert row is not None
    return Instant(row[0])


def renew(tx: Tx, resource: str) -> None:
    """Ends the hold after a quota was renewed. The number of refusals in a row is kept until something succeeds."""
    tx.execute("outages.renew", resource=resource)


def forget(tx: Tx, resource: str) -> None:
    tx.execute("outages.forget", resource=resource)


def probe(tx: Tx, resource: str) -> bool:
    """Claims the right to try a resource. Returns False if another node or job has it."""
    return tx.execute("outages.probe", resource=resource) == 1


def forget_probes(tx: Tx) -> None:
    tx.execute("outages.forget_probes")


def next_probe(tx: Tx, now: Instant) -> Instant | None:
    row = tx.row("outages.next_probe", now=now)
    return column_codec.instant(row[0]) if row else None


def _outage(
    resource: str,
    failures: int,
    held_since: int | None,
    probe_at: int | None,
    pause_seconds: float,
    is_probed: int,
    quota_until: int | None,
    quota_answers: int,
) -> Outage:
    instant = column_codec.instant
    times = instant(held_since), instant(probe_at)
    return Outage(resource, failures, *times, pause_seconds, is_probed == 1, instant(quota_until), quota_answers)
