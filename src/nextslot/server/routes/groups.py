"""Routes of groups: jobs that run one after the other or side by side."""

from typing import Annotated

from fastapi import Query, Request, Response
from pydantic import Field

from nextslot.domain import Group, GroupMode, OnFailure, Scope, json_form
from nextslot.domain.bounds import Text
from nextslot.domain.filters import GroupFilter
from nextslot.domain.job_lifecycle import Cancellation
from nextslot.engine.finish.job_finisher import Cancelled
from nextslot.scheduler import Services
from nextslot.server import schemas
from nextslot.server.auth import caller_of, of_group, scheduler_for
from nextslot.server.queries import PageQuery, filter_of, in_query
from nextslot.server.responses import answer, created, notes, page
from nextslot.server.routing import needs, router
from nextslot.server.schemas import Body, KeyedJobs, Page

from .jobs import CancelBody, new_jobs

groups = router("Groups")


class GroupBody(Body):
    name: Text | None = None
    mode: Annotated[GroupMode, Field(strict=False)]
    on_failure: Annotated[OnFailure, Field(strict=False)] = OnFailure.STOP
    jobs: Annotated[KeyedJobs, Field(description="All of one office")]


class GroupDetail(schemas.Group):
    jobs: list[schemas.Job] = Field(description="By place; retries follow what they retry")


@in_query(GroupFilter)
class GroupQuery(PageQuery):
    pass


class GroupCancelled(schemas.Group):
    stopping: list[str] = Field(description="Members that run and were interrupted")
    finishing: list[str] = Field(description="Members that run and are left to finish")


@groups.post("/api/job-groups", status_code=201, response_model=GroupDetail)
@needs(Scope.SUBMIT, creates=True, is_bulk=True)
async def create_group(body: GroupBody, request: Request) -> Response:
    """Puts all jobs of a group into the queue, or none."""
    scheduler = scheduler_for(request)
    wanted = await new_jobs(body.jobs, request)
    group, accepted = await scheduler.accept_group(wanted, body.mode, body.on_failure, body.name)
    noted = await notes(scheduler.job_types, [one.job for one in accepted])
    return created(await _shown(scheduler, group), f"/api/job-groups/{group.group_id}", accepted[0].is_new, noted)


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
    return answer(await _shown(scheduler, await scheduler.group(group_id)))


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


async def _shown(scheduler: Services, group: Group) -> dict[str, object]:
    members = await scheduler.members(group.group_id)
    attempts = await scheduler.lists.attempts(members)
    jobs = [json_form.job(job, attempts[job.job_id]) for job in members]
    return {**group.to_dict(), "jobs": jobs}


def _ids(done: list[Cancelled], how: Cancellation) -> list[str]:
    return [one.job.job_id for one in done if one.cancellation is how]
