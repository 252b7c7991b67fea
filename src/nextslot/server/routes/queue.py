"""Routes of an office's queue: show it, order it, pause and resume it."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Literal

from fastapi import Query, Request, Response
from pydantic import Field

from nextslot.domain import Scope, json_form
from nextslot.scheduler import Services
from nextslot.server import schemas
from nextslot.server.auth import caller_of, scheduler_for, whole
from nextslot.server.queries import PageQuery
from nextslot.server.responses import answer
from nextslot.server.route_rules import needs
from nextslot.server.routing import router
from nextslot.server.schemas import Body

queue = router("Queue")

# A forecast of so few jobs takes milliseconds: the answer waits for it, at most for so long.
SMALL_QUEUE = 50
SMALL_QUEUE_SECONDS = 1.0


class QueueQuery(PageQuery):
    office_id: str | None = Field(None, description="Default: the key's office, else `default`")
    wait_seconds: schemas.ForecastWait | None = Field(None, description="Default: 1 for at most 50 jobs, else 0")


class OrderBody(Body):
    job_ids: Annotated[list[str], Field(min_length=1, max_length=100_000)]


class ScopeBody(Body):
    """At most one of the fields; without any, the request concerns the whole scheduler."""

    office_id: str | None = None
    job_type: str | None = None
    resource: str | None = None


class QueuedJob(schemas.Job):
    place: int = Field(description="From 1")
    expected_start: schemas.Time | None = Field(description="Only for the first 1,000 jobs")
    expected_end: schemas.Time | None


class RunningJob(schemas.Job):
    expected_end: schemas.Time | None


class Queue(schemas.ResponseModel):
    office_id: str
    paused: bool = Field(description="This office, or the whole scheduler")
    paused_by: list[Literal["scheduler", "office"]] = Field(description="What must be resumed before jobs start again")
    running: list[RunningJob]
    queue: list[QueuedJob]
    next_cursor: str | None
    reservation: schemas.Reservation | None
    direct_waiting: int
    forecast_at: schemas.Time | None = Field(
        description="When the forecast was made; null: not ready yet, request it again with `wait_seconds`"
    )


class Paused(schemas.ResponseModel):
    """What is paused now."""

    scheduler: bool
    offices: list[str]
    job_types: list[str]
    resources: list[str]


class ReleaseBody(Body):
    resource: str = Field(description="One that `/api/status` lists as held")


class Released(schemas.ResponseModel):
    resource: str


@queue.get("/api/queue", response_model=Queue)
@needs(Scope.READ)
async def show_queue(query: Annotated[QueueQuery, Query()], request: Request) -> Response:
    """Shows running jobs, and all QUEUED and WAITING jobs in their order.

    Expected times are in the answer if a forecast is there within `wait_seconds`. By default, a queue of at most 50
    jobs waits up to a second for its forecast, which is quick, and a longer queue is shown at once.
    """
    office_id = caller_of(request).narrowed_to(query.office_id)
    return answer(await _shown(scheduler_for(request), office_id, query.cursor, query.limit, query.wait_seconds))


@queue.put("/api/queue/order", response_model=Queue)
@needs(Scope.OPERATE, conflicts=True, is_bulk=True)
async def order_queue(body: OrderBody, request: Request) -> Response:
    """Puts these jobs, in this order, into the places that they hold now."""
    scheduler = scheduler_for(request)
    moved = await scheduler.reorder(body.job_ids)
    return answer(await _shown(scheduler, moved[0].office_id, None, 50))


@queue.post("/api/queue/pause", response_model=Paused)
@needs(Scope.OPERATE)
async def pause_queue(request: Request, body: ScopeBody | None = None) -> Response:
    """Pauses: no more jobs start there; running work and direct requests go on."""
    return await _paused(request, body, scheduler_for(request).pause)


@queue.post("/api/queue/resume", response_model=Paused)
@needs(Scope.OPERATE)
async def resume_queue(request: Request, body: ScopeBody | None = None) -> Response:
    return await _paused(request, body, scheduler_for(request).resume)


@queue.post("/api/queue/release", response_model=Released)
@needs(Scope.OPERATE, whole)
async def release_resource(body: ReleaseBody, request: Request) -> Response:
    """Ends the hold of a resource that does not answer, or whose quota is used up: its jobs start again."""
    await scheduler_for(request).release(body.resource)
    return answer({"resource": body.resource})


async def _paused(request: Request, body: ScopeBody | None, change: Callable[..., Awaitable[None]]) -> Response:
    """Pauses or resumes, and answers with what is paused; a key of one office sees no other office."""
    what, caller = body or ScopeBody(), caller_of(request)
    caller.check_office(what.office_id)
    await change(**what.model_dump())
    scopes, offices = await scheduler_for(request).lists.paused()
    return answer(json_form.paused(scopes, [one for one in offices if caller.office_id in (None, one)]))


async def _shown(
    scheduler: Services, office_id: str, cursor: str | None, limit: int, wait_seconds: float | None = None
) -> dict[str, object]:
    found = await scheduler.lists.queue(office_id, cursor, limit)
    if wait_seconds is None:
        is_small = cursor is None and found.next_cursor is None and len(found.queue) <= SMALL_QUEUE
        wait_seconds = SMALL_QUEUE_SECONDS if is_small else 0
    expected = await scheduler.forecast.queue_within(office_id, wait_seconds)
    return {
        "office_id": office_id,
        "paused": bool(found.paused_by),
        "paused_by": found.paused_by,
        "running": [
            {
                **json_form.job(one.job, one.attempt),
                "expected_end": json_form.expected_end(expected, one.job.job_id),
            }
            for one in found.running
        ],
        "queue": [
            {
                **json_form.job(one.job, one.attempt),
                "place": one.place,
                "expected_start": json_form.expected_start(expected, one.job.job_id),
                "expected_end": json_form.expected_end(expected, one.job.job_id),
            }
            for one in found.queue
        ],
        "next_cursor": found.next_cursor,
        "reservation": None if found.reservation is None else found.reservation.to_dict(),
        "direct_waiting": found.direct_waiting,
        "forecast_at": None if expected is None else json_form.time(expected.made_at),
    }
