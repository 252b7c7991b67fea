"""A real server on a real socket, in a thread with its own event loop, for tests of the client and the command line."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import uvicorn

from nextslot import Fail, Scheduler, Skip, extension_api
from nextslot.server.app import Options, create_app
from tests import databases

T = TypeVar("T")


@dataclass(frozen=True)
class Served:
    """The server as tests see it: its address, its scheduler, and a way to run something on its loop."""

    url: str
    scheduler: Scheduler
    loop: asyncio.AbstractEventLoop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        done: Future[T] = asyncio.run_coroutine_threadsafe(work, self.loop)
        return done.result(60)


@contextlib.contextmanager
def serving(
    directory: Path,
    prepare: Callable[[Scheduler], None] = lambda scheduler: None,
    *,
    port: int = 0,
    options: Options | None = None,
    extensions: Sequence[str] | None = None,
) -> Iterator[Served]:
    listener = socket.create_server(("127.0.0.1", port))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    up: Future[Served] = Future()

    async def main() -> None:
        names = extension_api.used_by_server() if extensions is None else extensions
        scheduler = Scheduler(databases.url(directory), data=directory, synchronous="NORMAL", extensions=names)
        register(scheduler)
        prepare(scheduler)
        app = create_app(scheduler, options)
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1)
        server, told = uvicorn.Server(config), asyncio.Event()
        serving = asyncio.create_task(server._serve([listener]))
        await scheduler.start()
        up.set_result(Served(url, scheduler, asyncio.get_running_loop()))
        stops.append(told.set)
        await told.wait()
        await scheduler.stop(grace_seconds=0)
        server.should_exit = True
        await serving

    stops: list[Callable[[], None]] = []
    thread = threading.Thread(target=_run, args=(main, up), daemon=True)
    thread.start()
    served = up.result(30)
    try:
        yield served
    finally:
        while not stops:
            threading.Event().wait(0.01)
        served.loop.call_soon_threadsafe(stops[0])
        thread.join(30)
        assert not thread.is_alive()


def _run(main: Callable[[], Coroutine[Any, Any, None]], up: "Future[Served]") -> None:
    try:
        asyncio.run(main())
    except BaseException as error:
        if up.done():
            raise
        up.set_exception(error)


def register(scheduler: Scheduler) -> None:
    """Registers job types that follow their parameters, in real time."""

    @scheduler.job_type("echo")
    async def echo(run: Any, text: str = "", number: int = 0, items: list[str] | None = None, **more: Any) -> Any:
        run.log.info("echo %s", text)
        return {"text": text, "number": number, "items": items, **more}

    @scheduler.job_type("fail", retry_policy={"max_attempts": 0})
    async def fail(run: Any, message: str = "failed as asked") -> Any:
        raise Fail(message)

    @scheduler.job_type("flaky", retry_policy={"max_attempts": 2, "base_delay_seconds": 0})
    async def flaky(run: Any, failures: int = 1) -> Any:
        if run.attempt <= failures:
            raise Fail("not yet")
        return {"attempt": run.attempt}

    @scheduler.job_type("skip")
    async def skip(run: Any, reason: str = "nothing to do") -> Any:
        raise Skip(reason)

    gates: dict[str, asyncio.Event] = {}
    scheduler.gates = gates  # type: ignore[attr-defined]

    @scheduler.job_type("gated")
    async def gated(run: Any, gate: str) -> Any:
        """Runs until its gate is opened."""
        run.log.info("before %s", gate)
        run.progress(0.5, "halfway")
        await gates.setdefault(gate, asyncio.Event()).wait()
        run.log.info("after %s", gate)
        return {"gate": gate}


def open_gate(served: Served, gate: str) -> None:
    async def open_it() -> None:
        served.scheduler.gates.setdefault(gate, asyncio.Event()).set()  # type: ignore[attr-defined]

    served.run(open_it())
