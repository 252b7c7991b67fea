"""Routes of runs: list, show, retry by hand; their logs, also live, and their artifacts."""

import asyncio
import codecs
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

from fastapi import Query, Request, Response
from pydantic import Field
from starlette.responses import FileResponse

from nextslot.domain import MAX_PRIORITY, Scope, json_form
from nextslot.domain.bounds import Seconds, Text
from nextslot.domain.filters import RunFilter
from nextslot.engine.submit.idempotency import Replayed
from nextslot.errors import NotFound, Unavailable
from nextslot.executors.run_log import LogPart
from nextslot.scheduler import Services
from nextslot.server import schemas
from nextslot.server.auth import caller_of, of_run, scheduler_for
from nextslot.server.problems import HttpProblem
from nextslot.server.queries import PageQuery, filter_of, in_query
from nextslot.server.responses import answer, artifact_answer, created, event, log_answer, page, stream, wants_stream
from nextslot.server.route_rules import needs
from nextslot.server.routing import router
from nextslot.server.schemas import Body, Page
from nextslot.services.read_run_files import PIECE

runs = router("Runs")

# How often a followed log is read again: nothing announces that the file has grown.
LOOK_SECONDS = 0.25
# How often, if it is not on this disk: as often as its node ships it.
LOOK_ELSEWHERE_SECONDS = 1.0


@in_query(RunFilter)
class RunQuery(PageQuery):
    pass


class RetryBody(Body):
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None


class ParkBody(Body):
    name: Text = Field(description="The name of the signal")
    question: Text | None = None
    deadline_seconds: Seconds | None = None
    on_deadline: Literal["approve", "reject", "fail"] = "reject"
    answered_by: list[Text] = Field([], description="Names of keys; none: everybody with the scope `operate`")


class CheckpointBody(Body):
    value: Any = Field(description="JSON of at most 64 KiB")


@runs.get("/api/job-runs", response_model=Page[schemas.Run])
@needs(Scope.READ)
async def list_runs(query: Annotated[RunQuery, Query()], request: Request) -> Response:
    """Lists runs, the newest first."""
    wanted = filter_of(RunFilter, query.model_dump(), caller_of(request))
    found = await scheduler_for(request).lists.runs(wanted, query.cursor, query.limit)
    return page(found)


@runs.get("/api/job-runs/{run_id}", response_model=schemas.RunDetail)
@needs(Scope.READ, of_run)
async def get_run(run_id: str, request: Request) -> Response:
    scheduler = scheduler_for(request)
    run = await scheduler.run_by_id(run_id)
    progress = scheduler.progress(run_id) if run.status is None else None
    shown = None if progress is None else {"fraction": progress[0], "text": progress[1]}
    return answer({**run.to_dict(), "progress": shown})


@runs.post("/api/job-runs/{run_id}/retry", status_code=201, response_model=schemas.Job)
@needs(Scope.OPERATE, of_run, creates=True, conflicts=True)
async def retry_run(run_id: str, request: Request, body: RetryBody | None = None) -> Response:
    """Retries a FAILED run. 201: a new job. 200: its waiting retry, brought forward."""
    scheduler = scheduler_for(request)
    priority = None if body is None else body.priority
    try:
        retried = await scheduler.accept_retry(run_id, priority)
        job_id, is_new = retried.job.job_id, retried.is_new
    except Replayed as before:
        (job_id,), is_new = before.ids, False
    # The answer shows it as it is now.
    found = await scheduler.lists.job(job_id)
    return created(json_form.job(found.job, found.attempt), f"/api/jobs/{job_id}", is_new)


@runs.put("/api/job-runs/{run_id}/checkpoint", response_model=schemas.Checkpoint)
@needs(Scope.SUBMIT, of_run, conflicts=True)
async def keep_checkpoint(run_id: str, body: CheckpointBody, request: Request) -> Response:
    """Stores what a run of your own job leaves for its next attempt; it is durable when this answers."""
    return answer((await (await _for_own(request, run_id)).checkpoint(run_id, body.value)).to_dict())


@runs.post("/api/job-runs/{run_id}/park", status_code=202, response_model=schemas.Run)
@needs(Scope.SUBMIT, of_run, conflicts=True)
async def park_run(run_id: str, body: ParkBody, request: Request) -> Response:
    """Lets a run of your own job end as `parked`, whenever it ends: its chain goes on when the signal has come."""
    return answer((await (await _for_own(request, run_id)).park(run_id, **body.given())).to_dict(), 202)


async def _for_own(request: Request, run_id: str) -> Services:
    """Refuses a key with the scope `submit` for a run of another key's job."""
    scheduler, caller = scheduler_for(request), caller_of(request)
    job = await scheduler.job((await scheduler.run_by_id(run_id)).job_id)
    if job.created_by not in (None, caller.name) and not caller.scope.includes(Scope.OPERATE):
        detail = f"key {job.created_by!r} has made this job: use a key of that name, or one with the scope 'operate'"
        raise HttpProblem(403, "forbidden", detail)
    return scheduler


@runs.get(
    "/api/job-runs/{run_id}/log",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}, "text/event-stream": {}}}},
)
@needs(Scope.READ, of_run, is_long=wants_stream)
async def get_log(
    run_id: str,
    request: Request,
    tail: Annotated[int | None, Query(ge=0, le=100_000, description="Only this many of the last lines")] = None,
    offset: Annotated[int, Query(ge=0, le=2**53, description="From this byte on")] = 0,
) -> Response:
    """Returns the log as text, at most 1 MiB at once. An event stream follows it to its end.

    `X-Log-Size` is how much the run has written so far, `X-Log-Next` the `offset` to go on from. Bytes are counted as
    the run wrote them: what was cut from the middle is counted too, and a line says how much it was. With `tail`,
    `X-Log-Start` is the byte at which the answer begins, and `X-Log-Line` the number of its first line, from 1.

    Every node answers, also for a log that is in the shared store or on the disk of another node. If that node cannot
    be asked, 404 names it.
    """
    scheduler = scheduler_for(request)
    files, where = scheduler.files, await _worker_of(scheduler, run_id)
    if not wants_stream(request):
        read = files.log(run_id, offset, worker_id=where) if tail is None else files.tail(run_id, tail, worker_id=where)
        return log_answer(await read)
    start = offset if tail is None else (await files.tail(run_id, tail, worker_id=where)).start
    if files.other_node(where) is not None:
        await files.log(run_id, start, 1, worker_id=where)  # A log that cannot be found has a status of its own.
    return stream(_followed(scheduler, run_id, start, where), request)


@runs.get(
    "/api/job-runs/{run_id}/artifacts/{name:path}",
    response_class=FileResponse,
    responses={200: {"content": {"application/octet-stream": {}}}},
)
@needs(Scope.READ, of_run)
async def get_artifact(run_id: str, name: str, request: Request) -> Response:
    """Downloads a file that the run made, from any node. 404 names the node that has it, if it cannot be asked."""
    scheduler = scheduler_for(request)
    run = await scheduler.run_by_id(run_id)
    found = next((one for one in run.artifacts if one.name == name), None)
    if found is None:
        raise NotFound("artifact", name)
    worker_id = (await scheduler.job(run.job_id)).worker_id
    return artifact_answer(await scheduler.files.open_artifact(run_id, found, worker_id), found.name)


async def _worker_of(scheduler: Services, run_id: str) -> str | None:
    """Returns where a run works or has worked; None if it has ended and wrote no log, on any node."""
    run = await scheduler.run_by_id(run_id)
    if run.status is not None and run.log_path is None:
        return None
    return (await scheduler.job(run.job_id)).worker_id


async def _followed(
    scheduler: Services, run_id: str, offset: int, worker_id: str | None
) -> AsyncGenerator[bytes, None]:
    """Yields the log from a byte on, until the run has ended.

    A node that does not answer may have been lost: then the run ends soon, and the end says what could not be read.
    """
    pause = LOOK_SECONDS if scheduler.files.other_node(worker_id) is None else LOOK_ELSEWHERE_SECONDS
    while True:
        # Before the log is read, so that nothing written before the end is left out.
        has_ended = (await scheduler.run_by_id(run_id)).status is not None
        missing: dict[str, str] = {}
        while True:
            try:
                part = await scheduler.files.log(run_id, offset, PIECE // 16, worker_id=worker_id)
            except (NotFound, Unavailable) as error:
                missing = {"missing": str(error)}
                break
            text, offset = _decoded(part, is_last=has_ended and part.next == part.size)
            if not text:
                break
            yield event({"text": text} | ({"cut": part.cut} if part.cut else {}), event="log", id=str(offset))
        if has_ended or scheduler.is_draining:
            yield event({"offset": offset, "ended": has_ended} | missing, event="end")
            return
        await asyncio.sleep(pause)


def _decoded(part: LogPart, is_last: bool) -> tuple[str, int]:
    """Decodes a part; returns the text and the next offset, which is before a character that is cut in two."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(part.text, is_last)
    return text, part.next - len(decoder.getstate()[0])
