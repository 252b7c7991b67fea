"""A real server on a real socket, in the test's own event loop, and a client for it."""

import asyncio
import concurrent.futures
import ssl
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx2

from nextslot import Scheduler, extension_api
from nextslot.executors.run_context import Fail, RunContext
from nextslot.server.app import Options
from nextslot.server.serve import Process
from tests import databases

T = TypeVar("T")


class Gate:
    """Holds jobs of the type `gate` until it is opened, so that tests decide when something runs."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def hold(self, run: RunContext) -> str:
        await self.opened.wait()
        return "through"


@asynccontextmanager
async def serving(
    tmp_path: Path, options: Options | None = None, client_ca: Path | None = None, **settings: Any
) -> AsyncIterator["Server"]:
    scheduler = Scheduler(
        databases.url(tmp_path), **{"data": tmp_path, "extensions": extension_api.used_by_server(), **settings}
    )
    async with served(Server(scheduler, options or Options()), client_ca) as server:
        yield server


@asynccontextmanager
async def served(server: "Server", client_ca: Path | None = None) -> AsyncIterator["Server"]:
    task = asyncio.create_task(server.process.run(server.is_ready.set_result))
    try:
        ends: list[asyncio.Future[Any]] = [task, server.is_ready]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        trusted = True if client_ca is None else ssl.create_default_context(cafile=client_ca)
        async with httpx2.AsyncClient(base_url=server.is_ready.result(), timeout=30, verify=trusted) as client:
            server.client = client
            yield server
    finally:
        server.gate.opened.set()
        server.process.stop()
        await task


class Server:
    client: httpx2.AsyncClient

    def __init__(self, scheduler: Scheduler, options: Options) -> None:
        self.scheduler = scheduler
        self.gate = Gate()
        self.is_ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        scheduler.job_types.add("echo", _echo)
        scheduler.job_types.add("gate", self.gate.hold)
        scheduler.job_types.add("fail", _fail, retry_policy={"max_attempts": 0})
        self.process = Process(scheduler, options, "127.0.0.1", 0)

    async def ended(self, job_id: str) -> dict[str, Any]:
        await self.scheduler.wait(job_id)
        answer: dict[str, Any] = (await self.client.get(f"/api/jobs/{job_id}")).json()
        return answer


async def _echo(run: RunContext, text: str = "", times: int = 1) -> str:
    run.log.info("echo %s", text)
    return text * times


async def _fail(run: RunContext, message: str = "it broke") -> Any:
    raise Fail(message, "error")


class ServerThread:
    """A server with an event loop and a thread of its own, for clients that block."""

    key = ""

    def __init__(self, tmp_path: Path, options: Options | None = None, **settings: Any) -> None:
        self._tmp_path, self._options, self._settings = tmp_path, options, settings
        self._started: concurrent.futures.Future[tuple[Server, asyncio.AbstractEventLoop]] = concurrent.futures.Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="server")

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        try:
            async with serving(self._tmp_path, self._options, **self._settings) as server:
                self._started.set_result((server, asyncio.get_running_loop()))
                await self._stop.wait()
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(error)
            raise

    def __enter__(self) -> "ServerThread":
        self._thread.start()
        self.server, self._loop = self._started.result(30)
        self.url = str(self.server.client.base_url).rstrip("/")
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the server's own loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)
