"""Outages: resources that do not answer, one function a statement."""

from typing import NamedTuple

from nextslot.store.contract import Tx
from nextslot.system.instant import Instant

from . import column_codec


class Outage(NamedTuple):
    """A resource that has failed to answer; it is held once `held_since` is set."""

    resource: str
    failures: int
    held_since: Instant | None
    probe_at: Instant | None
    pause_seconds: float
    is_probed: bool


def failed(tx: Tx, resource: str, first_pause: float) -> tuple[int, bool, float]:
    """(failures in a row, whether it is held, its pause) after one more."""
    row = tx.row("outages.failed", resource=resource, pause_seconds=first_pause)
    assert row is not None
    return row[0], row[1] is not None, row[2]


def hold(tx: Tx, resource: str, pause_seconds: float, now: Instant) -> None:
    probe_at = now.after(pause_seconds)
    tx.execute("outages.hold", resource=resource, now=now, probe_at=probe_at, pause_seconds=pause_seconds)


def answered(tx: Tx, resource: str) -> bool:
    """It works; whether it had been held."""
    row = tx.row("outages.answered", resource=resource)
    return row is not None and row[0] is not None


def all_of_them(tx: Tx) -> list[Outage]:
    return [
        Outage(row[0], row[1], column_codec.instant(row[2]), column_codec.instant(row[3]), row[4], row[5] == 1)
        for row in tx.rows("outages.all")
    ]


def probe(tx: Tx, resource: str) -> bool:
    """Claims the right to try it; False if somebody else does."""
    return tx.execute("outages.probe", resource=resource) == 1


def forget_probes(tx: Tx) -> None:
    tx.execute("outages.forget_probes")


def next_probe(tx: Tx, now: Instant) -> Instant | None:
    row = tx.row("outages.next_probe", now=now)
    return column_codec.instant(row[0]) if row else None
