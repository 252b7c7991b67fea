"""Writes a part of src/nextslot/client/keyword_arguments.py: the lists of keyword arguments, for type checkers.

    uv run python scripts/make_keyword_arguments.py

A type checker reads keyword arguments only where they are written out, so these lists are made from the declarations of
requests, filters and quotas; tests/domain/test_declared_once.py fails while the file differs from this script's output.
"""

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from nextslot.domain import NewJob, Office, Quotas, Template
from nextslot.domain.declared_values import Declared, declared, is_time, is_words
from nextslot.domain.filters import EventFilter, JobFilter, RunFilter, Texts
from nextslot.domain.schedules import ScheduleFields

TARGET = Path(__file__).parents[1] / "src/nextslot/client/keyword_arguments.py"
_BEGIN = "writes this file from the declarations in `domain`.\n"
# Fields that only the scheduler sets.
NOT_ASKED = {
    "schedule_id", "created_by", "created_at", "archived_at", "deleted_at", "last_triggered_at", "next_trigger_at",
}  # fmt: skip
# Fields that a verb for one job has as arguments of its own, and the key of an item in a list.
JOB_OWN = ("job_type", "template_id", "params", "key")
_KINDS = {
    "resources": "Mapping[str, int] | Sequence[str]", "depends_on": "Sequence[AnyJob]", "jobs": "Sequence[NewJob]",
    "limit_keys": "Sequence[str]",
    "role_limits": "Mapping[str, int]", "job_types": "list[str]", "retry_policy": "Json | RetryPolicy",
}  # fmt: skip
_ITEM = "One of many: its type or template, its parameters, and the `key` by which others of the request depend on it."


def text() -> str:
    """Returns the whole file, with the generated part written anew."""
    job = {name: kind for name, kind in _asked(NewJob).items() if name not in NOT_ASKED}
    template = {name: kind for name, kind in _asked(Template).items() if name not in {*NOT_ASKED, "template_id"}}
    schedule = {name: kind for name, kind in _asked(ScheduleFields).items() if name not in NOT_ASKED}
    parts = [
        _class("JobOptions", "TypedDict", job, job.keys() - JOB_OWN),
        _class("NewJob", "JobOptions", job, JOB_OWN, f'    """{_ITEM}"""\n\n'),
        *(_class(kind.__name__, "TypedDict", _filter(kind)) for kind in (JobFilter, RunFilter, EventFilter)),
        _class("OfficeOptions", "TypedDict", _office()),
        _class("QuotaChanges", "TypedDict", {one.name: f"{_kind(one)} | None" for one in declared(Quotas)}),
        *_options("Template", template, ("name", "job_type")),
        *_options("Schedule", schedule, ("name", "template_id", "cron_expression")),
    ]
    return TARGET.read_text().split(_BEGIN)[0] + _BEGIN + "\n\n".join(parts)


def _office() -> dict[str, str]:
    """Returns the settings of an office that callers may give; the environment of its roles is not shown, but given."""
    own = {"office_id", "created_at", "is_paused"}
    return {one: kind for one, kind in _asked(Office).items() if one not in own} | {"roles": "Mapping[str, Json]"}


def _options(subject: str, kinds: dict[str, str], own: tuple[str, ...]) -> Iterable[str]:
    """Yields the keyword arguments of three verbs: put a value by its name, create a value, change a value."""
    yield _class(f"{subject}PutOptions", "TypedDict", kinds, kinds.keys() - {*own, "office_id"})
    yield _class(f"{subject}Options", f"{subject}PutOptions", kinds, ("office_id",))
    yield _class(f"{subject}Changes", f"{subject}Options", kinds, own)


def _class(name: str, base: str, kinds: dict[str, str], names: Iterable[str] | None = None, about: str = "") -> str:
    wanted = kinds if names is None else set(names)
    lines = "".join(f"    {one}: {kind}\n" for one, kind in kinds.items() if one in wanted)
    return f"class {name}({base}, total=False):\n{about}{lines}"


def _asked(kind: Any) -> dict[str, str]:
    without = {one.name for one in fields(kind) if one.default is None}
    return {one.name: _kind(one) + (" | None" if one.name in without else "") for one in declared(kind)}


def _filter(kind: Any) -> dict[str, str]:
    kinds: dict[Any, str] = {Texts: "Values", bool | None: "bool", str | None: "str"}
    return {one.name: kinds.get(one.type, "Time") for one in fields(kind)}


def _kind(field: Declared) -> str:
    if field.name in _KINDS:
        return _KINDS[field.name]
    if is_time(field.type):
        return "Time"
    if is_words(field.type):
        return "str"
    return field.type.__name__ if isinstance(field.type, type) and field.type.__module__ == "builtins" else "Json"


if __name__ == "__main__":
    TARGET.write_text(text())
