"""The tables `[job_types.NAME]` of a configuration, made into command types: every problem named, with its place."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema_rs
import orjson

from nextslot.domain import FailureKind, RetryPolicy
from nextslot.domain.request_checks import (
    is_number,
    is_storable,
    resource_problems,
    retry_policy,
)
from nextslot.errors import Invalid, Problem

from .command import (
    COMPLETED,
    PLACEHOLDER,
    SKIPPED,
    CommandType,
)
from .job_types import resource_units

# What an exit code may mean; how a run ends that we ended ourselves is not its to say.
MEANINGS = frozenset({COMPLETED, SKIPPED, *FailureKind}) - {
    FailureKind.CRASH,
    FailureKind.INTERRUPTED,
    FailureKind.CANCELLED,
}

# What a table may say of a Python function.
FUNCTION = frozenset(
    {"handler", "isolate", "resources", "timeout_seconds", "stall_timeout_seconds", "retry_policy", "params_schema"}
)


def command_type(table: Mapping[str, Any], base_dir: Path) -> CommandType:
    """A command from its options, checked; relative paths are relative to this directory."""
    problems = list(_problems(table))
    if problems:
        raise Invalid(problems)
    options = dict(table)
    options["command"] = tuple(table["command"])
    options["cwd"] = base_dir / table.get("cwd", "")
    options["pass_env"] = tuple(table.get("pass_env", ()))
    options["resources"] = resource_units(table.get("resources"))
    options["exit_codes"] = {int(code): str(meaning) for code, meaning in table.get("exit_codes", {}).items()}
    retry_policy(table.get("retry_policy"), RetryPolicy())  # Refuses what is wrong; the office's fills in the rest.
    options["params_schema"] = _schema(table.get("params_schema"), base_dir)
    command = CommandType(**options)
    unknown = [name for name in command.placeholders if not _knows(command.params_schema, name)]
    if unknown:
        raise Invalid([Problem("command", f"params_schema knows no {name!r}: {{{name}}}") for name in unknown])
    return command


def function_options(table: Mapping[str, Any], base_dir: Path) -> dict[str, Any]:
    """A Python function from its options, checked: what `Catalog.add` takes."""
    unknown = sorted(table.keys() - FUNCTION)
    problems = [Problem(str(name), "there is no such setting of a function") for name in unknown]
    if "command" in table:
        problems = [Problem("handler", "a job type has a command or a handler, not both")]
    if not isinstance(table["handler"], str):
        problems.append(Problem("handler", "a text: module:function"))
    if type(table.get("isolate", False)) is not bool:
        problems.append(Problem("isolate", "true or false"))
    problems += [*resource_problems(table.get("resources")), *_timeout_problems(table)]
    if problems:
        raise Invalid(problems)
    retry_policy(table.get("retry_policy"), RetryPolicy())
    return {**table, "params_schema": _schema(table.get("params_schema"), base_dir)}


def _problems(table: object) -> Iterator[Problem]:
    if not isinstance(table, Mapping):
        yield Problem("", "must be a table")
        return
    for name in sorted(table.keys() - CommandType.__dataclass_fields__.keys()):
        yield Problem(str(name), "there is no such setting of a command")
    yield from _command_problems(table.get("command"))
    yield from _environment_problems(table.get("env", {}), table.get("pass_env", ()))
    yield from resource_problems(table.get("resources"))
    yield from _exit_code_problems(table.get("exit_codes", {}))
    yield from _timeout_problems(table)
    if not is_number(table.get("grace_seconds", 0)):
        yield Problem("grace_seconds", "a number of seconds, 0 or more")
    cap = table.get("log_cap_bytes")
    if cap is not None and (type(cap) is not int or cap < 1):
        yield Problem("log_cap_bytes", "a whole number of bytes above 0")
    if not isinstance(table.get("cwd", ""), (str, Path)):
        yield Problem("cwd", "must be a path")
    if not isinstance(table.get("params_schema", {}), (str, Path, Mapping, type(None))):
        yield Problem("params_schema", "a JSON Schema, or the path of a file that has one")


def _timeout_problems(table: Mapping[str, Any]) -> Iterator[Problem]:
    for name in ("timeout_seconds", "stall_timeout_seconds"):
        if table.get(name) is not None and not is_number(table[name], above=0):
            yield Problem(name, "a number of seconds above 0")


def _command_problems(command: object) -> Iterator[Problem]:
    if command is None:
        yield Problem("command", "is missing")
    elif not isinstance(command, (list, tuple)) or not all(isinstance(element, str) for element in command):
        yield Problem("command", 'a list of texts, the program first: ["python", "thumb.py", "{path}"]')
    elif not command or not command[0]:
        yield Problem("command", "needs a program")
    elif PLACEHOLDER.fullmatch(command[0]):
        yield Problem("command", "a parameter can be an argument, never the program")
    elif not all(map(is_storable, command)):
        yield Problem("command", "must be valid Unicode without NUL")


def _environment_problems(env: object, pass_env: object) -> Iterator[Problem]:
    if not isinstance(env, Mapping) or not all(_is_variable(*pair) for pair in env.items()):
        yield Problem("env", "names with texts")
    elif own := sorted(name for name in env if name.startswith("NEXTSLOT_")):
        yield Problem(f"env.{own[0]}", "names that begin with NEXTSLOT_ are set by the scheduler")
    if not isinstance(pass_env, (list, tuple)) or not all(_is_variable(name, "") for name in pass_env):
        yield Problem("pass_env", "a list of names")


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
        yield Problem("exit_codes", 'codes with what they mean: { 3 = "permission" }')
        return
    for code, meaning in codes.items():
        if not str(code).isascii() or not str(code).isdigit() or int(code) > 255:
            yield Problem(f"exit_codes.{code}", "a code is a whole number from 0 to 255")
        elif meaning not in MEANINGS:
            yield Problem(f"exit_codes.{code}", "means one of " + ", ".join(sorted(MEANINGS)))


def _schema(given: Any, base_dir: Path) -> Mapping[str, Any] | None:
    if given is None or isinstance(given, Mapping):
        return None if given is None else _checked(given)
    path = base_dir / given
    try:
        schema = orjson.loads(path.read_bytes())
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}", field="params_schema") from error
    except ValueError as error:
        raise Invalid(f"{path} is not JSON: {error}", field="params_schema") from error
    if not isinstance(schema, dict):
        raise Invalid(f"{path} has no JSON object", field="params_schema")
    return _checked(schema)


def _checked(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        jsonschema_rs.validator_for(dict(schema))
    except (ValueError, jsonschema_rs.ValidationError) as error:
        raise Invalid(f"not a JSON Schema: {error}", field="params_schema") from error
    return schema


def _knows(schema: Mapping[str, Any] | None, name: str) -> bool:
    """Whether a schema has something to say of a parameter; with no schema, every one is known."""
    return schema is None or any(
        name in part.get("properties", {}) or any(_matches(p, name) for p in part.get("patternProperties", {}))
        for part in _parts(schema, schema, set())
    )


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:  # It may be one in the other dialect.
        return True


def _parts(schema: Any, whole: Mapping[str, Any], seen: set[int]) -> Iterator[Mapping[str, Any]]:
    """A schema and those that it is put together from."""
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
