"""Turns the tables `[job_types.NAME]` of a configuration into command types, and reports every problem with its
field."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema_rs
import orjson

from nextslot.domain import FailureKind, RetryPolicy
from nextslot.domain.request_checks import is_number, is_storable, resource_problems, retry_policy, text_problems
from nextslot.errors import Invalid, Problem

from .command import COMPLETED, PLACEHOLDER, SKIPPED, CommandType
from .inputs import is_input
from .job_types import resource_units
from .quota_times import pattern_problem
from .sandbox import sandbox_of

# What a configured exit code may mean. Only the scheduler itself decides that a run crashed, was cancelled or parked.
MEANINGS = frozenset({COMPLETED, SKIPPED, *FailureKind}) - {
    FailureKind.CRASH,
    FailureKind.INTERRUPTED,
    FailureKind.CANCELLED,
    FailureKind.PARKED,
}

# The options of a table `[job_types.NAME]` with a Python handler.
FUNCTION = frozenset(
    {"handler", "isolate", "resources", "timeout_seconds", "stall_timeout_seconds", "retry_policy", "params_schema"}
)


def command_type(table: Mapping[str, Any], base_dir: Path) -> CommandType:
    """Returns the command type of a checked table. Relative paths start at `base_dir`."""
    problems = list(_problems(table))
    if problems:
        raise Invalid(problems)
    options = dict(table)
    options["command"] = tuple(table["command"])
    options["cwd"] = base_dir / table.get("cwd", "")
    options["pass_env"] = tuple(table.get("pass_env", ()))
    options["resources"] = resource_units(table.get("resources"))
    options["engine_options"] = dict(table.get("engine_options") or {})
    options["engine_units"] = resource_units(table.get("engine_units"))
    options["exit_codes"] = {int(code): str(meaning) for code, meaning in table.get("exit_codes", {}).items()}
    # This call only checks the policy; the office's policy supplies missing fields.
    retry_policy(table.get("retry_policy"), RetryPolicy())
    options["params_schema"] = _schema(table.get("params_schema"), base_dir)
    if table.get("sandbox") is not None:
        options["sandbox"] = sandbox_of(table["sandbox"], base_dir)
    command = CommandType(**options)
    unknown = [name for name in command.placeholders if not _knows(command.params_schema, name)]
    if unknown:
        raise Invalid(
            [
                Problem("command", f"{{{name}}} is not a parameter in params_schema; declare {name!r} there")
                for name in unknown
            ]
        )
    return command


def function_options(table: Mapping[str, Any], base_dir: Path) -> dict[str, Any]:
    """Returns the checked options of a Python handler, as `Catalog.add` takes them."""
    unknown = sorted(table.keys() - FUNCTION)
    problems = [
        Problem(str(name), "is not a setting of a Python handler; remove it or correct its name") for name in unknown
    ]
    if "command" in table:
        problems = [Problem("handler", "the job type has a command too; keep only one of them")]
    if not isinstance(table["handler"], str):
        problems.append(Problem("handler", "is not a text; write module:function"))
    if type(table.get("isolate", False)) is not bool:
        problems.append(Problem("isolate", "is neither true nor false; write one of them"))
    problems += [*resource_problems(table.get("resources")), *_timeout_problems(table)]
    if problems:
        raise Invalid(problems)
    retry_policy(table.get("retry_policy"), RetryPolicy())
    return {**table, "params_schema": _schema(table.get("params_schema"), base_dir)}


def _problems(table: object) -> Iterator[Problem]:
    if not isinstance(table, Mapping):
        yield Problem("", "is not a table; write [job_types.NAME]")
        return
    for name in sorted(table.keys() - CommandType.__dataclass_fields__.keys()):
        yield Problem(str(name), "is not a setting of a command; remove it or correct its name")
    yield from _command_problems(table.get("command"))
    yield from _environment_problems(table.get("env", {}), table.get("pass_env", ()))
    yield from resource_problems(table.get("resources"))
    yield from _exit_code_problems(table.get("exit_codes", {}))
    yield from _timeout_problems(table)
    if not is_number(table.get("grace_seconds", 0)):
        yield Problem("grace_seconds", "is not a number of seconds from 0 on; write for example 10")
    cap = table.get("log_cap_bytes")
    if cap is not None and (type(cap) is not int or cap < 1):
        yield Problem("log_cap_bytes", "is not a whole number of bytes above 0; write for example 1048576")
    if (problem := pattern_problem(table.get("quota_pattern"))) is not None:
        yield Problem("quota_pattern", problem)
    resource = table.get("quota_resource")
    if resource is not None:
        yield from (Problem("quota_resource", one.problem) for one in text_problems("resource", resource))
    yield from _engine_problems(table)
    if not isinstance(table.get("cwd", ""), (str, Path)):
        yield Problem("cwd", "is not a path; write a directory as a text")
    if not isinstance(table.get("params_schema", {}), (str, Path, Mapping, type(None))):
        yield Problem("params_schema", "is not a JSON Schema; write one as a table, or the path of its file")


def _engine_problems(table: Mapping[str, Any]) -> Iterator[Problem]:
    """Checks what does not depend on the engine; `config/checks.py` checks the rest."""
    engine = table.get("engine")
    if engine is None:
        for name in ("engine_options", "engine_units"):
            if table.get(name):
                yield Problem(name, "is for a command with an engine; add engine, or remove it")
        return
    for one in resource_problems(table.get("engine_units")):
        yield Problem(one.field.replace("resources", "engine_units", 1), one.problem)
    if not isinstance(engine, str):
        yield Problem("engine", "is not the name of an engine; write that of a table [engines.NAME]")
    if table.get("sandbox") is not None:
        yield Problem("sandbox", "cannot be had on an engine, which has limits of its own; remove one of the two")
    for word in table["command"] if isinstance(table.get("command"), (list, tuple)) else ():
        if isinstance(word, str) and (found := PLACEHOLDER.fullmatch(word)) and is_input(found[1]):
            yield Problem(
                "command", f"has {word}, which is on this node only; read NEXTSLOT_INPUTS, or drop the engine"
            )


def _timeout_problems(table: Mapping[str, Any]) -> Iterator[Problem]:
    for name in ("timeout_seconds", "stall_timeout_seconds"):
        if table.get(name) is not None and not is_number(table[name], above=0):
            yield Problem(name, "is not a number of seconds above 0; write for example 60")


def _command_problems(command: object) -> Iterator[Problem]:
    if command is None:
        yield Problem("command", "is missing; write the program and its arguments as a list")
    elif not isinstance(command, (list, tuple)) or not all(isinstance(element, str) for element in command):
        yield Problem("command", 'is not a list of texts; write the program first: ["python", "thumb.py", "{path}"]')
    elif not command or not command[0]:
        yield Problem("command", "has no program; write it as the first element")
    elif PLACEHOLDER.fullmatch(command[0]):
        yield Problem("command", "takes the program from a parameter; only arguments can be placeholders")
    elif not all(map(is_storable, command)):
        yield Problem("command", "contains NUL or invalid Unicode; remove it")


def _environment_problems(env: object, pass_env: object) -> Iterator[Problem]:
    if not isinstance(env, Mapping) or not all(_is_variable(*pair) for pair in env.items()):
        yield Problem("env", 'has a name or a value that is not a text; write NAME = "value"')
    elif own := sorted(name for name in env if name.startswith("NEXTSLOT_")):
        yield Problem(f"env.{own[0]}", "begins with NEXTSLOT_, which only the scheduler sets; choose another name")
    if not isinstance(pass_env, (list, tuple)) or not all(_is_variable(name, "") for name in pass_env):
        yield Problem("pass_env", 'is not a list of variable names; write for example ["API_TOKEN"]')


def _is_variable(name: object, value: object) -> bool:
    return (
        isinstance(name, str)
        and isinstance(value, str)
        and bool(name)
        and "=" not in name
        and is_storable(name)
        and is_storable(value)
    )


def _exit_code_problems(codes: object) -> Iterator[Problem]:
    if not isinstance(codes, Mapping):
        yield Problem("exit_codes", 'is not a table of codes and meanings; write { 3 = "permission" }')
        return
    for code, meaning in codes.items():
        if not str(code).isascii() or not str(code).isdigit() or int(code) > 255:
            yield Problem(f"exit_codes.{code}", "is not an exit code; use a whole number from 0 to 255")
        elif meaning not in MEANINGS:
            yield Problem(f"exit_codes.{code}", "has an unknown meaning; use one of " + ", ".join(sorted(MEANINGS)))


def _schema(given: Any, base_dir: Path) -> Mapping[str, Any] | None:
    if given is None or isinstance(given, Mapping):
        return None if given is None else _checked(given)
    path = base_dir / given
    try:
        schema = orjson.loads(path.read_bytes())
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}; check the path", field="params_schema") from error
    except ValueError as error:
        raise Invalid(f"{path} is not JSON: {error}", field="params_schema") from error
    if not isinstance(schema, dict):
        raise Invalid(f"{path} does not contain a JSON object; write the JSON Schema as one", field="params_schema")
    return _checked(schema)


def _checked(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        jsonschema_rs.validator_for(dict(schema))
    except (ValueError, jsonschema_rs.ValidationError) as error:
        raise Invalid(f"this is not a valid JSON Schema: {error}", field="params_schema") from error
    return schema


def _knows(schema: Mapping[str, Any] | None, name: str) -> bool:
    """Returns whether a schema mentions a parameter. Without a schema, every parameter is allowed."""
    return schema is None or any(
        name in part.get("properties", {}) or any(_matches(p, name) for p in part.get("patternProperties", {}))
        for part in _parts(schema, schema, set())
    )


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:  # The pattern may be valid in the regular expressions of JSON Schema only; do not refuse it here.
        return True


def _parts(schema: Any, whole: Mapping[str, Any], seen: set[int]) -> Iterator[Mapping[str, Any]]:
    """Yields a schema and all schemas that it combines or refers to."""
    if not isinstance(schema, Mapping) or id(schema) in seen:
        return
    seen.add(id(schema))
    yield schema
    for word in ("allOf", "anyOf", "oneOf"):
        for part in schema.get(word, ()):
            yield from _parts(part, whole, seen)
    for word in ("if", "then", "else"):
        yield from _parts(schema.get(word), whole, seen)
    target: Any = whole
    if str(schema.get("$ref", "")).startswith("#/"):
        for step in schema["$ref"][2:].split("/"):
            target = target.get(step) if isinstance(target, Mapping) else None
        yield from _parts(target, whole, seen)
