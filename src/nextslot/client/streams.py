"""Streams of server-sent events: read piece by piece, and continued after the last message if the connection breaks."""

import codecs
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from nextslot.errors import Draining, NextslotError, Unavailable

from . import problems
from .request_retries import RequestRetries
from .requests import Lost, OpenReply, Request

if TYPE_CHECKING:
    from .transports import Transport

T = TypeVar("T")

# The server writes something every 15 seconds; after this silence the connection counts as broken.
SILENCE_SECONDS = 60.0
STREAM_ENDED = Lost("the stream ended")


@dataclass(frozen=True, slots=True)
class Message:
    event: str
    data: str
    id: str | None

    def json(self) -> Any:
        return orjson.loads(self.data)


class Messages:
    """Collects bytes, and returns the messages that are complete."""

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
            return None  # A comment that keeps the connection alive.
        return Message(fields.get("event", ["message"])[-1], "\n".join(fields["data"]), fields.get("id", [None])[-1])


@dataclass(frozen=True, slots=True)
class End:
    """The value that `read` of `followed` returns for the last message."""


async def followed(
    transport: "Transport",
    retries: RequestRetries,
    request: Request,
    read: Callable[[Message], T | End | None],
    resume: Callable[[Request, str], Request],
) -> AsyncGenerator[T, None]:
    """Yields the result of `read` for each message; after a broken connection, continues after the last message.

    The stream ends when `read` returns End. Each message resets the count of failures.
    """
    failures = 0
    while True:
        async with transport.open(request) as reply:
            if isinstance(reply, OpenReply):
                retries, messages = retries.patient(), Messages()
                while isinstance(piece := await reply.read(), bytes):
                    for message in messages.of(piece):
                        failures = 0
                        if message.id is not None:
                            request = resume(request, message.id)
                        item = read(message)
                        if isinstance(item, End):
                            return
                        if item is not None:
                            yield item
                reply = piece or STREAM_ENDED
        failures += 1
        pause = retries.pause(failures, reply, request)
        if pause is None:
            raise retries.refusal(reply)
        await transport.sleep(pause)


async def heard_once(
    transport: "Transport", retries: RequestRetries, request: Request, read: Callable[[Message], T]
) -> AsyncGenerator[T, None]:
    """Yields the messages of a request for work, which is never repeated; raises if the connection breaks early."""
    async with transport.open(request) as reply:
        if not isinstance(reply, OpenReply):
            raise retries.refusal(reply)
        messages = Messages()
        while isinstance(piece := await reply.read(), bytes):
            for message in messages.of(piece):
                if message.event == "error":
                    raise _error_of(message)
                yield read(message)
                if message.event == "result":
                    return
    reason = (piece or STREAM_ENDED).reason
    raise Unavailable(f"the connection to {retries.url} broke before the result came ({reason})")


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
