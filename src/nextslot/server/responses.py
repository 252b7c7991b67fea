"""Makes answers: JSON, pages, created things, logs, and streams of server-sent events."""

import asyncio
import logging
import mimetypes
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from operator import methodcaller
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import orjson
from fastapi import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from nextslot.domain import Job, Page
from nextslot.engine.submit.idempotency import Replayed
from nextslot.errors import NextslotError, Unavailable
from nextslot.executors.job_types import JobTypes
from nextslot.executors.run_log import LogPart
from nextslot.services.read_run_files import Remote

from .auth import caller_of, scheduler_for
from .problems import HttpProblem, content_of, problem_of
from .schemas import SOME

T = TypeVar("T")
log = logging.getLogger(__name__)

# How often an idle stream sends a comment, so that proxies and readers know that the connection is alive.
KEEP_ALIVE_SECONDS = 15.0


_KEY_ENDED = content_of(
    HttpProblem(
        401,
        "unauthorized",
        "the key of this stream was deleted or rotated, or has expired; open the stream with a valid key",
    )
)


def answer(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(content), status, headers, media_type="application/json")


async def notes(job_types: JobTypes, jobs: Iterable[Job]) -> dict[str, str]:
    """Returns the header with the job types' notes about new jobs. Each type makes a note about its first job."""
    firsts = {job.job_type: job for job in reversed(list(jobs))}
    found = [await job_types.note(job.job_type, job.params) for job in firsts.values()]
    said = dict.fromkeys(note for note in found if note is not None)
    return {"X-Note": _header_text(" ".join(said))} if said else {}


def _header_text(text: str) -> str:
    """Returns the text in the form that a header can carry: characters outside ASCII become escapes."""
    return " ".join(text.split()).encode("ascii", "backslashreplace").decode()


async def answer_many(items: Iterable[object], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Answers a long list, encoded in parts. Other requests are served in between, and the encoded list is never in
    memory twice."""
    rest, parts = iter(items), [b'{"items":[']
    while some := list(islice(rest, SOME)):
        parts += [orjson.dumps(some)[1:-1], b","]
        await asyncio.sleep(0)
    parts[-1] = b"]}"
    length = {"Content-Length": str(sum(map(len, parts)))}
    return _InParts(parts, status, {**length, **(headers or {})})


class _InParts(Response):
    """Sends an answer part by part. Joining 60 MB and writing them at once took seconds on a busy machine."""

    media_type = "application/json"

    def __init__(self, parts: list[bytes], status: int, headers: Mapping[str, str]) -> None:
        super().__init__(None, status, headers)
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for part in self._parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def created(content: object, location: str, is_new: bool = True, headers: Mapping[str, str] | None = None) -> Response:
    """Answers 201 with the location; a replay is 200."""
    return answer(content, 201 if is_new else 200, {"Location": location, **(headers or {})})


def page(found: Page[T], shown: Callable[[T], object] = methodcaller("to_dict")) -> Response:
    return answer({"items": [shown(one) for one in found.items], "next_cursor": found.next_cursor})


LOG_HEADERS = ("X-Log-Line", "X-Log-Next", "X-Log-Size", "X-Log-Start")


def log_answer(part: LogPart) -> Response:
    """Answers a part of a log as plain text, so that a browser never executes a job's output."""
    headers = {"X-Log-Size": str(part.size), "X-Log-Next": str(part.next)}
    if part.line is not None:
        headers |= {"X-Log-Start": str(part.start), "X-Log-Line": str(part.line)}
    return Response(part.text, headers=headers, media_type="text/plain; charset=utf-8")


def file_answer(path: Path, name: str) -> FileResponse:
    """Answers an artifact of a run as a download, so that a browser never executes it."""
    return FileResponse(path, headers=_download(path.name), media_type=_kind_of(name))


def artifact_answer(found: Path | Remote, name: str) -> Response:
    """Answers an artifact of this disk, or one that is somewhere else, chunk by chunk."""
    if isinstance(found, Path):
        return file_answer(found, name)
    headers = {**_download(name), "Content-Length": str(found.size)}
    return StreamingResponse(found.chunks, headers=headers, media_type=_kind_of(name))


def _download(name: str) -> dict[str, str]:
    return {
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox",
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name.rpartition('/')[2])}",
    }


def _kind_of(name: str) -> str:
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


def wants_stream(request: Request) -> bool:
    return "text/event-stream" in request.headers.get("accept", "")


def event(data: object, *, event: str | None = None, id: str | None = None) -> bytes:
    """Encodes one server-sent event; its data is JSON on one line."""
    lines = [f"id: {id}"] if id is not None else []
    if event is not None:
        lines.append(f"event: {event}")
    return "\n".join([*lines, f"data: {orjson.dumps(data).decode()}", "", ""]).encode()


def stream(events: AsyncGenerator[bytes, None], request: Request) -> StreamingResponse:
    """Streams the events. The stream ends when the caller's key is deleted, is rotated or expires."""
    headers = {"X-Accel-Buffering": "no"}
    caller = caller_of(request)
    close = request.app.state.office_rate_limits.open_stream(caller.office_id, caller.key_id)
    return _Stream(_kept_alive(events, KeyCheck(request)), close, headers)


class _Stream(StreamingResponse):
    """A stream that frees its place in its office's share when it ends, even if it never begins."""

    def __init__(
        self, content: AsyncGenerator[bytes, None], close: Callable[[], None], headers: Mapping[str, str]
    ) -> None:
        super().__init__(content, headers=headers, media_type="text/event-stream")
        self._content, self._close = content, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()
            # Else what it follows would stay open until the garbage collector finds it.
            await self._content.aclose()


class KeyCheck:
    """Checks whether the key of a stream is still valid: when a key ends on this node, and every 15 seconds."""

    def __init__(self, request: Request) -> None:
        self._keys = scheduler_for(request).keys
        self._text = caller_of(request).text
        self._is_due = asyncio.Event()
        self._last = 0.0

    def begin(self) -> Callable[[], None]:
        """Follows the ends of keys from now on, until the caller calls the returned function."""
        self._last = asyncio.get_running_loop().time()
        stop: Callable[[], None] = self._keys.watch(self._is_due.set)
        return stop

    async def wait(self, upcoming: asyncio.Future[bytes]) -> None:
        """Waits for the next event, for the end of a key, or until the next check is due."""
        ended = asyncio.ensure_future(self._is_due.wait())
        both: list[asyncio.Future[Any]] = [upcoming, ended]
        try:
            await asyncio.wait(both, timeout=KEEP_ALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()

    async def wait_for(self, seconds: float) -> None:
        """Waits this many seconds, or until a key has ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_due.wait()

    async def is_over(self) -> bool:
        """Returns whether the key is no longer valid. Looks it up only when a check is due."""
        now = asyncio.get_running_loop().time()
        if self._text is None or not (self._is_due.is_set() or now >= self._last + KEEP_ALIVE_SECONDS):
            return False
        self._is_due.clear()
        self._last = now
        try:
            return not await self._keys.opens(self._text)
        except Unavailable:
            return False  # The stream survives an outage of the database, and checks again later.


async def _kept_alive(events: AsyncGenerator[bytes, None], key: KeyCheck) -> AsyncGenerator[bytes, None]:
    """Yields the events, and a comment after each silence. Closes the events when the reader disconnects."""
    upcoming: asyncio.Task[bytes] | None = None
    stop = key.begin()
    try:
        # Sent at once, so that the reader knows that it is connected.
        yield b": open\n\n"
        while True:
            upcoming = upcoming or asyncio.ensure_future(anext(events))
            await key.wait(upcoming)
            if await key.is_over():
                yield event(_KEY_ENDED, event="error")
                return
            if not upcoming.done():
                yield b": still here\n\n"
                continue
            try:
                yield upcoming.result()
            except StopAsyncIteration:
                return
            except NextslotError as error:
                # The answer has begun, so its last event carries the error instead of its status.
                log.warning("a stream ends: %s", error)
                yield event(problem_of(error), event="error")
                return
            upcoming = None
    finally:
        stop()
        if upcoming is not None:
            # Even if the task has just ended, its exception must be retrieved.
            upcoming.cancel()
            await asyncio.gather(upcoming, return_exceptions=True)
        await events.aclose()


async def unless_hung_up(request: Request, work: Awaitable[T]) -> T | None:
    """Returns the result of `work`; if the caller hangs up first, cancels the work and returns None."""
    task = asyncio.ensure_future(work)
    left = asyncio.ensure_future(_hang_up(request))
    try:
        await asyncio.wait([task, left], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return None
    finally:
        # Also when the server cancels this request itself.
        for one in (task, left):
            if not one.done():
                one.cancel()


async def _hang_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def create_once(make: Awaitable[T], known: Callable[[str], Awaitable[T]]) -> tuple[T, bool]:
    """Returns what `make` makes, and True. For a repeated Idempotency-Key, returns what the first request made, and
    False."""
    try:
        return await make, True
    except Replayed as before:
        return await known(before.ids[0]), False
