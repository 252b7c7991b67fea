"""docs/reference.md is complete: every name of the Python API is in it, with its real default, and no other."""

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from nextslot import (
    Ended,
    Event,
    Group,
    Job,
    NewJob,
    Office,
    RetryPolicy,
    Run,
    RunContext,
    Scheduler,
    errors,
)
from nextslot.domain import (
    CancelMode,
    Direct,
    Expected,
    FailureKind,
    Forecast,
    Outcome,
    Reason,
    Reservation,
    Why,
    default_office,
)
from nextslot.domain.events import EventType
from nextslot.domain.job_lifecycle import settle
from nextslot.engine.direct.connected_callers import Update
from nextslot.engine.direct.direct_requests import NewDirect
from nextslot.executors.job_type_catalog import Catalog
from nextslot.executors.job_types import JobType, NewJobTypeOptions
from nextslot.services.forecast import ForecastService
from nextslot.system.instant import Instant
from tests.support import running_scheduler

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference.md").read_text()

# The executor's side of a run: how it ends the run, receives its stop, and checks that it is alive.
NOT_FOR_HANDLERS = {
    "request_stop",
    "has_log",
    "is_slow_to_close",
    "has_artifacts",
    "close",
    "listen",
    "now",
    "last_active",
    "told_files",
    "keep",
    "keep_by",
    "earlier_session",
    "set_session",
    "keep_soon",
    "loop",
    "loop_thread",
    "on_activity",
    "wall_time",
    "note",
}


def test_every_method_of_the_scheduler_is_listed_with_its_parameters() -> None:
    assert listed_methods("Methods") == methods_of(Scheduler)


def test_every_way_to_add_a_job_type_is_listed_with_its_parameters() -> None:
    listed = listed_methods("Ways to add a job type")

    used_by_others = {
        "register",
        "get",
        "names",
        "has_session",
        "note",
        "runs_inside",
        "isolated",
        "placing",
        "is_placed",
    }
    used_by_others |= {"add_table", "prepared", "configure", "replace", "of_claim"}  # By the configuration of a server.
    assert listed == {
        name: parameters for name, parameters in methods_of(Catalog).items() if name not in used_by_others
    }


def test_every_method_of_the_forecast_is_listed_with_its_parameters() -> None:
    # `scheduler.dry_run` and `scheduler.expected_direct_start` call these two.
    assert listed_methods("Forecast") == {
        name: parameters
        for name, parameters in methods_of(ForecastService).items()
        if name not in ("dry_run", "start_of_direct")
    }


def test_every_option_of_the_scheduler_and_of_a_job_type_is_listed() -> None:
    options = {name for cells in table("Scheduler") for name in names(cells[0])}
    type_options = {name for cells in table("Job types") for name in names(cells[0])}

    assert options == parameters(Scheduler.__init__) - {"url"}
    derived = {"name", "handler", "is_async", "validator", "signature", "called_as"}
    assert type_options == ({field.name for field in fields(JobType)} | {"isolate"}) - derived
    # What type checkers know of them.
    assert type_options == {*NewJobTypeOptions.__annotations__, "isolate"}
    assert "isolate" in parameters(Catalog.add)


def test_everything_a_handler_may_use_of_its_run_is_listed() -> None:
    listed = {name.partition("(")[0] for cells in table("The run") for name in names(cells[0])}
    listed |= {"fraction", "text", "log_cap"}

    attributes = re.findall(r"self\.([a-z]\w*)(?::.*)? = ", inspect.getsource(RunContext.__init__))
    public = {name for name in dir(RunContext) if not name.startswith("_")}
    assert listed == (public | set(attributes)) - NOT_FOR_HANDLERS
    assert {"fraction", "text", "log_cap"} <= set(re.findall(r"`(\w+)`", section("The run")))


def test_every_field_of_a_job_is_listed_with_its_default() -> None:
    listed = {names(cells[0])[0]: cells[2] for cells in table("Job options")}

    assert listed == defaults(NewJob)


def test_every_field_of_a_direct_request_is_listed_with_its_default() -> None:
    listed = {names(cells[0])[0]: cells[2] for cells in table("Direct requests")}

    assert listed == defaults(NewDirect)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("params", []),
        ("office_id", 7),
        ("wait_timeout_seconds", None),
        ("timeout_seconds", 0),
        ("detach", "yes"),
        ("direct_id", 7),
        ("webhook", 7),
        ("created_by", "a\0b"),
    ],
)
async def test_every_field_of_a_direct_request_is_checked(tmp_path: Path, field: str, value: Any) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        with pytest.raises(errors.Invalid) as refused:
            await scheduler.run_direct(**{"job_type": "work", field: value})

        assert [problem.field for problem in refused.value.problems] == [field]


async def test_every_kind_of_update_that_a_direct_caller_hears_is_listed(tmp_path: Path) -> None:
    listed = dict.fromkeys(cells[0].strip("`") for cells in table("Updates"))

    async with running_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("talk")
        async def talk(run: RunContext) -> None:
            run.progress(0.5)
            run.log.info("hello")

        await scheduler.submit("work", {"seconds": 1})
        heard = [update async for update in scheduler.stream_direct("talk")]

        assert [update.kind for update in heard] == list(listed)


def test_every_field_of_a_retry_policy_is_listed_with_its_default() -> None:
    listed = {names(cells[0])[0]: cells[1] for cells in table("Retry policy")}

    assert listed == defaults(RetryPolicy)


def test_every_setting_of_an_office_is_listed_with_its_defaults() -> None:
    rows = {names(cells[0])[0]: (cells[1], cells[2]) for cells in table("Office settings")}

    now = Instant(0)
    new, first = Office(office_id="x", name="its id", created_at=now), default_office(now)
    settings = [field.name for field in fields(Office) if field.name not in ("office_id", "is_paused", "created_at")]
    assert rows == {name: (shown_setting(getattr(new, name)), shown_setting(getattr(first, name))) for name in settings}


@pytest.mark.parametrize(
    "value",
    [Job, Run, Group, Ended, Direct, Reservation, Update, Event, Why, Reason, Expected, Forecast],
    ids=lambda value: value.__name__,
)
def test_every_field_of_what_comes_back_is_listed(value: Any) -> None:
    row = next(cells[1] for cells in table("What you get back") if cells[0] == f"`{value.__name__}`")

    listed = set(re.findall(r"`(\w+)`", row))
    if value is Job:
        assert {"NewJob", "key", "urgent"} <= listed
        listed = listed - {"NewJob", "key", "urgent"} | {field.name for field in fields(NewJob)} - {"key", "urgent"}
    worked_out = {name for name, _ in inspect.getmembers(value, lambda member: isinstance(member, property))}
    nested = {"name", "path", "size"} if value in (Run, Direct) else set()
    own = {field.name for field in fields(value)}
    assert listed == own | worked_out | nested


def test_every_error_and_its_code_is_listed() -> None:
    listed = {tuple(cell.strip("`") for cell in cells[:2]) for cells in table("Errors")}

    classes = [
        error for _, error in inspect.getmembers(errors, inspect.isclass) if issubclass(error, errors.NextslotError)
    ]
    assert listed == {(error.__name__, error.code) for error in classes}


def test_every_type_of_event_that_the_code_emits_is_listed() -> None:
    listed = {cells[0].strip("`") for cells in table("Events")}

    assert listed == set(noted_types()) | set(settled_types())


def test_whoever_filters_events_can_ask_for_every_type_and_for_no_other() -> None:
    assert set(EventType) == set(noted_types()) | set(settled_types())


NOTING = ("note", "_note", "note_jobs")


def noted_types() -> Iterator[str]:
    """Returns the event types that the source passes to EventLog."""
    for path in (ROOT / "src/nextslot").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in NOTING and len(node.args) > 2:
                word = node.args[1]
                if isinstance(word, ast.IfExp):
                    yield from (one.value for one in (word.body, word.orelse))  # type: ignore[attr-defined]
                elif isinstance(word, ast.Constant):
                    yield word.value  # type: ignore[misc]
                elif isinstance(word, ast.JoinedStr):  # A reservation's event is named after how it ended.
                    assert ast.unparse(word) == "f'reservation_{status.lower()}'", path
                    yield from ("reservation_released", "reservation_expired")


def settled_types() -> Iterator[str]:
    """Returns the event types of every way in which a run can end."""
    outcomes = [Outcome.completed(), Outcome.skipped("")] + [Outcome.failed(kind, "") for kind in FailureKind]
    for outcome in outcomes:
        for mode in (None, *CancelMode):
            yield settle(RetryPolicy(), mode, outcome, (), 0).event_type


def listed_methods(heading: str) -> dict[str, list[str]]:
    listed = {}
    for cells in table(heading):
        name, parameters = re.fullmatch(r"`(\w+)\((.*)\)`", cells[0]).groups()  # type: ignore[union-attr]
        listed[name] = [part.strip("* ") for part in parameters.split(",") if part]
    return listed


def methods_of(kind: type) -> dict[str, list[str]]:
    return {
        name: [parameter for parameter in inspect.signature(method).parameters if parameter != "self"]
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def table(heading: str) -> list[list[str]]:
    """Returns the cells of the first table in a section."""
    rows = [line for line in section(heading).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split(" |")] for row in rows[2:]]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def parameters(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters) - {"self"}


def defaults(kind: Any) -> dict[str, str]:
    return {field.name: shown(default_of(field)) for field in fields(kind)}


def default_of(field: Any) -> object:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


def shown(value: object) -> str:
    """Returns a default as the page writes it."""
    if value is MISSING:
        return "required"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, (int, float)) else f"`{value}`"


def shown_setting(value: object) -> str:
    if isinstance(value, RetryPolicy):
        return f"{value.max_attempts} retries, base {value.base_delay_seconds:g}"
    if isinstance(value, dict):
        return ", ".join(f"{role} {limit}" for role, limit in value.items())
    return "its id" if value == "its id" else shown(value)
