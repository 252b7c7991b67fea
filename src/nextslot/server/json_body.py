"""Parses the JSON of a request: each key once, numbers without loss, text that both databases store.

`request_body.py` calls it: on the event loop for a small body, in its thread for a larger one. A body above the size
limit of an item must be a list, or an object of lists. It is parsed item by item, with pauses in between, because the
parser holds the interpreter's lock during an item.
"""

import codecs
import json
import math
import re
import time
from collections.abc import Callable
from typing import Any

import orjson

from nextslot.domain.bounds import quoted
from nextslot.errors import Invalid

from .problems import HttpProblem

# A list with more items, or an object with more keys, is refused during parsing.
MOST_ITEMS = 100_000
MOST_KEYS = 1000
# How long the parser works between two pauses, and how long a pause is, in seconds: other threads get three quarters of
# the time.
WORK_SECONDS = 0.0005
PAUSE_SECONDS = 0.0015

_SPACE = re.compile(r"[ \t\n\r]*")
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*+\\u0000")


def parse(body: bytes | bytearray, most_item_bytes: int, pause: Callable[[float], None] = time.sleep) -> Any:
    """Returns the value of a body. Raises Invalid, or HttpProblem with 400 or 413."""
    try:
        if len(body) > most_item_bytes:
            return _Pieces(body, most_item_bytes, pause).value()
        text = body.decode()
        return _storable(_DECODER.decode(text), "\\u" in text)
    except json.JSONDecodeError as error:
        place = f", after {error.pos} characters" if error.pos else ""
        raise _malformed(f"{error.msg}{place}") from None
    except UnicodeDecodeError:
        raise _malformed("it is not UTF-8") from None
    except RecursionError:
        raise _malformed("it is nested too deep") from None


class _Pieces:
    """Walks over a large body. Only a window of its text is in memory at a time."""

    def __init__(self, body: bytes | bytearray, most_item: int, pause: Callable[[float], None]) -> None:
        self._body = memoryview(body)
        self._most_item = most_item
        self._pause = pause
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        # The bytes that are decoded already, the characters before the window, and the position in the window.
        self._decoded = self._passed = self._at = 0
        self._text, self._has_escapes = "", False
        self._worked_since = time.perf_counter()

    def value(self) -> Any:
        found = self._list() if self._peek() == "[" else self._object()
        if self._peek():
            raise self._malformed("extra data")
        return found

    def _object(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self._take("{", "the body must be a JSON object")
        while self._peek() != "}" or found:
            if self._peek() != '"':
                raise self._malformed("a key in double quotes is expected")
            key = self._item()
            if key in found:
                raise _twice(key)
            if len(found) == MOST_KEYS:
                raise Invalid(f"the body has more than {MOST_KEYS:,} keys, the most that are allowed; send fewer")
            self._take(":", "a colon is expected")
            found[key] = self._list(key) if self._peek() == "[" else self._item()
            if self._peek() == "}":
                break
            self._take(",", "a comma is expected")
        self._at += 1
        return found

    def _list(self, name: str = "") -> list[Any]:
        found: list[Any] = []
        self._at += 1
        while self._peek() != "]" or found:
            if len(found) == MOST_ITEMS:
                raise Invalid(
                    f"has more than {MOST_ITEMS:,} items, the most that are allowed; send fewer at once", name
                )
            found.append(self._item())
            self._rest()
            if self._peek() == "]":
                break
            self._take(",", "a comma is expected")
        self._at += 1
        return found

    def _item(self) -> Any:
        self._peek()
        try:
            value, end = _DECODER.raw_decode(self._text, self._at)
        except json.JSONDecodeError as error:
            # The item may continue beyond the end of the window.
            if self._has_more and (error.msg.startswith("Unterminated") or error.pos > len(self._text) - 16):
                raise self._too_large() from None
            raise json.JSONDecodeError(error.msg, "", self._passed + error.pos) from None
        if end - self._at > self._most_item or (end == len(self._text) and self._has_more):
            raise self._too_large()
        self._at = end
        return _storable(value, self._has_escapes)

    def _peek(self) -> str:
        """Moves to the next character that is not a space and returns it; returns an empty text at the end of the
        body."""
        while True:
            if len(self._text) - self._at <= self._most_item and self._has_more:
                self._move_window()
            match = _SPACE.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text) or not self._has_more:
                return self._text[self._at : self._at + 1]

    @property
    def _has_more(self) -> bool:
        return self._decoded < len(self._body)

    def _move_window(self) -> None:
        some = self._body[self._decoded : self._decoded + self._most_item + 1]
        self._decoded += len(some)
        self._text = self._text[self._at :] + self._decoder.decode(some, final=not self._has_more)
        self._has_escapes = "\\u" in self._text
        self._passed += self._at
        self._at = 0

    def _take(self, character: str, expected: str) -> None:
        if self._peek() != character:
            raise self._malformed(expected)
        self._at += 1

    def _rest(self) -> None:
        if time.perf_counter() - self._worked_since > WORK_SECONDS:
            self._pause(PAUSE_SECONDS)
            self._worked_since = time.perf_counter()

    def _malformed(self, message: str) -> json.JSONDecodeError:
        return json.JSONDecodeError(message, "", self._passed + self._at)

    def _too_large(self) -> HttpProblem:
        detail = f"an item of the body has more than {self._most_item:,} bytes, which is the most that is taken here"
        return HttpProblem(413, "too_large", detail)


def _storable(value: Any, has_escapes: bool) -> Any:
    """Refuses NUL and halves of surrogate pairs. Only an escape sequence can put them into a text."""
    if has_escapes:
        try:
            encoded = orjson.dumps(value)
        except TypeError as error:
            raise _malformed(str(error)) from None
        if b"\\u0000" in encoded and (found := _NUL.search(encoded)) is not None:
            before = encoded[max(found.end() - 56, 0) : found.end() - 6].decode(errors="replace")
            raise Invalid(f"the body has a NUL character (\\u0000) after {quoted(before)}; remove it")
    return value


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        raise _twice(next(key for key, _ in pairs if key in seen or seen.add(key)))  # type: ignore[func-returns-value]
    return found


def _twice(key: str) -> Invalid:
    return Invalid(f"an object of the body has the key {quoted(key)} twice; give each key once")


def _whole(digits: str) -> int:
    """Refuses whole numbers that do not fit 64 bits: our JSON parser would turn them into floats with other values."""
    if len(digits) > 20 or not -(2**63) <= (number := int(digits)) < 2**64:
        raise Invalid(f"the number {digits[:110]} does not fit 64 bits; send it as a text")
    return number


def _fraction(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise Invalid(f"the number {digits[:50]} is beyond the largest float; send it as a text")
    return number


def _no_number(name: str) -> Any:
    raise _malformed(f"{name} is not a JSON value; send null or a text")


def _malformed(message: str) -> HttpProblem:
    return HttpProblem(400, "malformed", f"the body is not valid JSON: {message}")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object_of, parse_int=_whole, parse_float=_fraction, parse_constant=_no_number
)
