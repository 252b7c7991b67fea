"""Routes of schedules: cron expressions that make jobs and groups from templates, and the ledger of occurrences."""

from typing import Annotated, Any, Literal

from fastapi import Query, Request, Response
from pydantic import Field

from nextslot import domain
from nextslot.domain import DEFAULT_OFFICE, MAX_PRIORITY, Job, Scope, json_form
from nextslot.domain.bounds import Seconds, Text
from nextslot.server import schemas
from nextslot.server.auth import caller_of, of_schedule, scheduler_for
from nextslot.server.derived_schemas import shows
from nextslot.server.queries import ChosenIn, PageQuery
from nextslot.server.queries import Query as QueryModel
from nextslot.server.responses import answer, create_once, created, page
from nextslot.server.route_rules import needs
from nextslot.server.routing import router
from nextslot.server.schemas import (
    Body,
    Page,
    When,
    partial,
    without,
)

from .groups import GroupDetail, group_shown

schedules = router("Schedules")


class ScheduleBody(Body):
    template_id: str
    name: Text = Field(examples=["every weekday at six"])
    cron_expression: str = Field(max_length=1000, examples=["0 6 * * mon-fri", "@daily"])
    timezone: str = Field("UTC", max_length=100, examples=["Europe/Berlin"])
    enabled: bool = True
    param_overrides: dict[str, Any] | None = None
    office_id: str = Field(DEFAULT_OFFICE, description="Default: the key's office, else `default`")
    catch_up: Literal["latest", "all", "none"] = Field("latest", description="Which missed occurrences fire")
    catch_up_window_seconds: Seconds = Field(86_400, description="Older ones are outside the window")
    overlap: Literal["allow", "skip"] = Field(
        "allow", description="Whether an occurrence fires while the previous job or group has not ended"
    )
    priority: int | None = Field(None, ge=-MAX_PRIORITY, le=MAX_PRIORITY)


class SchedulePatch(partial(ScheduleBody)):  # type: ignore[misc]
    """Fields that are not given stay as they are; a change applies from the next occurrence on (DEC-010)."""


class SchedulePut(without(ScheduleBody, "name", "office_id")):  # type: ignore[misc]
    """The whole schedule: fields that are not given get their defaults, except `enabled`, which stays."""


class TriggerBody(Body):
    params: dict[str, Any] | None = None
    priority: int | None = Field(None, ge=-MAX_PRIORITY, le=MAX_PRIORITY)


@shows(domain.Schedule, schemas.IN_ANSWERS)
class Schedule(schemas.ResponseModel):
    cron_words: str = Field(description="The expression in words")
    catch_up: Literal["latest", "all", "none"]
    overlap: Literal["allow", "skip"]


class Upcoming(schemas.ResponseModel):
    utc: schemas.Time
    local: str = Field(description="Local time in the zone")


class UpcomingList(schemas.ResponseModel):
    items: list[Upcoming]


@shows(domain.Occurrence, schemas.IN_ANSWERS)
class Occurrence(schemas.ResponseModel):
    reason: str | None = Field(description="missed, coalesced, overlap, disabled, outside_window, …")


class ScheduleQuery(PageQuery):
    office_id: str | None = None
    template_id: str | None = None


class Preview(UpcomingList):
    cron_words: str = Field(description="The expression in words")


class UpcomingQuery(QueryModel):
    count: int = Field(10, ge=1, le=500)
    after: When | None = Field(None, description="Default: now")


class PreviewQuery(UpcomingQuery):
    cron_expression: str = Field(max_length=1000, examples=["0 6 * * mon-fri"])
    timezone: str = Field("UTC", max_length=100)


@schedules.post("/api/schedules", status_code=201, response_model=Schedule)
@needs(Scope.OPERATE, creates=True, conflicts=True)
async def create_schedule(body: ScheduleBody, request: Request) -> Response:
    scheduler = scheduler_for(request)
    fields = body.given() | {"office_id": caller_of(request).office_for(body)}
    schedule, is_new = await create_once(scheduler.schedules.create(**fields), scheduler.schedules.get)
    return created(json_form.schedule(schedule), f"/api/schedules/{schedule.schedule_id}", is_new)


@schedules.get("/api/schedules", response_model=Page[Schedule])
@needs(Scope.READ)
async def list_schedules(query: Annotated[ScheduleQuery, Query()], request: Request) -> Response:
    """Lists schedules, the newest first."""
    (office_id,) = caller_of(request).narrowed((query.office_id,) if query.office_id else ()) or (None,)
    found = await scheduler_for(request).schedules.page(
        query.limit, query.cursor, office_id=office_id, template_id=query.template_id
    )
    return page(found, json_form.schedule)


@schedules.get("/api/schedules/preview", response_model=Preview)
@needs(Scope.READ)
async def preview_schedule(query: Annotated[PreviewQuery, Query()], request: Request) -> Response:
    """Shows an expression in words, and its next occurrences; stores nothing."""
    scheduler = scheduler_for(request)
    coming = await scheduler.schedules.preview(query.cron_expression, query.timezone, query.count, query.after)
    items = [json_form.upcoming(one) for one in coming.items]
    return answer({"cron_words": coming.cron_words, "items": items})


@schedules.get("/api/schedules/{schedule_id}", response_model=Schedule)
@needs(Scope.READ, of_schedule)
async def get_schedule(schedule_id: str, request: Request) -> Response:
    """Shows a schedule, even a deleted one."""
    return answer(json_form.schedule(await scheduler_for(request).schedules.get(schedule_id)))


@schedules.put("/api/schedules/by-name/{name:path}", response_model=Schedule, responses={201: {"model": Schedule}})
@needs(Scope.OPERATE, conflicts=True)
async def put_schedule(name: str, body: SchedulePut, request: Request, office_id: ChosenIn = None) -> Response:
    """Makes the schedule of this name what the body says; creates it (201) if there is none in the office."""
    office = caller_of(request).narrowed_to(office_id)
    schedule, is_new = await scheduler_for(request).schedules.put(name, office_id=office, **body.given())
    return created(json_form.schedule(schedule), f"/api/schedules/{schedule.schedule_id}", is_new)


@schedules.patch("/api/schedules/{schedule_id}", response_model=Schedule)
@needs(Scope.OPERATE, of_schedule, conflicts=True)
async def change_schedule(schedule_id: str, body: SchedulePatch, request: Request) -> Response:
    """Changes a schedule, from its next occurrence on (DEC-010)."""
    fields = body.given()
    if "office_id" in fields:
        caller_of(request).check_office(fields["office_id"])
    return answer(json_form.schedule(await scheduler_for(request).schedules.change(schedule_id, **fields)))


@schedules.delete("/api/schedules/{schedule_id}", response_model=Schedule)
@needs(Scope.OPERATE, of_schedule, conflicts=True)
async def delete_schedule(schedule_id: str, request: Request) -> Response:
    """Deletes a schedule: it makes no more jobs and is in no list; its jobs and its ledger stay."""
    return answer(json_form.schedule(await scheduler_for(request).schedules.delete(schedule_id)))


@schedules.post("/api/schedules/{schedule_id}/trigger", status_code=201, response_model=schemas.Job | GroupDetail)
@needs(Scope.SUBMIT, of_schedule, creates=True, conflicts=True)
async def trigger_schedule(schedule_id: str, request: Request, body: TriggerBody | None = None) -> Response:
    """Makes a job of a schedule now, or the group if its template makes one; the ledger has no occurrence for it."""
    scheduler = scheduler_for(request)
    asked = (body or TriggerBody()).given()
    made, is_new = await create_once(scheduler.schedules.trigger(schedule_id, **asked), scheduler.schedules.made)
    if isinstance(made, Job):
        return created(json_form.job(made, 1), f"/api/jobs/{made.job_id}", is_new)
    return created(await group_shown(scheduler, made), f"/api/job-groups/{made.group_id}", is_new)


@schedules.get("/api/schedules/{schedule_id}/upcoming", response_model=UpcomingList)
@needs(Scope.READ, of_schedule)
async def list_upcoming(schedule_id: str, query: Annotated[UpcomingQuery, Query()], request: Request) -> Response:
    """Lists the next occurrences of a schedule, even of a disabled one."""
    found = await scheduler_for(request).schedules.upcoming(schedule_id, query.count, query.after)
    return answer({"items": [json_form.upcoming(one) for one in found]})


@schedules.get("/api/schedules/{schedule_id}/occurrences", response_model=Page[Occurrence])
@needs(Scope.READ, of_schedule)
async def list_occurrences(schedule_id: str, query: Annotated[PageQuery, Query()], request: Request) -> Response:
    """Lists the ledger, the newest first: each occurrence has made a job, or has the reason why not."""
    found = await scheduler_for(request).schedules.occurrences_page(schedule_id, query.limit, query.cursor)
    return page(found)
