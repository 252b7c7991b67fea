"""Routes of direct requests: a caller waits for the next slot and for the result (DEC-004)."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import Path, Query, Request, Response
from pydantic import Field
from starlette.responses import FileResponse

from nextslot.domain import DEFAULT_OFFICE, Direct, Scope
from nextslot.domain.bounds import Seconds
from nextslot.domain.filters import DirectFilter
from nextslot.engine.direct.direct_requests import answered
from nextslot.errors import NextslotError, NotFound, Unavailable
from nextslot.scheduler import Services
from nextslot.server import schemas
from nextslot.server.auth import caller_of, of_direct, scheduler_for
from nextslot.server.problems import problem_of
from nextslot.server.queries import (
    ChosenIn,
    PageQuery,
    Values,
    filter_of,
    in_query,
    split,
)
from nextslot.server.responses import (
    answer,
    artifact_answer,
    event,
    log_answer,
    page,
    stream,
    unless_hung_up,
    wants_stream,
)
from nextslot.server.route_rules import always, needs
from nextslot.server.routing import router
from nextslot.server.schemas import Body, Page, WebhookBody

direct = router("Direct requests")

# The bytes of a log that an answer shows; the whole log has its own address.
LOG_BYTES = 64 * 1024


# OpenAPI has one name for a place in a path: here it is a job type for POST, and a direct_id for GET.
Named = Annotated[str, Path(description="POST: a job type. GET: a `direct_id`.", max_length=200)]


class DirectBody(Body):
    params: dict[str, Any] = Field(default_factory=dict)
    wait_timeout_seconds: float | None = Field(None, ge=0, le=86_400, description="For the slot; default 300")
    timeout_seconds: Seconds | None = Field(None, description="For the work; default: the type's, else one hour")
    detach: bool = Field(False, description="Whether the work continues if the caller hangs up while it runs")
    direct_id: str | None = Field(
        None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$", description="An id that you choose"
    )
    webhook: WebhookBody | None = None
    affinity: str | None = Field(
        None, min_length=1, max_length=200, description="What the resource should have loaded, such as a model"
    )
    limit_keys: list[str] | None = Field(
        None, min_length=1, max_length=10, description="Of those with the same key, so many run at once as configured"
    )
    office_id: str = Field(DEFAULT_OFFICE, description="Default: the key's office, else `default`")


@in_query(DirectFilter)
class DirectQuery(PageQuery):
    pass


class ReservationQuery(PageQuery):
    office_id: Values | None = None


class DirectDetail(schemas.Direct):
    log: str | None = Field(
        description="The first 64 KiB of its log; the whole is at `/api/direct/{direct_id}/log`. null: on another node"
    )


@direct.post(
    "/api/direct/{name}",
    response_model=schemas.Direct,
    responses={
        200: {"content": {"text/event-stream": {}}},
        204: {"description": "The caller hung up (nobody sees this)"},
    },
)
@needs(Scope.SUBMIT, conflicts=True, is_long=always)
async def run_direct(name: Named, body: DirectBody, request: Request) -> Response:
    """Waits for the next slot, runs the work, and answers with its outcome: work that failed is a 200 too.

    With `Accept: text/event-stream`: `place`, `started`, `progress` and `output` as they come, `result` at the end.
    A caller who hangs up while waiting loses the place; while the work runs, it is cancelled unless `detach` is set.
    """
    scheduler = scheduler_for(request)
    caller = caller_of(request)
    options = {name: value for name, value in body.given().items() if name != "params" and value is not None}
    options["office_id"] = caller.office_for(body)
    if caller.key_id is not None:
        options["created_by"] = caller.name
    if wants_stream(request):
        return stream(await begun(direct_events(scheduler, name, body.params, options, _shown)), request)
    ended = await unless_hung_up(request, scheduler.run_direct(name, body.params, **options))
    return Response(status_code=204) if ended is None else answer(ended.to_dict())


@direct.get("/api/direct", response_model=Page[schemas.Direct])
@needs(Scope.READ)
async def list_direct(query: Annotated[DirectQuery, Query()], request: Request) -> Response:
    """Lists direct executions, the newest first."""
    wanted = filter_of(DirectFilter, query.model_dump(), caller_of(request))
    found = await scheduler_for(request).lists.direct(wanted, query.cursor, query.limit)
    return page(found)


@direct.get("/api/direct/{name}", response_model=DirectDetail)
@needs(Scope.READ, of_direct)
async def get_direct(name: Named, request: Request, office_id: ChosenIn = None) -> Response:
    """Shows a direct execution, also one that was detached, with its result."""
    scheduler = scheduler_for(request)
    found = await scheduler.direct(name, caller_of(request).narrowed_to(office_id))
    try:
        log = await scheduler.files.log(found.run_id, limit=LOG_BYTES, worker_id=_worker_of(found))
    except (NotFound, Unavailable):
        log = None
    return answer({**found.to_dict(), "log": None if log is None else log.text.decode(errors="replace")})


@direct.get("/api/direct/{direct_id}/log", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
@needs(Scope.READ, of_direct)
async def get_direct_log(
    direct_id: str,
    request: Request,
    offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
    office_id: ChosenIn = None,
) -> Response:
    """Returns at most 1 MiB of a log, from a byte on. 404 names the node that has it, if it cannot be asked."""
    scheduler = scheduler_for(request)
    found = await scheduler.direct(direct_id, caller_of(request).narrowed_to(office_id))
    return log_answer(await scheduler.files.log(found.run_id, offset, worker_id=_worker_of(found)))


@direct.get(
    "/api/direct/{direct_id}/artifacts/{name:path}",
    response_class=FileResponse,
    responses={200: {"content": {"application/octet-stream": {}}}},
)
@needs(Scope.READ, of_direct)
async def get_direct_artifact(direct_id: str, name: str, request: Request, office_id: ChosenIn = None) -> Response:
    """Downloads a file that the work made, from any node. 404 names the node that has it, if it cannot be asked."""
    scheduler = scheduler_for(request)
    ran = await scheduler.direct(direct_id, caller_of(request).narrowed_to(office_id))
    found = next((one for one in ran.artifacts if one.name == name), None)
    if found is None:
        raise NotFound("artifact", name)
    return artifact_answer(await scheduler.files.open_artifact(ran.run_id, found, ran.worker_id), found.name)


@direct.post("/api/direct/{direct_id}/cancel", response_model=schemas.Direct)
@needs(Scope.OPERATE, of_direct, conflicts=True)
async def cancel_direct(direct_id: str, request: Request, office_id: ChosenIn = None) -> Response:
    """Cancels a direct request: refuses it if it waits, interrupts it if it runs."""
    office_id = caller_of(request).narrowed_to(office_id)
    return answer((await scheduler_for(request).cancel_direct(direct_id, office_id)).to_dict())


@direct.get("/api/reservations", response_model=Page[schemas.Reservation])
@needs(Scope.READ)
async def list_reservations(query: Annotated[ReservationQuery, Query()], request: Request) -> Response:
    """Lists reservations of the next slot, the newest first."""
    offices = caller_of(request).narrowed(split(query.office_id))
    found = await scheduler_for(request).lists.reservations(query.cursor, query.limit, office_id=offices)
    return page(found)


async def begun(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Waits for the first event, so that a refusal has a status of its own and is not in a stream."""
    first = await anext(events)

    async def all_of_them() -> AsyncGenerator[bytes, None]:
        async with aclosing(events):
            yield first
            async for one in events:
                yield one

    return all_of_them()


async def direct_events(
    scheduler: Services,
    job_type: str,
    params: dict[str, Any],
    options: dict[str, Any],
    shown: Callable[[Direct], Awaitable[bytes]],
) -> AsyncGenerator[bytes, None]:
    """Yields the events of a direct request; `shown` makes the last one from the outcome."""
    ahead = 0
    async with aclosing(scheduler.stream_direct(job_type, params, **options)) as updates:
        async for update in updates:
            if update.kind == "result":
                yield await _last(update.data["direct"], ahead, shown)
            else:
                ahead = update.data.get("ahead", ahead)
                yield event(update.data, event=update.kind)


def refusal_of(ended: Direct, ahead: int) -> NextslotError | None:
    """Returns the error of a caller whose work never started; None if it did."""
    try:
        answered(ended, ahead)
    except NextslotError as error:
        return error
    return None


def _worker_of(found: Direct) -> str | None:
    """Returns where the work was done; None if it wrote no log."""
    return None if found.log_path is None and found.finished_at is not None else found.worker_id


async def _shown(ended: Direct) -> bytes:
    return event(ended.to_dict(), event="result")


async def _last(ended: Direct, ahead: int, shown: Callable[[Direct], Awaitable[bytes]]) -> bytes:
    """Makes the last event: the result, or for a refused caller the error that an answer would have had."""
    try:
        return await shown(answered(ended, ahead))
    except NextslotError as error:
        return event(problem_of(error), event="error")
