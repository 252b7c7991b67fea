"""Routes of jobs: submit, list, show, change, cancel, move, retry, run again."""

import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar

import orjson
from fastapi import Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import Field, TypeAdapter, ValidationError

from nextslot.domain import MAX_PRIORITY, Confidence, Job, JobStatus, NewJob, Scope, json_form
from nextslot.domain.bounds import Text
from nextslot.domain.filters import JobFilter, JobSort
from nextslot.domain.job_lifecycle import Cancellation
from nextslot.errors import MOST_PROBLEMS
from nextslot.scheduler import Services
from nextslot.scheduler.job_changes import CHANGEABLE
from nextslot.server import queries, schemas
from nextslot.server.auth import Caller, caller_of, lane_of, of_job, scheduler_for
from nextslot.server.problems import HttpProblem
from nextslot.server.queries import PageQuery, Values, filter_of, in_body, in_query
from nextslot.server.responses import answer, answer_many, create_once, created, notes
from nextslot.server.route_rules import needs
from nextslot.server.routing import router
from nextslot.server.schemas import Body, JobBody, KeyedJobBody, KeyedJobs, Page, partial, without
from nextslot.services import arguments
from nextslot.services.bulk import BulkCancelled

jobs = router("Jobs")
T = TypeVar("T")


# Jobs of a long list that are validated in one turn of the event loop: about two milliseconds.
A_FEW = 100
_JOB = TypeAdapter(KeyedJobBody)


class BatchBody(Body):
    jobs: KeyedJobs


class ChangeBody(partial(without(JobBody, *(set(JobBody.model_fields) - CHANGEABLE)))):  # type: ignore[misc]
    """Fields that are not given stay as they are."""


class CancelBody(Body):
    reason: Text | None = None
    interrupt: bool | None = Field(None, description="Whether running work is interrupted; default: the office's mode")


class MoveBody(Body):
    """Exactly one of the fields must be given."""

    to: Literal["front", "back"] | None = None
    before: str | None = None
    after: str | None = None
    place: int | None = Field(None, ge=1, description="From 1")


class RerunBody(Body):
    params: dict[str, Any] | None = Field(None, description="They replace the parameters of the job, key by key")
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None


@in_query(JobFilter)
class JobQuery(PageQuery):
    status: Values | None = Field(None, examples=["QUEUED,RUNNING"])
    q: str | None = Field(
        None, max_length=1000, description="Words of the title or the error, and parts such as `status:failed since:2h`"
    )
    awaiting_signal: bool | None = Field(
        None, description="Only jobs that wait for nothing but an answer, or only others"
    )
    sort: JobSort | None = Field(
        None,
        description="`-` is descending; default: `-created_at`, and with a bound of their end `-finished_at`. "
        "By `finished_at`, jobs that have ended; by `duration`, those that have started and ended",
    )


@in_body(JobFilter)
class BulkBody(Body):
    all: bool = Field(False, description="Required to change every job, if no filter is given")


class BulkRetryBody(BulkBody):
    dry_run: bool = Field(False, description="Change nothing, and answer with the failed jobs that would be retried")


class BulkCancelBody(BulkBody):
    reason: Text | None = None
    interrupt: bool | None = None
    include_running: bool = False


class Items(schemas.ResponseModel):
    items: list[schemas.Job]


class Cancelled(schemas.ResponseModel):
    cancelled: int
    stopping: int = Field(description="Running jobs that were interrupted")
    finishing: int = Field(description="Running jobs that may finish, without a retry")
    job_ids: list[str] = Field(description="The first 1,000")


class Retried(schemas.ResponseModel):
    retried: int
    job_ids: list[str] = Field(description="The first 1,000 of the new jobs")


class Reason(schemas.ResponseModel):
    code: str
    text: str
    data: dict[str, Any]


class Why(schemas.ResponseModel):
    job_id: schemas.Id
    status: JobStatus
    reasons: list[Reason]
    ahead: int = Field(description="Jobs before it in its office's queue; 10,000 may be more")
    expected_start: schemas.Time | None
    expected_end: schemas.Time | None
    earliest_start: schemas.Time | None = Field(description="In four cases of five it starts between this")
    latest_start: schemas.Time | None = Field(description="and this; null: the start has come, or is not known")
    confidence: Confidence
    forecast_at: schemas.Time | None = Field(
        description="When the forecast was made; null: the job needs none, or it is not ready yet"
    )


class DryRun(Why):
    """What a job would wait for, and when it would run."""

    job: schemas.Job = Field(description="The job as it would be; no job has its id unless `is_new` is false")
    is_new: bool = Field(description="false: the request would be answered with this job, which has its `unique_key`")


class WhyQuery(queries.Query):
    wait_seconds: schemas.ForecastWait = 5


@jobs.post("/api/jobs", status_code=201, response_model=schemas.Job)
@needs(Scope.SUBMIT, creates=True)
async def create_job(body: JobBody, request: Request) -> Response:
    """Puts a job into the queue. The job is durable when this answers."""
    scheduler, caller = _of(request)
    new = new_job(body, caller)
    (accepted,) = await scheduler.accept([new])
    noted = await notes(scheduler.job_types, [accepted.job])
    return _created(accepted.job, accepted.is_new, await _shown(scheduler, accepted.job), noted)


@jobs.post("/api/jobs/dry-run", response_model=DryRun)
@needs(Scope.SUBMIT)
async def try_job(body: JobBody, query: Annotated[WhyQuery, Query()], request: Request) -> Response:
    """Checks a job as a submission would, and shows what it would wait for and when it would run. Stores nothing."""
    scheduler, caller = _of(request)
    accepted, why = await scheduler.dry_run(wait_seconds=query.wait_seconds, **_fields(body, caller))
    shown = await _shown(scheduler, accepted.job)
    return answer({**json_form.why(why), "job": shown, "is_new": accepted.is_new})


@jobs.post("/api/jobs/batch", status_code=201, response_model=Items)
@needs(Scope.SUBMIT, creates=True, is_bulk=True)
async def create_jobs(body: BatchBody, request: Request) -> Response:
    """Puts many jobs into the queue, all or none. They may depend on each other by `key`."""
    scheduler = scheduler_for(request)
    wanted = await new_jobs(body.jobs, request)
    accepted = await scheduler.accept(wanted, route="batch")
    made = [one.job for one in accepted]
    attempts = await scheduler.lists.attempts(made) if any(job.retry_of for job in made) else {}
    items = json_form.jobs(made, attempts)
    status = 201 if any(one.is_new for one in accepted) else 200
    return await answer_many(items, status, await notes(scheduler.job_types, made))


@jobs.get("/api/jobs", response_model=Page[schemas.Job])
@needs(Scope.READ)
async def list_jobs(query: Annotated[JobQuery, Query()], request: Request) -> Response:
    """Lists jobs, by default the newest first."""
    scheduler, caller = _of(request)
    wanted = filter_of(JobFilter, query.model_dump(), caller)
    found = await scheduler.lists.jobs_shown(wanted, query.cursor, query.limit, query.sort)
    return answer({"items": found.items, "next_cursor": found.next_cursor})


@jobs.post("/api/jobs/cancel", response_model=Cancelled)
@needs(Scope.OPERATE, is_bulk=True)
async def cancel_jobs(body: BulkCancelBody, request: Request) -> Response:
    """Cancels every job that a filter finds, in small transactions; an interrupted call leaves some cancelled."""
    scheduler, caller = _of(request)
    wanted = filter_of(JobFilter, body.given(), caller)
    done = await scheduler.bulk.cancel(
        wanted, all=body.all, include_running=body.include_running, reason=body.reason, interrupt=body.interrupt
    )
    return cancelled(done)


@jobs.post("/api/jobs/retry", response_model=Retried)
@needs(Scope.OPERATE, is_bulk=True)
async def retry_jobs(body: BulkRetryBody, request: Request) -> Response:
    """Retries the failed chains that a filter finds: only last attempts."""
    scheduler, caller = _of(request)
    done = await scheduler.bulk.retry(filter_of(JobFilter, body.given(), caller), all=body.all, dry_run=body.dry_run)
    return answer({"retried": done.retried.count, "job_ids": list(done.retried.ids)})


@jobs.get("/api/jobs/{job_id}", response_model=schemas.JobDetail)
@needs(Scope.READ, of_job)
async def get_job(job_id: str, request: Request) -> Response:
    """Shows a job with its run and its whole chain."""
    scheduler, _ = _of(request)
    found = await scheduler.lists.job(job_id)
    return answer(
        {
            **json_form.job(found.job, found.attempt),
            "run": None if found.run is None else found.run.to_dict(),
            "checkpoint": None if found.checkpoint is None else found.checkpoint.to_dict(),
            "chain": [json_form.job(job, attempt) for attempt, job in enumerate(found.chain, 1)],
        }
    )


@jobs.patch("/api/jobs/{job_id}", response_model=schemas.Job)
@needs(Scope.OPERATE, of_job, conflicts=True)
async def change_job(job_id: str, body: ChangeBody, request: Request) -> Response:
    """Changes a job while it is queued (INV-001)."""
    scheduler, _ = _of(request)
    return answer(await _shown(scheduler, await scheduler.change(job_id, **body.given())))


@jobs.post(
    "/api/jobs/{job_id}/cancel",
    response_model=schemas.Job,
    responses={202: {"model": schemas.Job, "description": "Running: it was interrupted, or finishes first"}},
)
@needs(Scope.SUBMIT, of_job, conflicts=True)
async def cancel_job(job_id: str, request: Request, body: CancelBody | None = None) -> Response:
    """Cancels a job. 200: it is cancelled. 202: it runs; it was interrupted, or finishes first. It is not retried.

    A key with the scope `submit` may cancel the jobs that a key of its name has made; others need `operate`.
    """
    scheduler, caller = _of(request)
    if not caller.scope.includes(Scope.OPERATE) and (await scheduler.job(job_id)).created_by != caller.name:
        detail = "this key may cancel the jobs that it has made; for another's it needs the scope 'operate'"
        raise HttpProblem(403, "forbidden", detail)
    asked = body or CancelBody()
    done = await scheduler.cancel(job_id, asked.reason, asked.interrupt)
    status = 200 if done.cancellation is Cancellation.CANCELLED else 202
    return answer(await _shown(scheduler, done.job), status)


@jobs.post("/api/jobs/{job_id}/move", response_model=schemas.Job)
@needs(Scope.OPERATE, of_job, conflicts=True)
async def move_job(job_id: str, body: MoveBody, request: Request) -> Response:
    """Moves a job to another place in its office's queue; it gets the priority of the jobs there."""
    scheduler, _ = _of(request)
    return answer(await _shown(scheduler, await scheduler.move(job_id, **body.given())))


@jobs.get("/api/jobs/{job_id}/why", response_model=Why)
@needs(Scope.READ, of_job)
async def why_job(job_id: str, query: Annotated[WhyQuery, Query()], request: Request) -> Response:
    """Explains why a job is not running, and when it is expected to start if a forecast is there within
    `wait_seconds`."""
    scheduler, caller = _of(request)
    return answer(json_form.why(await scheduler.forecast.why(job_id, caller.office_id, query.wait_seconds)))


@jobs.post("/api/jobs/{job_id}/rerun", status_code=201, response_model=schemas.Job)
@needs(Scope.SUBMIT, of_job, creates=True, conflicts=True)
async def rerun_job(job_id: str, request: Request, body: RerunBody | None = None) -> Response:
    """Makes a new job like an ended one, with a chain of its own."""
    scheduler, caller = _of(request)
    asked = (body or RerunBody()).given()
    created_by = caller.name if caller.key_id else None
    job, is_new = await create_once(scheduler.bulk.rerun(job_id, **asked, created_by=created_by), known=scheduler.job)
    return _created(job, is_new, await _shown(scheduler, job), await notes(scheduler.job_types, [job]))


async def new_jobs(items: Sequence[Any], request: Request) -> list[NewJob]:
    return await read_in_parts(items, request, _JobReader(caller_of(request)).job)


async def read_in_parts(items: Sequence[Any], request: Request, read: Callable[[Any], T]) -> list[T]:
    """Validates a long list of jobs in parts, so that other requests get turns in between.

    `read` raises ValidationError for a wrong job. A list with more jobs than the caller may send is refused unread.
    """
    scheduler, caller = _of(request)
    scheduler.quotas.check_batch(caller.office_id, len(items))
    wanted: list[T] = []
    errors: list[Any] = []
    lane, shares = lane_of(request), request.app.state.shares
    began = time.perf_counter()
    for index, item in enumerate(items):
        try:
            wanted.append(read(item))
        except ValidationError as error:
            errors += [{**one, "loc": ("body", "jobs", index, *one["loc"])} for one in error.errors()]
            if len(errors) >= MOST_PROBLEMS:
                break
        if index % A_FEW == A_FEW - 1:
            await shares.pause(lane, time.perf_counter() - began)
            began = time.perf_counter()
    if errors:
        raise RequestValidationError(errors)
    return wanted


class _JobReader:
    """Reads the jobs of one request. One that is like the job before, but for its parameters, is read by that one."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._text: bytes | None = None
        self._last = NewJob()

    def job(self, item: Any) -> NewJob:
        """Returns the next job; raises ValidationError if it is invalid."""
        if not isinstance(item, dict):  # The framework has validated a short list already.
            return new_job(item if isinstance(item, JobBody) else _JOB.validate_python(item), self._caller)
        params = item.get("params")
        text = _text_without(item, "params") if type(params) is dict else None
        if text is not None and text == self._text:
            return self._last._replace(params=params)
        self._last = new_job(_JOB.validate_python(item), self._caller)
        self._text = text
        return self._last


def _text_without(item: dict[str, Any], name: str) -> bytes | None:
    """Returns the rest of an item as a text, in which 1, true and 1.0 differ; None if it is nested too deep for one."""
    try:
        return orjson.dumps({key: value for key, value in item.items() if key != name})
    except TypeError:
        return None


def cancelled(done: BulkCancelled) -> Response:
    return answer(
        {
            "cancelled": done.cancelled.count,
            "stopping": done.stopping.count,
            "finishing": done.finishing.count,
            "job_ids": list(done.job_ids),
        }
    )


def new_job(body: JobBody, caller: Caller) -> NewJob:
    return arguments.new_job(**_fields(body, caller))


def _fields(body: JobBody, caller: Caller) -> dict[str, Any]:
    fields = body.given() | {"office_id": caller.office_for(body)}
    return fields if caller.key_id is None else fields | {"created_by": caller.name}


def _of(request: Request) -> tuple[Services, Caller]:
    return scheduler_for(request), caller_of(request)


async def _shown(scheduler: Services, job: Job) -> dict[str, Any]:
    attempts = await scheduler.lists.attempts([job]) if job.retry_of is not None else {}
    return json_form.job(job, attempts.get(job.job_id, 1))


def _created(job: Job, is_new: bool, content: dict[str, Any], noted: dict[str, str]) -> Response:
    return created(content, f"/api/jobs/{job.job_id}", is_new, noted)
