"""What is wrong with a configuration, in sentences. Called by `loading`, which adds where each thing was written."""

import difflib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from nextslot import extension
from nextslot.engine.settings.office_settings import settings_problems
from nextslot.errors import Invalid
from nextslot.executors.job_type_catalog import check_job_type

from .fields import table_of
from .settings import (
    OfficeTable,
    Section,
    settings_class,
)

Found = tuple[tuple[str, ...], str]

_TYPES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a text",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "missing": "is missing",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "letters, digits, '.', '_' and '-', up to 100",
    "finite_number": "a number",
}
_BOUNDS = {
    "greater_than_equal": "at least {ge:,.0f}",
    "greater_than": "above {gt:,.0f}",
    "less_than_equal": "at most {le:,.0f}",
}


def sentences(error: ValidationError) -> Iterator[Found]:
    for one in error.errors(include_url=False, include_input=False):
        path = tuple(str(part) for part in one["loc"])
        yield path, _sentence(one, path)


def _sentence(error: ErrorDetails, path: tuple[str, ...]) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return "there is no such setting" + _suggestion(path)
    if kind == "literal_error":
        return f"one of {context['expected']}"
    if kind == "value_error":
        return str(context["error"])
    if kind in _BOUNDS:
        return _BOUNDS[kind].format(**context)
    return _TYPES.get(kind, error["msg"])


def _suggestion(path: tuple[str, ...]) -> str:
    known = difflib.get_close_matches(path[-1], _names_at(path[:-1]), n=1, cutoff=0.6)
    return f"; did you mean {known[0]}?" if known else ""


def _names_at(path: tuple[str, ...]) -> list[str]:
    """The settings of the table at a path."""
    section: type[Section] | None = settings_class()
    is_name_next = False
    for part in path:
        if is_name_next:
            is_name_next = False
            continue
        field = section.model_fields.get(part) if section else None
        section, is_name_next = table_of(field.annotation) if field else (None, False)
    return list(section.model_fields) if section else []


def table_problems(values: Mapping[str, Any], data: Path) -> Iterator[Found]:
    """What the declarations cannot say of job types, offices and extensions: they have checks of their own.

    A table whose form is wrong has been told already, and is left out.
    """
    for name, table in _tables(values, "job_types"):
        if "handler" in table and str(data) not in sys.path:
            sys.path.append(str(data))  # Modules beside the configuration are found, after those that are installed.
        yield from _problems(("job_types", name), lambda t=table: check_job_type(t, data))
    for name, table in _tables(values, "offices"):
        office = _valid(OfficeTable, table)
        if office is not None:
            yield from _named(("offices", name), settings_problems(name, office.named()))
    disabled = values.get("extensions")
    for name in (disabled.get("disabled") or ()) if isinstance(disabled, Mapping) else ():
        if isinstance(name, str) and name not in extension.names():
            there = ", ".join(extension.names())
            yield ("extensions", "disabled"), f"there is no extension {name!r}; there are: {there}"
    for one in extension.find_all():
        yield from one.setting_problems(values, data)


def _tables(values: Mapping[str, Any], name: str) -> list[tuple[str, Any]]:
    found = values.get(name)
    if not isinstance(found, Mapping):
        return []
    return [(key, table) for key, table in found.items() if isinstance(table, Mapping)]


def _valid(section: type[Any], table: Any) -> Any:
    try:
        return section.model_validate(table)
    except ValidationError:
        return None


def _problems(path: tuple[str, ...], check: Any) -> Iterator[Found]:
    try:
        check()
    except Invalid as error:
        yield from _named(path, error.problems)


def _named(path: tuple[str, ...], problems: Any) -> Iterator[Found]:
    for one in problems:
        yield (*path, *filter(None, one.field.split("."))), one.problem
