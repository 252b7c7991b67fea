"""The access of the tools to the API: over HTTP, or inside the server's process, always with the caller's key.

A tool never has more rights than its caller's key: it sends only requests that the key's holder could send.
"""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote, urlencode

import orjson

from nextslot.client.binding import Subject
from nextslot.client.request_retries import RequestRetries, asked
from nextslot.client.requests import Lost, Reply, Request, create, get, part, post
from nextslot.client.transports import Address, AsyncTransport
from nextslot.errors import Invalid

__all__ = ["Api", "create", "get", "inside", "part", "post"]

# The caller's headers that requests inside the process keep: the key, and the server's host name.
KEPT_HEADERS = frozenset({b"x-api-key", b"authorization", b"host"})


class Api(Subject[AsyncTransport]):
    """Sends requests to the API and returns the answers as JSON; `client.extension(Api)` makes one over HTTP."""

    async def json(self, request: Request) -> Any:
        """Returns the answer as JSON; raises NextslotError with the server's sentence."""
        return (await self.reply(request)).json()

    async def reply(self, request: Request) -> Reply:
        try:
            return await asked(self._transport, self._retries, request, lambda reply: reply)
        except orjson.JSONEncodeError as error:
            raise Invalid(f"the arguments cannot be sent as JSON: {error}; send a large number as a text") from error

    async def sleep(self, seconds: float) -> None:
        await self._transport.sleep(seconds)


def inside(app: Any, outer: Mapping[str, Any]) -> Api:
    """Returns an API inside this process for the caller of the request whose ASGI scope is `outer`."""
    return Api(_InProcess(app, outer), RequestRetries("this server", retries=1))


class _InProcess(AsyncTransport):
    """Sends requests to the ASGI application of this process, as the caller of another request."""

    def __init__(self, app: Any, outer: Mapping[str, Any]) -> None:
        super().__init__(Address("http://127.0.0.1", None), None)
        self._app = app
        self._outer = outer

    async def send(self, request: Request) -> Reply | Lost:
        answer = _Answer(request.content or b"")
        try:
            async with asyncio.timeout(request.answer_seconds):
                await self._app(self._scope(request, len(answer.body)), answer.receive, answer.send)
        except TimeoutError:
            return Lost("no answer in time", may_have_arrived=True)
        return answer.reply()

    def _scope(self, request: Request, length: int) -> dict[str, Any]:
        headers = [pair for pair in self._outer["headers"] if pair[0] in KEPT_HEADERS]
        headers += [(name.lower().encode(), value.encode()) for name, value in request.headers.items()]
        if length:
            headers += [(b"content-type", b"application/json"), (b"content-length", str(length).encode())]
        return {
            **{name: self._outer[name] for name in ("type", "asgi", "http_version", "scheme", "client", "server")},
            "method": request.method,
            "path": unquote(request.path),
            "raw_path": request.path.encode(),
            "query_string": urlencode(dict(request.query), quote_via=quote).encode(),
            "headers": headers,
            "root_path": "",
            "state": {},
        }


class _Answer:
    """What an ASGI application receives and sends in one request."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self._status = 500
        self._headers: dict[str, str] = {}
        self._pieces: list[bytes] = []
        self._is_read = False

    async def receive(self) -> dict[str, Any]:
        if self._is_read:
            await asyncio.Event().wait()  # The caller inside this process never disconnects.
        self._is_read = True
        return {"type": "http.request", "body": self.body, "more_body": False}

    async def send(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]}
        else:
            self._pieces.append(message.get("body", b""))

    def reply(self) -> Reply:
        return Reply(self._status, self._headers, b"".join(self._pieces))
