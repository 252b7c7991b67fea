"""`/health` is answered beside the event loop, as the application would; all other connections reach the loop."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nextslot.server.acceptor import TAKEN_AT_ONCE, Acceptor
from nextslot.server.app import Options
from nextslot.server.connections import ConnectionLimits, Connections
from nextslot.server.request_guard import Admission

from .support import ServerThread, serving

pytestmark = pytest.mark.sqlite_only("connections are accepted before anything is looked up")

PLAIN = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerThread]:
    with ServerThread(tmp_path) as running:
        yield running


def test_a_probe_is_answered_while_the_event_loop_is_in_a_long_turn(server: ServerThread) -> None:
    with blocked_loop(server):
        probe = ask(server, PLAIN)

    assert probe.startswith(b"HTTP/1.1 200 OK\r\n")
    assert probe.endswith(b'\r\n\r\n{"status":"ok"}')


def test_a_probe_gets_the_same_answer_from_the_acceptor_and_from_the_application(server: ServerThread) -> None:
    from_acceptor = headers_of(ask(server, PLAIN))
    from_application = headers_of(
        ask(server, PLAIN.replace(b"\r\n\r\n", b"\r\nConnection: close\r\nOrigin: x\r\n\r\n"))
    )

    for mine, theirs in ((from_acceptor, from_application), (from_application, from_acceptor)):
        assert mine.pop(b"x-request-id") != theirs.get(b"x-request-id")
        assert mine.pop(b"date")
    assert from_acceptor == from_application


@pytest.mark.parametrize(
    "request_",
    [
        PLAIN.replace(b"localhost", b"evil.example"),
        PLAIN.replace(b"Host: localhost\r\n", b""),
        PLAIN.replace(b"\r\n\r\n", b"\r\nHost: evil.example\r\n\r\n"),
        PLAIN.replace(b"\r\n\r\n", b"\r\nX-Request-ID: mine\r\n\r\n"),
        PLAIN.replace(b"\r\n\r\n", b"\r\nContent-Length: 2\r\n\r\n"),
        PLAIN + b"GET /health HTTP/1.1\r\n",
        PLAIN.replace(b"/health", b"/healthy"),
        PLAIN.replace(b"GET", b"POST"),
        PLAIN.replace(b"1.1", b"1.0"),
        PLAIN.replace(b"/health", b"/ready"),
        PLAIN[:10],
        b"\x16\x03\x01",
    ],
)
def test_whatever_is_no_plain_probe_waits_for_the_event_loop(server: ServerThread, request_: bytes) -> None:
    with blocked_loop(server) as loop_goes_on, socket.create_connection(address(server)) as line:
        line.sendall(request_)
        # A probe that came later has its answer: the acceptor has decided about this connection.
        ask(server, PLAIN)
        line.setblocking(False)
        with pytest.raises(BlockingIOError):
            line.recv(1)
        loop_goes_on.set()


def test_a_foreign_host_is_refused_and_an_allowed_one_is_not(tmp_path: Path) -> None:
    with ServerThread(tmp_path, Options(admission=Admission(allowed_hosts=("probe.example",)))) as server:
        refused = ask(
            server, PLAIN.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n").replace(b"localhost", b"evil")
        )
        with blocked_loop(server):
            served = ask(server, PLAIN.replace(b"localhost", b"probe.example:8000"))

    assert refused.startswith(b"HTTP/1.1 403 ")
    assert served.startswith(b"HTTP/1.1 200 ")


def test_a_probe_waits_for_an_event_loop_that_does_not_respond(server: ServerThread) -> None:
    pulse = server.server.scheduler.watchdog.heartbeat
    with blocked_loop(server, is_silent=True) as loop_goes_on:
        until(lambda: pulse.silent_seconds > 1)
        with socket.create_connection(address(server), timeout=0.2) as line:
            line.sendall(PLAIN)
            with pytest.raises(TimeoutError):
                line.recv(1)
            loop_goes_on.set()
            line.settimeout(30)
            assert line.recv(4096).startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_connection_that_is_silent_at_first_is_served_and_holds_up_no_probe(server: ServerThread) -> None:
    with (
        socket.create_connection(address(server), timeout=30) as early,
        socket.create_connection(address(server)) as late,
    ):
        late.settimeout(30)
        ask(server, PLAIN)
        early.sendall(PLAIN)
        of_acceptor = early.recv(4096)
        until(lambda: len(server.server.process._server.server_state.connections) == 1)
        late.sendall(PLAIN)
        of_application = late.recv(4096)

    assert b"connection: close" in of_acceptor
    assert of_application.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"connection: close" not in of_application


def test_more_connections_than_the_loop_takes_at_once_are_all_served(server: ServerThread) -> None:
    count = TAKEN_AT_ONCE + 50
    with blocked_loop(server) as loop_goes_on:
        lines = [socket.create_connection(address(server), timeout=30) for _ in range(count)]
        for line in lines:
            line.sendall(PLAIN.replace(b"/health", b"/ready"))
        loop_goes_on.set()
        answers = [line.recv(4096) for line in lines]
    for line in lines:
        line.close()

    assert [answer[:15] for answer in answers] == [b"HTTP/1.1 200 OK"] * count


def test_a_probe_is_answered_while_more_connections_wait_than_the_loop_takes_at_once(server: ServerThread) -> None:
    with blocked_loop(server) as loop_goes_on:
        lines = [socket.create_connection(address(server), timeout=30) for _ in range(TAKEN_AT_ONCE + 50)]
        for line in lines:
            line.sendall(PLAIN.replace(b"/health", b"/ready"))
        probe = ask(server, PLAIN)
        loop_goes_on.set()
        answers = [line.recv(4096) for line in lines]
    for line in lines:
        line.close()

    assert probe.startswith(b"HTTP/1.1 200 OK\r\n")
    assert {answer[:15] for answer in answers} == {b"HTTP/1.1 200 OK"}


async def test_beyond_the_connection_limit_nothing_is_accepted_until_one_is_closed() -> None:
    limit = 5
    taken: list[tuple[socket.socket, str]] = []
    connections = Connections(ConnectionLimits(most=limit))

    listener = socket.create_server(("127.0.0.1", 0))
    where = listener.getsockname()
    acceptor = Acceptor(
        listener, Admission(), lambda: True, lambda *one: taken.append(one), lambda *_: None, connections
    )
    lines = [socket.create_connection(where, timeout=30) for _ in range(2 * limit)]
    for line in lines:
        line.sendall(b"GET /ready HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(30):
        while len(taken) < limit:  # noqa: ASYNC110 - the acceptor's thread has no event of this loop
            await asyncio.sleep(0.01)
    accepted_at_first = connections.open
    for _, peer in taken[:limit]:
        connections.leave(peer)
    async with asyncio.timeout(30):
        while len(taken) < 2 * limit:  # noqa: ASYNC110 - the acceptor's thread has no event of this loop
            await asyncio.sleep(0.01)
    acceptor.close()
    for line in (*lines, *(line for line, _ in taken)):
        line.close()
    assert accepted_at_first == limit


async def test_a_probe_is_counted_and_one_that_hangs_up_harms_nobody(tmp_path: Path) -> None:
    options = Options()

    async with serving(tmp_path, options) as server:
        url = str(server.client.base_url).rstrip("/")
        for _ in range(20):
            line = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            line.close()
        before = options.http.requests.get(("GET", "/health", 200), 0)
        assert (await server.client.get("/health")).json() == {"status": "ok"}
        async with asyncio.timeout(30):
            while options.http.requests.get(("GET", "/health", 200), 0) == before:  # noqa: ASYNC110 - the server's time
                await asyncio.sleep(0.01)


def test_a_server_that_stops_closes_its_port_and_the_connections_that_never_spoke(tmp_path: Path) -> None:
    with ServerThread(tmp_path) as server:
        where = address(server)
        line = socket.create_connection(where, timeout=30)
        ask(server, PLAIN)

    assert line.recv(1) == b""
    line.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(where)


class blocked_loop:  # noqa: N801 - used as a statement
    """Keeps the server's event loop in one turn until the end of the block, or until the event that it gives is set.

    The pulse stays fresh meanwhile, as in a turn of less than a second, unless the loop `is_silent`.
    """

    def __init__(self, server: ServerThread, is_silent: bool = False) -> None:
        self._server = server
        self._is_silent = is_silent
        self._is_in, self._goes_on = threading.Event(), threading.Event()

    def __enter__(self) -> threading.Event:
        self._server._loop.call_soon_threadsafe(self._block)
        assert self._is_in.wait(30)
        return self._goes_on

    def __exit__(self, *error: object) -> None:
        self._goes_on.set()

    def _block(self) -> None:
        pulse, end = self._server.server.scheduler.watchdog.heartbeat, time.monotonic() + 90
        pulse.beat()
        self._is_in.set()
        while not self._goes_on.wait(0.05) and time.monotonic() < end:
            if not self._is_silent:
                pulse.beat()


def ask(server: ServerThread, request: bytes) -> bytes:
    """Sends a request over a new connection; returns everything up to the end of the connection."""
    with socket.create_connection(address(server), timeout=30) as line:
        line.sendall(request)
        return b"".join(iter(lambda: line.recv(4096), b""))


def headers_of(answer: bytes) -> dict[bytes, bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    return {b"first": first, b"body": body} | {
        name.lower(): value for name, value in (line.split(b": ") for line in lines)
    }


def address(server: ServerThread) -> tuple[str, int]:
    return "127.0.0.1", int(server.url.rpartition(":")[2])


def until(is_so: object) -> None:
    assert callable(is_so)
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)
