"""Receivers of webhooks on real sockets, each with its own way to answer or not to; and a clock that can be moved."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

from nextslot.system.clock import Alarm, LoopAlarm, SystemClock


class Request(NamedTuple):
    line: str
    headers: dict[str, str]
    body: bytes


Respond = Callable[["Receiver", asyncio.StreamWriter], Awaitable[None]]


class Receiver:
    """An HTTP server in a few lines, so that a test decides over every byte that it sends."""

    def __init__(self, respond: Respond, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        self.open = 0
        self._respond = respond
        self._tls = tls
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def port(self) -> int:
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://localhost:{self.port}/hook"

    async def __aenter__(self) -> "Receiver":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        self._writers.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                self.requests.append(await _request(reader))
                await self._respond(self, writer)
                if writer.is_closing():
                    break
        self.open -= 1
        writer.transport.abort()


async def _request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    line, *rows = head.strip().split("\r\n")
    headers = {name.lower(): value for name, value in (row.split(": ", 1) for row in rows)}
    return Request(line, headers, await reader.readexactly(int(headers["content-length"])))


def answers(status: str = "200 OK", body: str = "", **headers: str) -> Respond:
    async def respond(receiver: Receiver, writer: asyncio.StreamWriter) -> None:
        rows = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()]
        writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{''.join(rows)}\r\n{body}".encode())
        await writer.drain()

    return respond


def says(raw: bytes, close: bool = True) -> Respond:
    """Sends exactly these bytes and then closes, or stays silent."""

    async def respond(receiver: Receiver, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()
        if close:
            writer.close()
        else:
            await asyncio.Event().wait()

    return respond


def dribbles(head: bytes) -> Respond:
    """Sends a few bytes, then one after the other for ever."""

    async def respond(receiver: Receiver, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while not writer.is_closing():
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    return respond


class MovedClock(SystemClock):
    """The machine's clock, and as far ahead of it as a test says; what becomes due by that rings at once."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self._alarms: list[LoopAlarm] = []
        super().__init__()

    def monotonic(self) -> float:
        return super().monotonic() + self._ahead

    def _wall(self) -> int:
        return super()._wall() + round(self._ahead * 1_000_000)

    def alarm(self, ring: Any) -> Alarm:
        self._alarms.append(LoopAlarm(self, ring))
        return self._alarms[-1]

    def move(self, seconds: float) -> None:
        self._ahead += seconds
        for alarm in self._alarms:
            if alarm._at is not None:
                alarm.set(alarm._at)


@contextlib.asynccontextmanager
async def unused_port() -> AsyncIterator[int]:
    """Reserves a port that refuses connections: bound, so that nobody else gets it, but not listening."""
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0, start_serving=False)
    port: int = server.sockets[0].getsockname()[1]
    try:
        yield port
    finally:
        server.close()
