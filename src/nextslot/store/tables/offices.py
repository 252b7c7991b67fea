"""Offices: rows of settings, to values and back, one function a statement."""

from functools import lru_cache

from nextslot.domain import (
    CancelMode,
    Office,
    OnDependencyFailure,
)
from nextslot.store.contract import Row, Tx
from nextslot.system.instant import Instant

from . import column_codec
from .jobs import Place


class Touched:
    """Whether this transaction has written an office: who keeps something of offices in memory reads it again then."""

    def __init__(self, tx: Tx) -> None:
        self.is_touched = False


def insert(tx: Tx, office: Office) -> bool:
    tx.local(Touched).is_touched = True
    return (
        tx.execute("offices.insert", **_values(office), is_paused=int(office.is_paused), created_at=office.created_at)
        == 1
    )


def update(tx: Tx, office: Office) -> None:
    tx.local(Touched).is_touched = True
    tx.execute("offices.update", **_values(office))


def get(tx: Tx, office_id: str) -> Office | None:
    row = tx.row("offices.get", office_id=office_id)
    return None if row is None else _office(row)


def page(tx: Tx, after: str, limit: int) -> list[Office]:
    """By their ids, from one on."""
    return [_office(row) for row in tx.rows("pages.offices", after=after, limit=limit)]


def pause(tx: Tx, office_id: str, is_paused: bool) -> bool:
    return tx.execute("offices.pause", office_id=office_id, is_paused=int(is_paused)) == 1


def begin_aging(tx: Tx, office_id: str) -> None:
    """Lets `jobs.first_steps` begin at the front of the office's queue."""
    tx.execute("offices.begin_aging", office_id=office_id, aging_from="[]")


def aging(tx: Tx) -> tuple[str, float | None, Place | None] | None:
    """An office whose jobs are to get their first step: its id, its period, and the place after which they are."""
    row = tx.row("offices.aging")
    if row is None:
        return None
    place = column_codec.loads(row[2])
    return row[0], row[1], Place(*place) if place else None


def age_from(tx: Tx, office_id: str, place: Place | None) -> None:
    """Stores how far the jobs of an office have got their first step; None: all have."""
    tx.execute(
        "offices.age_from", office_id=office_id, aging_from=None if place is None else column_codec.dumps(list(place))
    )


def set_last_position(tx: Tx, office_id: str, position: int) -> None:
    tx.execute("offices.set_last_position", office_id=office_id, position=position)


def _values(office: Office) -> dict[str, object]:
    return {
        "office_id": office.office_id,
        "name": office.name,
        "status": office.status,
        "max_concurrent_jobs": office.max_concurrent_jobs,
        "role_limits": column_codec.dumps(office.role_limits),
        "timeout_seconds": office.timeout_seconds,
        "retry_policy": column_codec.policy_text(office.retry_policy),
        "cancel_mode": office.cancel_mode,
        "on_dependency_failure": office.on_dependency_failure,
        "webhook": column_codec.optional(office.webhook),
        "roles": column_codec.dumps(office.roles),
        "priority_aging_seconds": office.priority_aging_seconds,
    }


# Every request reads its office, and few offices are ever changed.
@lru_cache(maxsize=1024)
def _office(row: Row) -> Office:
    return Office(
        office_id=row[0],
        name=row[1],
        status=row[2],
        is_paused=row[3] == 1,
        max_concurrent_jobs=row[4],
        role_limits=column_codec.loads(row[5]),
        timeout_seconds=row[6],
        retry_policy=column_codec.policy(row[7]),
        cancel_mode=CancelMode(row[8]),
        on_dependency_failure=OnDependencyFailure(row[9]),
        webhook=column_codec.parsed(row[10]),
        created_at=Instant(row[11]),
        roles=column_codec.loads(row[12]),
        priority_aging_seconds=row[13],
    )
