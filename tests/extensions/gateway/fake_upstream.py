"""A model server on a real socket that does what the name of the model says: it answers, stalls, breaks, refuses."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

OWL = "an 🦉 says “hú”"


@dataclass
class Asked:
    """One request, and the way back to who sent it."""

    upstream: "FakeUpstream"
    path: str
    headers: dict[str, str]
    body: Any
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self, status: int, kind: str, *more: str) -> None:
        lines = [f"HTTP/1.1 {status} Whatever", f"Content-Type: {kind}", *more, "Connection: close", "", ""]
        await self.send("\r\n".join(lines).encode())

    async def whole(self, status: int, content: Any, *more: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        await self.head(status, "application/json", f"Content-Length: {len(body)}", *more)
        await self.send(body)

    async def opened(self) -> None:
        await self.head(200, "text/event-stream; charset=utf-8")

    async def chunk(self, text: str | None, end: str | None = None, **more: Any) -> None:
        await self.send(b"data: " + json.dumps(self.content(text, end) | more).encode() + b"\n\n")

    def content(self, text: str | None, end: str | None = None) -> dict[str, Any]:
        delta = {} if text is None else {"content": text}
        choices = [{"index": 0, "delta": delta, "finish_reason": end}]
        return {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}

    async def until_gone(self) -> None:
        """Waits until the other side hangs up, and notes that it did."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(1000):
                pass
        self.upstream.hung_up += 1


Behaviour = Callable[[Asked], Awaitable[None]]


@dataclass
class FakeUpstream:
    base_url: str
    asked: list[Asked] = field(default_factory=list)
    active: int = 0
    most_active: int = 0
    hung_up: int = 0
    # Models whose names begin with `held` are answered when this is set.
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def models(self) -> list[str]:
        return [asked.body["model"] for asked in self.asked]

    @property
    def texts(self) -> list[str]:
        return [asked.body["messages"][0]["content"] for asked in self.asked]

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._answer(reader, writer)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, path, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split(" ", 2)
        pairs = [line.split(": ", 1) for line in lines[0].split("\r\n")[1:] if ": " in line]
        headers = {name.lower(): value for name, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        asked = Asked(self, path, headers, json.loads(body) if body else None, reader, writer)
        if method == "GET":
            listed = [{"id": name, "object": "model", "created": 1, "owned_by": "x"} for name in sorted(BEHAVIOURS)]
            await asked.whole(200, {"object": "list", "data": listed})
            return
        self.asked.append(asked)
        self.active += 1
        self.most_active = max(self.active, self.most_active)
        try:
            await BEHAVIOURS[asked.body["model"]](asked)
        finally:
            self.active -= 1


async def _plain(asked: Asked) -> None:
    """Answers as a good server does."""
    if asked.path.endswith("/embeddings"):
        data = [{"object": "embedding", "index": 0, "embedding": [0.5, -0.25]}]
        usage = {"prompt_tokens": 2, "total_tokens": 2}
        await asked.whole(200, {"object": "list", "data": data, "model": "plain", "usage": usage})
    elif not asked.body.get("stream"):
        message = {"role": "assistant", "content": OWL}
        choices: list[dict[str, Any]] = [{"index": 0, "message": message, "finish_reason": "stop"}]
        if asked.path.endswith("/v1/completions"):
            choices = [{"index": 0, "text": OWL, "finish_reason": "stop", "logprobs": None}]
        usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
        about = {"id": "c-1", "object": "chat.completion", "created": 1, "model": "plain"}
        await asked.whole(200, {**about, "choices": choices, "usage": usage}, "x-ratelimit-remaining-requests: 9")
    else:
        await asked.opened()
        for word in ("an ", "🦉 ", "says “hú”"):
            await asked.chunk(word)
        await asked.chunk(None, "stop")
        if asked.body.get("stream_options"):
            await asked.chunk(None, choices=[], usage={"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7})
        await asked.send(b"data: [DONE]\n\n")


async def _held(asked: Asked) -> None:
    gone = asyncio.ensure_future(asked.until_gone())
    opened = asyncio.ensure_future(asked.upstream.opened.wait())
    await asyncio.wait([gone, opened], return_when=asyncio.FIRST_COMPLETED)
    opened.cancel()
    if not gone.done():
        gone.cancel()
        await _plain(asked)


async def _brief(asked: Asked) -> None:
    """Answers after a tenth of a second."""
    await asyncio.sleep(0.1)
    await _plain(asked)


async def _usage_null(asked: Asked) -> None:
    """Streams with `usage` in every chunk: null, and the numbers in a chunk of its own."""
    is_asked = bool((asked.body.get("stream_options") or {}).get("include_usage"))
    null: dict[str, Any] = {"usage": None} if is_asked else {}
    await asked.opened()
    await asked.chunk(None, choices=[], filtered="no", **null)
    await asked.chunk(OWL, **null)
    await asked.chunk(None, "stop", **null)
    if is_asked:
        await asked.chunk(None, choices=[], usage={"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7})
    await asked.send(b"data: [DONE]\n\n")


async def _held_in_the_middle(asked: Asked) -> None:
    await asked.opened()
    await asked.chunk("an ")
    await asked.until_gone()


async def _held_after_one(asked: Asked) -> None:
    await asked.opened()
    await asked.chunk("an ")
    await asked.upstream.opened.wait()
    for word in ("🦉 ", "says"):
        await asked.chunk(word)
    await asked.chunk(None, "stop")
    await asked.send(b"data: [DONE]\n\n")


async def _never(asked: Asked) -> None:
    await asked.until_gone()


async def _broken(asked: Asked) -> None:
    await asked.opened()
    await asked.chunk("an ")
    await asked.send(b'data: {"id": "c-1", "choices": [{"index": 0, "del')


async def _broken_body(asked: Asked) -> None:
    await asked.head(200, "application/json", "Content-Length: 1000")
    await asked.send(b'{"id": "c-1"')


async def _silent_end(asked: Asked) -> None:
    """Closes at once."""


async def _odd(asked: Asked) -> None:
    """CRLF, comments, unknown fields, an empty list of choices, no usage, bytes one by one, and no [DONE]."""
    await asked.opened()
    first = json.dumps(asked.content("an 🦉 "), ensure_ascii=False).encode()
    data = b": hello\r\n\r\nretry: 10\r\nevent: x\r\ndata: " + first + b"\r\n\r\n\r\n"
    data += b'data:{"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []}\n\n'
    for number in range(len(data)):
        await asked.send(data[number : number + 1])
    await asked.chunk("says “hú”")
    await asked.chunk(None, "stop")


async def _half_pairs(asked: Asked) -> None:
    """Splits an emoji between two chunks, as servers do whose texts are UTF-16, and sends NaN."""
    await asked.opened()
    for half in ("\ud83e", "\udd89"):
        await asked.chunk(half, usage=None, logprobs=float("nan"))
    await asked.chunk(None, "stop")
    await asked.send(b"data: [DONE]\n\n")


async def _impossible_usage(asked: Asked) -> None:
    """Reports numbers of tokens that no request can have."""
    usage = {"prompt_tokens": -3, "completion_tokens": True, "total_tokens": 10**18}
    choices = [{"index": 0, "message": {"role": "assistant", "content": OWL}, "finish_reason": "stop"}]
    await asked.whole(200, {"id": "c-1", "object": "chat.completion", "choices": choices, "usage": usage})


async def _no_json(asked: Asked) -> None:
    if asked.body.get("stream"):
        await asked.opened()
        await asked.send(b"data: <html>oops</html>\n\n")
        await asked.until_gone()
    else:
        await asked.whole(200, b"<html>oops</html>")


async def _no_stream(asked: Asked) -> None:
    await asked.whole(200, {"choices": []})


async def _error_in_the_stream(asked: Asked) -> None:
    await asked.opened()
    await asked.chunk("an ")
    await asked.send(b'data: {"error": {"message": "out of memory", "code": "oom"}}\n\n')


def _refuses(status: int, content: Any, *more: str) -> Behaviour:
    async def refuse(asked: Asked) -> None:
        await asked.whole(status, content, *more)

    return refuse


BEHAVIOURS: dict[str, Behaviour] = {
    "plain": _plain,
    "held": _held,
    "usage-null": _usage_null,
    **{f"brief-{name}": _brief for name in "abc"},
    "held-in-the-middle": _held_in_the_middle,
    "held-after-one": _held_after_one,
    "never": _never,
    "broken": _broken,
    "broken-body": _broken_body,
    "silent-end": _silent_end,
    "odd": _odd,
    "half-pairs": _half_pairs,
    "impossible-usage": _impossible_usage,
    "no-json": _no_json,
    "no-stream": _no_stream,
    "error-in-the-stream": _error_in_the_stream,
    "429": _refuses(
        429, {"error": {"message": "slow down", "type": "requests", "code": "rate_limit_exceeded"}}, "Retry-After: 7"
    ),
    "429-ms": _refuses(429, {"error": {"message": "slow down"}}, "retry-after-ms: 1234567", "Retry-After: 1"),
    "429-anthropic": _refuses(
        429,
        {"error": {"message": "slow down"}},
        "anthropic-ratelimit-requests-reset: 1235",
        "anthropic-ratelimit-requests-remaining: 0",
        "anthropic-ratelimit-tokens-reset: 9999",
        "anthropic-ratelimit-tokens-remaining: 17",
    ),
    "429-ietf-fields": _refuses(429, {"error": {"message": "slow down"}}, 'RateLimit: "day";r=0;t=1235'),
    "429-ietf": _refuses(429, {"error": {"message": "slow down"}}, "ratelimit-reset: 1235"),
    "307": _refuses(307, b"", "Location: https://models.example/v1/chat/completions"),
    "500": _refuses(500, b"Internal Server Error"),
    "400": _refuses(400, {"error": {"message": "too long", "type": "invalid_request_error", "param": "messages"}}),
    "401": _refuses(401, {"error": {"message": "Incorrect API key provided: sekret-1"}}),
}


@asynccontextmanager
async def fake_upstream(port: int = 0) -> AsyncIterator[FakeUpstream]:
    upstream = FakeUpstream("")
    server = await asyncio.start_server(upstream.accept, "127.0.0.1", port, backlog=1000)
    upstream.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield upstream
    finally:
        server.close()
        for task in list(upstream.tasks):
            task.cancel()
        await asyncio.gather(*upstream.tasks, return_exceptions=True)
