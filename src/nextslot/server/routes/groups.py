"""Routes of groups: jobs that run one after the other or side by side, given here or by a template."""

from typing import Annotated, Any

from fastapi import Query, Request, Response
from pydantic import Field

from nextslot.domain import MAX_PRIORITY, Group, GroupMode, NewGroup, OnFailure, Scope, json_form
from nextslot.domain.bounds import Text
from nextslot.domain.filters import GroupFilter
from nextslot.domain.job_lifecycle import Cancellation
from nextslot.engine.finish.job_finisher import Cancelled
from nextslot.errors import Invalid, Problem
from nextslot.scheduler import Services
from nextslot.server import schemas
from nextslot.server.auth import caller_of, of_group, scheduler_for
from nextslot.server.queries import PageQuery, filter_of, in_query
from nextslot.server.responses import answer, created, notes, page
from nextslot.server.route_rules import needs
from nextslot.server.routing import router
from nextslot.server.schemas import Body, KeyedJobs, Page, WebhookBody

from .jobs import CancelBody, new_jobs

groups = router("Groups")


class GroupBody(Body):
    """`mode` and `jobs`, or `template_id`."""

    name: Text | None = None
    mode: Annotated[GroupMode, Field(strict=False)] | None = Field(None, description="Needed with `jobs`")
    on_failure: Annotated[OnFailure, Field(strict=False)] | None = Field(None, description="Default: `stop`")
    jobs: Annotated[KeyedJobs, Field(description="All of one office")] | None = None
    webhook: WebhookBody | None = Field(None, description="Gets one `group.finished` message when all jobs have ended")
    template_id: str | None = Field(None, description="A template of a group, in place of `jobs` and `mode`")
    office_id: str = Field(
        "default", description="The office of the template. Default: the key's office, else `default`"
    )
    params: dict[str, Any] | None = Field(
        None, description="Parameters for every job of the template; they override its own"
    )
    priority: int | None = Field(
        None, ge=-MAX_PRIORITY, le=MAX_PRIORITY, description="The priority of every job of the template"
    )


class GroupDetail(schemas.Group):
    jobs: list[schemas.Job] = Field(description="In the order of their places; a retry follows the job that it retries")


@in_query(GroupFilter)
class GroupQuery(PageQuery):
    pass


class GroupCancelled(schemas.Group):
    stopping: list[str] = Field(description="Running members that were interrupted")
    finishing: list[str] = Field(description="Running members that may finish")


@groups.post("/api/job-groups", status_code=201, response_model=GroupDetail)
@needs(Scope.SUBMIT, creates=True, is_bulk=True)
async def create_group(body: GroupBody, request: Request) -> Response:
    """Puts all jobs of a group, given or of a template, into the queue, or none."""
    scheduler = scheduler_for(request)
    group, accepted = await scheduler.accept_group(await _new_group(body, request))
    noted = await notes(scheduler.job_types, [one.job for one in accepted])
    return created(await group_shown(scheduler, group), f"/api/job-groups/{group.group_id}", accepted[0].is_new, noted)


async def _new_group(body: GroupBody, request: Request) -> NewGroup:
    caller, given = caller_of(request), body.given()
    if body.template_id is None:
        problems = [
            Problem(name, "is missing; give it, or the template_id of a template that makes a group")
            for name in ("jobs", "mode")
            if given.get(name) is None
        ]
        problems += [
            Problem(name, "is for a group of a template; give it to each job")
            for name in ("office_id", "params", "priority")
            if given.get(name) is not None
        ]
        if problems:
            raise Invalid(problems)
        given["on_failure"] = body.on_failure or OnFailure.STOP
    elif body.jobs is None:
        given["office_id"] = caller.office_for(body)
        given["created_by"] = caller.name if caller.key_id else None
    return NewGroup(**given | {"jobs": await new_jobs(body.jobs or (), request)})


@groups.get("/api/job-groups", response_model=Page[schemas.Group])
@needs(Scope.READ)
async def list_groups(query: Annotated[GroupQuery, Query()], request: Request) -> Response:
    """Lists groups, the newest first."""
    wanted = filter_of(GroupFilter, query.model_dump(), caller_of(request))
    found = await scheduler_for(request).lists.groups(wanted, query.cursor, query.limit)
    return page(found)


@groups.get("/api/job-groups/{group_id}", response_model=GroupDetail)
@needs(Scope.READ, of_group)
async def get_group(group_id: str, request: Request) -> Response:
    """Shows a group with all its jobs."""
    scheduler = scheduler_for(request)
    return answer(await group_shown(scheduler, await scheduler.group(group_id)))


@groups.post(
    "/api/job-groups/{group_id}/cancel",
    response_model=GroupCancelled,
    responses={202: {"model": GroupCancelled, "description": "Some of its members run"}},
)
@needs(Scope.OPERATE, of_group, conflicts=True, is_bulk=True)
async def cancel_group(group_id: str, request: Request, body: CancelBody | None = None) -> Response:
    """Cancels every member that has not ended."""
    scheduler = scheduler_for(request)
    asked = body or CancelBody()
    done = await scheduler.cancel_group(group_id, asked.reason, asked.interrupt)
    stopping, finishing = _ids(done, Cancellation.STOPPING), _ids(done, Cancellation.FINISHING)
    content = (await scheduler.group(group_id)).to_dict()
    status = 202 if stopping or finishing else 200
    return answer({**content, "stopping": stopping, "finishing": finishing}, status)


async def group_shown(scheduler: Services, group: Group) -> dict[str, object]:
    """Returns a group with all its jobs."""
    members = await scheduler.members(group.group_id)
    attempts = await scheduler.lists.attempts(members)
    jobs = [json_form.job(job, attempts[job.job_id]) for job in members]
    return {**group.to_dict(), "jobs": jobs}


def _ids(done: list[Cancelled], how: Cancellation) -> list[str]:
    return [one.job.job_id for one in done if one.cancellation is how]
