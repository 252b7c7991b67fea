"""Routes of nodes: the machines that share the database."""

from fastapi import Request, Response
from pydantic import Field

from nextslot import domain
from nextslot.domain import Scope
from nextslot.server import schemas
from nextslot.server.auth import scheduler_for, whole
from nextslot.server.derived_schemas import shows
from nextslot.server.responses import answer
from nextslot.server.route_rules import needs
from nextslot.server.routing import router
from nextslot.server.schemas import Body

nodes = router("Nodes")


class DrainBody(Body):
    undo: bool = Field(False, description="Ends the drain: the node works again")


@shows(domain.Node, schemas.IN_ANSWERS)
class Node(schemas.ResponseModel):
    pass


class Nodes(schemas.ResponseModel):
    items: list[Node]


@nodes.get("/api/nodes", response_model=Nodes)
@needs(Scope.READ, whole)
async def list_nodes(request: Request) -> Response:
    """Lists every node that has joined and was not forgotten, by name. On SQLite there is one, the leader."""
    return answer({"items": [one.to_dict() for one in await scheduler_for(request).nodes.list()]})


@nodes.post("/api/nodes/{node_id}/drain", response_model=Node)
@needs(Scope.OPERATE, whole, conflicts=True)
async def drain_node(node_id: str, request: Request, body: DrainBody | None = None) -> Response:
    """Lets a node start nothing more; its runs finish, others take the queue; until `undo` or its next start."""
    asked = body or DrainBody()
    return answer((await scheduler_for(request).nodes.drain(node_id, asked.undo)).to_dict())


@nodes.delete("/api/nodes/{node_id}", status_code=204, response_class=Response)
@needs(Scope.OPERATE, whole, conflicts=True)
async def forget_node(node_id: str, request: Request) -> Response:
    """Deletes a node that has left or was lost: it is not listed any more, and its resources are not counted."""
    await scheduler_for(request).nodes.forget(node_id)
    return Response(status_code=204)
