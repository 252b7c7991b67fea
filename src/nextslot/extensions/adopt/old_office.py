"""Reads the database of the old office scheduler: its tables `job_queue` and `job_executions`.

`docs/adopting.md` describes the form. `job_executions` is known whole, `job_queue` in parts; the rest is assumed, and
the fixtures in `tests/extensions/adopt` have that form.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from graphlib import CycleError, TopologicalSorter
from typing import Any
from uuid import UUID

from nextslot.domain import FailureKind, Json, NewJob, Outcome, RunStatus
from nextslot.domain.job_lifecycle import CRASH_ERROR
from nextslot.errors import Invalid
from nextslot.extension_api.offline import other_database

from .old_work import RUNNING_THEN, Found, Left, NoZone, OldAttempt, OldJob, Reading, ordered, plain

JOBS, EXECUTIONS = "job_queue", "job_executions"
NEEDED = {
    JOBS: ("id", "office_id", "description", "status", "created_at"),
    EXECUTIONS: ("id", "job_id", "attempt", "started_at", "status"),
}
# Columns that this module reads, or that follow from columns that it reads.
READ = {
    JOBS: (
        *NEEDED[JOBS], "task_id", "role", "priority", "depends_on", "params", "timeout_ms", "retry_count", "updated_at",
        "started_at", "completed_at", "cancelled_at", "error_message",
    ),
    EXECUTIONS: (*NEEDED[EXECUTIONS], "timeout_at", "completed_at", "session_id", "error_message", "created_at"),
}  # fmt: skip
OPEN = ("pending", "ready")
STATUSES = (*OPEN, "processing", "done", "failed", "cancelled", "timeout")
MOST_IN_A_DESCRIPTION = 65_536


def read(address: str, reading: Reading) -> Found:
    found = Found()
    with other_database(address) as database:
        tables = database.tables()
        for table in NEEDED:
            _refuse_other_form(table, tables, reading, found)
        rows = [reading.renamed(row) for row in database.rows(JOBS)]
        executions: dict[str, list[dict[str, Any]]] = {}
        for row in database.rows(EXECUTIONS):
            one = reading.renamed(row)
            executions.setdefault(str(one["job_id"]), []).append(one)
    statuses = {str(row["id"]): str(row["status"]) for row in rows}
    jobs: dict[str, OldJob] = {}
    for row in rows:
        try:
            job = _job(row, executions.pop(str(row["id"]), []), statuses, reading)
            jobs[job.alias] = job
        except NoZone:
            raise
        except Invalid as error:
            found.left.append(Left(f"{JOBS}:{row['id']}", str(error)))
    for job_id in executions:
        found.left.append(Left(f"{EXECUTIONS} of {job_id}", f"its job is not in {JOBS}"))
    found.jobs += _in_order(jobs, found)
    return found


def _refuse_other_form(table: str, tables: Mapping[str, Sequence[str]], reading: Reading, found: Found) -> None:
    if table not in tables:
        there = ", ".join(tables) or "none"
        raise Invalid(f"the database has no table {table}, so it is not that of an office scheduler; it has: {there}")
    columns = [reading.names.get(name, name) for name in tables[table]]
    if missing := [name for name in NEEDED[table] if name not in columns]:
        raise Invalid(
            f"{table} has no column {', '.join(missing)}; it has: {', '.join(tables[table])}. "
            f"If one of these is meant, say so: --map ITS_NAME={missing[0]}"
        )
    if unknown := [name for name in columns if name not in READ[table]]:
        found.left.append(Left(table, f"columns that have no counterpart: {', '.join(unknown)}", is_part=True))


def _job(
    row: Mapping[str, Any], executions: Sequence[Mapping[str, Any]], statuses: Mapping[str, str], reading: Reading
) -> OldJob:
    status = str(row["status"])
    if status not in STATUSES:
        raise Invalid(f"its status is {status!r}; known are {', '.join(STATUSES)}")
    created = reading.time(row["created_at"])
    if created is None:
        raise Invalid("it has no created_at")
    attempts = _attempts(row, executions, status, reading)
    others = [str(one) for one in _list(row.get("depends_on"))]
    is_open = status in OPEN
    if is_open and (lost := [one for one in others if one not in statuses]):
        raise Invalid(f"it waits for {', '.join(lost)}, which {JOBS} does not have")
    cancelled = reading.time(row.get("cancelled_at") or row.get("completed_at") or row["created_at"])
    timeout_ms, params = row.get("timeout_ms"), _params(row.get("params"))
    tries = max(len(attempts) - 1, 0)
    return OldJob(
        alias=str(row["id"]),
        source=f"{JOBS}:{row['id']}",
        new=NewJob(
            job_type="session",
            office_id=str(row["office_id"]),
            params=params,
            title=plain(row["description"], MOST_IN_A_DESCRIPTION),
            role=plain(row.get("role")),
            task_id=plain(row.get("task_id")),
            # In the old system, lower goes first; in nextslot, higher.
            priority=-max(-999_999, min(999_999, int(row.get("priority") or 0))),
            timeout_seconds=None if timeout_ms is None else timeout_ms / 1000,
            retry_policy=None if is_open else {"max_attempts": tries},
        ),
        created_at=min([created, *(one.started_at for one in attempts[:1])]),
        attempts=tuple(attempts),
        cancelled_at=cancelled if status == "cancelled" else None,
        cancel_reason=plain(row.get("error_message"), 500),
        has_ended=not is_open,
        # An ended job did not wait for a failed one; the database would refuse such a dependency.
        depends_on=tuple(one for one in others if is_open or statuses.get(one) == "done"),
    )


def _attempts(
    row: Mapping[str, Any], executions: Sequence[Mapping[str, Any]], status: str, reading: Reading
) -> list[OldAttempt]:
    found: list[OldAttempt] = []
    last = reading.time(row["created_at"])
    for one in sorted(executions, key=lambda one: (one["attempt"], str(one["started_at"]))):
        times = [last, reading.time(one["started_at"]), reading.time(one.get("completed_at") or one.get("timeout_at"))]
        _, started, finished = ordered(times)
        outcome = _outcome(str(one["status"]), plain(one.get("error_message"), 4000))
        session_id = plain(one.get("session_id"), 100)
        found.append(
            OldAttempt(
                started_at=started,
                finished_at=started if str(one["status"]) == "running" else finished,
                outcome=outcome,
                alias=str(one["id"]),
                session_id=session_id,
            )
        )
        last = found[-1].finished_at
        if outcome.status is RunStatus.COMPLETED:
            break
    has_success = bool(found) and found[-1].outcome.status is RunStatus.COMPLETED
    if status in OPEN and has_success:
        raise Invalid(f"it is {status}, but an execution of it is completed")
    ends = {"done": "completed", "failed": "failed", "timeout": "timeout", "processing": "running"}
    if (status == "done" and not has_success) or (status in ends and not found):
        # If executions are missing or contradict the job, the job's own row says how the job ended.
        times = [last, reading.time(row.get("started_at")), reading.time(row.get("completed_at"))]
        _, started, finished = ordered(times)
        outcome = _outcome(ends[status], plain(row.get("error_message"), 4000))
        found.append(OldAttempt(started_at=started, finished_at=finished, outcome=outcome))
    return found


def _outcome(status: str, error: str | None) -> Outcome:
    match status:
        case "completed":
            return Outcome.completed()
        case "running":
            return Outcome.failed(FailureKind.CRASH, f"{CRASH_ERROR}: {RUNNING_THEN}")
        case "timeout":
            return Outcome.failed(FailureKind.TIMEOUT, error or "Job execution timed out")
        case "cancelled":
            return Outcome.failed(FailureKind.CANCELLED, error or "cancelled in the old system")
        case "failed":
            return Outcome.failed(FailureKind.SESSION_ERROR, error or "failed in the old system")
        case _:
            raise Invalid(f"the status of an execution is {status!r}")


def _list(value: object) -> list[Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise Invalid(f"depends_on is {value!r}; a list of ids is needed") from None
    if value is not None and not isinstance(value, list | tuple):
        raise Invalid(f"depends_on is {value!r}; a list of ids is needed")
    return list(value or ())


def _params(value: object) -> dict[str, Json]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = {"params": value}
    if value is None:
        return {}
    found = value if isinstance(value, dict) else {"params": value}
    loaded: dict[str, Json] = json.loads(json.dumps(found, default=_text))
    return loaded


def _text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value) if isinstance(value, UUID) else repr(value)


def _in_order(jobs: dict[str, OldJob], found: Found) -> list[OldJob]:
    """Orders jobs so that each comes after those that it depends on; leaves out those that wait for each other."""
    while True:
        ordering = sorted(jobs.values(), key=lambda job: (job.created_at, job.alias))
        sorter = TopologicalSorter({job.alias: [o for o in job.depends_on if o in jobs] for job in ordering})
        try:
            return [jobs[alias] for alias in sorter.static_order()]
        except CycleError as error:
            for alias in set(error.args[1]):
                job = jobs.pop(alias)
                found.left.append(Left(job.source, f"jobs wait for each other: {' → '.join(error.args[1])}"))
