"""No stranger at the socket can stop or starve others: half-sent requests, endless heads, slow readers, floods."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from nextslot.server.app import Options
from nextslot.server.connections import ConnectionLimits, Connections
from nextslot.server.log_throttle import MOST_LINES, Throttle

from .support import Server, serving

pytestmark = pytest.mark.sqlite_only("connections are closed before anything is looked up")

HALF = b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@asynccontextmanager
async def bounded(tmp_path: Path, **limits: Any) -> AsyncIterator[tuple[Server, Connections]]:
    connections = Connections(ConnectionLimits(**limits))
    async with serving(tmp_path, Options(connections=connections)) as server:
        yield server, connections
    assert connections.open == 0


async def connected(server: Server, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.client.base_url.port)
    writer.write(sent)
    return reader, writer


async def until(is_so: Any) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - the server's time
            await asyncio.sleep(0.01)


async def test_more_half_sent_requests_than_connections_keep_nobody_out(tmp_path: Path) -> None:
    async with bounded(tmp_path, most=40, head_seconds=600) as (server, connections):
        with ExitStack() as held:
            for _ in range(60):
                line = held.enter_context(socket.create_connection(("127.0.0.1", server.client.base_url.port)))
                line.sendall(HALF)
            await until(lambda: connections.open >= 38)
            async with httpx2.AsyncClient(base_url=server.client.base_url, timeout=30) as stranger:
                answers = [await stranger.post("/api/jobs", json={"job_type": "echo"}) for _ in range(5)]

        assert [answer.status_code for answer in answers] == [201] * 5
        assert connections.evicted > 0


async def test_silent_connections_keep_nobody_out(tmp_path: Path) -> None:
    async with bounded(tmp_path, most=20, head_seconds=600) as (server, _):
        with ExitStack() as held:
            for _ in range(60):
                held.enter_context(socket.create_connection(("127.0.0.1", server.client.base_url.port)))
            async with httpx2.AsyncClient(base_url=server.client.base_url, timeout=30) as stranger:
                assert (await stranger.get("/api/status")).status_code == 200


async def test_a_request_in_progress_is_never_closed_to_make_room(tmp_path: Path) -> None:
    async with bounded(tmp_path, most=20, head_seconds=600) as (server, connections):
        waiting = asyncio.create_task(server.client.post("/api/direct/gate", json={}))
        await until(lambda: server.process._options.http.in_progress == 1)
        with ExitStack() as held:
            for _ in range(60):
                line = held.enter_context(socket.create_connection(("127.0.0.1", server.client.base_url.port)))
                line.sendall(HALF)
            await until(lambda: connections.evicted > 10)
            server.gate.opened.set()

            assert (await waiting).json()["status"] == "COMPLETED"


@pytest.mark.parametrize(("sent", "answer"), [(b"", b""), (b"\r\n", b"HTTP/1.1 408 "), (HALF, b"HTTP/1.1 408 ")])
async def test_a_head_that_does_not_arrive_in_time_ends_its_connection(
    tmp_path: Path, sent: bytes, answer: bytes
) -> None:
    async with bounded(tmp_path, head_seconds=0.2) as (server, _):
        reader, writer = await connected(server, sent)

        assert (await asyncio.wait_for(reader.read(), 30))[: len(answer) or None] == answer
        writer.close()


async def test_bytes_that_trickle_in_do_not_lengthen_the_time_for_a_head(tmp_path: Path) -> None:
    async with bounded(tmp_path, head_seconds=0.3) as (server, _):
        reader, writer = await connected(server, HALF)
        ended = asyncio.create_task(reader.read())
        while not ended.done():
            writer.write(b"X-A: b\r\n")
            await asyncio.sleep(0.02)

        # The answer is lost if bytes of the caller cross it.
        with suppress(ConnectionResetError):
            assert ended.result().startswith(b"HTTP/1.1 408 ")
        writer.close()


async def test_an_idle_connection_is_closed_and_so_is_one_that_sends_the_rest_of_a_refused_body_for_ever(
    tmp_path: Path,
) -> None:
    refused = (
        b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n"
    )
    async with bounded(tmp_path, idle_seconds=0.3) as (server, _):
        for request in (b"GET /api/status HTTP/1.1\r\nHost: localhost\r\n\r\n", refused):
            reader, writer = await connected(server, request)
            ended = asyncio.create_task(reader.read())
            while not ended.done():
                if request is refused:
                    writer.write(b"x")
                await asyncio.sleep(0.02)

            with suppress(ConnectionResetError):
                assert ended.result().startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 404 "))
            writer.close()


@pytest.mark.parametrize(
    "endless", [b"X-Header: value\r\n", b"X: " + b"v" * 1000, b"\r\n"], ids=["headers", "one header", "empty lines"]
)
async def test_an_endless_head_is_refused_and_takes_no_memory(tmp_path: Path, endless: bytes) -> None:
    async with bounded(tmp_path, head_bytes=10_000) as (server, _):
        reader, writer = await connected(
            server, b"" if endless == b"\r\n" else b"GET / HTTP/1.1\r\nHost: localhost\r\n"
        )
        ended = asyncio.create_task(reader.read())
        sent = 0
        while not ended.done() and sent < 50_000_000:
            writer.write(endless * 10)
            sent += len(endless) * 10
            await asyncio.sleep(0)

        # A caller that keeps sending gets a reset, mostly before the answer.
        with suppress(ConnectionResetError):
            assert (await asyncio.wait_for(ended, 30)).startswith(b"HTTP/1.1 431 ")
        assert sent < 50_000_000
        writer.close()


async def test_a_head_that_is_too_large_is_refused_with_a_sentence(tmp_path: Path) -> None:
    async with bounded(tmp_path, head_bytes=1000) as (server, _):
        reader, writer = await connected(server, HALF + b"X-Long: " + b"x" * 2000)

        refused = await asyncio.wait_for(reader.read(), 30)

        assert refused.startswith(b"HTTP/1.1 431 ")
        assert json.loads(refused.partition(b"\r\n\r\n")[2])["code"] == "too_large"
        writer.close()


async def test_many_requests_on_one_connection_and_large_bodies_are_no_endless_head(tmp_path: Path) -> None:
    body = json.dumps({"job_type": "echo", "params": {"text": "x" * 50_000}}).encode()
    post = HALF + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    async with bounded(tmp_path, head_bytes=1000) as (server, _):
        reader, writer = await connected(server, post * 5)
        for _ in range(5):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await reader.readexactly(int(length.split(b":")[1]))
            assert head.startswith(b"HTTP/1.1 201 ")
        writer.close()


async def test_a_caller_who_reads_nothing_of_a_long_answer_is_disconnected(tmp_path: Path) -> None:
    async with bounded(tmp_path, stalled_seconds=0.2) as (server, connections):
        for _ in range(60):
            await server.client.post("/api/jobs", json={"job_type": "echo", "params": {"text": "x" * 200_000}})
        line = socket.create_connection(("127.0.0.1", server.client.base_url.port))
        line.sendall(b"GET /api/jobs?limit=500 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        before = connections.open
        await until(lambda: connections.open < before or connections.open == 1)
        line.close()


async def test_a_peer_with_too_many_connections_is_refused_and_may_come_back(tmp_path: Path) -> None:
    async with bounded(tmp_path, most_of_peer=5) as (server, connections):
        lines = [await connected(server, HALF) for _ in range(5)]
        await until(lambda: connections.open == 5)
        reader, writer = await connected(server)
        refused = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        for _, line in lines:
            line.close()
        await until(lambda: connections.open == 0)

        assert refused.startswith(b"HTTP/1.1 429 ")
        assert b"retry-after: 1" in refused.lower()
        assert (await server.client.get("/api/status")).status_code == 200


def test_what_counts_as_one_peer() -> None:
    connections = Connections(ConnectionLimits(most=8))

    entered = {
        peer: sum(connections.enter(peer) for _ in range(3))
        for peer in ("10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8::2", "::ffff:10.0.0.3", "127.0.0.1", "::1")
    }

    # A quarter of all; the two of one network share theirs, and peers on this machine may have all.
    assert entered == {"10.0.0.1": 2, "10.0.0.2": 2, "2001:db8::1": 2, "2001:db8::2": 0, "::ffff:10.0.0.3": 2,
                       "127.0.0.1": 3, "::1": 3}  # fmt: skip


async def test_the_same_refusal_is_in_the_log_once_a_second(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with bounded(tmp_path) as (server, _):
        caplog.set_level(logging.INFO, logger="nextslot.server")
        caplog.clear()
        for _ in range(300):
            reader, writer = await connected(server, b"this is no HTTP\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
            writer.close()
            assert (await server.client.get("/nowhere")).status_code == 404
        lines = [record.getMessage().partition(" (")[0] for record in caplog.records]
        seconds = caplog.records[-1].created - caplog.records[0].created

    refusals = [line for line in lines if "404" in line or "closed with 400" in line]
    assert len(set(refusals)) == 2
    assert len(refusals) <= 2 * (seconds + 2)


def test_a_throttled_line_says_how_many_were_left_out() -> None:
    now = [0.0]
    throttle = Throttle(lambda: now[0])

    said = [throttle.left_out("a"), throttle.left_out("a"), throttle.left_out("b"), throttle.left_out("a")]
    now[0] = 1.5

    assert said == ["", None, "", None]
    assert throttle.left_out("a") == " (2 more like this since)"
    assert throttle.left_out("b") == ""


def test_endlessly_many_lines_are_throttled_as_one() -> None:
    throttle = Throttle(lambda: 0.0)

    passed = sum(throttle.left_out(str(number)) is not None for number in range(3 * MOST_LINES))

    assert passed == MOST_LINES + 1
