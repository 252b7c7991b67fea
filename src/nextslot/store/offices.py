"""Offices: rows of settings, to values and back."""

from ..clock import Instant
from ..model import CancelMode, Office, OnDependencyFailure
from . import codec
from .store import Row, Tx


def insert(tx: Tx, office: Office) -> bool:
    return (
        tx.run("offices.insert", **_values(office), is_paused=int(office.is_paused), created_at=office.created_at) == 1
    )


def update(tx: Tx, office: Office) -> None:
    tx.run("offices.update", **_values(office))


def get(tx: Tx, office_id: str) -> Office | None:
    row = tx.row("offices.get", office_id=office_id)
    return None if row is None else _office(row)


def pause(tx: Tx, office_id: str, is_paused: bool) -> bool:
    return tx.run("offices.pause", office_id=office_id, is_paused=int(is_paused)) == 1


def _values(office: Office) -> dict[str, object]:
    return {
        "office_id": office.office_id,
        "name": office.name,
        "status": office.status,
        "max_concurrent_jobs": office.max_concurrent_jobs,
        "role_limits": codec.dumps(office.role_limits),
        "timeout_seconds": office.timeout_seconds,
        "retry_policy": codec.policy_text(office.retry_policy),
        "cancel_mode": office.cancel_mode,
        "on_dependency_failure": office.on_dependency_failure,
        "webhook": codec.optional(office.webhook),
    }


def _office(row: Row) -> Office:
    return Office(
        office_id=row[0],
        name=row[1],
        status=row[2],
        is_paused=row[3] == 1,
        max_concurrent_jobs=row[4],
        role_limits=codec.loads(row[5]),
        timeout_seconds=row[6],
        retry_policy=codec.policy(row[7]),
        cancel_mode=CancelMode(row[8]),
        on_dependency_failure=OnDependencyFailure(row[9]),
        webhook=codec.parsed(row[10]),
        created_at=Instant(row[11]),
    )
