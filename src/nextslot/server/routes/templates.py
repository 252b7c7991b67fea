"""Routes of templates: reusable definitions of jobs and groups."""

from typing import Annotated

from fastapi import Query, Request, Response
from pydantic import Field

from nextslot import domain
from nextslot.domain import Scope
from nextslot.domain.bounds import Text
from nextslot.engine.schedules import template_jobs
from nextslot.server import schemas
from nextslot.server.auth import caller_of, of_template, scheduler_for
from nextslot.server.derived_schemas import asks, shows
from nextslot.server.queries import ChosenIn, PageQuery
from nextslot.server.responses import (
    answer,
    create_once,
    created,
    page,
)
from nextslot.server.route_rules import needs
from nextslot.server.routing import router
from nextslot.server.schemas import IN_BODIES, Body, Page, partial, without

templates = router("Templates")


@asks(
    domain.NewJob,
    IN_BODIES,
    {"params": {}, "depends_on": []},
    without=set(domain.NewJob.__dataclass_fields__) - set(template_jobs.FIELDS),
)
class TemplateJobBody(Body):
    """A job of a template that makes a group; `depends_on` names keys of the same template."""


TemplateJobs = Annotated[list[TemplateJobBody], Field(min_length=1, max_length=template_jobs.MOST_JOBS)]


@asks(domain.Template, IN_BODIES, {"params": {}}, without=("template_id", "created_at", "archived_at"))
class TemplateBody(Body):
    """`job_type` for a template that makes one job, `jobs` for one that makes a group."""

    name: Text = Field(
        description="Unique in its office among those that are not archived", examples=["nightly report"]
    )
    job_type: Text | None = Field(None, description="Required unless `jobs` is given", examples=["research"])
    jobs: TemplateJobs | None = Field(None, description="The jobs of a group, in order")


class TemplatePut(without(TemplateBody, "name", "office_id")):  # type: ignore[misc]
    """The whole template: fields that are not given get their defaults."""


class TemplateQuery(PageQuery):
    office_id: str | None = None


class TemplatePatch(partial(TemplateBody)):  # type: ignore[misc]
    """Fields that are not given stay as they are."""


@shows(domain.Template, schemas.IN_ANSWERS)
class Template(schemas.ResponseModel):
    pass


@templates.post("/api/job-templates", status_code=201, response_model=Template)
@needs(Scope.OPERATE, creates=True, conflicts=True)
async def create_template(body: TemplateBody, request: Request) -> Response:
    scheduler = scheduler_for(request)
    fields = body.given() | {"office_id": caller_of(request).office_for(body)}
    template, is_new = await create_once(scheduler.templates.create(**fields), scheduler.templates.get)
    location = f"/api/job-templates/{template.template_id}"
    return created(template.to_dict(), location, is_new)


@templates.get("/api/job-templates", response_model=Page[Template])
@needs(Scope.READ)
async def list_templates(query: Annotated[TemplateQuery, Query()], request: Request) -> Response:
    """Lists templates that are not archived, the newest first."""
    (office_id,) = caller_of(request).narrowed((query.office_id,) if query.office_id else ()) or (None,)
    found = await scheduler_for(request).templates.page(query.limit, query.cursor, office_id=office_id)
    return page(found)


@templates.get("/api/job-templates/{template_id}", response_model=Template)
@needs(Scope.READ, of_template)
async def get_template(template_id: str, request: Request) -> Response:
    """Shows a template, even an archived one."""
    return answer((await scheduler_for(request).templates.get(template_id)).to_dict())


@templates.put("/api/job-templates/by-name/{name:path}", response_model=Template, responses={201: {"model": Template}})
@needs(Scope.OPERATE, conflicts=True)
async def put_template(name: str, body: TemplatePut, request: Request, office_id: ChosenIn = None) -> Response:
    """Makes the template of this name what the body says; creates it (201) if there is none in the office."""
    office = caller_of(request).narrowed_to(office_id)
    template, is_new = await scheduler_for(request).templates.put(name, office_id=office, **body.given())
    return created(template.to_dict(), f"/api/job-templates/{template.template_id}", is_new)


@templates.patch("/api/job-templates/{template_id}", response_model=Template)
@needs(Scope.OPERATE, of_template, conflicts=True)
async def change_template(template_id: str, body: TemplatePatch, request: Request) -> Response:
    """Changes a template, for the jobs that it will make (INV-005)."""
    return answer((await scheduler_for(request).templates.change(template_id, **body.given())).to_dict())


@templates.delete("/api/job-templates/{template_id}", response_model=Template)
@needs(Scope.OPERATE, of_template, conflicts=True)
async def archive_template(template_id: str, request: Request) -> Response:
    """Archives a template: its schedules are disabled, its jobs stay, its name is free."""
    return answer((await scheduler_for(request).templates.archive(template_id)).to_dict())
