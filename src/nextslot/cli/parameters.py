"""Parses `key=value` arguments into parameters: as JSON if the type's schema allows it, else as text.

`key:=json` is always JSON; a value `@file` is the content of the file; `@file` alone is a whole JSON object.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

Schema = Mapping[str, Any]


def parsed(arguments: Sequence[str], schema: Schema) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for argument in arguments:
        if argument.startswith("@"):
            params.update(_object(argument))
            continue
        key, is_json, text = _split(argument)
        if text.startswith("@"):
            text = _file(text)
        params[key] = _json(text, argument) if is_json else value_of(text, kinds(key, schema))
    return params


def value_of(text: str, wanted: frozenset[str] | None) -> Any:
    """Returns the text parsed as JSON if its type is among the wanted ones (None: any); else the text itself."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if wanted is None or wanted & set(_kinds_of(value)):
        return value
    return text


def kinds(key: str, schema: Schema) -> frozenset[str] | None:
    """Returns the JSON types that the schema allows for a parameter; None if it does not say."""
    found = schema.get("properties", {}).get(key)
    if not isinstance(found, Mapping):
        return None
    return frozenset(_declared(found, schema, 0)) or None


def _declared(schema: Schema, whole: Schema, depth: int) -> Iterator[str]:
    if depth > 20:  # A schema may refer to itself.
        return
    declared = schema.get("type", ())
    yield from [declared] if isinstance(declared, str) else declared
    for value in [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else ())]:
        yield from _kinds_of(value)
    reference = schema.get("$ref", "")
    if isinstance(reference, str) and reference.startswith("#/"):
        target: Any = whole
        for part in reference[2:].split("/"):
            target = target.get(part, {}) if isinstance(target, Mapping) else {}
        yield from _declared(target, whole, depth + 1)
    for choice in ("anyOf", "oneOf", "allOf"):
        for one in schema.get(choice, ()):
            yield from _declared(one, whole, depth + 1)


def _kinds_of(value: Any) -> list[str]:
    match value:
        case None:
            return ["null"]
        case bool():
            return ["boolean"]
        case int():
            return ["integer", "number"]
        case float():
            return ["number"]
        case str():
            return ["string"]
        case list():
            return ["array"]
        case _:
            return ["object"]


def _split(argument: str) -> tuple[str, bool, str]:
    before, equals, text = argument.partition("=")
    is_json = before.endswith(":")
    key = before.removesuffix(":")
    if not equals or not key:
        raise typer.BadParameter(
            f"{argument!r} is not a parameter: write key=value, key:=json, key=@file or @file.json"
        )
    return key, is_json, text


def _object(argument: str) -> dict[str, Any]:
    found = _json(_file(argument), argument)
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{argument}: the file does not contain a JSON object; write one")
    return found


def _json(text: str, argument: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{argument!r} is not valid JSON: {error}; use key=value for plain text") from error


def _file(argument: str) -> str:
    try:
        return Path(argument[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(
            f"{argument} cannot be read: {getattr(error, 'strerror', None) or error}; check the path"
        ) from error
