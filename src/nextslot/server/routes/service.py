"""Routes of the service itself: health, readiness, job types, status, reload, OpenAPI."""

from collections.abc import Awaitable, Callable, Iterable
from importlib.metadata import version
from typing import Any, Literal

from fastapi import Request, Response
from pydantic import Field

from nextslot import configuration_reload, domain
from nextslot.domain import RequestContext, Scope, json_form
from nextslot.errors import Conflict, NotFound
from nextslot.executors import job_types as handlers
from nextslot.scheduler import Services
from nextslot.server import schemas
from nextslot.server.auth import scheduler_for, whole
from nextslot.server.derived_schemas import shows
from nextslot.server.problems import problem
from nextslot.server.responses import answer
from nextslot.server.route_rules import needs, open_to_all
from nextslot.server.routing import router

from .queue import Paused

service = router("Service")


# Reads the configuration again, for this caller.
Reload = Callable[[RequestContext], Awaitable[configuration_reload.Reloaded]]


class Health(schemas.ResponseModel):
    status: Literal["ok"]


class Ready(schemas.ResponseModel):
    status: Literal["ready"]
    warnings: list[str] = Field(description="Problems that are about to come: little disk space")


class JobType(schemas.ResponseModel):
    job_type: str
    params_schema: dict[str, Any] = Field(description="JSON Schema")
    resources: dict[str, int]
    timeout_seconds: float | None
    stall_timeout_seconds: float | None
    retry_policy: dict[str, Any] | None


class JobTypes(schemas.ResponseModel):
    items: list[JobType]


@shows(domain.OfficeStatus, schemas.IN_ANSWERS)
class OfficeStatus(schemas.ResponseModel):
    pass


class Limit(schemas.ResponseModel):
    limit: str = Field(examples=["resource:ollama"])
    capacity: int = Field(description="0: no limit")
    used: int


@shows(domain.Held, schemas.IN_ANSWERS)
class Held(schemas.ResponseModel):
    pass


class Changed(schemas.ResponseModel):
    setting: str = Field(examples=["limits.running"])
    before: Any = Field(description="Secrets are masked")
    after: Any


class Reloaded(schemas.ResponseModel):
    applied: list[Changed]
    needs_restart: list[Changed] = Field(description="Settings that change only with a restart")


class Status(schemas.ResponseModel):
    version: str
    node: str = Field(description="The node that answers")
    live_nodes: int = Field(description="How many live nodes share the database")
    ready: bool
    not_ready_because: str | None = Field(description="Why it does not accept and run jobs")
    now: schemas.Time
    paused: Paused
    offices: list[OfficeStatus]
    limits: list[Limit]
    held: list[Held] = Field(description="Resources that do not answer, or whose quota is used up")
    last_event: int


@service.get("/health", response_model=Health)
@open_to_all
async def health() -> Response:
    """Answers while the process lives and its event loop responds."""
    return healthy()


def healthy() -> Response:
    """Makes the answer of `/health`, for the route and the acceptor."""
    return answer({"status": "ok"})


@service.get("/ready", response_model=Ready)
@open_to_all
async def ready(request: Request) -> Response:
    """Answers 200 if the server takes and runs jobs and can write. If it has written nothing for 30 seconds, it writes
    one row first.

    503 while it recovers or drains, or its store does not answer, stores nothing, is damaged or has no disk space.
    """
    scheduler = scheduler_for(request)
    state = await scheduler.readiness()
    if state is None:
        warning = scheduler.disk.warning()
        return answer({"status": "ready", "warnings": [] if warning is None else [warning]})
    return problem(503, _code(scheduler), state)


def _code(scheduler: Services) -> str:
    if scheduler.is_draining:
        return "draining"
    return "unavailable" if scheduler.disk.refusal() is None else "disk_low"


@service.get("/api/job-types", response_model=JobTypes)
@needs(Scope.READ)
async def list_job_types(request: Request) -> Response:
    """Lists the job types of this server and their parameters."""
    scheduler = scheduler_for(request)
    types = [scheduler.job_types.get(name) for name in scheduler.job_types.names()]
    return answer({"items": [_shown(one) for one in types]})


@service.get("/api/status", response_model=Status)
@needs(Scope.READ, whole)
async def show_status(request: Request) -> Response:
    """Shows offices, limits, pauses and outages; its cost does not grow with ended jobs."""
    scheduler = scheduler_for(request)
    found = json_form.status(await scheduler.lists.status())
    trouble = await scheduler.readiness()
    live = sum(one.is_live for one in await scheduler.nodes.list())
    known = {"version": version("nextslot"), "node": scheduler.node, "live_nodes": live}
    return answer({**known, "ready": trouble is None, "not_ready_because": trouble, **found})


@service.post("/api/config/reload", response_model=Reloaded)
@needs(Scope.ADMIN, whole, conflicts=True)
async def reload_config(request: Request) -> Response:
    """Reads the configuration again, as SIGHUP does. A bad one changes nothing, and the answer says why."""
    reload: Reload | None = request.app.state.options.reload
    if reload is None:
        raise Conflict("this server was started without a configuration file; restart it to change settings")
    done = await reload(scheduler_for(request).context)
    return answer({"applied": _changes(done.applied), "needs_restart": _changes(done.needs_restart)})


@service.get("/openapi.json", include_in_schema=False)
@needs(Scope.READ)
async def openapi(request: Request) -> Response:
    if not request.app.state.options.has_docs:
        raise NotFound("page", "openapi.json")
    return answer(request.app.openapi())


def _changes(changes: Iterable[configuration_reload.Change]) -> list[dict[str, Any]]:
    return [{"setting": one.name, "before": one.before, "after": one.after} for one in changes]


def _shown(job_type: handlers.JobType) -> dict[str, Any]:
    return {
        "job_type": job_type.name,
        "params_schema": job_type.params_schema,
        "resources": job_type.resources,
        "timeout_seconds": job_type.timeout_seconds,
        "stall_timeout_seconds": job_type.stall_timeout_seconds,
        "retry_policy": job_type.retry_policy,
    }
