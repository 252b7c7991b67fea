"""Answers: JSON that is written once, pages, what was created, and streams of server-sent events."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from itertools import islice
from operator import methodcaller
from typing import TypeVar

import orjson
from fastapi import Request
from starlette.responses import Response, StreamingResponse

from nextslot.domain import Job, Page
from nextslot.engine.submit.idempotency import Replayed
from nextslot.errors import NextslotError
from nextslot.executors.job_types import JobTypes
from nextslot.executors.run_log import LogPart

from .problems import problem_of
from .schemas import SOME

T = TypeVar("T")
log = logging.getLogger(__name__)

# A comment as often as this, so that proxies and readers know that the line is alive.
KEEP_ALIVE_SECONDS = 15.0


def answer(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(content), status, headers, media_type="application/json")


async def notes(job_types: JobTypes, jobs: Iterable[Job]) -> dict[str, str]:
    """Returns a header with the notes of the job types of new jobs; each type is asked about its first job."""
    firsts = {job.job_type: job for job in reversed(list(jobs))}
    found = [await job_types.note(job.job_type, job.params) for job in firsts.values()]
    said = dict.fromkeys(note for note in found if note is not None)
    return {"X-Note": " ".join(said)} if said else {}


async def answer_many(items: Iterable[object], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A long list, written some at a time: others have their turn in between, and no more than some are held twice."""
    rest, parts = iter(items), [b'{"items":[']
    while some := list(islice(rest, SOME)):
        parts += [orjson.dumps(some)[1:-1], b","]
        await asyncio.sleep(0)
    parts[-1] = b"]}"
    return Response(b"".join(parts), status, headers, media_type="application/json")


def created(content: object, location: str, is_new: bool = True, headers: Mapping[str, str] | None = None) -> Response:
    """201 and where it is; a replay is 200."""
    return answer(content, 201 if is_new else 200, {"Location": location, **(headers or {})})


def page(found: Page[T], shown: Callable[[T], object] = methodcaller("to_dict")) -> Response:
    return answer({"items": [shown(one) for one in found.items], "next_cursor": found.next_cursor})


def log_answer(part: LogPart) -> Response:
    """A part of a log as text. Never shown as a page: what work writes must not run in a browser."""
    headers = {"X-Log-Size": str(part.size), "X-Log-Next": str(part.next), "X-Content-Type-Options": "nosniff"}
    return Response(part.text, headers=headers, media_type="text/plain; charset=utf-8")


def wants_stream(request: Request) -> bool:
    return "text/event-stream" in request.headers.get("accept", "")


def event(data: object, *, event: str | None = None, id: str | None = None) -> bytes:
    """One server-sent event; its data is JSON on one line."""
    lines = [f"id: {id}"] if id is not None else []
    if event is not None:
        lines.append(f"event: {event}")
    return "\n".join([*lines, f"data: {orjson.dumps(data).decode()}", "", ""]).encode()


def stream(events: AsyncGenerator[bytes, None]) -> StreamingResponse:
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_kept_alive(events), headers=headers, media_type="text/event-stream")


async def _kept_alive(events: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    """The reader hears something at least every few seconds; when it leaves, the events end too."""
    upcoming: asyncio.Task[bytes] | None = None
    try:
        # At once, so that the reader knows that it is connected.
        yield b": open\n\n"
        while True:
            upcoming = upcoming or asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait([upcoming], timeout=KEEP_ALIVE_SECONDS)
            if not done:
                yield b": still here\n\n"
                continue
            try:
                yield upcoming.result()
            except StopAsyncIteration:
                return
            except NextslotError as error:
                # The answer has begun: its last event says what else its status would have said.
                log.warning("a stream ends: %s", error)
                yield event(problem_of(error), event="error")
                return
            upcoming = None
    finally:
        if upcoming is not None:
            # Also one that has just ended: nobody else asks how.
            upcoming.cancel()
            await asyncio.gather(upcoming, return_exceptions=True)
        await events.aclose()


async def unless_hung_up(request: Request, work: Awaitable[T]) -> T | None:
    """What `work` gives; None if the caller hung up first, and then the work is cancelled."""
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
        # Also when this request itself is cancelled.
        for one in (task, left):
            if not one.done():
                one.cancel()


async def _hang_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def create_once(make: Awaitable[T], known: Callable[[str], Awaitable[T]]) -> tuple[T, bool]:
    """Makes a thing, or reads the one that the same request, with the same Idempotency-Key, made before; and whether
    it is new."""
    try:
        return await make, True
    except Replayed as before:
        return await known(before.ids[0]), False
