"""Routes of the office API (US-JS01 to US-JS06): an office's jobs and settings in its own words."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi import Query, Request, Response
from pydantic import Field, TypeAdapter

from nextslot.domain import MAX_PRIORITY, Event, FailureKind, Office, Scope, request_checks
from nextslot.domain import Page as PageOf
from nextslot.domain.bounds import Text, Title
from nextslot.domain.job_lifecycle import Cancellation
from nextslot.server.auth import caller_of, of_path, scheduler_for, whole
from nextslot.server.derived_schemas import shows
from nextslot.server.queries import PageQuery
from nextslot.server.responses import (
    answer,
    create_once,
    created,
    event,
    page,
    stream,
    wants_stream,
)
from nextslot.server.route_rules import needs
from nextslot.server.routes.events import pages_from, resumed
from nextslot.server.routes.jobs import Cancelled, cancelled, read_in_parts
from nextslot.server.routing import extension_of, router
from nextslot.server.schemas import (
    IN_ANSWERS,
    IN_PARTS,
    Body,
    Page,
    ResponseModel,
    Time,
    WebhookBody,
)

from . import office_json, office_words
from .office_service import OfficeJobService
from .office_words import OfficeJobStatus

offices = router("Offices")

Milliseconds = Annotated[int | float, Field(gt=0, le=request_checks.MAX_SECONDS * 1000)]
Limit = Annotated[int, Field(ge=0, le=1_000_000, description="0: no limit")]


class OfficeChange(Body):
    name: Text | None = None
    status: Literal["active", "paused", "archived"] | None = Field(None, description="paused: the queue's pause")
    webhook: WebhookBody | None = None
    on_dependency_failure: Literal["wait", "cancel"] | None = None
    cancel_mode: Literal["finish", "interrupt"] | None = None


class OfficeBody(OfficeChange):
    office_id: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$", description="Else generated")


class OfficeJobBody(Body):
    key: Text | None = Field(None, description="What `depends_on` of the same request may name")
    description: Title
    role: Text = Field(examples=["FE"])
    priority: int = Field(0, ge=-MAX_PRIORITY, le=MAX_PRIORITY, description="Lower goes first")
    depends_on: list[str] = Field(default_factory=list, description="Keys of this request, or ids of jobs")
    timeout_ms: Milliseconds | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    urgent: bool = False
    job_type: Text | None = Field(None, description="Default: the session command of the role")
    await_signal: dict[str, Any] | None = Field(
        None, description="The signal that it waits for before its start, as in POST /api/jobs"
    )


_JOB = TypeAdapter(OfficeJobBody)


class OfficeJobsBody(Body):
    task_id: Text | None = None
    jobs: Annotated[list[OfficeJobBody], Field(min_length=1, max_length=100_000), IN_PARTS]


class CancelBody(Body):
    reason: Text | None = None
    interrupt: bool | None = None


class PriorityBody(Body):
    """One of them, or both."""

    priority: int | None = Field(None, ge=-MAX_PRIORITY, le=MAX_PRIORITY, description="Lower goes first")
    urgent: bool | None = None


class CancelAllBody(Body):
    task_id: Text | None = None
    include_running: bool = True
    reason: Text | None = None


class ConfigBody(Body):
    """What is not given stays; a lower limit stops no running job."""

    maxConcurrentJobs: Limit | None = None  # noqa: N815 - the names of the office API
    maxConcurrentByRole: dict[str, Limit | None] | None = Field(  # noqa: N815
        None, description="The named roles; null: no limit"
    )
    defaultTimeout: Milliseconds | None = Field(  # noqa: N815
        None, description="Milliseconds; null: by the role of a job, else 30 minutes"
    )
    maxRetries: int | None = Field(None, ge=0, le=1000)  # noqa: N815
    retryBackoff: Literal["exponential", "linear"] | None = None  # noqa: N815
    retryBaseDelay: Annotated[int | float, Field(ge=0, le=request_checks.MAX_SECONDS * 1000)] | None = Field(  # noqa: N815
        None, description="Milliseconds"
    )
    retryOn: list[str] | None = Field(  # noqa: N815
        None, description="Failure kinds to retry besides timeout, session_error, crash and interrupted"
    )
    priorityAging: Annotated[int | float, Field(ge=1000, le=request_checks.MAX_SECONDS * 1000)] | None = Field(  # noqa: N815
        None, description="Milliseconds after which a job that is ready goes before others by one more; null: never"
    )


@shows(Office, IN_ANSWERS)
class OfficeAnswer(ResponseModel):
    status: Literal["active", "paused", "archived"]


class OfficeDetail(OfficeAnswer):
    set_by_file: list[str] = Field(description="Settings that only the configuration file can change")


@shows(office_words.Execution, IN_ANSWERS)
class Execution(ResponseModel):
    pass


@shows(office_words.Blocker, IN_ANSWERS)
class Blocker(ResponseModel):
    pass


@shows(office_words.OfficeJob, {**IN_ANSWERS, office_words.Blocker: Blocker})
class OfficeJob(ResponseModel):
    executions: list[Execution]


class RoleBody(Body):
    """What is not given is as the configuration says, or by default."""

    command: Annotated[list[str], Field(min_length=1, max_length=1000)] | None = Field(
        None, description="The argv of its sessions"
    )
    cwd: Text | None = Field(None, description="The directory of its sessions; relative: in the data directory")
    env: dict[str, str] | None = Field(None, description="Environment variables, besides the configured ones")
    timeout_ms: Milliseconds | None = None
    resume_args: Annotated[list[str], Field(max_length=100)] | None = Field(
        None, description="What is added to the command to go on with the session `{session_id}`; empty: never"
    )
    resume_on: Annotated[list[Annotated[FailureKind, Field(strict=False)]], Field(max_length=100)] | None = Field(
        None, description="The failure kinds after which the same session goes on"
    )
    session_id_pattern: Text | None = Field(
        None, description="A regular expression that finds the session's id in its output"
    )


class Role(ResponseModel):
    role: str
    command: list[str] | None = Field(description="null: it runs no sessions")
    cwd: str | None
    env: list[str] = Field(description="Names of environment variables; their values are not shown")
    timeout_ms: float | None = Field(description="Of its jobs that have none by themselves or by their type")
    max_concurrent: int | None = Field(description="null: no limit")
    is_own: bool = Field(description="Whether the office has settings of its own for this role")
    resume_args: list[str] = Field(description="How it goes on with an earlier session; empty: it never does")
    resume_on: list[str] = Field(description="The failure kinds after which the same session goes on")
    session_id_pattern: str | None


class Roles(ResponseModel):
    items: list[Role]


class OfficeJobs(ResponseModel):
    items: list[OfficeJob]


@shows(office_words.OfficeStats, IN_ANSWERS)
class Stats(ResponseModel):
    pass


class Config(ResponseModel):
    maxConcurrentJobs: int  # noqa: N815
    maxConcurrentByRole: dict[str, int]  # noqa: N815
    defaultTimeout: float | None = Field(description="Milliseconds")  # noqa: N815
    maxRetries: int  # noqa: N815
    retryBackoff: Literal["exponential", "linear"]  # noqa: N815
    retryBaseDelay: float = Field(description="Milliseconds")  # noqa: N815
    retryOn: list[FailureKind] = Field(  # noqa: N815
        description="Failure kinds that are retried besides timeout, session_error, crash and interrupted"
    )
    priorityAging: float | None = Field(description="Milliseconds")  # noqa: N815


class OfficeEvent(ResponseModel):
    type: str
    job_id: str | None
    office_id: str | None
    details: dict[str, Any]
    timestamp: Time


class OfficeEvents(ResponseModel):
    items: list[OfficeEvent]
    next_cursor: str | None
    next_after: int = Field(description="For who comes back later: `after` of the request for what happened since")


class OfficeJobQuery(PageQuery):
    status: OfficeJobStatus | None = None
    role: str | None = None
    task_id: str | None = None


class OfficeEventQuery(PageQuery):
    after: int = Field(0, ge=0, lt=2**53, description="The number of an event; not used with a cursor")


@offices.post("/api/offices", status_code=201, response_model=OfficeAnswer)
@needs(Scope.OPERATE, whole, creates=True, conflicts=True)
async def create_office(body: OfficeBody, request: Request) -> Response:
    """Makes an office. Defaults (spec 14.5): three jobs at once, one of each role, 30 minutes, two retries."""
    offices_ = scheduler_for(request).offices
    office, is_new = await create_once(offices_.create(**_said(body)), offices_.get)
    return created(office.to_dict(), f"/api/offices/{office.office_id}", is_new)


@offices.get("/api/offices", response_model=Page[OfficeAnswer])
@needs(Scope.READ)
async def list_offices(query: Annotated[PageQuery, Query()], request: Request) -> Response:
    """Lists offices by id. A key of one office sees only that office."""
    own, offices_ = caller_of(request).office_id, scheduler_for(request).offices
    found: PageOf[Office] = (
        await offices_.page(query.limit, query.cursor) if own is None else PageOf((await offices_.get(own),), None)
    )
    return page(found)


@offices.get("/api/offices/{office_id}", response_model=OfficeDetail)
@needs(Scope.READ, of_path)
async def get_office(office_id: str, request: Request) -> Response:
    offices_ = scheduler_for(request).offices
    office = await offices_.get(office_id)
    return answer({**office.to_dict(), "set_by_file": offices_.set_by_file(office_id)})


@offices.patch("/api/offices/{office_id}", response_model=OfficeAnswer)
@needs(Scope.OPERATE, of_path, conflicts=True)
async def change_office(office_id: str, body: OfficeChange, request: Request) -> Response:
    """Changes an office; running jobs go on."""
    return answer((await scheduler_for(request).offices.change(office_id, **_said(body, but=("webhook",)))).to_dict())


@offices.post("/api/offices/{office_id}/jobs", status_code=201, response_model=OfficeJobs)
@needs(Scope.SUBMIT, of_path, creates=True, is_bulk=True)
async def submit_jobs(office_id: str, body: OfficeJobsBody, request: Request) -> Response:
    """Submits a graph of jobs, all or none. The error about a cycle names its jobs."""
    wanted = [job.given() for job in await read_in_parts(body.jobs, request, _JOB.validate_python)]
    caller = caller_of(request)
    created_by = None if caller.key_id is None else caller.name
    made, is_new = await extension_of(request, OfficeJobService).accept(
        office_id, wanted, body.task_id, created_by=created_by
    )
    return answer({"items": [one.to_dict() for one in made]}, 201 if is_new else 200)


@offices.get("/api/offices/{office_id}/jobs", response_model=Page[OfficeJob])
@needs(Scope.READ, of_path)
async def list_jobs(office_id: str, query: Annotated[OfficeJobQuery, Query()], request: Request) -> Response:
    """Lists jobs. A page may have fewer than `limit`, or none; only without `next_cursor` it is the last."""
    found = await extension_of(request, OfficeJobService).jobs(
        office_id, query.status, query.role, query.task_id, query.cursor, query.limit
    )
    return page(found, office_words.OfficeJob.to_dict)


@offices.post("/api/offices/{office_id}/jobs/cancel-all", response_model=Cancelled)
@needs(Scope.OPERATE, of_path, is_bulk=True)
async def cancel_all(office_id: str, request: Request, body: CancelAllBody | None = None) -> Response:
    """Cancels every job of the office, or of one task, that has not ended (US-JS06), in small transactions; an
    interrupted call leaves some cancelled."""
    asked = body or CancelAllBody()
    done = await extension_of(request, OfficeJobService).cancel_all(
        office_id, asked.task_id, asked.include_running, asked.reason
    )
    return cancelled(done)


@offices.get("/api/offices/{office_id}/jobs/{job_id}", response_model=OfficeJob)
@needs(Scope.READ, of_path)
async def get_job(office_id: str, job_id: str, request: Request) -> Response:
    return answer((await extension_of(request, OfficeJobService).job(office_id, job_id)).to_dict())


@offices.get("/api/offices/{office_id}/jobs/{job_id}/executions", response_model=Page[Execution])
@needs(Scope.READ, of_path)
async def list_executions(office_id: str, job_id: str, request: Request) -> Response:
    """Lists the attempts of a job, from the first on."""
    found = await extension_of(request, OfficeJobService).executions(office_id, job_id)
    return answer({"items": [one.to_dict() for one in found], "next_cursor": None})


@offices.post("/api/offices/{office_id}/jobs/{job_id}/retry", response_model=OfficeJob)
@needs(Scope.OPERATE, of_path, conflicts=True)
async def retry_job(office_id: str, job_id: str, request: Request) -> Response:
    """Retries a failed job, even after its last retry; a job that waits for its retry runs now."""
    return answer((await extension_of(request, OfficeJobService).retry(office_id, job_id)).to_dict())


@offices.post(
    "/api/offices/{office_id}/jobs/{job_id}/cancel",
    response_model=OfficeJob,
    responses={202: {"model": OfficeJob, "description": "It runs: it was told to stop, or is left to finish"}},
)
@needs(Scope.OPERATE, of_path, conflicts=True)
async def cancel_job(office_id: str, job_id: str, request: Request, body: CancelBody | None = None) -> Response:
    asked = body or CancelBody()
    job, how = await extension_of(request, OfficeJobService).cancel(office_id, job_id, asked.reason, asked.interrupt)
    return answer(job.to_dict(), 200 if how is Cancellation.CANCELLED else 202)


@offices.patch("/api/offices/{office_id}/jobs/{job_id}/priority", response_model=OfficeJob)
@needs(Scope.OPERATE, of_path, conflicts=True)
async def change_priority(office_id: str, job_id: str, body: PriorityBody, request: Request) -> Response:
    """Changes a job's priority: lower goes first, urgent before everything."""
    changed = await extension_of(request, OfficeJobService).change_priority(
        office_id, job_id, body.priority, body.urgent
    )
    return answer(changed.to_dict())


@offices.get("/api/offices/{office_id}/scheduler/stats", response_model=Stats)
@needs(Scope.READ, of_path)
async def get_stats(office_id: str, request: Request) -> Response:
    """Counts the office's jobs by status."""
    return answer((await extension_of(request, OfficeJobService).stats(office_id)).to_dict())


@offices.get("/api/offices/{office_id}/scheduler/config", response_model=Config)
@needs(Scope.READ, of_path)
async def get_config(office_id: str, request: Request) -> Response:
    return answer(office_json.office_config(await extension_of(request, OfficeJobService).config(office_id)))


@offices.patch("/api/offices/{office_id}/scheduler/config", response_model=Config)
@needs(Scope.OPERATE, of_path, conflicts=True)
async def change_config(office_id: str, body: ConfigBody, request: Request) -> Response:
    """Changes settings. Those that the configuration file sets are refused (409)."""
    changed = await extension_of(request, OfficeJobService).change_config(office_id, body.given())
    return answer(office_json.office_config(changed))


@offices.get("/api/offices/{office_id}/roles", response_model=Roles)
@needs(Scope.READ, of_path)
async def list_roles(office_id: str, request: Request) -> Response:
    """Lists the roles that the office or the configuration knows, and those with a timeout by default."""
    found = await extension_of(request, OfficeJobService).roles(office_id)
    return answer({"items": [office_json.office_role(one) for one in found]})


@offices.put("/api/offices/{office_id}/roles/{role:path}", response_model=Role)
@needs(Scope.ADMIN, whole, conflicts=True)
async def put_role(office_id: str, role: str, body: RoleBody, request: Request) -> Response:
    """Sets how the office runs the jobs of a role, over the configuration. Only admins: it names a command."""
    changed = await extension_of(request, OfficeJobService).put_role(office_id, role, **body.given())
    return answer(office_json.office_role(changed))


@offices.delete("/api/offices/{office_id}/roles/{role:path}", response_model=Role)
@needs(Scope.ADMIN, whole, conflicts=True)
async def delete_role(office_id: str, role: str, request: Request) -> Response:
    """Removes the office's own settings of a role: those of the configuration apply again."""
    return answer(office_json.office_role(await extension_of(request, OfficeJobService).delete_role(office_id, role)))


@offices.post("/api/offices/{office_id}/scheduler/process", response_model=OfficeJobs)
@needs(Scope.OPERATE, of_path)
async def process(office_id: str, request: Request) -> Response:
    """Dispatches the queue now, which otherwise happens by itself; lists the jobs that this started."""
    started = await extension_of(request, OfficeJobService).process(office_id)
    return answer({"items": [one.to_dict() for one in started]})


@offices.get(
    "/api/offices/{office_id}/events",
    response_model=OfficeEvents,
    responses={200: {"content": {"text/event-stream": {}}}},
)
@needs(Scope.READ, of_path, is_long=wants_stream)
async def list_events(office_id: str, query: Annotated[OfficeEventQuery, Query()], request: Request) -> Response:
    """Lists events, the oldest first. A page may have fewer than `limit`, or none, and still not be the last.

    With `Accept: text/event-stream` new ones follow; `Last-Event-ID` resumes.
    """
    if wants_stream(request):
        await scheduler_for(request).offices.get(office_id)
        return stream(_followed(request, office_id, resumed(request, query.after)), request)
    found = await extension_of(request, OfficeJobService).events(office_id, query.after, query.cursor, query.limit)
    items = [office_json.office_event(one) for one in found.items]
    return answer({"items": items, "next_cursor": found.next_cursor, "next_after": found.next_after})


async def _followed(request: Request, office_id: str, after: int) -> AsyncGenerator[bytes, None]:
    last, service = after, extension_of(request, OfficeJobService)

    async def encoded(found: list[Event]) -> bytes:
        shown = await service.in_office_words(office_id, found)
        return b"".join(event(office_json.office_event(one), event=one.type, id=str(one.seq)) for one in shown)

    async with aclosing(pages_from(request, after)) as pages:
        async for some in pages:
            last = some.last
            # Streams that share a page share the read for its events.
            make = some.form(
                ("office", office_id), lambda found: asyncio.create_task(encoded(found), name="nextslot-office-events")
            )
            if text := await asyncio.shield(make):
                yield text
    yield event({"after": last}, event="end", id=str(last))


def _said(body: Body, but: tuple[str, ...] = ()) -> dict[str, Any]:
    """Returns the given fields. null means unchanged, except for fields that it may clear."""
    return {name: value for name, value in body.given().items() if value is not None or name in but}
