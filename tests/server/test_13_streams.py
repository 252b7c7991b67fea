"""Spec 13: events and logs as server-sent events; a client that returns with its last number misses nothing."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, MutableMapping
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.requests import ClientDisconnect

from nextslot import NewJob
from nextslot.executors.run_context import RunContext
from nextslot.server import responses

from .support import Server, serving

# A log's cap, the length of each of its lines, and how many of them leave room for another one in the newest piece.
CAP = 64_000
LINE = 16
COUNT = 3 * CAP // LINE - 10


async def test_a_reader_hears_what_was_and_what_comes_in_order(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        begin = await last_event(server)
        await submitted(server, "echo")
        reader = Reader(server.client, f"/api/events?after={begin}")
        heard = [await reader.next() for _ in range(3)]
        await submitted(server, "echo")
        heard += [await reader.next() for _ in range(3)]
        await reader.close()

        assert [one["data"]["seq"] for one in heard] == [begin + number for number in range(1, 7)]
        assert [one["event"] for one in heard] == ["job_queued", "job_started", "job_completed"] * 2
        assert [one["id"] for one in heard] == [str(one["data"]["seq"]) for one in heard]


async def test_a_reader_that_comes_back_goes_on_where_it_was(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        begin = await last_event(server)
        first = Reader(server.client, f"/api/events?after={begin}")
        await submitted(server, "echo")
        seen = [(await first.next())["data"]["seq"] for _ in range(2)]
        await first.close()
        await submitted(server, "echo")

        again = Reader(server.client, "/api/events", {"Last-Event-ID": str(seen[-1])})
        seen += [(await again.next())["data"]["seq"] for _ in range(4)]
        await again.close()

        assert seen == [begin + number for number in range(1, 7)]


async def test_a_reader_of_a_long_history_hears_each_event_once_and_then_what_comes(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await server.scheduler.pause()
        begin = await last_event(server)
        for _ in range(3):
            await server.scheduler.submit_many([NewJob(job_type="echo")] * 400)
        reader = Reader(server.client, f"/api/events?after={begin}")
        heard = [await reader.next() for _ in range(1200)]
        await server.scheduler.submit("echo")
        heard.append(await reader.next())
        await reader.close()

        assert [one["data"]["seq"] for one in heard] == [begin + number for number in range(1, 1202)]


async def test_a_reader_hears_only_what_it_asked_for(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await server.scheduler.offices.create("b")
        await submitted(server, "echo")
        job = (await server.client.post("/api/jobs", json={"job_type": "echo", "office_id": "b"})).json()

        reader = Reader(server.client, "/api/events?office_id=b&type=job_queued,job_completed")
        heard = [await reader.next(), await reader.next()]
        await reader.close()

        assert [(one["event"], one["data"]["job_id"]) for one in heard] == [
            ("job_queued", job["job_id"]),
            ("job_completed", job["job_id"]),
        ]


async def test_a_quiet_line_is_kept_alive(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(responses, "KEEP_ALIVE_SECONDS", 0.02)

    async with serving(tmp_path) as server:
        reader = Reader(server.client, f"/api/events?after={await last_event(server)}")

        assert await reader.comment() == ": open"
        assert await reader.comment() == ": still here"
        await reader.close()


async def test_a_stream_whose_reader_is_gone_closes_what_it_follows_at_once() -> None:
    """While somebody still holds the stream, as a traceback does, nothing else would close it."""
    closed: list[bool] = []

    async def followed() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"data: 1\n\n"
        finally:
            closed.append(True)

    async def receive() -> MutableMapping[str, Any]:
        await asyncio.Future()
        raise AssertionError("nothing is received")

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            raise ConnectionResetError("the reader is gone")

    stream = responses._Stream(followed(), lambda: closed.append(False), {})
    with pytest.raises((ConnectionResetError, ClientDisconnect)):
        await stream({"type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}}, receive, send)

    assert closed == [False, True]


async def test_a_number_that_is_none_is_refused_before_the_stream_begins(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        headers = {"accept": "text/event-stream", "Last-Event-ID": "x"}
        answer = await server.client.get("/api/events", headers=headers)

        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "Last-Event-ID")


async def test_a_log_is_followed_from_its_begin_to_its_end(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        go_on = asyncio.Event()

        async def talk(run: RunContext) -> None:
            run.log.info("first")
            await go_on.wait()
            run.log.info("second")

        server.scheduler.job_types.add("talk", talk)
        job = (await server.client.post("/api/jobs", json={"job_type": "talk"})).json()
        run = (await server.client.get(f"/api/jobs/{job['job_id']}")).json()["run"]
        reader = Reader(server.client, f"/api/job-runs/{run['run_id']}/log")
        first = await reader.next()
        go_on.set()
        second, end = await reader.next(), await reader.next()

        assert "first" in first["data"]["text"]
        assert "second" in second["data"]["text"]
        assert (end["event"], end["data"]["ended"]) == ("end", True)
        whole = (await server.client.get(f"/api/job-runs/{run['run_id']}/log")).text
        assert first["data"]["text"] + second["data"]["text"] == whole
        tail = await server.client.get(f"/api/job-runs/{run['run_id']}/log?tail=1")
        assert tail.text == whole.splitlines(True)[-1]
        assert int(tail.headers["X-Log-Line"]) == len(whole.splitlines())
        assert int(tail.headers["X-Log-Start"]) == len(whole) - len(tail.text)
        offset = end["data"]["offset"] - 3
        assert (await server.client.get(f"/api/job-runs/{run['run_id']}/log?offset={offset}")).text == whole[-3:]


async def test_a_follower_sees_the_newest_lines_behind_the_cut_and_hears_what_it_missed(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        go_on = asyncio.Event()

        async def flood(run: RunContext) -> None:
            run.log_cap = CAP
            run.write(lines(0, COUNT))
            await go_on.wait()
            run.write(lines(90_000, 90_001))

        server.scheduler.job_types.add("flood", flood)
        job = (await server.client.post("/api/jobs", json={"job_type": "flood"})).json()
        run = (await server.client.get(f"/api/jobs/{job['job_id']}")).json()["run"]
        path = f"/api/job-runs/{run['run_id']}/log"
        last = lines(COUNT - 1, COUNT).decode()
        try:
            await until(lambda: tail_is(server, path, last), True)
        except TimeoutError:
            go_on.set()
            raise

        reader, late = Reader(server.client, path), Reader(server.client, f"{path}?tail=1")
        heard, newest = [await reader.next()], await late.next()
        go_on.set()
        while heard[-1]["event"] != "end":
            heard.append(await reader.next())
        newest_two = newest["data"]["text"] + (await late.next())["data"]["text"]
        await reader.close()
        await late.close()

        whole = await read_on(server, path)
        assert "".join(one["data"].get("text", "") for one in heard) == whole
        assert sum(one["data"].get("cut", 0) for one in heard) > CAP
        assert f"{heard[0]['data']['cut']:,} bytes cut here" in whole
        assert newest_two == last + lines(90_000, 90_001).decode()
        assert heard[-1]["data"] == {"offset": (COUNT + 1) * LINE, "ended": True}
        log_path = (await server.client.get(f"/api/job-runs/{run['run_id']}")).json()["log_path"]
        assert (tmp_path / log_path).read_text() == whole


async def test_a_character_that_is_written_in_two_parts_is_followed_as_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        go_on = asyncio.Event()

        async def torn(run: RunContext) -> None:
            run.write("a line\nß".encode()[:-1])
            await go_on.wait()
            run.write("ß\n".encode()[1:] + "ß".encode()[:1])

        server.scheduler.job_types.add("torn", torn)
        job = (await server.client.post("/api/jobs", json={"job_type": "torn"})).json()
        run = (await server.client.get(f"/api/jobs/{job['job_id']}")).json()["run"]
        reader = Reader(server.client, f"/api/job-runs/{run['run_id']}/log")
        first = await reader.next()
        go_on.set()
        rest = [await reader.next()]
        while rest[-1]["event"] != "end":
            rest.append(await reader.next())
        await reader.close()

        assert (first["data"]["text"], first["id"]) == ("a line\n", "7")
        # What is no whole character at the end of the run never becomes one.
        assert "".join(one["data"].get("text", "") for one in rest) == "ß\n\ufffd"


async def test_DEC_004_a_direct_caller_who_hangs_up_while_waiting_gives_its_place_up(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await submitted(server, "gate", wait=False)
        caller = asyncio.create_task(server.client.post("/api/direct/echo", json={"direct_id": "mine"}))
        await until(lambda: waiting(server), 1)

        caller.cancel()
        await until(lambda: waiting(server), 0)

        found = (await server.client.get("/api/direct/mine")).json()
        assert (found["status"], found["reason"]) == ("CANCELLED", "the caller hung up")


async def test_DEC_004_a_streaming_caller_hears_its_place_its_output_and_its_result(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await submitted(server, "gate", wait=False)
        reader = Reader(server.client, "/api/direct/echo", method="POST", body={"params": {"text": "hello"}})
        place = await reader.next()
        server.gate.opened.set()
        rest = [await reader.next() for _ in range(3)]

        assert (place["event"], place["data"]["ahead"]) == ("place", 0)
        assert [one["event"] for one in rest] == ["started", "output", "result"]
        assert (rest[-1]["data"]["status"], rest[-1]["data"]["result"]) == ("COMPLETED", "hello")


async def test_DEC_004_a_streaming_caller_whose_wait_runs_out_hears_slot_busy(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await submitted(server, "gate", wait=False)

        reader = Reader(server.client, "/api/direct/echo", method="POST", body={"wait_timeout_seconds": 0.05})
        heard = [await reader.next()]
        while heard[-1]["event"] == "place":  # The notice may arrive more than once.
            heard.append(await reader.next())

        assert [heard[0]["event"], heard[-1]["event"]] == ["place", "error"]
        assert (heard[-1]["data"]["status"], heard[-1]["data"]["code"]) == (503, "slot_busy")


async def submitted(server: Server, job_type: str, wait: bool = True) -> None:
    job = (await server.client.post("/api/jobs", json={"job_type": job_type})).json()
    if wait:
        await server.ended(job["job_id"])


async def last_event(server: Server) -> int:
    """Returns the number of the last event. It is not 0 if a server shares its database, because it stores an event
    when it joins.
    """
    return int((await server.client.get("/api/me")).json()["last_event"])


def lines(first: int, end: int) -> bytes:
    return b"".join(b"line %010d\n" % number for number in range(first, end))


async def tail_is(server: Server, path: str, text: str) -> bool:
    return (await server.client.get(f"{path}?tail=1")).text == text


async def read_on(server: Server, path: str) -> str:
    """Reads the whole log, by the offset that each answer names."""
    text, offset = "", 0
    while (answer := await server.client.get(f"{path}?offset={offset}")).text:
        text, offset = text + answer.text, int(answer.headers["X-Log-Next"])
    assert offset == int(answer.headers["X-Log-Size"])
    return text


async def waiting(server: Server) -> int:
    return int((await server.client.get("/api/queue")).json()["direct_waiting"])


async def until(count: Any, wanted: object) -> None:
    async with asyncio.timeout(30):
        while await count() != wanted:  # noqa: ASYNC110 - the server is asked over HTTP
            await asyncio.sleep(0.02)


class Reader:
    """Reads a stream of server-sent events, one at a time."""

    def __init__(
        self,
        client: httpx2.AsyncClient,
        path: str,
        headers: dict[str, str] | None = None,
        method: str = "GET",
        body: Any = None,
    ) -> None:
        accept = {"accept": "text/event-stream", **(headers or {})}
        self._stream = client.stream(method, path, headers=accept, json=body, timeout=30)
        self._lines: AsyncIterator[str] | None = None

    async def comment(self) -> str:
        return next(line for line in await self._block() if line.startswith(":"))

    async def next(self) -> dict[str, Any]:
        while True:
            fields = dict(line.split(": ", 1) for line in await self._block() if not line.startswith(":"))
            if fields:
                return {"event": fields["event"], "id": fields.get("id"), "data": json.loads(fields["data"])}

    async def _block(self) -> list[str]:
        if self._lines is None:
            self._lines = (await self._stream.__aenter__()).aiter_lines()
        block: list[str] = []
        async with asyncio.timeout(30):
            async for line in self._lines:
                if not line:
                    return block
                block.append(line)
        raise AssertionError(f"the stream ended, after {block}")

    async def close(self) -> None:
        await self._stream.__aexit__(None, None, None)
