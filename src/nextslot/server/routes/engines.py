"""Routes of engines: where runs go that leave this machine, and the runs that they have lost."""

from fastapi import Request, Response

from nextslot.domain import Scope, json_form, placements
from nextslot.server import schemas
from nextslot.server.auth import of_job, scheduler_for, whole
from nextslot.server.derived_schemas import shows
from nextslot.server.responses import answer
from nextslot.server.route_rules import needs
from nextslot.server.routing import router

engines = router("Engines")


@shows(placements.Engine, schemas.IN_ANSWERS)
class Engine(schemas.ResponseModel):
    pass


class EngineList(schemas.ResponseModel):
    items: list[Engine]


@engines.get("/api/engines", response_model=EngineList)
@needs(Scope.READ, whole)
async def list_engines(request: Request) -> Response:
    """Lists the engines of this node's configuration, by name, and how many runs each has in which state."""
    return answer({"items": [one.to_dict() for one in await scheduler_for(request).engines.list()]})


@engines.post("/api/jobs/{job_id}/lost", response_model=schemas.Job)
@needs(Scope.OPERATE, of_job, conflicts=True)
async def lose_job(job_id: str, request: Request) -> Response:
    """Ends a run on an engine as a crash, because an operator knows that it does not go on there."""
    scheduler = scheduler_for(request)
    job = await scheduler.engines.lose(job_id)
    attempts = await scheduler.lists.attempts([job])
    return answer(json_form.job(job, attempts.get(job_id, 1)))
