"""Makes engines from the tables `[engines.NAME]`, and checks these tables and the tables that name an engine."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nextslot import extension_api
from nextslot.errors import Invalid, Problem
from nextslot.executors.engines import local_engine
from nextslot.executors.engines.contract import EngineKind
from nextslot.executors.engines.engines import ENGINE_OPTIONS, Engines, EngineSettings, option_problems, unit_of

from .settings import EngineTable

Found = tuple[tuple[str, ...], str]
LOCAL = "local"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def kinds(disabled: Sequence[str] = ()) -> dict[str, EngineKind]:
    """Returns the available kinds of engines: `local`, and the kinds of extensions that are not disabled."""
    found = {LOCAL: local_engine.KIND}
    for one in extension_api.find_all():
        if one.name not in disabled:
            found.update(one.engine_kinds())
    return found


def add_engines(engines: Engines, tables: Mapping[str, EngineTable], data: Path, disabled: Sequence[str] = ()) -> None:
    """Adds every engine of a configuration that has been checked."""
    there = kinds(disabled) if tables else {}
    for name, table in tables.items():
        kind = there[table.kind]
        settings = EngineSettings(
            name=name,
            kind=table.kind,
            directory=(data / (table.directory or f"engines/{name}")).absolute(),
            slots=table.slots,
            units=table.units,
            python=table.python or (sys.executable if table.kind == LOCAL else "python3"),
            poll_seconds=kind.poll_seconds if table.poll_seconds is None else table.poll_seconds,
            lease_seconds=table.lease_seconds,
            start_timeout_seconds=table.start_timeout_seconds or None,
            variables=tuple(kind.variables),
            options=table.options,
        )
        settings.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        engines.add(settings, kind.make(name, table.options))


def add_checked(engines: Engines, given: Mapping[str, Mapping[str, Any]], data: Path) -> dict[str, int]:
    """Checks and adds the engines that a program gives its scheduler. Returns the number of slots of each."""
    problems = [Problem(".".join(path), problem) for path, problem in engine_problems({"engines": given})]
    tables = {}
    for name, table in given.items():
        try:
            tables[name] = EngineTable.model_validate(dict(table))
        except ValidationError as error:
            problems += [
                Problem(".".join(["engines", name, *map(str, one["loc"])]), one["msg"].removeprefix("Value error, "))
                for one in error.errors()
            ]
    if problems:
        raise Invalid(problems)
    add_engines(engines, tables, data)
    return slots(tables)


def slots(tables: Mapping[str, EngineTable]) -> dict[str, int]:
    """Returns the resources that engines are: the slots of each, and each of its units."""
    found = {name: table.slots for name, table in tables.items()}
    for name, table in tables.items():
        found.update((unit_of(name, unit), most) for unit, most in table.units.items())
    return found


def engine_problems(values: Mapping[str, Any]) -> Iterator[Found]:
    """Checks the tables of engines, and the tables that name an engine, for what their types cannot express."""
    tables = _tables(values, "engines")
    disabled = (values.get("extensions") or {}).get("disabled", ()) if tables else ()
    there = kinds(disabled if isinstance(disabled, (list, tuple)) else ()) if tables else {}
    resources = (values.get("limits") or {}).get("resources") if isinstance(values.get("limits"), Mapping) else None
    for name, table in tables.items():
        kind = there.get(table.get("kind", ""))
        if not _NAME.fullmatch(name):
            yield ("engines", name), "is no name for an engine; use up to 100 letters, digits, '.', '_' and '-'"
        if kind is None and isinstance(table.get("kind"), str):
            yield ("engines", name, "kind"), f"there is no such kind; there are: {', '.join(sorted(there))}"
        elif kind is not None:
            yield from _named(("engines", name), option_problems(kind, table.get("options", {}), "options"))
        units = _mapping(table.get("units"))
        for unit in units:
            if not _NAME.fullmatch(unit):
                yield ("engines", name, "units", unit), "is no name for a unit; use letters, digits, '.', '_' and '-'"
        for resource in resources if isinstance(resources, Mapping) else ():
            if resource == name or resource in [unit_of(name, unit) for unit in units]:
                yield (
                    ("limits", "resources", resource),
                    f"is an engine, which is a resource itself; set slots and units in [engines.{name}]",
                )
    for name, table in _tables(values, "job_types").items():
        wanted = table.get("engine")
        if not isinstance(wanted, str):
            continue
        if wanted not in tables:
            known = ", ".join(sorted(tables)) or "none"
            yield (
                ("job_types", name, "engine"),
                f"there is no engine {wanted!r}; add [engines.{wanted}]; there are: {known}",
            )
        elif (kind := there.get(tables[wanted].get("kind", ""))) is not None:
            problems = option_problems(kind, table.get(ENGINE_OPTIONS, {}), ENGINE_OPTIONS)
            yield from _named(("job_types", name), problems)
        if wanted in tables:
            yield from _unit_problems(name, wanted, _mapping(table.get("engine_units")), tables[wanted])


def _unit_problems(name: str, engine: str, taken: Mapping[str, Any], table: Mapping[str, Any]) -> Iterator[Found]:
    """Checks the units that a run of a job type takes; `command_config` checks that they are numbers."""
    there = _mapping(table.get("units"))
    for unit, count in taken.items():
        if unit not in there:
            known = ", ".join(sorted(there)) or "none"
            yield (
                ("job_types", name, "engine_units", unit),
                f"is no unit of the engine {engine!r}; add it to units in [engines.{engine}]; there are: {known}",
            )
        elif isinstance(count, int) and isinstance(there[unit], int) and count > there[unit]:
            yield (
                ("job_types", name, "engine_units", unit),
                f"is more than the engine {engine!r} has, so no run could start: it has {there[unit]}",
            )


def _tables(values: Mapping[str, Any], name: str) -> dict[str, Mapping[str, Any]]:
    found = values.get(name)
    if not isinstance(found, Mapping):
        return {}
    return {key: table for key, table in found.items() if isinstance(table, Mapping)}


def _mapping(found: object) -> Mapping[str, Any]:
    return found if isinstance(found, Mapping) else {}


def _named(path: tuple[str, ...], problems: Iterator[Problem]) -> Iterator[Found]:
    for one in problems:
        yield (*path, *one.field.split(".")), one.problem
