"""Streams of server-sent events: read piece by piece, and taken up again after the last one that came.

Plans like those of `plans.py`; the verbs that follow something are made of them.
"""

import codecs
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import orjson

from nextslot.errors import Draining, NextslotError, Unavailable

from . import problems
from .operations import (
    Give,
    Lost,
    Open,
    Pause,
    Read,
    Reply,
    Request,
    RequestRetries,
    StreamOperation,
)

T = TypeVar("T")

# The server says something every 15 seconds; silence for this long is a broken line.
SILENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Message:
    event: str
    data: str
    id: str | None

    def json(self) -> Any:
        return orjson.loads(self.data)


class Messages:
    """Takes bytes as they come and gives the messages that they complete."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""
        self._lines: list[str] = []

    def of(self, piece: bytes) -> Iterator[Message]:
        *lines, self._rest = (self._rest + self._decode(piece)).split("\n")
        for line in lines:
            line = line.removesuffix("\r")
            if line:
                self._lines.append(line)
            elif message := self._message():
                yield message

    def _message(self) -> Message | None:
        fields: dict[str, list[str]] = {}
        for line in self._lines:
            name, _, value = line.partition(":")
            fields.setdefault(name, []).append(value.removeprefix(" "))
        self._lines = []
        if "data" not in fields:
            return None  # A comment that keeps the line alive.
        return Message(fields.get("event", ["message"])[-1], "\n".join(fields["data"]), fields.get("id", [None])[-1])


@dataclass(frozen=True, slots=True)
class End:
    """What `read` of `followed` answers to the last message."""


def followed(
    retries_policy: RequestRetries,
    request: Request,
    read: Callable[[Message], T | End | None],
    resume: Callable[[Request, str], Request],
) -> StreamOperation[T]:
    """Gives what `read` makes of each message; when the line breaks, asks again from the last message on.

    It ends when `read` answers End. Failures in a row are counted, not those of the whole life of the stream.
    """
    failures = 0
    while True:
        reply = yield Open(request)
        if isinstance(reply, Reply) and reply.status < 400:
            retries_policy, messages = retries_policy.patient(), Messages()
            while isinstance(piece := (yield Read()), bytes):
                for message in messages.of(piece):
                    failures = 0
                    if message.id is not None:
                        request = resume(request, message.id)
                    item = read(message)
                    if isinstance(item, End):
                        return
                    if item is not None:
                        yield Give(item)
            reply = piece if isinstance(piece, Lost) else Lost("the stream ended")
        failures += 1
        pause = retries_policy.pause(failures, reply, request)
        if pause is None:
            raise retries_policy.refusal(reply)
        yield Pause(pause)


def heard_once(retries_policy: RequestRetries, request: Request, read: Callable[[Message], T]) -> StreamOperation[T]:
    """A stream that is a request for work: never sent twice; a line that breaks before its last message is an error."""
    reply = yield Open(request)
    if not isinstance(reply, Reply) or reply.status >= 400:
        raise retries_policy.refusal(reply)
    messages = Messages()
    while isinstance(piece := (yield Read()), bytes):
        for message in messages.of(piece):
            if message.event == "error":
                raise _error_of(message)
            yield Give(read(message))
            if message.event == "result":
                return
    reason = piece.reason if isinstance(piece, Lost) else "the stream ended"
    raise Unavailable(f"the line to {retries_policy.url} broke before the result came ({reason})")


def by_last_event_id(request: Request, id: str) -> Request:
    return replace(request, headers={**request.headers, "Last-Event-ID": id})


def by_offset(request: Request, id: str) -> Request:
    query = {name: value for name, value in request.query.items() if name != "tail"}
    return replace(request, query={**query, "offset": id})


def stream_of(request: Request) -> Request:
    headers = {**request.headers, "Accept": "text/event-stream"}
    return replace(request, headers=headers, answer_seconds=SILENCE_SECONDS)


def _error_of(message: Message) -> NextslotError:
    body = message.json()
    if not isinstance(body, dict):
        return Draining(str(body))
    return problems.error_of(int(body.get("status") or 503), body)
