"""Runs a server process: listens, starts the scheduler, and stops both in order, with a log line for each step.

The listener starts first, so that `/health` and `/ready` answer while a large database recovers, and stops last, so
that reads go on while running work finishes.
"""

import asyncio
import contextlib
import gc
import logging
import math
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import uvicorn

from nextslot.errors import Away, Invalid, Unavailable
from nextslot.scheduler import Scheduler
from nextslot.services.unit_of_work import STARTING
from nextslot.system.watchdog import BLOCKED_SECONDS

from .acceptor import Acceptor
from .app import Options, create_app
from .connections import Connections
from .http_protocol import BoundedHttp
from .request_log import note_probe
from .tls import Certificate

log = logging.getLogger(__name__)

# How long open requests may take after the scheduler has stopped.
CLOSE_SECONDS = 5
# Addresses to listen on that are no address of this machine.
EVERYWHERE = frozenset({"0.0.0.0", "::"})
# Pauses between attempts to start while the database is away, in seconds.
FIRST_PAUSE = 0.25
LONGEST_PAUSE = 4.0


class _UvicornServer(uvicorn.Server):
    """Runs uvicorn without its signal handlers and its listener: on SIGTERM it would close the listener first."""

    connections: Connections
    certificate: Certificate | None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.servers = []
        self._connecting: set[asyncio.Task[None]] = set()
        self.started = True

    def admit(self, connection: socket.socket, peer: str) -> None:
        """Serves a connection that the acceptor has accepted."""
        task = asyncio.create_task(self._connect(connection, peer), name="nextslot-connection")
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, connection: socket.socket, peer: str) -> None:
        protocol = self._protocol(peer)
        secure: dict[str, Any] = {}
        if self.certificate is not None:
            secure = {"ssl": self.certificate.context, "ssl_handshake_timeout": self.connections.limits.head_seconds}
            handshake = asyncio.current_task()
            assert handshake is not None
            protocol.begin_handshake(handshake)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, connection, **secure)
        except (OSError, asyncio.CancelledError):  # The caller has hung up, speaks no TLS, or had to make room.
            if protocol.transport is None:  # Else the protocol ends the connection, and counts that.
                connection.close()
                self.connections.works(protocol)
                self.connections.leave(peer)

    def _protocol(self, peer: str) -> BoundedHttp:
        """Makes the protocol of a connection, as uvicorn's own listener would."""
        return BoundedHttp(
            self.connections,
            peer,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )


class Process:
    """One server process: its listener and its scheduler."""

    def __init__(
        self,
        scheduler: Scheduler,
        options: Options,
        host: str,
        port: int,
        reload: Callable[[], None] | None = None,
        prepare: Callable[[], Awaitable[None]] | None = None,
        health_port: int | None = None,
    ) -> None:
        """`prepare` runs before each attempt to start, and raises Away while the database does not answer."""
        self._scheduler = scheduler
        self._options = options
        self._prepare = prepare
        self._health_port = health_port
        self._host = host
        self._port = port
        self._reload = reload
        # Set when the process begins to stop.
        self.stopping = asyncio.Event()
        # The address on which it listens. Known before the scheduler has started.
        self.listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._server = _UvicornServer(
            uvicorn.Config(
                create_app(scheduler, options),
                log_config=None,
                # This module logs the start and the stop itself.
                log_level="warning",
                access_log=False,
                lifespan="off",
                server_header=False,
                # A key may be limited to addresses, so no header may change the address of a caller.
                proxy_headers=False,
                timeout_graceful_shutdown=CLOSE_SECONDS,
                timeout_keep_alive=math.ceil(options.connections.limits.idle_seconds),
                ws="none",
            )
        )
        self._server.connections = options.connections
        self._server.certificate = options.certificate

    async def run(self, ready: Callable[[str], None] = lambda address: None) -> bool:
        """Serves until `stop` or a signal. Returns whether the outcome of every run has been stored."""
        listener = self._listen()
        self._scheduler.wait_for(STARTING)
        with self._signals(), _collecting_rarely(), self._scheduler.watchdog.watching():
            self._answer_probes()
            serving = asyncio.create_task(self._server.serve(), name="nextslot-http")
            acceptor = self._accept(listener)
            self.listening.set_result(_address(listener, "https" if self._options.certificate else "http"))
            if self._host not in EVERYWHERE:
                self._scheduler.listens_at(self.listening.result())
            try:
                return await self._start_and_stop(ready)
            finally:
                # After a refused start, these lines would only hide the error message.
                level = logging.INFO if self.stopping.is_set() else logging.DEBUG
                log.log(level, "stopping: closing the listener")
                acceptor.close()
                self._server.should_exit = True
                await serving
                log.log(level, "stopped")

    def _accept(self, listener: socket.socket) -> Acceptor:
        heartbeat = self._scheduler.watchdog.heartbeat
        is_plain = self._options.certificate is None
        return Acceptor(
            listener,
            self._options.admission,
            # With TLS the event loop answers all probes.
            lambda: is_plain and heartbeat.silent_seconds < BLOCKED_SECONDS,
            self._server.admit,
            partial(note_probe, self._options.http, "/health"),
            self._options.connections,
        )

    async def _start_and_stop(self, ready: Callable[[str], None]) -> bool:
        if not await self._start():
            return True
        ready(self.listening.result())
        self._scheduler.watchdog.heartbeat.is_ready = True
        await self.stopping.wait()
        self._scheduler.watchdog.heartbeat.is_ready = False
        log.info("stopping: no new jobs, running work finishes")
        return await self._scheduler.stop()

    async def _start(self) -> bool:
        """Starts the scheduler as soon as its database answers. Returns False if `stop` was called before that."""
        retries = StartRetries(self._scheduler.wait_for)
        while not self.stopping.is_set():
            try:
                if self._prepare is not None:
                    await self._prepare()
                await self._scheduler.start()
            except (Away, Unavailable) as error:
                if self._prepare is None:
                    raise  # The database is a file here: waiting does not help.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.stopping.wait(), retries.after(error))
            else:
                return True
        log.info("stopping, while waiting for the database")
        return False

    def _answer_probes(self) -> None:
        """Lets the sidecar answer probes on a separate port."""
        if self._health_port is not None:
            try:
                probes = _create_server(self._host, self._health_port)
            except OSError as error:
                where = f"{self._host}:{self._health_port}"
                sentence = f"cannot answer probes on {where}: {error.strerror}; choose another port"
                raise Invalid(sentence, field="server.health_port") from error
            self._scheduler.watchdog.sidecar.listen(probes)
            log.info("health probes are answered on %s", _address(probes))

    def _listen(self) -> socket.socket:
        listener = _create_server(self._host, self._port)
        # Every connection inherits this option. Without it, an answer in two parts waits 40 ms for the client's kernel.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        handlers: dict[signal.Signals, Callable[[], None]] = {}
        # Only the main thread gets signals; a server in another thread is stopped with `stop`.
        if threading.current_thread() is threading.main_thread():
            handlers = {signal.SIGTERM: self.stop, signal.SIGINT: self.stop}
        if handlers and (self._reload is not None or self._options.certificate is not None):
            handlers[signal.SIGHUP] = self.reload
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    def reload(self) -> None:
        """Reads the certificate and the configuration again."""
        if self._options.certificate is not None:
            self._options.certificate.reload()
        if self._reload is not None:
            self._reload()

    def stop(self) -> None:
        """Stops the process after running work has finished; a second call interrupts that work."""
        if self.stopping.is_set():
            log.warning("stopping: second request to stop, so running work is interrupted")
            self._scheduler.hurry()
        self.stopping.set()


class StartRetries:
    """Chooses the pauses between attempts to start while the database is away, and when to log: both become rarer with
    time."""

    def __init__(self, tell_callers: Callable[[str], None]) -> None:
        self._tell_callers = tell_callers
        self._pause = FIRST_PAUSE / 2
        self._waited = 0.0
        self._told_after = -1.0

    def after(self, error: Exception) -> float:
        """Tells callers and the log why the start waits. Returns the seconds until the next attempt."""
        self._tell_callers(f"the scheduler waits for its database, and starts when that answers: {error}")
        if self._waited > 2 * self._told_after:
            self._told_after = self._waited
            log.warning("waiting for the database (%.0f s so far): %s", self._waited, error)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._waited += self._pause
        return self._pause


@contextlib.contextmanager
def _collecting_rarely() -> Iterator[None]:
    """Makes full garbage collections ten times rarer, and excludes the objects that exist at the start.

    A full collection stops everything else. Python begins one each time the number of objects has grown by a quarter.
    During a batch of 10,000 jobs it ran several, which took a sixth of the time (bench/bulk.py).
    """
    usual = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(usual[0], usual[1], usual[2] * 10)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()


def _create_server(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=1024)


def _address(listener: socket.socket, scheme: str = "http") -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
