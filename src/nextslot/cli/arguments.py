"""Parses arguments that people type: `key=value` parameters, `--filter name=value`, and short ids or names."""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import typer

from nextslot.errors import Invalid, NotFound

if TYPE_CHECKING:
    from nextslot.client import Client
    from nextslot.client.keyword_arguments import JobFilter

T = TypeVar("T")
Schema = Mapping[str, Any]


def given(**values: Any) -> Any:
    """Returns the options that were given."""
    return {name: value for name, value in values.items() if value is not None}


def seconds(text: str) -> float:
    """Returns the seconds of a duration such as 90s, 30m, 12h or 7d; a plain number is seconds."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)", text.strip())
    if found is None:
        raise Invalid(f"{text!r} is not a duration; give for example 90s, 30m, 12h or 7d")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}[found[2]]


def moment(text: str | None) -> str | None:
    """Returns a time: RFC 3339, which the server parses, or +2h from now."""
    if text is None or not text.startswith("+"):
        return text
    return (datetime.now(UTC) + timedelta(seconds=seconds(text[1:]))).isoformat()


# Parameters: a value is JSON if the schema of the job type allows it, else text. `key:=json` is always JSON, a value
# `@file` is the content of the file, and `@file` alone is a whole JSON object.


def parameters(arguments: Sequence[str], schema: Schema) -> dict[str, Any]:
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
    """Returns the text parsed as JSON if its type is among the wanted ones (None: any); otherwise the text itself."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if wanted is None or wanted & set(_kinds_of(value)):
        return value
    return text


def kinds(key: str, schema: Schema) -> frozenset[str] | None:
    """Returns the JSON types that the schema allows for a parameter; None if the schema does not restrict it."""
    found = schema.get("properties", {}).get(key)
    if not isinstance(found, Mapping):
        return None
    return frozenset(_declared(found, schema, 0)) or None


def _declared(schema: Schema, whole: Schema, depth: int) -> Iterator[str]:
    if depth > 20:  # A schema may refer to itself, without end.
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
    if value is None:
        return ["null"]
    return _KINDS.get(type(value), ["object"])


_KINDS = {bool: ["boolean"], int: ["integer", "number"], float: ["number"], str: ["string"], list: ["array"]}


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


# Filters.

FILTERS = (
    "status", "job_type", "office_id", "role", "task_id", "template_id", "schedule_id", "group_id",
    "retry_of", "fingerprint", "created_after", "created_before", "finished_after", "finished_before",
    "awaiting_signal", "q",
)  # fmt: skip
ALIASES = {"type": "job_type", "office": "office_id", "task": "task_id", "group": "group_id", "text": "q"}


def job_filter(arguments: Sequence[str]) -> "JobFilter":
    found: dict[str, str] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        name = ALIASES.get(name, name)
        if not equals or not value or name not in FILTERS:
            raise typer.BadParameter(
                f"{argument!r} is not a filter: write name=value (or name=a,b); names: {', '.join(FILTERS)}"
            )
        found[name] = value.upper() if name == "status" else value
    return cast("JobFilter", found)


# Ids.

_WHOLE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PART = re.compile(r"[0-9a-f-]{4,35}")
# How many matches of an ambiguous id an error shows.
SHOWN = 5


def job_id(client: "Client", text: str) -> str:
    """Returns the whole id of the job that a text identifies."""
    wanted = text.strip().lower()
    if _WHOLE.fullmatch(wanted):
        return wanted
    if not _PART.fullmatch(wanted):
        raise NotFound("job", text)
    found: list[str] = []
    for job in client.jobs(q=wanted):
        if matches(job.job_id, wanted):
            found.append(job.job_id)
            if len(found) > SHOWN:
                break
    return only(found, "job", text)


def run_id(client: "Client", text: str) -> str:
    """Returns the id of the run that a text identifies: the run's own whole id, or its job's id, which may be short."""
    wanted = text.strip().lower()
    if _WHOLE.fullmatch(wanted):
        try:
            return client.run_by_id(wanted).run_id
        except NotFound:
            pass
    job = client.job(job_id(client, wanted))
    if job.run is None:
        raise Invalid(f"job {text} is {job.status} and has no run yet; `nextslot why {text}` shows the reason")
    return job.run.run_id


def named(items: Iterable[T], text: str, kind: str, id_of: Callable[[T], str], name_of: Callable[[T], str | None]) -> T:
    """Returns the item of a list whose name or id is the text, or whose id begins or ends with it."""
    everything = list(items)
    exact = [one for one in everything if text in (id_of(one), name_of(one))]
    found = exact or [one for one in everything if len(text) >= 4 and matches(id_of(one), text.lower())]
    whole = only([id_of(one) for one in found], kind, text)
    return next(one for one in found if id_of(one) == whole)


def matches(id: str, part: str) -> bool:
    return id.startswith(part) or id.endswith(part)


def only(found: list[str], kind: str, text: str) -> str:
    if not found:
        raise NotFound(kind, text)
    if len(found) > 1:
        some = ", ".join(found[:SHOWN]) + (", …" if len(found) > SHOWN else "")
        raise Invalid(f"{text!r} matches several: {some}; give more of the id")
    return found[0]


def json_value(text: str) -> Any:
    """Returns the JSON of an option: the option's text, or the content of a file named with @."""
    return _json(_file(text) if text.startswith("@") else text, text)


def json_file(file: str) -> Any:
    """Returns the JSON of a file; `-` is stdin."""
    try:
        return json.loads(sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{file} cannot be read as JSON: {error}") from error


def follow_up(
    webhook: str | None, webhook_format: str | None, retries: int | None, retry_on: Sequence[str] | None
) -> dict[str, Any]:
    """Returns the fields of a job or template about what follows a run: the webhook and the retry policy."""
    if webhook_format is not None and webhook is None:
        raise typer.BadParameter("--webhook-format says the form of a message; give --webhook URL too")
    hook = given(url=webhook, format=webhook_format)
    policy = given(max_attempts=retries, retry_on=list(retry_on) if retry_on else None)
    return dict(given(webhook=hook or None, retry_policy=policy or None))
