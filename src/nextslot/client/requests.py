"""Requests and their answers as values; a transport does the input and output."""

import math
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any
from urllib.parse import quote

import orjson

from nextslot.domain import JobFields, NewJob
from nextslot.domain.bounds import must_be
from nextslot.domain.declared_values import Value
from nextslot.errors import Invalid

_PASSED_ON = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS
# How long to wait for the answer to an ordinary request.
ANSWER_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request as a value."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    # Whether sending it twice has the effect of sending it once: a read, or a creation with an Idempotency-Key.
    is_repeatable: bool = False
    # The timeout of the answer. None waits without limit: a direct request may run for hours.
    answer_seconds: float | None = ANSWER_SECONDS

    @property
    def content(self) -> bytes | None:
        if self.body is None:
            return None
        try:
            made = orjson.dumps(self.body, default=_plain, option=_PASSED_ON)
        except TypeError as error:
            raise Invalid(
                f"the request cannot be written as JSON: {error}; convert the value, or use a handle's `via`"
            ) from error
        # orjson writes null for NaN and infinity.
        if b"null" in made and not _is_finite(self.body):
            raise Invalid("the request has NaN or an infinite number, which JSON cannot express; send text instead")
        return made


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    content: bytes

    def json(self) -> Any:
        try:
            return orjson.loads(self.content)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class OpenReply:
    """The beginning of an answer below 400; `read` returns the next bytes, None at the end, or Lost."""

    read: "Callable[[], Awaitable[bytes | Lost | None]]"


@dataclass(frozen=True, slots=True)
class Lost:
    """No answer, or an incomplete one."""

    reason: str
    # Whether the server may have received the request.
    may_have_arrived: bool = False


def get(path: str, query: Mapping[str, Any] | None = None, **more: Any) -> Request:
    return Request(method="GET", path=path, query=texts(query or {}), is_repeatable=True, **more)


def post(path: str, body: Any = None, **more: Any) -> Request:
    return Request(method="POST", path=path, body={} if body is None else body, **more)


def patch(path: str, changes: Mapping[str, Any]) -> Request:
    return Request(method="PATCH", path=path, body=dict(changes))


def put(path: str, body: Any) -> Request:
    return Request(method="PUT", path=path, body=body)


def delete(path: str) -> Request:
    return Request(method="DELETE", path=path)


def create(path: str, body: Any, key: str | None = None) -> Request:
    """Makes a creation with an Idempotency-Key: repeated after a lost answer, it creates nothing twice."""
    return post(path, body, headers={"Idempotency-Key": key or secrets.token_hex(16)}, is_repeatable=True)


def texts(query: Mapping[str, Any]) -> dict[str, str]:
    """Returns a query as texts: several values joined by commas, times as RFC 3339, None left out."""
    return {name: _text(value) for name, value in query.items() if value is not None}


def part(text: str) -> str:
    """Returns a part of a path, quoted: an id or a name. Raises Invalid for a text that would change the path."""
    if not isinstance(text, str) or text in ("", ".", ".."):
        raise Invalid(f"{text!r} is neither an id nor a name; give one that a list shows")
    return quote(text, safe="")


def paged(limit: int, cursor: str | None) -> dict[str, Any]:
    return {"limit": limit, "cursor": cursor}


def given(**values: Any) -> dict[str, Any]:
    """Returns the arguments without those that the caller did not give."""
    return {name: value for name, value in values.items() if value is not None}


def bodies(jobs: Sequence[Mapping[str, Any] | NewJob]) -> list[Mapping[str, Any]]:
    """Returns the jobs of a request as JSON; of a `NewJob`, only the fields that differ from their defaults."""
    if isinstance(jobs, (str, Mapping)) or not isinstance(jobs, Sequence):
        raise Invalid(must_be(jobs, "a list of jobs"), field="jobs")
    return [_said(one) if isinstance(one, NewJob) else one for one in jobs]


def _said(job: NewJob) -> dict[str, Any]:
    return {name: value for name, value in job.__dict__.items() if value != NewJob._defaults.get(name)}


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple, set, frozenset)):
        return ",".join(_text(one) for one in value)
    return str(value if isinstance(value, float) else _plain(value))


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    return not isinstance(value, (list, tuple, set, frozenset)) or all(map(_is_finite, value))


def _plain(value: Any) -> Any:
    """Converts a value that orjson does not know, or a subclass of a type that it knows, for JSON."""
    if isinstance(value, JobFields):
        return value.job_id
    if isinstance(value, Value):
        return value.to_dict()
    if is_dataclass(value):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    if hasattr(value, "as_datetime"):  # Matches an Instant, whose text has the form of the API.
        return str(value)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (tuple, set, frozenset)):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON; convert it to text or a number first")
