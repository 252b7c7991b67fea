"""What the old endpoints read: chains of the two old types, batches and research cards; one function a statement."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from nextslot.domain import Job, Json
from nextslot.extension_api.host import Row, Statements, Tx
from nextslot.extension_api.tables import column_codec, jobs, runs
from nextslot.system.instant import Instant

from .old_words import OldJob

SQL = Statements(Path(__file__).with_name("ext_legacy.sql"))


def page(tx: Tx, job_type: str | None, status: str | None, limit: int) -> list[OldJob]:
    """Reads chains, the newest first; of one type and one status, if given."""
    return _old_jobs(tx, SQL.rows(tx, "page", job_type=job_type or "", status=status or "", limit=limit))


def total(tx: Tx, job_type: str | None, status: str | None) -> int:
    if job_type is None and status is None:
        (row,) = SQL.rows(tx, "all")
    else:
        (row,) = SQL.rows(tx, "total", job_type=job_type or "", status=status or "")
    count: int = row[0]
    return count


def running(tx: Tx) -> list[OldJob]:
    return _old_jobs(tx, SQL.rows(tx, "running"))


def old_job(tx: Tx, job_id: str) -> OldJob | None:
    """Reads the chain of a job, which may be any job of it."""
    found = jobs.get(tx, job_id)
    return None if found is None else of_ends(tx, [_ends(jobs.chain(tx, found.chain_id))])[0]


def members(tx: Tx, group_id: str) -> list[OldJob]:
    """Reads the chains of a group, in their order."""
    places: dict[int | None, list[Job]] = {}
    for job in jobs.members(tx, group_id):
        places.setdefault(job.sequence, []).append(job)
    return of_ends(tx, [_ends(_in_line(chain)) for chain in places.values()])


def of_ends(tx: Tx, ends: Sequence[tuple[Job, Job]]) -> list[OldJob]:
    """Makes old jobs of chains, each of its first and its last job."""
    last = [job.job_id for _, job in ends]
    found = runs.of_rows(tx, SQL.rows(tx, "runs", job_ids=column_codec.key_set(last)))
    of_job = {run.job_id: run for run in found}
    told = (job.job_id for _, job in ends if job.webhook_status in ("pending", "failed"))
    reasons = undelivered(tx, told)
    return [OldJob(root, job, of_job.get(job.job_id), reasons.get(job.job_id)) for root, job in ends]


def undelivered(tx: Tx, job_ids: Iterable[str]) -> dict[str, str]:
    """Reads why the webhooks of jobs have not been delivered."""
    return dict(SQL.rows(tx, "undelivered", job_ids=column_codec.key_set(job_ids)))


def cards(tx: Tx, office_id: str, before: Instant, limit: int) -> list[Json]:
    """Reads the results of completed research of an office, the newest first."""
    rows = SQL.rows(tx, "cards", office_id=office_id, before=before, limit=limit)
    return [column_codec.loads(row[0]) for row in rows]


def _old_jobs(tx: Tx, ids: Sequence[Row]) -> list[OldJob]:
    found = jobs.get_many(tx, {one for pair in ids for one in pair})
    return of_ends(tx, [(found[root], found[last]) for root, last in ids])


def _ends(chain: Sequence[Job]) -> tuple[Job, Job]:
    return chain[0], chain[-1]


def _in_line(chain: Sequence[Job]) -> list[Job]:
    """Orders a chain by its links, because the clock may have stepped between its jobs."""
    following = {job.retry_of: job for job in chain}
    line = [following[None]]
    while line[-1].job_id in following:
        line.append(following[line[-1].job_id])
    return line
