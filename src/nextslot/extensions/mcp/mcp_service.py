"""McpService: the part of the extension in one scheduler. Runs the SDK's session manager while the scheduler runs."""

import asyncio
from collections.abc import Mapping
from typing import Any

from nextslot.errors import Invalid, Unavailable
from nextslot.extension_api import Attached

# Where there are no keys, each session has jobs of its own. A client of a protocol before 2026-07-28 gets its id with
# the answer to `initialize`, and sends it with each request.
SESSION_HEADER = "mcp-session-id"
MISSING = "the extra mcp is not installed: pip install 'nextslot[mcp]'"


class McpService(Attached):
    """Answers `/mcp`. Each request has its key and stands alone: no session is stored, so a restart loses none."""

    def __init__(self, host: Any) -> None:
        super().__init__(host)
        # Shared by the copies that `for_caller` makes.
        self._running = _Running()

    def wrap(self, app: Any, root_path: str) -> Any:
        self._running.app = app
        return app

    async def start(self) -> None:
        self._running.start()

    async def stop(self) -> None:
        await self._running.stop()

    async def answer(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        manager = await self._running.manager()
        await manager.handle_request(scope, receive, send)

    async def check(self) -> None:
        """Raises if no request can be answered."""
        await self._running.manager()


class _Running:
    """Runs the session manager in a task of its own, because the same task must enter and leave it."""

    def __init__(self) -> None:
        self.app: Any = None
        self._task: asyncio.Task[None] | None = None
        self._entered: asyncio.Future[Any] | None = None
        self._is_started = False

    def start(self) -> None:
        self._is_started = True

    async def stop(self) -> None:
        self._is_started = False
        task, self._task, self._entered = self._task, None, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def manager(self) -> Any:
        """Returns the session manager; the first request makes it, because the SDK takes long to import."""
        if not self._is_started or self.app is None:
            raise Unavailable("this server is starting or has stopped; try again")
        if self._entered is None:
            self._entered = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._run(self._entered), name="nextslot-mcp")
        return await asyncio.shield(self._entered)

    async def _run(self, entered: "asyncio.Future[Any]") -> None:
        try:
            manager = await asyncio.to_thread(self._made)
            async with manager.run():
                entered.set_result(manager)
                await asyncio.Event().wait()
        except Exception as error:  # The waiting callers get the error; the next request tries again.
            self._entered = None
            if not entered.done():
                entered.set_exception(error)
                entered.exception()
        finally:
            entered.cancel()

    def _made(self) -> Any:
        try:
            from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
        except ImportError as error:
            raise Invalid(MISSING) from error
        from .client import inside
        from .tools import create_server

        server = create_server(
            lambda context: inside(self.app, context.request.scope),
            lambda context: context.request.headers.get(SESSION_HEADER),
        )
        return StreamableHTTPSessionManager(server._lowlevel_server, stateless=True)
