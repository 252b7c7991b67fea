"""Routes of nodes: the machines that share the database."""

from typing import Literal

from fastapi import Request, Response
from pydantic import Field

from nextslot.domain import Scope, json_form
from nextslot.server import schemas
from nextslot.server.auth import scheduler_for, whole
from nextslot.server.responses import answer
from nextslot.server.routing import needs, router
from nextslot.server.schemas import Body

nodes = router("Nodes")


class DrainBody(Body):
    undo: bool = Field(False, description="It works again")


class Node(schemas.ResponseModel):
    node_id: str
    status: Literal["live", "draining", "left", "lost"]
    is_leader: bool = Field(description="It does for all what one must do: cron, timers, webhooks, retention")
    running: int = Field(description="Jobs and direct executions")
    max_running: int = Field(description="0: no limit of its own")
    resources: dict[str, int] = Field(description="Units that this machine has")
    job_types: list[str] = Field(description="What it can run")
    host: str
    pid: int
    version: str
    life: int = Field(description="How often it has joined")
    joined_at: schemas.Time
    last_seen_at: schemas.Time = Field(description="When it last renewed its lease")
    lease_until: schemas.Time | None = Field(description="When it is taken for lost; null where it cannot be")
    ended_at: schemas.Time | None = Field(description="When it left, or was lost")


class Nodes(schemas.ResponseModel):
    items: list[Node]


@nodes.get("/api/nodes", response_model=Nodes)
@needs(Scope.READ, whole)
async def list_nodes(request: Request) -> Response:
    """Lists every node that has joined and was not forgotten, by name. On SQLite there is one, the leader."""
    return answer({"items": [json_form.node(one) for one in await scheduler_for(request).nodes.list()]})


@nodes.post("/api/nodes/{node_id}/drain", response_model=Node)
@needs(Scope.OPERATE, whole, conflicts=True)
async def drain_node(node_id: str, request: Request, body: DrainBody | None = None) -> Response:
    """Lets a node start nothing more; its runs finish, others take the queue; until `undo` or its next start."""
    asked = body or DrainBody()
    return answer(json_form.node(await scheduler_for(request).nodes.drain(node_id, asked.undo)))


@nodes.delete("/api/nodes/{node_id}", status_code=204, response_class=Response)
@needs(Scope.OPERATE, whole, conflicts=True)
async def forget_node(node_id: str, request: Request) -> Response:
    """Deletes a node that has left or was lost: it is not listed any more, and its resources are not counted."""
    await scheduler_for(request).nodes.forget(node_id)
    return Response(status_code=204)
