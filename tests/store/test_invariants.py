"""The database itself refuses what the invariants forbid: every rule of the schema, attacked with plain SQL.

The file was written by a real scheduler that died while jobs ran. Each attack comes through a plain connection, as any
tool opens one (no foreign keys, no recursive triggers), and again with both on; and then on PostgreSQL, where the same
scheduler wrote a database. An attack is refused with its message, and everything is as it was before, to the last row.
"""

import asyncio
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import pytest

from nextslot import NewJob, Scheduler, testing
from nextslot.domain import RunStatus
from nextslot.errors import Refused
from nextslot.store.sqlite.sqlite_store import SqliteStore
from nextslot.store.tables import jobs
from nextslot.system.instant import Instant
from tests import databases, postgres
from tests.store import test_webhook_rules
from tests.support import database, named, register_handlers, running_scheduler

MOVES = "illegal move"
BORN = "a job is born QUEUED (spec 2.9)"
WITH_RUN = "no RUNNING job without its run (spec 2.10)"
AS_ITS_RUN = "a dispatched job ends with its run, as its run (spec 2.10)"
ENDS_ONCE = "what is written when a job starts or ends is written once"
FROZEN = "what a job was asked to do is frozen once it is dispatched or cancelled (INV-001, INV-005)"
AGED = "a job ages only while it is queued, and an urgent one not at all"
IDENTITY = "what a job is never changes"
REPLACED = "this job exists: it cannot be replaced"
FOLLOWS = "a retry follows a job of its own chain that failed or was cancelled (DEC-007)"
RUN_BORN = "a run begins unfinished, for a job that is QUEUED"
ONE_RUN = "a job has one run (DEC-001), and a run cannot be replaced"
RUN_IDENTITY = "what a run is never changes (INV-002)"
RUN_ONCE = "the outcome of a run is written once (INV-002)"
ARTIFACTS = "artifacts are only added (INV-002)"
EVENTS = "events are only appended"
FIRST_KEY = "the first key is an admin key, and a key cannot be replaced"
KEY_FIXED = "a key never changes"
LAST_ADMIN = "the last admin key cannot be deleted"
AUDIT = "the audit log is only appended to"
OCCURRENCES = "an occurrence is accounted for once"
OCCURRENCE_GROUP = "the job of an occurrence is of its group"
SCHEDULES = "a schedule cannot be replaced, and its name is given once in its office"
TEMPLATES = "a template cannot be replaced, and its name is given once"
TEMPLATE_IDENTITY = "what a template is never changes, and an archived one not at all"
SCHEDULE_IDENTITY = "what a schedule is never changes, and a deleted one not at all"
DIRECT_BORN = "a direct execution begins WAITING, and cannot be replaced"
DIRECT_MOVES = "illegal move of a direct execution"
DIRECT_ONCE = "what a direct execution is never changes, and how it ended is written once"
ONE_WORKER = "a worker runs one job at a time (INV-003)"
CHECK = "CHECK constraint failed: "
UNIQUE = "UNIQUE constraint failed: "
FOREIGN = "FOREIGN KEY constraint failed"
CONSTRAINTS = {
    CHECK: "violates check constraint",
    UNIQUE: "violates unique constraint",
    FOREIGN: "violates foreign key constraint",
    "NOT NULL constraint failed": "violates not-null constraint",
}
# Where two rules refuse the same, SQLite asks the newest first and PostgreSQL goes by their names.
ASKED_FIRST = {ONE_RUN: RUN_BORN, DIRECT_ONCE: DIRECT_MOVES, REPLACED: BORN}
# Only SQLite has ways round what is in the way; what remains of such an attack is tried all the same.
OR_ELSE = re.compile(r" or (?:ignore|replace)\b")

RESERVE = (
    "insert into reservations (reservation_id, run_id, office_id, reserved_at, reserved_by, expires_at, status) "
    "values (:id, :caller, :office, 1, 'caller', 2, 'ACTIVE')"
)
WAIT = (
    "insert into direct_executions (run_id, arrival, node_id, office_id, lane_id, job_type, params, status, "
    "is_detached, timeout_seconds, created_at, wait_until) "
    "values (:id, :arrival, 'local', 'default', 1, 'work', '{}', :status, 0, 1.0, 1, 2)"
)
JOIN = (
    "insert into nodes (node_id, life, status, is_draining, host, pid, version, max_running, resources, job_types, "
    "joined_at, renewed_at) values ('n', :life, 'live', 0, 'h', 1, '1', 0, '{}', '[]', 1, 1)"
)
BEGIN_RUN = "insert into runs (run_id, job_id, params_snapshot, started_at) values ('new', :queued, '{}', 1)"


@dataclass
class Attacked:
    """A connection to a file with jobs of every kind, whose ids are bound by their names: `:running`, `:failed` …"""

    connection: Any
    names: Mapping[str, str]

    def run(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        if self.is_postgres:
            sql = OR_ELSE.sub("", sql).replace("replace into", "insert into")
        rows: list[tuple[Any, ...]] = self.connection.execute(sql, {**self.names, **values}).fetchall()
        return rows

    @property
    def is_postgres(self) -> bool:
        return isinstance(self.connection, databases.Plain)

    def refuses(self, message: str, sql: str, **values: Any) -> None:
        before = contents(self.connection)

        there = self.spoken(message)
        if self.is_postgres and " or replace " in sql:
            there += f"|{CONSTRAINTS[UNIQUE]}"  # Nothing is replaced: what is in the way says so first.
        with pytest.raises(databases.REFUSALS, match=there):
            self.run(sql, **values)

        assert contents(self.connection) == before

    def refuses_in_a_transaction(self, begun: Sequence[str], message: str, sql: str, **values: Any) -> None:
        """Checks a refusal after other statements. The refusal ends the transaction, so nothing of it stays."""
        before = contents(self.connection)
        self.run("begin")
        for statement in begun:
            self.run(statement)

        with pytest.raises(databases.REFUSALS, match=self.spoken(message)):
            self.run(sql, **values)

        if self.connection.in_transaction:
            self.run("rollback")
        assert contents(self.connection) == before

    def copy(self, verb: str, table: str, source: str, **changes: str) -> str:
        """Returns SQL that inserts a copy of a row with some columns changed (to SQL expressions)."""
        columns = databases.columns(self.connection, table)
        chosen = ", ".join(changes.get(column, column) for column in columns)
        return f"{verb} into {table} ({', '.join(columns)}) select {chosen} from {table} where {source}"

    def spoken(self, message: str) -> str:
        """Returns a pattern for the message of a refusal: each database has its own words for constraints."""
        for words, there in CONSTRAINTS.items():
            if self.is_postgres and message.startswith(words):
                return there
        also = ASKED_FIRST.get(message) if self.is_postgres else None
        return re.escape(message) if also is None else f"{re.escape(message)}|{re.escape(also)}"


# Legal values and moves (spec 2.9).


@pytest.mark.parametrize("status", ["COMPLETED", "FAILED", "WAITING", "queued", ""])
def test_DEC_006_a_job_has_no_other_stage(db: Attacked, status: str) -> None:
    db.connection.execute("drop trigger job_moves")  # The rule speaks first; the CHECK stands behind it.

    db.refuses(CHECK + "stage in", "update jobs set stage = :status where job_id = :queued", status=status)


@pytest.mark.parametrize("name", ["running", "completed", "failed", "skipped", "cancelled", "interrupted"])
def test_spec_2_9_nothing_goes_back_to_QUEUED(db: Attacked, name: str) -> None:
    back = (
        "set stage = 'QUEUED', started_at = null, finished_at = null, outcome = null, decision = null, "
        "worker_id = null, cancelled_at = null, cancel_requested_at = null, cancel_mode = null, cancel_reason = null"
    )

    db.refuses(MOVES, f"update jobs set stage = 'QUEUED' where job_id = :{name}")
    db.refuses(MOVES, f"update or ignore jobs set stage = 'QUEUED' where job_id = :{name}")
    db.refuses(MOVES, f"update or replace jobs set stage = 'QUEUED' where job_id = :{name}")
    with pytest.raises(databases.REFUSALS):
        db.run(f"update jobs {back} where job_id = :{name}")


@pytest.mark.parametrize("name", ["cancelled", "interrupted"])
@pytest.mark.parametrize("status", ["QUEUED", "RUNNING"])
def test_spec_2_9_CANCELLED_is_the_end(db: Attacked, name: str, status: str) -> None:
    db.refuses(MOVES, f"update jobs set stage = :status where job_id = :{name}", status=status)


@pytest.mark.parametrize("name", ["completed", "failed", "skipped"])
def test_spec_2_9_a_finished_job_cannot_be_cancelled(db: Attacked, name: str) -> None:
    db.refuses(MOVES, f"update jobs set stage = 'CANCELLED' where job_id = :{name}")
    db.refuses(ENDS_ONCE, f"update jobs set stage = 'CANCELLED', cancelled_at = 1 where job_id = :{name}")


@pytest.mark.parametrize("name", ["running", "completed", "failed", "cancelled"])
@pytest.mark.parametrize("verb", ["insert", "insert or ignore", "insert or replace"])
def test_spec_2_9_a_job_is_born_QUEUED(db: Attacked, name: str, verb: str) -> None:
    born = db.copy(verb, "jobs", f"job_id = :{name}", job_id="'new'", chain_id="'new'", worker_id="null")

    db.refuses(BORN, born)


def test_spec_2_9_a_job_is_born_without_an_outcome(db: Attacked) -> None:
    born = db.copy("insert", "jobs", "job_id = :queued", job_id="'new'", chain_id="'new'", outcome="'COMPLETED'")

    db.refuses(BORN, born)


@pytest.mark.parametrize(
    ("column", "value"),
    [("started_at", 1), ("finished_at", 1), ("cancelled_at", 1), ("worker_id", "w"), ("outcome", "COMPLETED")],
)
def test_a_queued_job_has_neither_start_nor_end(db: Attacked, column: str, value: object) -> None:
    db.refuses(CHECK, f"update jobs set {column} = :value where job_id = :queued", value=value)


# RUNNING and its run (spec 2.10, spec 2.11, DEC-001).


def test_spec_2_10_no_RUNNING_without_a_run(db: Attacked) -> None:
    for verb in ("update", "update or ignore", "update or replace"):
        db.refuses(WITH_RUN, f"{verb} jobs set stage = 'RUNNING', started_at = 1 where job_id = :queued")


def test_a_RUNNING_job_has_started(db: Attacked) -> None:
    db.run(BEGIN_RUN)

    db.refuses(CHECK + "stage <> 'RUNNING'", "update jobs set stage = 'RUNNING' where job_id = :queued")


def test_spec_2_10_a_run_that_has_ended_does_not_make_a_job_RUNNING(db: Attacked) -> None:
    db.run(BEGIN_RUN)
    db.run("update runs set status = 'COMPLETED', finished_at = 1 where run_id = 'new'")

    db.refuses(WITH_RUN, "update jobs set stage = 'RUNNING', started_at = 1 where job_id = :queued")


def test_spec_2_10_a_job_does_not_end_while_its_run_goes_on(db: Attacked) -> None:
    db.refuses(AS_ITS_RUN, "update jobs set finished_at = 2, outcome = 'COMPLETED' where job_id = :running")
    db.refuses(
        AS_ITS_RUN,
        "update jobs set stage = 'CANCELLED', cancelled_at = 2, finished_at = 2, outcome = 'FAILED', "
        "decision = 'cancelled' where job_id = :running",
    )


def test_spec_2_10_a_job_does_not_start_and_end_in_one_move_past_its_run(db: Attacked) -> None:
    db.run(BEGIN_RUN)

    db.refuses(
        AS_ITS_RUN,
        "update jobs set stage = 'RUNNING', started_at = 1, finished_at = 2, outcome = 'COMPLETED' "
        "where job_id = :queued",
    )


def test_spec_2_10_a_job_with_a_run_is_not_cancelled_as_if_it_had_none(db: Attacked) -> None:
    db.run(BEGIN_RUN)

    db.refuses(
        AS_ITS_RUN, "update jobs set stage = 'CANCELLED', finished_at = 2, cancelled_at = 2 where job_id = :queued"
    )


@pytest.mark.parametrize("outcome", ["FAILED", "SKIPPED"])
def test_spec_2_10_a_job_ends_as_its_run_did(db: Attacked, outcome: str) -> None:
    db.run("update runs set status = 'COMPLETED', finished_at = 2 where job_id = :running")
    decision = "'permanent'" if outcome == "FAILED" else "null"

    db.refuses(
        AS_ITS_RUN,
        f"update jobs set finished_at = 2, outcome = :outcome, decision = {decision} where job_id = :running",
        outcome=outcome,
    )


def test_a_running_job_is_CANCELLED_only_by_an_interrupted_run(db: Attacked) -> None:
    db.run("update runs set status = 'FAILED', failure_kind = 'error', finished_at = 2 where job_id = :running")

    db.refuses(
        AS_ITS_RUN,
        "update jobs set stage = 'CANCELLED', cancelled_at = 2, finished_at = 2, outcome = 'FAILED', "
        "decision = 'cancelled' where job_id = :running",
    )


def test_a_cancelled_job_is_never_a_success(db: Attacked) -> None:
    db.run("update runs set status = 'COMPLETED', finished_at = 2 where job_id = :running")
    db.connection.execute("drop trigger job_ends_with_run")

    db.refuses(
        CHECK + "outcome is null or outcome = 'FAILED'",
        "update jobs set stage = 'CANCELLED', cancelled_at = 2, finished_at = 2, outcome = 'COMPLETED' "
        "where job_id = :running",
    )


def test_a_job_cancelled_in_the_queue_gets_no_start_and_no_outcome(db: Attacked) -> None:
    db.refuses(ENDS_ONCE, "update jobs set outcome = 'COMPLETED' where job_id = :cancelled")
    db.refuses(ENDS_ONCE, "update jobs set started_at = 1 where job_id = :cancelled")
    db.refuses(ENDS_ONCE, "update jobs set worker_id = 'w' where job_id = :cancelled")


def test_a_cancel_ends_the_job(db: Attacked) -> None:
    db.refuses(CHECK, "update jobs set stage = 'CANCELLED' where job_id = :queued")
    db.refuses(CHECK, "update jobs set stage = 'CANCELLED', finished_at = 1 where job_id = :queued")


@pytest.mark.parametrize("status", ["COMPLETED", "FAILED", "SKIPPED"])
def test_a_run_is_born_unfinished(db: Attacked, status: str) -> None:
    run = "insert into runs (run_id, job_id, params_snapshot, started_at, finished_at, status) "

    db.refuses(RUN_BORN, run + "values ('new', :queued, '{}', 1, 2, :status)", status=status)


def test_DEC_001_a_job_that_is_not_QUEUED_gets_no_run(db: Attacked) -> None:
    run = BEGIN_RUN.replace(":queued", ":cancelled")

    db.refuses(RUN_BORN, run)
    db.refuses(RUN_BORN, run.replace("insert", "insert or replace"))


@pytest.mark.parametrize("name", ["running", "completed", "failed", "interrupted"])
def test_DEC_001_a_job_that_was_dispatched_gets_no_second_run(db: Attacked, name: str) -> None:
    run = BEGIN_RUN.replace(":queued", f":{name}")

    db.refuses(ONE_RUN, run)
    db.refuses(ONE_RUN, run.replace("insert", "insert or replace"))


@pytest.mark.parametrize("verb", ["insert", "insert or ignore", "insert or replace"])
def test_DEC_001_a_job_has_one_run(db: Attacked, verb: str) -> None:
    db.run(BEGIN_RUN)

    db.refuses(ONE_RUN, BEGIN_RUN.replace("insert", verb).replace("'new'", "'second'"))
    db.refuses(ONE_RUN, BEGIN_RUN.replace("insert", verb).replace(":queued", ":other_queued"))


def test_spec_2_11_no_run_without_a_job(db: Attacked) -> None:
    db.refuses(RUN_BORN, BEGIN_RUN.replace(":queued", "'nobody'"))


# Written once.


@pytest.mark.parametrize("name", ["running", "completed", "failed", "cancelled", "interrupted"])
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("params", '{"other":1}'),
        ("priority", 77),
        ("position", 77),
        ("resources", '{"gpu":1}'),
        ("lane_id", 77),
        ("timeout_seconds", 7.7),
        ("stall_timeout_seconds", 7.7),
        ("retry_policy", "{}"),
        ("webhook", "{}"),
    ],
)
def test_INV_001_what_a_job_was_asked_to_do_is_frozen_after_dispatch(
    db: Attacked, name: str, column: str, value: object
) -> None:
    db.refuses(FROZEN, f"update jobs set {column} = :value where job_id = :{name}", value=value)


def test_INV_001_params_cannot_change_in_the_very_move_that_ends_a_job(db: Attacked) -> None:
    db.run("update runs set status = 'COMPLETED', finished_at = 2 where job_id = :running")

    db.refuses(FROZEN, "update jobs set params = '[]', finished_at = 2, outcome = 'COMPLETED' where job_id = :running")


def test_a_job_waits_for_a_signal_only_before_it_starts_and_is_answered_once(db: Attacked) -> None:
    refused = "a job waits for a signal only before it starts, and is answered once"

    for name in ("queued", "running", "completed"):
        db.refuses(refused, f"update jobs set is_awaiting = 1 where job_id = :{name}")


def test_an_answer_does_not_change_and_stays_with_its_job(db: Attacked) -> None:
    db.run("insert into signals select chain_id, 'go', 1, job_id, null, 'approve', null, 'ada', 1 from jobs "
           "where job_id = :queued")  # fmt: skip
    refused = "an answer does not change; only a kept one gets its job"

    db.refuses(refused, "update signals set answer = 'reject'")
    db.refuses(refused, "update signals set sent_by = 'eve'")
    db.refuses(refused, "update signals set sent_at = 2")
    db.refuses(refused, "update signals set job_id = null")
    db.refuses(refused, "update signals set job_id = :running")


@pytest.mark.parametrize("name", ["running", "completed", "cancelled"])
def test_a_job_ages_only_while_it_is_queued(db: Attacked, name: str) -> None:
    db.refuses(AGED, f"update jobs set aged_steps = 1 where job_id = :{name}")


def test_an_urgent_job_does_not_age(db: Attacked) -> None:
    db.refuses(AGED, "update jobs set priority = 1000000, aged_steps = 1 where job_id = :queued")
    db.refuses(CHECK + "aged_steps", "update jobs set aged_steps = -1 where job_id = :queued")


def test_nobody_writes_what_the_order_goes_by(db: Attacked) -> None:
    said = "can only be updated to DEFAULT" if db.is_postgres else "cannot UPDATE generated column"
    with pytest.raises(Exception, match=said):
        db.run("update jobs set order_priority = 7 where job_id = :queued")


@pytest.mark.parametrize("name", ["queued", "running", "completed"])
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("job_id", "new"),
        ("office_id", "elsewhere"),
        ("job_type", "fail"),
        ("template_id", "t"),
        ("schedule_id", "s"),
        ("group_id", "g"),
        ("sequence", 7),
        ("retry_of", "other"),
        ("chain_id", "other"),
        ("unique_key", "other"),
        ("created_at", 7),
        ("queued_at", 7),
    ],
)
def test_what_a_job_is_never_changes(db: Attacked, name: str, column: str, value: object) -> None:
    db.refuses(IDENTITY, f"update jobs set {column} = :value where job_id = :{name}", value=value)


@pytest.mark.parametrize("name", ["running", "completed", "interrupted"])
@pytest.mark.parametrize("value", [77, None])
def test_a_job_starts_once(db: Attacked, name: str, value: object) -> None:
    db.refuses(ENDS_ONCE, f"update jobs set started_at = :value where job_id = :{name}", value=value)
    db.refuses(ENDS_ONCE, f"update jobs set worker_id = :value where job_id = :{name}", value=value)


@pytest.mark.parametrize("name", ["completed", "failed", "skipped", "cancelled", "interrupted"])
@pytest.mark.parametrize(
    "change",
    [
        "finished_at = finished_at + 1",
        "finished_at = null",
        "outcome = case outcome when 'FAILED' then 'COMPLETED' else 'FAILED' end",
        "cancelled_at = coalesce(cancelled_at, 0) + 1",
        "cancel_requested_at = coalesce(cancel_requested_at, 0) + 1",
        "cancel_mode = case cancel_mode when 'finish' then 'interrupt' else 'finish' end",
        "cancel_reason = coalesce(cancel_reason, '') || '!'",
    ],
)
def test_a_job_ends_once(db: Attacked, name: str, change: str) -> None:
    db.refuses(ENDS_ONCE, f"update jobs set {change} where job_id = :{name}")


@pytest.mark.parametrize("decision", ["undecided", "permanent", "cancelled", None])
def test_what_follows_a_failure_is_decided_once(db: Attacked, decision: str | None) -> None:
    db.refuses(
        "what follows a failure is decided once",
        "update jobs set decision = :decision where job_id = :failed",
        decision=decision,
    )


@pytest.mark.parametrize("change", ["error_line = 'another'", "fingerprint = null", "fingerprint = 'another'"])
def test_the_error_of_a_job_is_written_once(db: Attacked, change: str) -> None:
    for verb in ("update", "update or replace"):
        db.refuses("the error of a job is written once", f"{verb} jobs set {change} where job_id = :failed")


@pytest.mark.parametrize("name", ["queued", "running", "completed", "cancelled"])
@pytest.mark.parametrize("decision", ["undecided", "retry", "permanent"])
def test_only_a_failure_has_a_decision(db: Attacked, name: str, decision: str) -> None:
    db.refuses(CHECK, f"update jobs set decision = :decision where job_id = :{name}", decision=decision)


def test_a_failure_never_lacks_its_mark_for_recovery(db: Attacked) -> None:
    db.run("update runs set status = 'FAILED', failure_kind = 'error', finished_at = 2 where job_id = :running")

    db.refuses(
        CHECK + "(decision is not null)",
        "update jobs set finished_at = 2, outcome = 'FAILED' where job_id = :running",
    )


@pytest.mark.parametrize("name", ["running", "completed"])
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("run_id", "new"),
        ("job_id", "other"),
        ("template_id", "t"),
        ("params_snapshot", "[]"),
        ("started_at", 7),
        ("timeout_at", 7),
    ],
)
def test_INV_002_what_a_run_is_never_changes(db: Attacked, name: str, column: str, value: object) -> None:
    for verb in ("update", "update or ignore", "update or replace"):
        db.refuses(RUN_IDENTITY, f"{verb} runs set {column} = :value where job_id = :{name}", value=value)


@pytest.mark.parametrize("name", ["completed", "failed", "skipped"])
@pytest.mark.parametrize(
    "change",
    [
        "status = null",
        "status = case status when 'FAILED' then 'COMPLETED' else 'FAILED' end",
        "finished_at = finished_at + 1",
        "exit_code = coalesce(exit_code, 0) + 1",
        "error = coalesce(error, '') || '!'",
        "failure_kind = case failure_kind when 'error' then 'crash' else 'error' end",
        "reason = coalesce(reason, '') || '!'",
        "result = coalesce(result, '') || '!'",
    ],
)
def test_INV_002_the_outcome_of_a_run_is_written_once(db: Attacked, name: str, change: str) -> None:
    for verb in ("update", "update or replace"):
        db.refuses(RUN_ONCE, f"{verb} runs set {change} where job_id = :{name}")


@pytest.mark.parametrize("column", ["log_path", "session_id"])
@pytest.mark.parametrize("name", ["running", "completed"])
def test_INV_002_the_log_and_the_session_of_a_run_are_written_once(db: Attacked, name: str, column: str) -> None:
    db.run(f"update runs set {column} = 'first' where job_id = :{name} and {column} is null")

    if (name, column) == ("running", "session_id"):  # A run that has not ended may continue an earlier session.
        db.run(f"update runs set {column} = 'second' where job_id = :{name}")
    else:
        db.refuses(RUN_ONCE, f"update runs set {column} = 'second' where job_id = :{name}")
    db.refuses(RUN_ONCE, f"update runs set {column} = null where job_id = :{name}")


def test_where_a_run_took_place_and_beside_whom_is_written_once(db: Attacked) -> None:
    company = "where a run took place, and beside whom, does not change"
    db.run("update runs set beside = 2 where job_id = :running and is_inside = 1")

    db.refuses(company, "update runs set beside = 0 where job_id = :running")
    db.refuses(company, "update runs set beside = null where job_id = :running")
    for name in ("running", "completed", "failed"):
        db.refuses(company, f"update runs set is_inside = 1 - is_inside where job_id = :{name}")
    db.refuses(company, "update runs set beside = 0 where job_id = :completed")
    db.refuses(CHECK, "insert into runs (run_id, job_id, params_snapshot, started_at, is_inside) "
               "values ('new', :queued, '{}', 1, 2)")  # fmt: skip
    db.refuses(CHECK, "insert into runs (run_id, job_id, params_snapshot, started_at, beside) "
               "values ('new', :queued, '{}', 1, -1)")  # fmt: skip


@pytest.mark.parametrize(
    ("column", "value"),
    [("exit_code", 0), ("error", "x"), ("failure_kind", "error"), ("reason", "x"), ("result", "1")],
)
def test_INV_002_a_run_has_no_outcome_before_its_end(db: Attacked, column: str, value: object) -> None:
    db.refuses(CHECK, f"update runs set {column} = :value where job_id = :running", value=value)


@pytest.mark.parametrize("status", ["QUEUED", "RUNNING", "CANCELLED", "done"])
def test_DEC_006_a_run_has_no_other_status(db: Attacked, status: str) -> None:
    db.refuses(CHECK + "status in", "update runs set status = :s, finished_at = 2 where job_id = :running", s=status)


def test_finished_at_is_set_if_and_only_if_a_run_has_ended(db: Attacked) -> None:
    db.refuses(CHECK + "(status is null)", "update runs set finished_at = 2 where job_id = :running")
    db.refuses(CHECK + "(status is null)", "update runs set status = 'COMPLETED' where job_id = :running")


def test_finished_at_is_set_if_and_only_if_a_job_has_ended(db: Attacked) -> None:
    db.run("update runs set status = 'COMPLETED', finished_at = 2 where job_id = :running")

    db.refuses(CHECK + "(outcome is not null)", "update jobs set outcome = 'COMPLETED' where job_id = :running")
    db.connection.execute("drop trigger job_ends_with_run")
    db.refuses(CHECK + "(outcome is not null)", "update jobs set finished_at = 2 where job_id = :running")


def test_a_job_has_no_other_outcome_or_decision(db: Attacked) -> None:
    db.run("update runs set status = 'FAILED', finished_at = 2 where job_id = :running")
    end = "update jobs set finished_at = 2, outcome = :outcome, decision = :decision where job_id = :running"

    db.refuses(CHECK + "decision in", end, outcome="FAILED", decision="maybe")
    db.connection.execute("drop trigger job_ends_with_run")
    db.refuses(CHECK + "outcome in", end, outcome="DONE", decision=None)


def test_only_a_failed_run_has_a_failure_kind(db: Attacked) -> None:
    ended = "update runs set status = 'COMPLETED', finished_at = 2, failure_kind = 'error' where job_id = :running"

    db.refuses(CHECK + "failure_kind is null", ended)


# One of a kind.


@pytest.mark.parametrize("verb", ["update", "update or ignore", "update or replace"])
def test_INV_003_a_worker_runs_one_job(db: Attacked, verb: str) -> None:
    db.run(BEGIN_RUN)
    [(worker_id,)] = db.run("select worker_id from jobs where job_id = :running")

    db.refuses(
        ONE_WORKER,
        f"{verb} jobs set stage = 'RUNNING', started_at = 1, worker_id = :w where job_id = :queued",
        w=worker_id,
    )


def test_INV_003_holds_in_maintenance_too(db: Attacked) -> None:
    db.run("begin")
    db.run("insert into maintenance values ('test', 1)")

    db.refuses(
        UNIQUE + "jobs.worker_id",
        db.copy("insert", "jobs", "job_id = :running", job_id="'new'", chain_id="'new'"),
    )


@pytest.mark.parametrize("verb", ["insert", "insert or replace"])
def test_a_chain_is_a_line(db: Attacked, verb: str) -> None:
    db.refuses(REPLACED, db.copy(verb, "jobs", "job_id = :retry", job_id="'new'"))


def test_a_chain_is_a_line_in_maintenance_too(db: Attacked) -> None:
    db.connection.execute("drop trigger job_inserted_once")

    db.refuses(UNIQUE + "jobs.retry_of", db.copy("insert", "jobs", "job_id = :retry", job_id="'new'"))


@pytest.mark.parametrize("name", ["queued", "running", "completed", "skipped"])
def test_DEC_007_only_a_failed_or_cancelled_job_is_retried(db: Attacked, name: str) -> None:
    retry = db.copy("insert", "jobs", "job_id = :retry", job_id="'new'", retry_of=f":{name}", chain_id=f":{name}")

    db.refuses(FOLLOWS, retry)


def test_DEC_007_a_retry_stays_in_its_chain(db: Attacked) -> None:
    changes = {"job_id": "'new'", "retry_of": ":cancelled"}

    db.refuses(FOLLOWS, db.copy("insert", "jobs", "job_id = :retry", chain_id=":failed", **changes))
    db.refuses(FOLLOWS, db.copy("insert", "jobs", "job_id = :retry", chain_id="'nobody'", **changes))


def test_a_chain_has_a_root_that_retries_nothing(db: Attacked) -> None:
    other_chain = db.copy("insert", "jobs", "job_id = :queued", job_id="'new'", chain_id=":cancelled")
    own_chain = db.copy("insert", "jobs", "job_id = :retry", job_id="'new'", retry_of=":cancelled", chain_id="'new'")

    db.refuses(CHECK + "(retry_of is null)", other_chain)
    db.connection.execute("drop trigger job_follows")
    db.refuses(CHECK + "(retry_of is null)", own_chain)


def test_a_job_is_not_its_own_retry(db: Attacked) -> None:
    db.connection.execute("drop trigger job_follows")

    db.refuses(
        CHECK + "retry_of is null or retry_of <> job_id",
        db.copy("insert", "jobs", "job_id = :retry", job_id="'new'", retry_of="'new'", chain_id=":failed"),
    )


@pytest.mark.parametrize("verb", ["insert", "insert or replace"])
def test_a_unique_key_is_held_until_its_job_has_ended(db: Attacked, verb: str) -> None:
    db.refuses(REPLACED, db.copy(verb, "jobs", "job_id = :keyed", job_id="'new'", chain_id="'new'"))


def test_the_index_of_unique_keys_stands_behind_the_rule(db: Attacked) -> None:
    db.connection.execute("drop trigger job_inserted_once")

    db.refuses(
        UNIQUE + "jobs.office_id, jobs.unique_key",
        db.copy("insert", "jobs", "job_id = :keyed", job_id="'new'", chain_id="'new'"),
    )


def test_a_unique_key_cannot_be_taken_over(db: Attacked) -> None:
    for verb in ("update", "update or replace"):
        db.refuses(IDENTITY, f"{verb} jobs set unique_key = 'key' where job_id = :queued")


@pytest.mark.parametrize("verb", ["insert", "insert or replace"])
def test_spec_11_3_an_office_has_one_ACTIVE_reservation(db: Attacked, verb: str) -> None:
    reserve = RESERVE.replace("insert", verb)
    reserved(db, "first", "default", reserve)
    reserved(db, "elsewhere", "elsewhere", reserve)

    for id_, office in (("second", "default"), ("first", "third")):
        db.refuses("a reservation cannot be replaced", reserve, id=id_, office=office, caller="first")


@pytest.mark.parametrize("caller", [None, "nobody", "ended"])
def test_spec_11_3_a_reservation_is_made_for_a_caller_that_waits(db: Attacked, caller: str | None) -> None:
    db.run(WAIT, id="ended", arrival=1, status="WAITING")
    db.run("update direct_executions set status = 'CANCELLED', finished_at = 2")

    rule = "a reservation is made for a direct execution that waits"
    db.refuses(rule, RESERVE, id="first", office="default", caller=caller)


def test_spec_11_3_the_index_stands_behind_the_rule(db: Attacked) -> None:
    db.connection.execute("drop trigger reservation_inserted_once")
    reserved(db, "first", "default")

    db.refuses(UNIQUE, RESERVE, id="second", office="default", caller="first")


def test_spec_11_3_a_reservation_has_no_other_status(db: Attacked) -> None:
    reserved(db, "first", "default")

    db.refuses(CHECK + "status in", "update reservations set status = 'LOST'")


@pytest.mark.parametrize("ended", ["RELEASED", "EXPIRED"])
def test_spec_11_3_a_reservation_is_not_revived(db: Attacked, ended: str) -> None:
    reserved(db, "first", "default")
    db.run("update reservations set status = :ended", ended=ended)

    for verb in ("update", "update or replace"):
        for status in {"ACTIVE", "RELEASED", "EXPIRED"} - {ended}:
            db.refuses("stays so (spec 11.3)", f"{verb} reservations set status = :status", status=status)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("reservation_id", "second"),
        ("office_id", "elsewhere"),
        ("reserved_at", 7),
        ("reserved_by", "another"),
        ("run_id", None),
    ],
)
def test_spec_11_3_a_reservation_stays_with_its_holder(db: Attacked, column: str, value: object) -> None:
    reserved(db, "first", "default")
    reserved(db, "second", "elsewhere")
    change = f"reservations set {column} = :value where reservation_id = 'first'"

    db.refuses("what a reservation is never changes", "update " + change, value=value)
    db.refuses("what a reservation is never changes", "update or replace " + change, value=value)


@pytest.mark.parametrize("verb", ["insert", "insert or replace"])
def test_DEC_004_a_direct_execution_begins_WAITING_and_is_not_replaced(db: Attacked, verb: str) -> None:
    wait = WAIT.replace("insert", verb)
    db.run(wait, id="first", arrival=1, status="WAITING")

    for status in ("RUNNING", "COMPLETED", "FAILED", "SKIPPED", "CANCELLED"):
        db.refuses(DIRECT_BORN, wait, id="second", arrival=2, status=status)
    db.refuses(DIRECT_BORN, wait, id="first", arrival=2, status="WAITING")
    db.refuses(DIRECT_BORN, wait, id="second", arrival=1, status="WAITING")


@pytest.mark.parametrize("ended", ["COMPLETED", "FAILED", "SKIPPED"])
def test_DEC_004_a_direct_execution_waits_then_runs_then_ends(db: Attacked, ended: str) -> None:
    db.run(WAIT, id="first", arrival=1, status="WAITING")

    db.refuses(CHECK, "update direct_executions set status = 'RUNNING'")
    db.refuses(CHECK, "update direct_executions set started_at = 1")
    db.refuses(CHECK, "update direct_executions set is_detached = 2")
    for early in ("COMPLETED", "SKIPPED"):
        db.refuses(DIRECT_MOVES, "update direct_executions set status = :early", early=early)
    db.run("update direct_executions set status = 'RUNNING', started_at = 1")
    for back in ("WAITING", "CANCELLED"):
        db.refuses(DIRECT_MOVES, "update direct_executions set status = :back", back=back)
    db.refuses(CHECK, "update direct_executions set status = :ended", ended=ended)
    db.run("update direct_executions set status = :ended, finished_at = 2", ended=ended)
    for change in ("status = 'RUNNING', finished_at = null", "error = 'other'", "finished_at = 3", "result = '[]'"):
        db.refuses(DIRECT_ONCE, f"update direct_executions set {change}")


def test_DEC_004_a_direct_execution_has_no_other_status(db: Attacked) -> None:
    db.run(WAIT, id="first", arrival=1, status="WAITING")
    db.connection.execute("drop trigger direct_moves")

    db.refuses(CHECK + "status in", "update direct_executions set status = 'LOST', finished_at = 2")


@pytest.mark.parametrize(
    "change",
    ["run_id = 'other'", "node_id = 'other'", "arrival = 2", "office_id = 'elsewhere'", "job_type = 'x'",
     "params = '[]'", "created_at = 7"],
)  # fmt: skip
def test_DEC_004_what_a_direct_execution_is_never_changes(db: Attacked, change: str) -> None:
    db.run(WAIT, id="first", arrival=1, status="WAITING")
    db.run(WAIT, id="other", arrival=2, status="WAITING")

    for verb in ("update", "update or replace"):
        db.refuses(DIRECT_ONCE, f"{verb} direct_executions set {change} where run_id = 'first'")


@pytest.mark.parametrize("verb", ["insert", "insert or replace"])
def test_one_row_for_each_schedule_and_instant(db: Attacked, verb: str) -> None:
    db.run("insert into occurrences values (:schedule, 7, null, 1, 'skipped', 'missed', null, null, null)")
    again = f"{verb} into occurrences values (:schedule, 7, null, 1, 'fired', null, null, :queued, null)"

    db.refuses(OCCURRENCES, again)
    db.connection.execute("drop trigger occurrence_inserted_once")
    db.refuses(UNIQUE + "occurrences", again.replace(verb, "insert"))


@pytest.mark.parametrize(
    "change",
    [
        "schedule_id = 'other'",
        "instant = 8",
        "outcome = 'fired', reason = null, job_id = :queued",
        "reason = 'overlap'",
    ],
)
def test_what_became_of_an_occurrence_never_changes(db: Attacked, change: str) -> None:
    db.run("insert into occurrences values (:schedule, 7, null, 1, 'skipped', 'missed', null, null, null)")
    db.run("insert into occurrences values (:schedule, 8, null, 1, 'skipped', 'missed', null, null, null)")

    for verb in ("update", "update or replace"):
        db.refuses(OCCURRENCES, f"{verb} occurrences set {change} where instant = 7")


def test_an_occurrence_keeps_the_job_that_it_made(db: Attacked) -> None:
    db.run("insert into occurrences values (:schedule, 7, null, 1, 'fired', null, null, :queued, null)")

    db.refuses(OCCURRENCES, "update occurrences set job_id = :other_queued")


def test_an_occurrence_made_a_job_or_was_skipped_for_a_reason(db: Attacked) -> None:
    row = "insert into occurrences values (:schedule, 7, null, 1, "

    db.refuses(CHECK, row + "'fired', null, null, null, null)")
    db.refuses(CHECK, row + "'skipped', null, null, null, null)")
    db.refuses(CHECK, row + "'skipped', 'missed', null, :queued, null)")
    db.refuses(CHECK + "outcome in", row + "'lost', null, null, null, null)")
    db.refuses(CHECK + "count > 0", row.replace("1, ", "0, ") + "'skipped', 'missed', null, null, null)")


@pytest.mark.parametrize(("first", "last"), [(5, 10), (10, 15), (12, 13), (5, 25), (20, 25), (10, 20)])
def test_no_span_of_occurrences_covers_what_another_row_covers(db: Attacked, first: int, last: int) -> None:
    span = "insert into occurrences values (:schedule, :first, :last, 2, 'skipped', 'disabled', null, null, null)"
    db.run(span, first=10, last=20)

    db.refuses(OCCURRENCES, span, first=first, last=last)
    db.refuses(OCCURRENCES, span.replace(":last, 2", "null, 1"), first=15)
    db.run(span, first=1, last=9)
    db.run(span, first=21, last=22)


def test_a_span_has_an_end_and_a_count(db: Attacked) -> None:
    row = "insert into occurrences values (:schedule, 7, :until, :count, 'skipped', 'disabled', null, null, null)"

    for until, count in ((None, 2), (9, 1), (7, 2), (6, 2)):
        db.refuses(CHECK, row, until=until, count=count)
    db.refuses(CHECK + "reason in", row.replace("disabled", "lazy"), until=None, count=1)


def test_the_job_of_an_occurrence_is_of_its_group(db: Attacked) -> None:
    row = "insert into occurrences values (:schedule, 7, null, 1, 'fired', null, null, "

    db.refuses(OCCURRENCE_GROUP, row + ":member, null)")
    db.refuses(OCCURRENCE_GROUP, row + ":queued, :group)")
    db.refuses(CHECK, "insert into occurrences values (:schedule, 7, null, 1, 'skipped', 'missed', null, null, :group)")
    db.run(row + ":member, :group)")


# Templates and schedules.


def test_the_name_of_a_template_is_given_once_among_those_that_live(db: Attacked) -> None:
    second = db.copy("insert", "job_templates", "template_id = :template", template_id="'new'")

    db.refuses(TEMPLATES, second)
    db.refuses(TEMPLATES, second.replace("insert", "insert or replace"))
    for verb in ("update", "update or replace"):
        db.refuses(TEMPLATES, f"{verb} job_templates set name = 'gone' where template_id = :template")
    db.connection.execute("drop trigger template_inserted_once")
    db.refuses(UNIQUE + "job_templates.office_id, job_templates.name", second)


def test_the_name_of_a_schedule_is_given_once_in_its_office_among_those_that_live(db: Attacked) -> None:
    second = db.copy("insert", "schedules", "schedule_id = :schedule", schedule_id="'new'")
    db.run(db.copy("insert", "schedules", "schedule_id = :schedule", schedule_id="'other'", name="'other'"))

    db.refuses(SCHEDULES, second)
    db.refuses(SCHEDULES, second.replace("insert", "insert or replace"))
    renamed = (
        "schedules set name = (select name from schedules where schedule_id = :schedule) where schedule_id = 'other'"
    )
    for verb in ("update", "update or replace"):
        db.refuses(SCHEDULES, f"{verb} {renamed}")
    db.connection.execute("drop trigger schedule_inserted_once")
    db.refuses(UNIQUE + "schedules.office_id, schedules.name", second)


@pytest.mark.parametrize("change", ["template_id = 'new'", "created_at = 7"])
def test_what_a_template_is_never_changes(db: Attacked, change: str) -> None:
    db.refuses(TEMPLATE_IDENTITY, f"update job_templates set {change} where template_id = :template")
    db.run("update job_templates set archived_at = 7 where template_id = :template")
    db.refuses(TEMPLATE_IDENTITY, "update job_templates set archived_at = null where template_id = :template")


@pytest.mark.parametrize("change", ["schedule_id = 'new'", "created_at = 7"])
def test_what_a_schedule_is_never_changes(db: Attacked, change: str) -> None:
    db.refuses(SCHEDULE_IDENTITY, f"update schedules set {change}")
    db.run("update schedules set deleted_at = 7")
    db.refuses(SCHEDULE_IDENTITY, "update schedules set deleted_at = null")


@pytest.mark.parametrize(
    "change",
    ["next_trigger_at = accounted_until + 1", "enabled = 1, next_trigger_at = accounted_until", "enabled = 2",
     "enabled = 1, deleted_at = 7", "catch_up = 'some'", "overlap = 'maybe'", "catch_up_window_seconds = -1.0",
     "priority = 1000001"],
)  # fmt: skip
def test_a_schedule_is_planned_ahead_while_it_is_enabled_and_only_then(db: Attacked, change: str) -> None:
    db.refuses(CHECK, f"update schedules set {change}")


# Only added.


def test_INV_002_artifacts_are_only_added(db: Attacked) -> None:
    insert = "insert into artifacts select run_id, 'a.md', 'there', 1 from runs where job_id = :completed"
    db.run(insert)

    db.refuses(ARTIFACTS, insert)
    db.refuses(ARTIFACTS, insert.replace("insert", "insert or replace").replace("there", "elsewhere"))
    db.refuses(ARTIFACTS, "update artifacts set size = 2")
    db.refuses(ARTIFACTS, "update or replace artifacts set path = 'elsewhere'")
    db.refuses(ARTIFACTS, "delete from artifacts")


def test_events_are_only_appended(db: Attacked) -> None:
    [(last,)] = db.run("select max(seq) from events")

    db.refuses(EVENTS, "update events set type = 'other'")
    db.refuses(EVENTS, "update or replace events set seq = 1 where seq = 2")
    db.refuses(EVENTS, "delete from events where seq = 1")
    for verb in ("insert", "insert or replace"):
        for seq in (1, last):
            db.refuses(EVENTS, db.copy(verb, "events", "seq = 2", seq=str(seq)))
    db.refuses(CHECK + "seq > 0", db.copy("insert", "events", "seq = 2", seq="-1"))


def test_the_number_of_an_event_is_never_given_again(db: Attacked) -> None:
    [(last,)] = db.run("select max(seq) from events")
    maintenance = "insert into maintenance values ('retention', 1)"

    db.refuses_in_a_transaction([maintenance], "the newest event is kept", "delete from events")

    db.run("begin")
    db.run(maintenance)
    db.run("delete from events where seq < :last", last=last)
    db.run("insert into events (type, details, timestamp) values ('new', '{}', 1)")
    assert db.run("select seq from events order by seq") == [(last,), (last + 1,)]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("jobs", "a job is never deleted outside maintenance"),
        ("runs", "a run is never deleted outside maintenance"),
        ("events", EVENTS),
        ("artifacts", ARTIFACTS),
        ("occurrences", OCCURRENCES),
        ("job_templates", "a template is archived, never deleted outside maintenance"),
        ("schedules", "a schedule is never deleted outside maintenance"),
        ("reservations", "a reservation is never deleted outside maintenance"),
        ("direct_executions", "a direct execution is never deleted outside maintenance"),
    ],
)
def test_history_is_not_deleted(db: Attacked, table: str, message: str) -> None:
    db.run("insert into artifacts select run_id, 'a.md', 'there', 1 from runs where job_id = :completed")
    db.run("insert into occurrences values (:schedule, 7, null, 1, 'skipped', 'missed', null, null, null)")
    reserved(db, "first", "default")
    db.run(WAIT, id="d", arrival=9, status="WAITING")

    db.refuses(message, f"delete from {table}")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("jobs", REPLACED),
        ("runs", ONE_RUN),
        ("artifacts", ARTIFACTS),
        ("occurrences", OCCURRENCES),
        ("job_templates", TEMPLATES),
        ("schedules", SCHEDULES),
        ("reservations", "a reservation cannot be replaced"),
        ("direct_executions", DIRECT_BORN),
        ("events", EVENTS),
    ],
)
def test_no_row_of_history_is_replaced_by_itself(db: Attacked, table: str, message: str) -> None:
    """Else OR REPLACE would delete a row and put another in its place, past every rule about changes."""
    db.run("insert into artifacts select run_id, 'a.md', 'there', 1 from runs where job_id = :completed")
    db.run("insert into occurrences values (:schedule, 7, null, 1, 'skipped', 'missed', null, null, null)")
    reserved(db, "first", "default")
    db.run(WAIT, id="d", arrival=9, status="WAITING")

    for verb in ("insert or replace", "replace"):
        db.refuses(message, db.copy(verb, table, "true"))


def test_a_queued_job_is_not_replaced(db: Attacked) -> None:
    for verb in ("insert or replace", "insert or ignore", "insert"):
        db.refuses(REPLACED, db.copy(verb, "jobs", "job_id = :queued", params="'[]'"))
    db.refuses(
        REPLACED,
        db.copy("insert", "jobs", "job_id = :queued") + " on conflict (job_id) do update set params = '[]'",
    )


# Counters and values.


@pytest.mark.parametrize(
    "change",
    [
        "lanes set ready = -1",
        "limits set used = -1",
        "limits set capacity = -1",
        "jobs set unmet = -1 where job_id = :queued",
        "offices set max_concurrent_jobs = -1",
        "job_groups set ended = -1",
        "job_groups set succeeded = -1",
        "job_groups set cancelled = -1",
        "job_groups set members = 0",
    ],
)
def test_a_counter_is_never_below_zero(db: Attacked, change: str) -> None:
    db.refuses(CHECK, f"update {change}")


@pytest.mark.parametrize(
    "change",
    [
        "jobs set priority = 1000001 where job_id = :queued",
        "jobs set priority = -1000000 where job_id = :queued",
        "jobs set is_due = 2 where job_id = :queued",
        "jobs set is_turn = 2 where job_id = :queued",
        "jobs set on_dependency_failure = 'ignore' where job_id = :queued",
        "jobs set webhook_status = 'sent' where job_id = :queued",
        "jobs set cancel_mode = 'kill' where job_id = :running",
        "lanes set is_open = 2",
        "offices set is_paused = 2",
        "offices set status = 'gone'",
        "offices set cancel_mode = 'kill'",
        "offices set on_dependency_failure = 'ignore'",
        "job_groups set mode = 'random'",
        "job_groups set on_failure = 'explode'",
        "job_groups set status = 'FAILED'",
        "dependencies set is_met = 2",
    ],
)
def test_a_value_outside_its_range_is_refused(db: Attacked, change: str) -> None:
    db.refuses(CHECK, f"update {change}")


def test_a_job_has_a_place_in_its_group_if_and_only_if_it_has_one(db: Attacked) -> None:
    new = {"job_id": "'new'", "chain_id": "'new'"}

    db.refuses(CHECK + "(group_id is null)", db.copy("insert", "jobs", "job_id = :queued", sequence="1", **new))
    db.refuses(CHECK + "(group_id is null)", db.copy("insert", "jobs", "job_id = :member", sequence="null", **new))


def test_INV_006_a_group_is_not_over_before_all_its_members(db: Attacked) -> None:
    db.refuses(CHECK, "update job_groups set status = 'COMPLETED', finished_at = 1")
    db.refuses(CHECK, "update job_groups set status = 'COMPLETED', ended = members, succeeded = members")
    db.refuses(CHECK, "update job_groups set ended = members + 1")
    db.refuses(CHECK, "update job_groups set succeeded = ended + 1")
    db.refuses(CHECK, "update job_groups set ended = 1, succeeded = 1, cancelled = 1")


def test_a_pause_is_of_something_known(db: Attacked) -> None:
    db.refuses(CHECK, "insert into pauses values ('planet', 'mars', 1)")


def test_an_outage_is_of_failures_and_is_probed_while_it_is_held(db: Attacked) -> None:
    outage = "insert into outages (resource, failures, held_since, probe_at, pause_seconds, is_probed) values ('r', "

    db.refuses(CHECK, outage + "0, null, null, 1.0, 0)")
    db.refuses(CHECK, outage + "5, 1, null, 1.0, 0)")
    db.refuses(CHECK, outage + "5, null, 1, 1.0, 0)")
    db.refuses(CHECK, outage + "5, 1, 1, 1.0, 2)")


# What refers to something that is not there.


@pytest.mark.parametrize(
    "orphan",
    [
        "insert into dependencies (job_id, depends_on, chain_id, is_met) values (:queued, 'nobody', :queued, 0)",
        "insert into dependencies (job_id, depends_on, chain_id, is_met) values ('nobody', :queued, :queued, 0)",
        "insert into dependencies (job_id, depends_on, chain_id, is_met) values (:queued, :keyed, 'nobody', 0)",
        "update job_groups set office_id = 'nowhere'",
        "insert into artifacts values ('no run', 'a.md', 'there', 1)",
        *(
            f"insert into reservations values ('first', {caller}, '{office}', 1, 'caller', 2, 'RELEASED')"
            for caller, office in (("null", "nowhere"), ("'nobody'", "default"))
        ),
        "insert into occurrences values (:schedule, 7, null, 1, 'fired', null, null, 'nobody', null)",
        "insert into occurrences values ('nobody', 7, null, 1, 'skipped', 'missed', null, null, null)",
        "update schedules set template_id = 'nobody'",
        "update schedules set office_id = 'nowhere'",
        "update jobs set lane_id = 777 where job_id = :queued",
        "insert into lanes select 777, 'nowhere', job_type, resources, local, shared, class_key, 0, 0, 0, 0, 0, 0, 0, "
        "0, 0, 0, null, null, null from lanes limit 1",
        "delete from offices",
        "delete from lanes",
        "delete from job_groups",
        "insert or replace into lanes select 777, office_id, job_type, resources, local, shared, class_key, 0, 0, 0, "
        "0, 0, 0, 0, 0, 0, 0, null, null, null from lanes limit 1",
    ],
)
def test_no_row_refers_to_nothing(db: Attacked, orphan: str) -> None:
    db.connection.pragma("foreign_keys", True)

    db.refuses(FOREIGN, orphan)


@pytest.mark.parametrize("column", ["office_id", "lane_id", "group_id"])
def test_no_job_refers_to_nothing(db: Attacked, column: str) -> None:
    db.connection.pragma("foreign_keys", True)
    nothing = {"job_id": "'new'", "chain_id": "'new'", column: "777" if column == "lane_id" else "'nothing'"}

    db.refuses(FOREIGN, db.copy("insert", "jobs", "job_id = :member", **nothing))


def test_no_retry_follows_nothing(db: Attacked) -> None:
    db.connection.pragma("foreign_keys", True)
    db.connection.execute("drop trigger job_follows")
    changes = {"job_id": "'new'", "retry_of": "'nobody'", "chain_id": ":cancelled"}

    db.refuses(FOREIGN, db.copy("insert", "jobs", "job_id = :retry", **changes))


def test_spec_2_11_the_foreign_key_stands_behind_the_rule(db: Attacked) -> None:
    db.connection.pragma("foreign_keys", True)
    db.connection.execute("drop trigger run_born_running")

    db.refuses(FOREIGN, BEGIN_RUN.replace(":queued", "'nobody'"))


@pytest.mark.parametrize(("column", "value"), [("office_id", "'nowhere'"), ("lane_id", "777")])
def test_no_direct_execution_refers_to_nothing(db: Attacked, column: str, value: str) -> None:
    db.connection.pragma("foreign_keys", True)
    db.run(WAIT, id="first", arrival=1, status="WAITING")
    changes = {"run_id": "'second'", "arrival": "2", column: value}

    db.refuses(FOREIGN, db.copy("insert", "direct_executions", "run_id = 'first'", **changes))


# Maintenance.


def test_maintenance_lets_history_be_deleted_and_imported(db: Attacked) -> None:
    db.connection.pragma("foreign_keys", True)
    db.run("begin")
    db.run("insert into maintenance values ('retention', 1)")

    db.run("delete from runs where job_id = :completed")
    db.run("delete from jobs where job_id = :completed")
    db.run(db.copy("insert", "jobs", "job_id = :skipped", job_id="'new'", chain_id="'new'"))
    db.run("insert into runs select 'new', 'new', template_id, params_snapshot, status, started_at, timeout_at, "
           "finished_at, exit_code, error, failure_kind, reason, log_path, session_id, result, is_inside, beside, "
           "silent_since, devices, park, placement, began_at from runs where job_id = :skipped")  # fmt: skip
    db.run("delete from maintenance")
    db.run("commit")

    assert db.run("select job_id from jobs where job_id in ('new', :completed)") == [("new",)]


def test_maintenance_ends_with_its_transaction(db: Attacked) -> None:
    db.connection.pragma("foreign_keys", True)
    before = contents(db.connection)
    db.run("begin")
    db.run("insert into maintenance values ('forgotten', 1)")
    db.run("delete from runs where job_id = :completed")

    with pytest.raises(databases.REFUSALS, match=db.spoken(FOREIGN)):
        db.run("commit")

    db.run("rollback")
    assert contents(db.connection) == before


def test_maintenance_cannot_be_made_to_last(db: Attacked) -> None:
    db.refuses(CHECK + "never is null", "insert into never values (1)")
    db.refuses("NOT NULL constraint failed", "insert into never values (null)")
    db.refuses("NOT NULL constraint failed", "insert into maintenance values ('for ever', null)")


def test_maintenance_allows_no_change_of_what_is_there(db: Attacked) -> None:
    begun = ["insert into maintenance values ('test', 1)"]

    db.refuses_in_a_transaction(begun, MOVES, "update jobs set stage = 'QUEUED' where job_id = :running")
    db.refuses_in_a_transaction(begun, FROZEN, "update jobs set params = '[]' where job_id = :running")
    db.refuses_in_a_transaction(begun, RUN_ONCE, "update runs set error = 'other' where job_id = :failed")
    db.refuses_in_a_transaction(begun, EVENTS, "update events set type = 'other'")


def test_maintenance_left_on_by_a_plain_connection_ends_when_a_scheduler_opens_the_file(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "nextslot.db", lambda tx: None).abandon()
    plain = database(tmp_path)
    plain.execute("insert into maintenance values ('forgotten', 1)")

    SqliteStore(tmp_path / "nextslot.db", lambda tx: None).abandon()

    assert plain.execute("select * from maintenance").fetchall() == []


# While a scheduler has it open.


@pytest.mark.virtual_time
async def test_INV_002_the_deadline_of_a_run_moves_in_maintenance_only_and_only_while_it_runs(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=0)
        bounded = await scheduler.submit("work", {"seconds": 10}, timeout_seconds=600)
        endless = await scheduler.submit("work", {"seconds": 10})
        ended = await scheduler.submit("skip", timeout_seconds=600)
        await scheduler.wait(ended.job_id)
        ids = {"bounded": bounded.job_id, "endless": endless.job_id, "ended": ended.job_id}
        db, begun = Attacked(database(tmp_path), ids), ["insert into maintenance values ('the clock has stepped', 1)"]
        move = "update runs set timeout_at = timeout_at + 1 where job_id = "
        [(before,)] = db.run("select timeout_at from runs where job_id = :bounded")

        db.refuses(RUN_IDENTITY, move + ":bounded")
        for change in (
            move + ":ended",
            "update runs set timeout_at = null where job_id = :bounded",
            "update runs set timeout_at = 7 where job_id = :endless",
            "update runs set timeout_at = timeout_at + 1, started_at = started_at + 1 where job_id = :bounded",
        ):
            db.refuses_in_a_transaction(begun, RUN_IDENTITY, change)

        for statement in ("begin", *begun, move + ":bounded", "delete from maintenance", "commit"):
            db.run(statement)
        assert db.run("select timeout_at from runs where job_id = :bounded") == [(before + 1,)]


def test_spec_11_3_the_age_of_a_reservation_moves_in_maintenance_only_and_only_while_it_is_held(db: Attacked) -> None:
    begun = ["insert into maintenance values ('the clock has stepped', 1)"]
    move, rule = "update reservations set reserved_at = reserved_at + 1", "what a reservation is never changes"
    reserved(db, "held", "default")
    reserved(db, "released", "elsewhere")
    db.run("update reservations set status = 'RELEASED' where reservation_id = 'released'")

    db.refuses(rule, move + " where reservation_id = 'held'")
    db.refuses_in_a_transaction(begun, rule, move + ", reserved_by = 'another' where reservation_id = 'held'")
    db.refuses_in_a_transaction(begun, rule, move + " where reservation_id = 'released'")

    [(before,)] = db.run("select reserved_at from reservations where reservation_id = 'held'")
    for statement in ("begin", *begun, move + " where status = 'ACTIVE'", "delete from maintenance", "commit"):
        db.run(statement)
    assert db.run("select reserved_at from reservations where reservation_id = 'held'") == [(before + 1,)]


@pytest.mark.virtual_time
async def test_the_rules_hold_beside_a_running_scheduler(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", {"seconds": 10})
        await testing.settled()
        db = Attacked(database(tmp_path), {"job": job.job_id})

        db.refuses(MOVES, "update jobs set stage = 'QUEUED' where job_id = :job")
        db.refuses(FROZEN, "update jobs set params = '{}' where job_id = :job")
        db.refuses("a run is never deleted", "delete from runs")

        assert (await scheduler.wait(job.job_id)).status == "COMPLETED"


@pytest.mark.virtual_time
async def test_the_rules_hold_for_the_scheduler_itself(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", {"seconds": 10})
        await testing.settled()

        with pytest.raises(Refused, match=re.escape(AS_ITS_RUN)):
            await scheduler._access.write(lambda tx: jobs.succeed(tx, job.job_id, RunStatus.COMPLETED, Instant(1)))

        assert (await scheduler.wait(job.job_id)).status == "COMPLETED"


# Keys and the audit log.


def test_a_key_cannot_be_replaced(db: Attacked) -> None:
    for verb in ("insert", "insert or replace"):
        db.refuses(FIRST_KEY, db.copy(verb, "api_keys", "key_id = :reader", digest="'other'", scope="'operate'"))
        db.refuses(FIRST_KEY, db.copy(verb, "api_keys", "key_id = :reader", key_id="'other'", scope="'operate'"))


@pytest.mark.parametrize("scope", ["read", "submit", "operate"])
def test_the_first_key_is_an_admin_key(db: Attacked, scope: str) -> None:
    begun = ["insert into maintenance values ('test', 1)", "delete from api_keys", "delete from maintenance"]

    db.refuses_in_a_transaction(
        begun,
        FIRST_KEY,
        "insert into api_keys (key_id, name, digest, scope, created_at) values ('new', 'new', 'new', :scope, 1)",
        scope=scope,
    )


@pytest.mark.parametrize(
    "change",
    [
        "key_id = 'x'", "name = 'x'", "digest = 'x'", "scope = 'operate'", "office_id = 'elsewhere'",
        "created_by = 'x'", "created_at = 1",
    ],
)  # fmt: skip
def test_a_key_never_changes(db: Attacked, change: str) -> None:
    db.refuses(KEY_FIXED, f"update api_keys set {change} where key_id = :reader")


def test_the_last_admin_key_stays_and_an_admin_is_of_no_office(db: Attacked) -> None:
    an_admin = "'admin'"

    db.refuses(LAST_ADMIN, "delete from api_keys where key_id = :admin")
    db.refuses(LAST_ADMIN, "delete from api_keys")
    db.refuses(
        CHECK,
        db.copy(
            "insert", "api_keys", "key_id = :reader", key_id="'k'", digest="'d'", scope=an_admin, office_id="'third'"
        ),
    )
    db.run(db.copy("insert", "api_keys", "key_id = :admin", key_id="'second'", digest="'second'"))
    db.run("delete from api_keys where key_id = :admin")
    assert db.run("select key_id from api_keys where scope = 'admin'") == [("second",)]


def test_the_audit_log_is_only_appended_to(db: Attacked) -> None:
    db.refuses(AUDIT, "delete from audit")
    for change in ("audit_id = 'x'", "timestamp = 1", "actor = 'x'", "key_id = 'x'", "action = 'x'", "target = 'x'",
                   "office_id = 'x'", "details = '{}'"):  # fmt: skip
        db.refuses(AUDIT, f"update audit set {change}")
    for verb in ("insert", "insert or replace"):
        db.refuses(AUDIT, db.copy(verb, "audit", "audit_id = :entry", actor="'nobody'"))


@pytest.mark.parametrize("gone", ["left", "lost"])
def test_a_node_that_is_gone_comes_back_only_with_a_new_life(db: Attacked, gone: str) -> None:
    db.run(JOIN, life=2)
    db.run("update nodes set status = :gone, ended_at = 5 where node_id = 'n'", gone=gone)

    for verb in ("update", "update or replace"):
        for life in (1, 2):
            db.refuses(
                "comes back with a new life",
                f"{verb} nodes set status = 'live', ended_at = null, life = {life} where node_id = 'n'",
            )
    db.refuses(CHECK, "update nodes set status = 'live', life = 3 where node_id = 'n'")
    db.run("update nodes set status = 'live', ended_at = null, life = 3 where node_id = 'n'")


def test_every_rule_of_the_schema_is_attacked_here_or_in_a_file_of_its_own(db: Attacked) -> None:
    """A new rule wants a new attack: take one away and at least one attack must get through."""
    stored = "select tgname from pg_trigger where not tgisinternal"
    rules = {
        row[0] for row in db.run(stored if db.is_postgres else "select name from sqlite_schema where type = 'trigger'")
    }

    assert rules - test_webhook_rules.RULES == {
        "artifact_fixed", "artifact_inserted_once", "artifact_kept", "audit_fixed", "audit_inserted_once", "audit_kept",
        "direct_born_waiting", "direct_kept", "direct_moves", "direct_written_once", "event_fixed",
        "event_inserted_once", "event_kept", "event_newest_kept", "job_ages_in_queue", "job_born_queued",
        "job_decided_once",
        "job_ends_once", "job_ends_with_run", "job_error_fixed",
        "job_follows", "job_frozen", "job_identity", "job_inserted_once", "job_kept", "job_moves", "job_runs_with_run",
        "job_takes_free_worker", "job_waits_in_queue", "key_first_is_admin", "key_fixed", "key_last_admin",
        "node_comes_back_anew",
        "occurrence_fixed", "occurrence_inserted_once", "occurrence_kept", "occurrence_of_group",
        "schedule_identity", "schedule_inserted_once", "schedule_kept", "schedule_renamed", "template_identity",
        "template_inserted_once", "template_kept", "template_renamed", "template_stays",
        "reservation_has_caller", "reservation_identity", "reservation_inserted_once", "reservation_kept",
        "reservation_moves",
        "run_born_running", "run_company_kept", "run_identity", "run_inserted_once", "run_kept", "run_written_once",
        "signal_fixed",
    }  # fmt: skip


# Arrangement.


def reserved(db: Attacked, name: str, office_id: str, reserve: str = RESERVE) -> None:
    """Makes a waiting caller and its reservation."""
    [(arrivals,)] = db.run("select count(*) from direct_executions")
    db.run(WAIT.replace("'default'", ":office"), id=name, arrival=arrivals + 1, status="WAITING", office=office_id)
    db.run(reserve, id=name, office=office_id, caller=name)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Makes a file with jobs of every kind, as left by a scheduler that died while two of them ran."""
    directory = tmp_path_factory.mktemp("written")
    return directory / "nextslot.db", write_every_kind(directory, f"sqlite:///{directory}/nextslot.db")


@pytest.fixture(scope="module")
def written_there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """Makes the same on PostgreSQL. Returns the name of a database."""
    name = postgres.borrow()
    yield name, write_every_kind(tmp_path_factory.mktemp("written_there"), postgres.address(name))
    postgres.drop(name)


def write_every_kind(directory: Path, url: str) -> dict[str, str]:
    names: dict[str, str] = {}

    async def body() -> None:
        scheduler = testing.scheduler(directory, url=url)
        register_handlers(scheduler)
        await scheduler.start()
        await scheduler.offices.create("elsewhere")
        await scheduler.offices.create("third")
        await scheduler.offices.change("default", max_concurrent_jobs=0)
        names.update(await submit_every_kind(scheduler))
        await testing.crash(scheduler)

    testing.run(body())
    return names


async def submit_every_kind(scheduler: Scheduler) -> dict[str, str]:
    later = Instant(4_000_000_000_000_000)
    names = {
        "completed": (await scheduler.submit("work", {"seconds": 1, "answer": 42})).job_id,
        "failed": (await scheduler.submit("fail", retry_policy={"base_delay_seconds": 100_000})).job_id,
        "skipped": (await scheduler.submit("skip")).job_id,
        "cancelled": (await scheduler.submit("work", scheduled_for=later)).job_id,
        "interrupted": (await scheduler.submit("work", {"seconds": 1_000_000})).job_id,
        "running": (await scheduler.submit("work", {"seconds": 1_000_000})).job_id,
        "other_running": (await scheduler.submit("work", {"seconds": 1_000_000})).job_id,
    }
    await asyncio.sleep(10)
    await scheduler.cancel(names["cancelled"])
    await scheduler.cancel(names["interrupted"], interrupt=True)
    await asyncio.sleep(10)
    await scheduler.pause()
    names["retry"] = (await scheduler.chain(names["failed"]))[1].job_id
    names["queued"] = (await scheduler.submit("work")).job_id
    names["other_queued"] = (await scheduler.submit("work", depends_on=[names["queued"]])).job_id
    names["keyed"] = (await scheduler.submit("work", unique_key="key")).job_id
    group, members = await scheduler.submit_group([NewJob(job_type="work"), NewJob(job_type="work")])
    names["group"] = group.group_id
    template = await scheduler.templates.create(name="template", job_type="work")
    await scheduler.templates.create(name="gone", job_type="work")
    names["template"] = template.template_id
    schedule = await scheduler.schedules.create(
        name="schedule", template_id=template.template_id, cron_expression="@yearly", enabled=False
    )
    names["entry"], names["admin"], names["reader"] = await make_keys(scheduler)
    return {**names, "member": members[0].job_id, "schedule": schedule.schedule_id}


async def make_keys(scheduler: Scheduler) -> tuple[str, str, str]:
    """Makes an entry of the audit log, an admin key, and another key."""
    admin, _ = await named(scheduler, "me").keys.create("admin", ["admin"])
    reader, _ = await scheduler.keys.create("reader", ["read"])
    (entry,) = (await scheduler.lists.audit()).items
    return entry.audit_id, admin.key_id, reader.key_id


@pytest.fixture(params=["plain", "strict", "postgres"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Attacked]:
    if request.param == "postgres":
        name, names = request.getfixturevalue("written_there")
        there = databases.Plain(postgres.address(name), keeps_nothing=True)
        yield Attacked(there, names)
        there.close()
        return
    path, names = request.getfixturevalue("written")
    connection = apsw.Connection(str(shutil.copy(path, tmp_path / "nextslot.db")))
    if request.param == "strict":
        connection.pragma("foreign_keys", True)
        connection.pragma("recursive_triggers", True)
    yield Attacked(connection, names)
    connection.close()


def contents(connection: Any) -> dict[str, list[tuple[Any, ...]]]:
    """Returns every row of every table."""
    if isinstance(connection, databases.Plain):
        tables = connection.execute("select tablename from pg_tables where schemaname = 'public'").fetchall()
        return {name: sorted(connection.execute(f"select * from {name}"), key=repr) for (name,) in tables}
    tables = connection.execute("select name from sqlite_schema where type = 'table'").fetchall()
    return {str(name): connection.execute(f"select * from {name}").fetchall() for (name,) in tables}
