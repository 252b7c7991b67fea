"""Reads an office's jobs for the office API, one function for each statement of `ext_offices.sql`."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from nextslot.domain import FailureKind, Job, RunStatus
from nextslot.extension_api.host import Statements, Tx
from nextslot.extension_api.tables import column_codec, jobs
from nextslot.system.instant import Instant

from .office_words import RunFacts

SQL = Statements(Path(__file__).with_name("ext_offices.sql"))


class Sums(NamedTuple):
    """The sums behind an office's statistics: ready and running jobs; chains by how they ended."""

    ready: int
    running: int
    chains: int
    completed: int
    skipped: int
    failed: int
    cancelled: int
    completion_us: int


class RootPlace(NamedTuple):
    """The key of a chain in the list of its office by age."""

    created_at: int
    job_id: str


def sums(tx: Tx, office_id: str) -> Sums:
    (row,) = SQL.rows(tx, "sums", office_id=office_id)
    # PostgreSQL sums whole numbers as decimals.
    return Sums(*map(int, row))


def roots(tx: Tx, office_id: str, task_id: str | None, after: RootPlace, limit: int) -> list[RootPlace]:
    """Reads chains of an office, or of one of its tasks, oldest first."""
    values = {"office_id": office_id, "created_at": after.created_at, "job_id": after.job_id, "limit": limit}
    if task_id is None:
        rows = SQL.rows(tx, "roots", **values)
    else:
        rows = SQL.rows(tx, "roots_of_task", task_id=task_id, **values)
    return [RootPlace(created_at, job_id) for job_id, created_at in rows]


def failed(tx: Tx, office_id: str, after: str, limit: int) -> list[str]:
    return [row[0] for row in SQL.rows(tx, "failed", office_id=office_id, after=after, limit=limit)]


def cancelled(tx: Tx, office_id: str, after: str, limit: int) -> list[str]:
    return [row[0] for row in SQL.rows(tx, "cancelled", office_id=office_id, after=after, limit=limit)]


def later(tx: Tx, chain_ids: Iterable[str]) -> list[Job]:
    """Reads the retries of several chains, in no order."""
    return jobs.of_rows(SQL.rows(tx, "later", chain_ids=column_codec.key_set(chain_ids)))


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
        for row in SQL.rows(tx, "runs_of", job_ids=column_codec.key_set(job_ids))
    }


def unmet(tx: Tx, job_ids: Iterable[str]) -> list[tuple[str, str]]:
    """Reads pairs of a job and a chain that it waits for."""
    return [(job_id, chain_id) for job_id, chain_id in SQL.rows(tx, "unmet", job_ids=column_codec.key_set(job_ids))]
