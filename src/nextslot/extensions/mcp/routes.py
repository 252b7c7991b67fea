"""The route of the protocol, `/mcp`: streamable HTTP, with the API's keys."""

from importlib.util import find_spec
from typing import Annotated, Any
from uuid import uuid4

import orjson
from fastapi import Body, Request, Response
from starlette.types import Receive, Scope, Send

from nextslot import domain
from nextslot.server.auth import caller_of
from nextslot.server.problems import HttpProblem
from nextslot.server.route_rules import always, needs
from nextslot.server.routing import extension_of, router

from .mcp_service import MISSING, SESSION_HEADER, McpService

mcp = router("MCP")

HAS_SDK = find_spec("mcp") is not None


@mcp.post("/mcp", response_class=Response, responses={200: {"content": {"application/json": {}}}})
@needs(domain.Scope.READ, is_long=always)
async def answer_agent(body: Annotated[dict[str, Any] | list[Any], Body()], request: Request) -> Response:
    """Answers a message of the Model Context Protocol. Each tool needs the scope of the route that it calls."""
    if not HAS_SDK:
        raise HttpProblem(404, "not_found", f"this server does not speak MCP: {MISSING}")
    service = extension_of(request, McpService)
    await service.check()
    begins = isinstance(body, dict) and body.get("method") == "initialize" and caller_of(request).key_id is None
    return _Answered(service, orjson.dumps(body), uuid4().hex if begins else None)


class _Answered(Response):
    """Lets the SDK answer a request whose body has been read."""

    def __init__(self, service: McpService, content: bytes, session: str | None) -> None:
        self._service = service
        self._content = content
        # The id of the session that this answer begins.
        self._session = session
        self._is_read = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def received() -> Any:
            if self._is_read:
                return await receive()
            self._is_read = True
            return {"type": "http.request", "body": self._content, "more_body": False}

        async def sent(message: Any) -> None:
            if self._session is not None and message["type"] == "http.response.start":
                header = (SESSION_HEADER.encode(), self._session.encode())
                message = {**message, "headers": [*message["headers"], header]}
            await send(message)

        headers = [pair for pair in scope["headers"] if pair[0] not in (b"content-length", b"transfer-encoding")]
        headers.append((b"content-length", str(len(self._content)).encode()))
        await self._service.answer({**scope, "headers": headers}, received, sent)
