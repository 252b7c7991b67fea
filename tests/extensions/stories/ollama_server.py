"""A scripted Ollama on a real socket: it answers each request as the next step of its script says."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Reply = Callable[["Call"], Awaitable[None]]


@dataclass
class Call:
    """One request, and the way back to who made it."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def begin(self, status: int = 200, content_type: str = "application/x-ndjson", *more: str) -> None:
        head = [f"HTTP/1.1 {status} Whatever", f"Content-Type: {content_type}", *more, "Connection: close", "", ""]
        await self.send("\r\n".join(head))

    async def send(self, text: str) -> None:
        self.writer.write(text.encode())
        await self.writer.drain()
        await asyncio.sleep(0)  # A full buffer is not the only reason to let others have their turn.

    async def say(self, content: str, done: bool = False) -> None:
        message = {"role": "assistant", "content": content}
        await self.send(json.dumps({"model": self.body["model"], "message": message, "done": done}) + "\n")


@dataclass
class ScriptedOllama:
    base_url: str
    script: list[Reply]
    calls: list[Call] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    serving: set[asyncio.Task[None]] = field(default_factory=set)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.add(asyncio.ensure_future(self.serve(reader, writer)))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(await _read(reader, writer))
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, call: Call) -> None:
        if call.path == "/api/version":  # A probe is no step of a script.
            await call.begin(content_type="application/json")
            await call.send('{"version": "0"}')
            return
        self.calls.append(call)
        self.asked.set()
        # The last step is for all further requests too.
        reply = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        answering = asyncio.ensure_future(reply(call))
        leaving = asyncio.ensure_future(call.reader.read())
        try:
            await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
            if leaving.done() and not answering.done():
                self.hung_up.set()
        finally:
            answering.cancel()
            leaving.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)


@asynccontextmanager
async def scripted(*script: Reply) -> AsyncIterator[ScriptedOllama]:
    ollama = ScriptedOllama("", list(script))
    server = await asyncio.start_server(ollama.accept, "127.0.0.1", 0)
    ollama.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield ollama
        for task in ollama.serving:
            task.cancel()
        await asyncio.gather(*ollama.serving, return_exceptions=True)


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Call:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, path, _ = head[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Call(method, path, headers, json.loads(body) if body else None, reader, writer)


# Replies.


def tells(*chunks: str) -> Reply:
    """Sends a whole answer in pieces."""

    async def reply(call: Call) -> None:
        await call.begin()
        for chunk in chunks:
            await call.say(chunk)
        await call.say("", done=True)

    return reply


def refuses(status: int, body: str) -> Reply:
    async def reply(call: Call) -> None:
        await call.begin(status, "application/json", f"Content-Length: {len(body.encode())}")
        await call.send(body)

    return reply


def says(raw: str) -> Reply:
    """Sends exactly these lines, and then the end."""

    async def reply(call: Call) -> None:
        await call.begin()
        await call.send(raw)

    return reply


def talks_and_waits(*chunks: str) -> Reply:
    """Begins an answer and never ends it."""

    async def reply(call: Call) -> None:
        await call.begin()
        for chunk in chunks:
            await call.say(chunk)
        await asyncio.Event().wait()

    return reply


def goes_on_for_ever(line: str) -> Reply:
    async def reply(call: Call) -> None:
        await call.begin()
        while True:
            await call.send(line)

    return reply


async def cuts_the_connection(call: Call) -> None:
    """Cuts the connection in the middle of a chunk of a chunked answer."""
    await call.begin(200, "application/x-ndjson", "Transfer-Encoding: chunked")
    line = json.dumps({"message": {"content": "Once upon"}, "done": False}) + "\n"
    await call.send(f"{len(line):x}\r\n{line}\r\nff\r\nhalf")
    call.writer.transport.abort()


async def hangs_up_at_once(call: Call) -> None:
    call.writer.transport.abort()


async def says_nothing(call: Call) -> None:
    await asyncio.Event().wait()
