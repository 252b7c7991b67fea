"""A value is declared once: no other file of ours has its list of fields, and HTTP, Python and the client follow it."""

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from nextslot import domain
from nextslot.client import values
from nextslot.client.keyword_arguments import JobChanges
from nextslot.config import load
from nextslot.domain import NewJob, request_checks
from nextslot.domain.bounds import (
    MAX_SECONDS,
    Priority,
    Seconds,
    Text,
    Title,
)
from nextslot.domain.declared_values import declared
from nextslot.errors import Invalid
from nextslot.extensions.offices import office_words
from nextslot.scheduler.job_changes import CHANGEABLE
from nextslot.server import schemas
from nextslot.server.routes.jobs import ChangeBody
from nextslot.store import dialects
from nextslot.store.tables.rows import JOBS, RUNS
from nextslot.system.instant import Instant
from scripts import make_keyword_arguments

SRC = Path(__file__).parents[2] / "src/nextslot"
# Every value whose fields follow from one declaration.
DECLARED: tuple[Any, ...] = (
    domain.Job, domain.NewJob, domain.Run, domain.Group, domain.Direct, domain.Reservation, domain.Event,
    domain.Template, domain.Schedule, domain.Occurrence, domain.Webhook, domain.Attempt, domain.Delivery,
    domain.AuditEntry, domain.Office, domain.Key, domain.Node, domain.OfficeStatus, domain.Held, domain.RetryPolicy,
    office_words.Execution, office_words.OfficeJob,
)  # fmt: skip
# Lists that are still written out, by value and file; each one that goes is a line less here.
STILL_WRITTEN = {
    # The parts of an outcome, which a run, a caller's work and the executor's `Outcome` have alike.
    ("Run", "store/tables/column_codec.py"), ("Direct", "store/tables/column_codec.py"),
    ("Run", "store/statements/runs.sql"), ("Direct", "store/statements/runs.sql"),
    ("Run", "store/statements/runs.postgres.sql"), ("Direct", "store/statements/runs.postgres.sql"),
    ("Run", "store/statements/direct.sql"), ("Direct", "store/statements/direct.sql"),
    # Values that are made here, of what is known here.
    ("NewJob", "extensions/offices/office_words.py"),
    ("Occurrence", "engine/schedules/schedule_trigger.py"),
    ("Attempt", "engine/webhooks/delivery_worker.py"), ("AuditEntry", "engine/settings/audit_log.py"),
    ("Event", "store/tables/events.py"),
    # The table of the configuration: its own sentences, and 0 for no timeout.
    ("Office", "config/settings.py"),
    # Statements and rows of the store that are not derived.
    ("Attempt", "store/tables/deliveries.py"),
    ("Attempt", "store/statements/deliveries.sql"), ("Reservation", "store/statements/direct.sql"),
}  # fmt: skip
# Made by a script; the test below compares it.
MADE = {(kind, "client/keyword_arguments.py") for kind in ("Job", "NewJob", "Office", "Template")}
# So many fields that are declared one after the other, in their order and with little between them, are a list of them.
IN_A_ROW = 6


def lists_of(names: tuple[str, ...], source: str) -> bool:
    """Returns whether a text lists this many fields of a value in the order of their declaration."""
    place = {name: at for at, name in enumerate(names)}
    count, last = 0, -2  # Nothing comes before the first field.
    for word in re.findall(r"[a-z_]+(?=\s*(?::|=|,|\"|\n))", source):
        at = place.get(word)
        if at is not None and at == last + 1:
            count += 1
            if count + 1 >= IN_A_ROW:
                return True
        elif at is not None and at != last:
            count = 0
        last = last if at is None else at
    return False


def test_no_list_of_fields_is_written_twice() -> None:
    found = set()
    for kind in DECLARED:
        homes = {inspect.getfile(base) for base in kind.__mro__ if base.__module__.startswith("nextslot.")}
        names = tuple(one.name for one in declared(kind))
        for path in [*SRC.rglob("*.py"), *SRC.rglob("statements/*.sql"), *SRC.rglob("ext_*.sql")]:
            name = str(path.relative_to(SRC))
            if str(path) not in homes and lists_of(names, path.read_text()):
                found.add((kind.__name__, name))

    assert found == STILL_WRITTEN | MADE


def test_the_check_sees_a_list_of_fields() -> None:
    names = tuple(one.name for one in declared(domain.Run))

    assert lists_of(names, ",\n".join(f"{name}=row[{at}]" for at, name in enumerate(names)) + ",")
    assert not lists_of(names, "run_id, job_id, status")


def test_a_field_of_a_job_is_written_in_its_declaration_and_where_it_is_used() -> None:
    """75 places of 24 files before. Left are its declaration and its use, and other values that have such a field:
    types of jobs, commands, roles, direct executions."""
    of_a_job = {
        path.relative_to(SRC): len(re.findall(r"stall_timeout_seconds", path.read_text()))
        for path in SRC.rglob("*")
        if path.suffix in (".py", ".sql", ".js") and "stall_timeout_seconds" in path.read_text()
    }

    assert sum(of_a_job.values()) <= 43
    assert len(of_a_job) <= 21
    gone = (
        "representation.py",
        "server/schemas.py",
        "domain/request_checks.py",
        "engine/finish/bulk_actions.py",
    )
    assert not {str(path) for path in of_a_job} & set(gone)


def test_the_keywords_of_the_client_are_those_of_a_request() -> None:
    made = make_keyword_arguments.text()
    assert make_keyword_arguments.TARGET.read_text() == made, "run scripts/make_keyword_arguments.py"


def test_a_change_over_HTTP_and_by_the_client_has_the_fields_and_bounds_of_python() -> None:
    changed: dict[str, Any] = {
        **dict.fromkeys(CHANGEABLE),
        "params": {},
        "priority": 5,
        "urgent": False,
        "title": "t" * 2_000,
    }

    assert ChangeBody.model_validate(changed).given() == changed
    assert set(ChangeBody.model_fields) == set(JobChanges.__annotations__) == CHANGEABLE
    with pytest.raises(ValidationError):
        ChangeBody.model_validate({"title": "t" * 65_537})


@pytest.mark.parametrize(("table", "rows"), [("jobs", JOBS), ("runs", RUNS)])
def test_the_columns_of_a_statement_are_those_of_the_declaration(table: str, rows: Any) -> None:
    assert f"select {', '.join(rows.columns)} from {table} where" in dialects.statements()[f"{table}.get"]


def test_a_job_is_the_same_after_its_row() -> None:
    job = a_job(depends_on=("a", "b"), title="t", timeout_seconds=5.0, scheduled_for=Instant(7), is_turn=False)

    row = dict(zip(JOBS.new_columns, JOBS.new(job), strict=True)) | {"stage": "QUEUED", "aged_steps": 0}

    assert JOBS.value([row.get(name) for name in JOBS.columns]) == job


def test_what_a_job_shows_is_what_the_document_says_and_the_client_has() -> None:
    shown = a_job().to_dict()

    assert {*shown, "attempt"} == set(schemas.Job.model_fields)
    assert {*shown, "attempt", "json"} == {field.name for field in fields(values.Job)}
    schemas.Job.model_validate({**shown, "attempt": 1})
    assert values.Job.read({**shown, "attempt": 1}).to_dict() == {**shown, "attempt": 1}


@pytest.mark.parametrize(
    ("field", "kind", "wrong"),
    [("title", Title, ""), ("task_id", Text, "x" * 1001), ("title", Title, "\0"), ("role", Text, 7),
     ("timeout_seconds", Seconds, 0), ("stall_timeout_seconds", Seconds, MAX_SECONDS + 1),
     ("timeout_seconds", Seconds, "5"), ("timeout_seconds", Seconds, True), ("priority", Priority, 0.5),
     ("priority", Priority, 2_000_000)],
)  # fmt: skip
def test_python_and_HTTP_refuse_with_the_same_sentence(field: str, kind: Any, wrong: Any) -> None:
    (in_python,) = request_checks.problems(NewJob(job_type="work", **{field: wrong}), Instant(0))

    with pytest.raises(ValidationError) as by_http:
        schemas.JobBody.model_validate({"job_type": "work", field: wrong})
    with pytest.raises(ValidationError) as by_type:
        TypeAdapter(kind).validate_python(wrong)

    assert {error["msg"].removeprefix("Value error, ") for error in by_http.value.errors()} == {in_python.problem}
    assert {error["msg"].removeprefix("Value error, ") for error in by_type.value.errors()} == {in_python.problem}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [(0, "is 0; it must be a number of seconds above 0, at most 3,162,240,000"),
     ("a secret", "is text; it must be a number of seconds above 0, at most 3,162,240,000"),
     (True, "is true; it must be a number of seconds above 0, at most 3,162,240,000")],
)  # fmt: skip
def test_the_configuration_refuses_with_the_sentence_of_python(tmp_path: Path, wrong: Any, sentence: str) -> None:
    (in_python,) = request_checks.problems(NewJob(job_type="work", timeout_seconds=wrong), Instant(0))

    with pytest.raises(Invalid) as configured:
        load(tmp_path, environment={}, overrides={"limits.starvation_after_seconds": wrong})

    assert in_python.problem == sentence
    assert [one.problem for one in configured.value.problems] == [sentence]
    assert str(in_python) == f"timeout_seconds {sentence}"


def test_the_JSON_form_of_a_job_begins_with_what_a_reader_needs_first() -> None:
    shown = list(a_job(title="t").to_dict())

    assert shown[:5] == ["job_id", "job_type", "status", "office_id", "title"]
    assert JOBS.columns[:2] == ("job_id", "job_type")


def a_job(**given: Any) -> domain.Job:
    known: dict[str, Any] = {
        "job_id": "j", "chain_id": "j", "office_id": "default", "lane_id": 1, "job_type": "work", "params": {"x": [1]},
        "stage": domain.Stage.QUEUED, "priority": 0, "position": 1, "created_at": Instant(1), "queued_at": Instant(1),
        "retry_policy": domain.RetryPolicy(retry_on=(domain.FailureKind.ERROR,)), "resources": {"gpu": 1},
        "on_dependency_failure": domain.OnDependencyFailure.WAIT,
    }  # fmt: skip
    return domain.Job(**known | given)
