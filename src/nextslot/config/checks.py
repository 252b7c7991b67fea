"""Describes the problems of a configuration in sentences. `loading` calls it and adds the place of each value."""

import difflib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from nextslot import extension_api
from nextslot.client.keyword_arguments import ScheduleOptions, TemplateOptions
from nextslot.domain import cron
from nextslot.engine.settings.office_settings import settings_problems
from nextslot.errors import Invalid
from nextslot.executors.job_type_catalog import check_job_type

from .engine_tables import engine_problems
from .fields import table_of
from .settings import OfficeTable, Section, settings_class

Found = tuple[tuple[str, ...], str]

TEMPLATE = frozenset({"job_type", *TemplateOptions.__annotations__})
SCHEDULE = frozenset({"template", "cron_expression", *ScheduleOptions.__annotations__})

_TYPES = {
    "bool_type": "is neither true nor false; write one of them",
    "string_type": "is not a text; put it in quotes",
    "list_type": "is not a list; write [ … ]",
    "dict_type": "is not a table; write it as [NAME], or as { … }",
    "model_type": "is not a table; write it as [NAME], or as { … }",
    "missing": "is missing; add it",
    "string_too_short": "is empty; write a value, or remove the setting",
    "string_pattern_mismatch": "has characters that are not allowed; use up to 100 letters, digits, '.', '_' and '-'",
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
        return f"has a value that is not allowed; use one of {context['expected']}"
    if kind == "value_error":
        return str(context["error"])
    return _TYPES.get(kind, error["msg"])


def _suggestion(path: tuple[str, ...]) -> str:
    known = difflib.get_close_matches(path[-1], _names_at(path[:-1]), n=1, cutoff=0.6)
    return f"; did you mean {known[0]}?" if known else "; remove it"


def _names_at(path: tuple[str, ...]) -> list[str]:
    """Returns the names of the settings in the table at a path."""
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
    """Checks job types, offices and the tables of extensions for what the declarations cannot express.

    Skips a table of a wrong form, because the declarations have reported it already.
    """
    for name, table in _tables(values, "job_types"):
        if "handler" in table and str(data) not in sys.path:
            sys.path.append(str(data))  # Lets imports find modules beside the configuration, after installed modules.
        yield from _problems(("job_types", name), lambda t=table: check_job_type(t, data))
    for name, table in _tables(values, "templates"):
        yield from _unknown(("templates", name), table, TEMPLATE)
    for name, table in _tables(values, "schedules"):
        yield from _unknown(("schedules", name), table, SCHEDULE)
        if table.get("template") not in (values.get("templates") or {}):
            yield ("schedules", name, "template"), "is not the name of a [templates.NAME] table; write one"
        expression, zone = table.get("cron_expression"), table.get("timezone", "UTC")
        if not isinstance(expression, str) or not isinstance(zone, str):
            yield ("schedules", name, "cron_expression"), 'is missing, or not a text; write for example "0 7 * * *"'
        else:
            yield from _problems(("schedules", name), lambda e=expression, z=zone: cron.parse(e, z))
    for name, table in _tables(values, "offices"):
        office = _valid(OfficeTable, table)
        if office is not None:
            yield from _named(("offices", name), settings_problems(name, office.named()))
    extensions = values.get("extensions")
    disabled = extensions.get("disabled") if isinstance(extensions, Mapping) else None
    for name in disabled if isinstance(disabled, (list, tuple)) else ():
        if isinstance(name, str) and name not in extension_api.names():
            there = ", ".join(extension_api.names())
            yield ("extensions", "disabled"), f"there is no extension {name!r}; there are: {there}"
    yield from engine_problems(values)
    for one in extension_api.find_all():
        yield from one.setting_problems(values, data)


def _unknown(path: tuple[str, ...], table: Mapping[str, Any], known: frozenset[str]) -> Iterator[Found]:
    for name in sorted(table.keys() - known):
        close = difflib.get_close_matches(name, known, n=1)
        there = f"did you mean {close[0]}?" if close else f"there are: {', '.join(sorted(known))}"
        yield (*path, name), f"there is no such setting; {there}"


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
