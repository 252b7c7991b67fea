"""The protocol over stdin and stdout: the SDK's transport, which here also answers messages that it cannot read.

The command `nextslot mcp` calls it.
"""

from typing import Any

import orjson
from mcp.server.mcpserver import MCPServer
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData
from mcp_types.jsonrpc import JSONRPCError
from pydantic import ValidationError


async def serve_stdio(server: MCPServer[Any]) -> None:
    """Serves one client until it closes stdin."""
    inner = server._lowlevel_server
    async with stdio_server() as (received, answers):
        await inner.run(_Readable(received, answers), answers, inner.create_initialization_options())


class _Readable:
    """The messages of a client that can be read. The sender of another one gets an error; otherwise it would wait for
    ever.
    """

    def __init__(self, received: Any, answers: Any) -> None:
        self._received = received
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._received, name)

    async def __aenter__(self) -> "_Readable":
        await self._received.__aenter__()
        return self

    async def __aexit__(self, *given: Any) -> Any:
        return await self._received.__aexit__(*given)

    def __aiter__(self) -> "_Readable":
        return self

    async def __anext__(self) -> Any:
        while isinstance(message := await self._received.__anext__(), Exception):
            await self._answers.send(SessionMessage(_refusal(message)))
        return message


def _refusal(error: Exception) -> JSONRPCError:
    """Returns the answer to a line that is no message, to the request that the line names, if that can be found."""
    line, why = None, str(error)
    if isinstance(error, ValidationError):
        found = error.errors(include_url=False)[0]
        line, why = found["input"], found["msg"]
    text = f"the message cannot be read: {why}; send one JSON-RPC message in each line"
    return JSONRPCError(jsonrpc="2.0", id=_id_in(line), error=ErrorData(code=PARSE_ERROR, message=text))


def _id_in(line: object) -> int | str | None:
    """Returns the id of a request whose line the SDK cannot read, such as one that is nested too deep for it."""
    try:
        request = orjson.loads(line) if isinstance(line, str) else None
    except orjson.JSONDecodeError:
        return None
    name = request.get("id") if isinstance(request, dict) else None
    return name if type(name) in (int, str) else None
