"""What a verb does, as a plan: a generator that yields steps and never touches a socket; the shells take the steps.

So every rule (what may be repeated, what an error means, how a stream is taken up again) is written once, for the
blocking and the asynchronous client alike. The verbs make plans; `shells.py` carries them out.
"""

import math
import secrets
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import orjson

from nextslot.errors import Invalid, NextslotError

from . import problems

T = TypeVar("T")

# How long an ordinary request may stay without an answer.
ANSWER_SECONDS = 30.0
# The pause before the first repetition; each one after it is twice as long.
FIRST_PAUSE_SECONDS = 0.25
# A server that asks for more patience than this is told as not available.
LONGEST_PAUSE_SECONDS = 30.0
DEFAULT_RETRIES = 4
# Three minutes in all.
PATIENT_RETRIES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request as a value."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    # Sent twice, it has the effect of once: a read, or a creation with an Idempotency-Key.
    is_repeatable: bool = False
    # None: for ever. Work that somebody waits for may last hours.
    answer_seconds: float | None = ANSWER_SECONDS

    @property
    def content(self) -> bytes | None:
        if self.body is None:
            return None
        made = orjson.dumps(self.body, default=_plain, option=orjson.OPT_PASSTHROUGH_SUBCLASS)
        # It writes null for NaN and infinity, which is other than what was meant.
        if b"null" in made and not _is_finite(self.body):
            raise Invalid("JSON has no NaN and no infinite numbers")
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
class Lost:
    """No answer, or not all of it."""

    reason: str
    # Whether the server may have the request.
    may_have_arrived: bool = False


@dataclass(frozen=True, slots=True)
class Send:
    """Answered with a Reply, or Lost."""

    request: Request


@dataclass(frozen=True, slots=True)
class Open:
    """As Send, but of a reply below 400 the content is left to be read piece by piece."""

    request: Request


@dataclass(frozen=True, slots=True)
class Read:
    """Answered with the next bytes of what was opened, with None at its end, or Lost."""


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Give(Generic[T]):
    """One item of a stream, for the caller."""

    item: T


Operation = Generator[Send | Pause, Any, T]
StreamOperation = Generator[Send | Open | Read | Pause | Give[T], Any, None]


@dataclass(frozen=True, slots=True)
class RequestRetries:
    """Where the server is, and how often what is safe to repeat is tried again."""

    url: str
    retries: int = DEFAULT_RETRIES

    def patient(self) -> "RequestRetries":
        """For whoever has been answered once and waits for something long: a server that restarts comes back."""
        return replace(self, retries=max(self.retries, PATIENT_RETRIES))

    def pause(self, failures: int, reply: Reply | Lost, request: Request) -> float | None:
        """How long to wait before the request is sent again; None: it must not, or has been often enough."""
        if not request.is_repeatable or failures > self.retries:
            return None
        usual: float = min(FIRST_PAUSE_SECONDS * 2 ** (failures - 1), LONGEST_PAUSE_SECONDS)
        if isinstance(reply, Lost):
            return usual
        asked = reply.headers.get("retry-after", "")
        if reply.status != 503 or not asked.isdecimal() or int(asked) > LONGEST_PAUSE_SECONDS:
            return None
        return max(usual, float(asked))

    def unknown(self, reply: Reply | Lost, request: Request) -> NextslotError:
        """Makes the error for a request that may have arrived at one of the attempts, and got no answer at the last."""
        refused = self.refusal(reply)
        if request.method == "GET" or not (isinstance(reply, Lost) or reply.status == 503):
            return refused
        why = reply.reason if isinstance(reply, Lost) else str(refused)
        return problems.OutcomeUnknown(self.url, why, request.path, request.headers.get("Idempotency-Key"))

    def refusal(self, reply: Reply | Lost) -> NextslotError:
        return (
            problems.NoAnswer(self.url, reply.reason)
            if isinstance(reply, Lost)
            else problems.error_of(reply.status, reply.json())
        )


def asked(retries_policy: RequestRetries, request: Request, read: Callable[[Reply], T]) -> Operation[T]:
    """Sends a request, again where that is safe, and reads the answer."""
    failures, may_have_arrived = 0, False
    while True:
        reply = yield Send(request)
        if isinstance(reply, Reply) and reply.status < 400:
            return read(reply)
        failures += 1
        may_have_arrived |= isinstance(reply, Lost) and reply.may_have_arrived
        pause = retries_policy.pause(failures, reply, request)
        if pause is None:
            raise retries_policy.unknown(reply, request) if may_have_arrived else retries_policy.refusal(reply)
        yield Pause(pause)


def get(path: str, query: Mapping[str, Any] | None = None, **more: Any) -> Request:
    return Request(method="GET", path=path, query=texts(query or {}), is_repeatable=True, **more)


def post(path: str, body: Any = None, **more: Any) -> Request:
    return Request(method="POST", path=path, body={} if body is None else body, **more)


def create(path: str, body: Any, key: str | None = None) -> Request:
    """With an Idempotency-Key, so that a repetition after a lost answer makes nothing twice."""
    return post(path, body, headers={"Idempotency-Key": key or secrets.token_hex(16)}, is_repeatable=True)


def texts(query: Mapping[str, Any]) -> dict[str, str]:
    """Several values by comma, times as RFC 3339; what is None is not said."""
    return {name: _text(value) for name, value in query.items() if value is not None}


def part(text: str) -> str:
    """One part of a path, whatever it contains."""
    return quote(text, safe="")


def paged(limit: int, cursor: str | None) -> dict[str, Any]:
    return {"limit": limit, "cursor": cursor}


def given(**values: Any) -> dict[str, Any]:
    """What the caller said; None is nothing said."""
    return {name: value for name, value in values.items() if value is not None}


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple, set, frozenset)):
        return ",".join(_text(one) for one in value)
    return str(_plain(value))


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    return not isinstance(value, (list, tuple, set, frozenset)) or all(map(_is_finite, value))


def _plain(value: Any) -> Any:
    """For JSON: what orjson does not know by itself, and subclasses of what it knows."""
    if hasattr(value, "as_datetime"):  # An Instant; it prints as the API writes times.
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
    raise TypeError(f"{type(value).__name__} has no form in JSON")
