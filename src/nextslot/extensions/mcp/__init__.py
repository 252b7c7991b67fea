"""A server of the Model Context Protocol: agents use the scheduler by tools, at `/mcp` or with `nextslot mcp`.

The official SDK is the package `mcp`, of the extra `mcp`; the extension imports it when the first agent connects.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nextslot.extension_api import Attached, Extension

if TYPE_CHECKING:
    from nextslot.extension_api.host import Host


class Mcp(Extension):
    name = "mcp"
    is_on_by_default = True
    paths = ("/mcp",)

    def attach(self, host: "Host") -> Attached:
        from .mcp_service import McpService

        return McpService(host)

    def routers(self) -> Sequence[Any]:
        from .routes import mcp

        return (mcp,)

    def add_commands(self, app: Any) -> None:
        from .commands import register

        register(app)


extension = Mcp()
