"""Nodes: the machines that share the database, and taking one out of work before it is stopped."""

from fastapi import Request, Response
from pydantic import Field

from nextslot import domain
from nextslot.domain import Scope
from nextslot.server import schemas
from nextslot.server.auth import scheduler_for, whole
from nextslot.server.derived_schemas import shows
from nextslot.server.responses import answer
from nextslot.server.routing import needs, router
from nextslot.server.schemas import Body

nodes = router("Nodes")


class DrainBody(Body):
    undo: bool = Field(False, description="It works again")


@shows(domain.Node, schemas.IN_ANSWERS)
class Node(schemas.ResponseModel):
    pass


class Nodes(schemas.ResponseModel):
    items: list[Node]


@nodes.get("/api/nodes", response_model=Nodes)
@needs(Scope.READ, whole)
async def list_nodes(request: Request) -> Response:
    """Every node that was seen and not forgotten, by name. On SQLite it is one, and it leads."""
    scheduler = scheduler_for(request)
    return answer({"items": [one.to_dict() for one in await scheduler.nodes.list()]})


@nodes.post("/api/nodes/{node_id}/drain", response_model=Node)
@needs(Scope.OPERATE, whole, conflicts=True)
async def drain_node(node_id: str, request: Request, body: DrainBody | None = None) -> Response:
    """It starts nothing more, what runs there finishes, and others take the queue; until `undo`, or its next start."""
    scheduler = scheduler_for(request)
    asked = body or DrainBody()
    return answer((await scheduler.nodes.drain(node_id, asked.undo)).to_dict())


@nodes.delete("/api/nodes/{node_id}", status_code=204, response_class=Response)
@needs(Scope.OPERATE, whole, conflicts=True)
async def forget_node(node_id: str, request: Request) -> Response:
    """One that has left or was lost for good: it is not listed any more, and its resources are not counted."""
    scheduler = scheduler_for(request)
    await scheduler.nodes.forget(node_id)
    return Response(status_code=204)
