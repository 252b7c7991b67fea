"""Routes by which other nodes read the files of runs on the disk of this one; `services/files_of_nodes.py` asks them.

They are no part of the API: callers ask any node for a run, and that node asks here. A request must be signed with the
secret of the nodes.
"""

import asyncio
from typing import Annotated

from fastapi import Path, Query, Request, Response

from nextslot.domain import Artifact
from nextslot.server.auth import scheduler_for
from nextslot.server.problems import HttpProblem
from nextslot.server.responses import file_answer
from nextslot.server.route_rules import open_to_all
from nextslot.server.routing import router
from nextslot.services.files_of_nodes import SIGNATURE
from nextslot.services.read_run_files import PIECE, RunFileService

node_files = router("Nodes")

RunId = Annotated[str, Path(pattern=r"^[A-Za-z0-9-]{1,100}$")]


@node_files.get("/api/node-files/{run_id}/log", include_in_schema=False)
@open_to_all
async def get_log_here(
    run_id: RunId,
    request: Request,
    offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Annotated[int, Query(ge=0, le=PIECE)] = PIECE,
    tail: Annotated[int | None, Query(ge=0, le=100_000)] = None,
) -> Response:
    """Returns a part of a log, with its positions."""
    files = await _for_a_node(request, f"{run_id}/log?{request.url.query}")
    part = await (files.local_log(run_id, offset, limit) if tail is None else files.local_tail(run_id, tail))
    places = {"start": part.start, "next": part.next, "size": part.size, "cut": part.cut}
    headers = {f"X-Log-{name}": str(value) for name, value in places.items()}
    return Response(part.text, headers=headers, media_type="application/octet-stream")


@node_files.get("/api/node-files/{run_id}/artifacts/{name:path}", include_in_schema=False)
@open_to_all
async def get_artifact_here(run_id: RunId, name: str, request: Request) -> Response:
    files = await _for_a_node(request, f"{run_id}/artifacts/{name}")
    return file_answer(await asyncio.to_thread(files.artifact, run_id, Artifact(name=name, path="", size=0)), name)


async def _for_a_node(request: Request, target: str) -> RunFileService:
    """Raises 401 unless another node has signed this request."""
    files = scheduler_for(request).files
    if not await files.nodes.is_of_a_node(target, request.headers.get(SIGNATURE)):
        raise HttpProblem(401, "unauthorized", "only other nodes of this database may ask this")
    return files
