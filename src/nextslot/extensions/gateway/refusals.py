"""Converts refusals of the server itself, such as 401, below `/v1` into the form of OpenAI's protocol."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

from .error_form import of_problem

# The messages of ASGI; only `routes` may import the web framework.
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

PLACE = "/v1"


def in_the_protocols_form(app: App, root_path: str) -> App:
    async def answer(scope: Message, receive: Receive, send: Send) -> None:
        is_ours = scope["type"] == "http" and _is_below(scope["path"], root_path)
        await app(scope, receive, _Translator(send).send if is_ours else send)

    return answer


def _is_below(path: str, root_path: str) -> bool:
    inner = path.removeprefix(root_path)
    return inner == PLACE or inner.startswith(f"{PLACE}/")


class _Translator:
    """Collects a refusal until it is complete, and sends it in the form of the protocol; passes on everything else."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._body = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_problem(message):
            self._start = message
        elif self._start is None:
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._translate(self._start)

    async def _translate(self, start: Message) -> None:
        status, body = of_problem(orjson.loads(self._body))
        left_out = (b"content-type", b"content-length")
        headers = [(name, value) for name, value in start["headers"] if name.lower() not in left_out]
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self._send({**start, "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


def _is_problem(message: Message) -> bool:
    kinds = [value for name, value in message["headers"] if name.lower() == b"content-type"]
    return any(value.startswith(b"application/problem+json") for value in kinds)
