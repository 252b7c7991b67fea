"""Offices: rows of settings, to values and back; and their jobs as an office lists them, one function a statement."""

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from nextslot.domain import (
    CancelMode,
    FailureKind,
    Job,
    Office,
    OnDependencyFailure,
    RunStatus,
)
from nextslot.extensions.offices.office_words import RunFacts
from nextslot.store.contract import Row, Tx
from nextslot.system.instant import Instant

from . import column_codec
from .jobs import of_rows


class Sums(NamedTuple):
    """What an office's statistics are made of: jobs that are ready and that run; chains begun, and how they ended."""

    ready: int
    running: int
    chains: int
    completed: int
    skipped: int
    failed: int
    cancelled: int
    completion_us: int


class RootPlace(NamedTuple):
    """Where a chain stands among those of its office, by age."""

    created_at: int
    job_id: str


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


def sums(tx: Tx, office_id: str) -> Sums:
    row = tx.row("offices.sums", office_id=office_id)
    assert row is not None
    # PostgreSQL sums whole numbers as decimals.
    return Sums(*map(int, row))


def roots(tx: Tx, office_id: str, task_id: str | None, after: RootPlace, limit: int) -> list[RootPlace]:
    """Chains of an office, or of one of its tasks, oldest first."""
    values = {"office_id": office_id, "created_at": after.created_at, "job_id": after.job_id, "limit": limit}
    if task_id is None:
        rows = tx.rows("offices.roots", **values)
    else:
        rows = tx.rows("offices.roots_of_task", task_id=task_id, **values)
    return [RootPlace(created_at, job_id) for job_id, created_at in rows]


def failed(tx: Tx, office_id: str, after: str, limit: int) -> list[str]:
    return [row[0] for row in tx.rows("offices.failed", office_id=office_id, after=after, limit=limit)]


def cancelled(tx: Tx, office_id: str, after: str, limit: int) -> list[str]:
    return [row[0] for row in tx.rows("offices.cancelled", office_id=office_id, after=after, limit=limit)]


def later(tx: Tx, chain_ids: Iterable[str]) -> list[Job]:
    """The retries of several chains, in no order."""
    return of_rows(tx.rows("offices.later", chain_ids=column_codec.key_set(chain_ids)))


def runs_of(tx: Tx, job_ids: Iterable[str]) -> dict[str, RunFacts]:
    return {
        row[0]: RunFacts(
            run_id=row[1],
            status=None if row[2] is None else RunStatus(row[2]),
            started_at=Instant(row[3]),
            timeout_at=column_codec.instant(row[4]),
            finished_at=column_codec.instant(row[5]),
            session_id=row[6],
            error=row[7],
            failure_kind=None if row[8] is None else FailureKind(row[8]),
        )
        for row in tx.rows("offices.runs_of", job_ids=column_codec.key_set(job_ids))
    }


def unmet(tx: Tx, job_ids: Iterable[str]) -> list[tuple[str, str]]:
    """(job, chain that it waits for)."""
    return [(job_id, chain_id) for job_id, chain_id in tx.rows("offices.unmet", job_ids=column_codec.key_set(job_ids))]


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
    )
