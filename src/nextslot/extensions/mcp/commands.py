"""The command `nextslot mcp`: the protocol over stdin and stdout, for an agent on this machine."""

import asyncio
import sys
from typing import TYPE_CHECKING

from nextslot.cli.session import RETRIES, Session, command
from nextslot.errors import Invalid

from .mcp_service import MISSING

if TYPE_CHECKING:
    import typer


def register(app: "typer.Typer") -> None:
    command(app, "mcp")(serve_agent)


def serve_agent(session: Session) -> None:
    """Serve an agent over stdin and stdout (Model Context Protocol).

    The agent's program starts this command. It uses a running server with --key, so the agent can do what the key may.
    """
    try:
        from .tools import create_server
    except ImportError as error:
        raise Invalid(MISSING) from error
    from nextslot.client.transports import AsyncClient

    from .client import Api
    from .stdio import serve_stdio

    if sys.stdin.isatty():
        sys.stderr.write("nextslot: this command speaks the Model Context Protocol; let an agent's program start it\n")
    api = AsyncClient(session.url, key=session.key, retries=RETRIES).extension(Api)
    server = create_server(lambda context: api, lambda context: "this process")
    asyncio.run(serve_stdio(server))
