"""Callers who wait: their order, their places, what they read meanwhile, and what a hang-up frees."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from nextslot.domain.limits import Rate, RateUnit
from nextslot.extensions.gateway import routes
from nextslot.system.instant import Instant
from tests.extensions.gateway.fake_upstream import OWL, FakeUpstream, fake_upstream
from tests.extensions.gateway.support import chat, directs, gateway
from tests.server.support import Server
from tests.support import eventually

# See `support.gateway`.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

CHAT = "/v1/chat/completions"


def waiting(server: Server) -> int:
    callers = server.scheduler._runtime.direct.callers
    return sum(not one.has_started for one in callers.values())


def connected(server: Server) -> int:
    return len(server.scheduler._runtime.direct.callers)


def places(server: Server) -> list[int | None]:
    """Returns the place that each waiting caller was sent last, by arrival."""
    return [one._place for one in server.scheduler._runtime.direct.callers.values() if not one.has_started]


@asynccontextmanager
async def callers(server: Server, wanted: list[dict[str, Any]]) -> AsyncIterator[list["asyncio.Task[httpx2.Response]"]]:
    """Sends requests one after the other, while the first ones occupy the slots."""
    tasks: list[asyncio.Task[httpx2.Response]] = []
    await eventually(lambda: not connected(server))  # The end of an earlier request may not be stored yet.
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=server.client.base_url, timeout=120, limits=limits) as client:
        for body in wanted:
            before = connected(server)
            tasks.append(asyncio.create_task(client.post(CHAT, json=body)))
            await eventually(lambda before=before: connected(server) > before)  # type: ignore[misc]
        try:
            yield tasks
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def assert_nothing_is_left(server: Server, upstream: FakeUpstream) -> None:
    """Checks that every slot is free: as many requests as slots start at once, and nothing is stored as running."""
    await eventually(lambda: not upstream.active and not connected(server))
    answer = await server.client.post(CHAT, json=chat("plain"), headers={"X-Nextslot-Wait": "5"})
    assert answer.status_code == 200, answer.text
    async with asyncio.timeout(60):  # An answer comes before its end is stored.
        while {one.status for one in await directs(server)} & {"WAITING", "RUNNING"}:  # noqa: ASYNC110 - stored
            await asyncio.sleep(0.05)
    status = (await server.client.get("/api/status")).json()
    assert all(not one["used"] for one in status["limits"]), status["limits"]


@pytest.mark.parametrize("slots", [1, 4])
async def test_200_callers_are_answered_in_their_order_and_no_slot_is_lost(tmp_path: Path, slots: int) -> None:
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url, slots) as server:
        wanted = [chat("held", str(n), stream=n % 2 == 0) for n in range(200)]
        async with callers(server, wanted) as tasks:
            assert waiting(server) == 200 - slots
            await eventually(lambda: places(server) == list(range(200 - slots)))
            leaving = tasks[50:150:5]
            for task in leaving:
                task.cancel()
            await eventually(lambda: waiting(server) == 180 - slots)
            await eventually(lambda: places(server) == list(range(180 - slots)))
            upstream.opened.set()
            answers = await asyncio.gather(*(task for task in tasks if task not in leaving))

        left = {str(n) for n in range(50, 150, 5)}
        order = [text for text in upstream.texts if text not in left]
        assert set(upstream.texts).isdisjoint(left), "who hung up while it waited never reached the upstream"
        assert upstream.most_active == slots
        assert {answer.text for answer in answers if answer.status_code != 200} == set()
        assert all("says" in answer.text for answer in answers)
        if slots == 1:
            assert order == [str(n) for n in range(200) if str(n) not in left]
        else:
            assert all(abs(place - int(text)) <= 20 + slots for place, text in enumerate(order)), order
        await assert_nothing_is_left(server, upstream)


async def test_requests_wait_for_what_the_tokens_of_earlier_ones_have_used_of_a_rate(tmp_path: Path) -> None:
    rates = {"resource:fake": {RateUnit.TOKENS: Rate(per_minute=60, burst=1)}}
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url, slots=4, rates=rates) as server:
        first = await server.client.post(CHAT, json=chat("plain"))
        await eventually(lambda: not connected(server))

        refused = await server.client.post(CHAT, json=chat("plain"), headers={"X-Nextslot-Wait": "0"})
        second = await server.client.post(CHAT, json=chat("plain"))
        found = await directs(server)

    assert (first.status_code, refused.status_code, second.status_code) == (200, 503, 200)
    assert first.json()["usage"]["total_tokens"] == 7
    [earlier, later] = sorted((one for one in found if one.started_at is not None), key=lambda one: one.started_at)
    assert later.started_at - earlier.finished_at >= 6_900_000, "seven tokens are refilled in seven seconds"


async def test_a_stream_reads_its_place_and_its_expected_start_while_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "FIRST_COMMENT_SECONDS", 0.3)
    monkeypatch.setattr(routes, "COMMENT_SECONDS", 0.2)
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url) as server:
        upstream.opened.set()
        await server.client.post(CHAT, json=chat("plain"))  # How long a request takes is known from now on.
        upstream.opened.clear()
        async with callers(server, [chat("held")] * 2):
            body = chat("plain", stream=True)
            async with server.client.stream("POST", CHAT, json=body) as answer:
                lines = aiter(answer.aiter_lines())
                comments = [line async for line in _first(lines, 3)]
                upstream.opened.set()
                rest = [line async for line in lines]

        assert answer.status_code == 200
        assert all(one.startswith(": place 2, expected start in ") for one in comments), comments
        assert [one for one in rest if one][-1] == "data: [DONE]"
        assert not any("error" in one for one in rest)


async def test_the_official_client_reads_past_the_comments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "FIRST_COMMENT_SECONDS", 0.1)
    monkeypatch.setattr(routes, "COMMENT_SECONDS", 0.1)
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url) as server:
        async with callers(server, [chat("held")]):
            url = f"{str(server.client.base_url).rstrip('/')}/v1"
            client = openai.AsyncOpenAI(base_url=url, api_key="any", http_client=server.client)
            stream = await client.chat.completions.create(**chat("plain"), stream=True)
            upstream.opened.set()
            said = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]

        assert "".join(said) == OWL


async def _first(lines: AsyncIterator[str], count: int) -> AsyncIterator[str]:
    while count:
        line = await anext(lines)
        if line:
            count -= 1
            yield line


def learn_seconds(server: Server, seconds: float) -> None:
    """Lets forecasts expect requests to take so long."""
    server.scheduler._runtime.durations.fill([("model_request", seconds, {})] * 5)


def seconds_until(server: Server, expected_start: str) -> float:
    return (Instant.of(datetime.fromisoformat(expected_start)) - server.scheduler._clock.now()) / 1_000_000


async def test_a_caller_whose_wait_is_over_reads_when_its_start_was_expected(tmp_path: Path) -> None:
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url) as server:
        learn_seconds(server, 1000)
        async with callers(server, [chat("held")]):
            patient = asyncio.create_task(
                server.client.post(CHAT, json=chat("plain"), headers={"X-Nextslot-Wait": "3"})
            )
            await eventually(lambda: waiting(server) == 1)
            at_once = await server.client.post(CHAT, json=chat("plain"), headers={"X-Nextslot-Wait": "0"})
            answer = await patient

        # The one who waited had one request before it; the one who did not had two.
        for refused, seconds in (answer, 1000), (at_once, 2000):
            error = refused.json()["error"]
            assert (refused.status_code, error["code"], error["type"]) == (503, "slot_busy", "server_error")
            assert error["expected_start"] in error["message"]
            assert seconds - 60 < int(refused.headers["retry-after"]) <= seconds
            assert seconds - 60 < seconds_until(server, error["expected_start"]) <= seconds
        assert float(answer.headers["x-nextslot-waited"]) >= 2.9
        await assert_nothing_is_left(server, upstream)


async def test_a_caller_for_whom_there_is_no_place_reads_an_expected_start_too(tmp_path: Path) -> None:
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url) as server:
        learn_seconds(server, 1000)
        async with callers(server, [chat("held")] * 3):
            server.scheduler._runtime.direct.most_waiting = 2
            answer = await server.client.post(CHAT, json=chat("plain", stream=True))

        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "slot_busy")
        assert 2900 < int(answer.headers["retry-after"]) <= 3000
        assert 2900 < seconds_until(server, answer.json()["error"]["expected_start"]) <= 3000


async def test_a_stream_reads_its_expected_start_even_if_its_wait_ends_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "FIRST_COMMENT_SECONDS", 0.2)
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url, wait_seconds=2) as server:
        learn_seconds(server, 1000)
        async with callers(server, [chat("held")] * 2):
            answer = await server.client.post(CHAT, json=chat("plain", stream=True))

        comment, *_, last, _ = answer.text.split("\n\n")
        error = json.loads(last.removeprefix("data: "))["error"]
        place, seconds = comment.removesuffix(" s").split(", expected start in ")
        assert place == ": place 2"
        assert 1900 < int(seconds) <= 2000
        assert error["code"] == "slot_busy"
        assert 1900 < seconds_until(server, error["expected_start"]) <= 2000


async def test_a_stream_whose_wait_is_over_ends_with_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "FIRST_COMMENT_SECONDS", 0.2)
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url, wait_seconds=1) as server:
        async with callers(server, [chat("held")]):
            answer = await server.client.post(CHAT, json=chat("plain", stream=True))

        *_, last, _ = answer.text.split("\n\n")
        assert answer.status_code == 200
        assert answer.text.startswith(": place 1")
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "slot_busy"


@pytest.mark.parametrize("model", ["held", "held-in-the-middle", "never"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_hang_up_stops_the_upstreams_work_at_once(tmp_path: Path, model: str, stream: bool) -> None:
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url) as server:
        async with callers(server, [chat(model, stream=stream)]) as [task]:
            await eventually(lambda: upstream.active)
            task.cancel()
            await eventually(lambda: upstream.hung_up, seconds=10)

        await assert_nothing_is_left(server, upstream)
        *_, ended = await directs(server)
        assert (ended.status, ended.failure_kind) == ("FAILED", "cancelled")


async def test_so_many_requests_of_an_api_key_run_at_once_and_others_do_not_wait_for_it(tmp_path: Path) -> None:
    async with (
        fake_upstream() as upstream,
        gateway(tmp_path, upstream.base_url, 3, limit_keys={"caller:*": 1}, limit_callers=True) as server,
    ):
        await server.scheduler.keys.create("root", ["admin"])
        _, ada = await server.scheduler.keys.create("ada", ["submit"])
        _, ben = await server.scheduler.keys.create("ben", ["submit"])
        tasks = []
        for number, key in enumerate((ada, ada, ada, ben, ben)):
            headers = {"Authorization": f"Bearer {key}"}
            asked = server.client.post(CHAT, json=chat("held", str(number)), headers=headers)
            tasks.append(asyncio.create_task(asked))
            await eventually(lambda number=number: connected(server) > number)  # type: ignore[misc]
        await eventually(lambda: upstream.active == 2)

        assert upstream.texts == ["0", "3"], "each has one, although three slots are free or were"
        assert waiting(server) == 3
        upstream.opened.set()
        assert [answer.status_code for answer in await asyncio.gather(*tasks)] == [200] * 5
        assert upstream.most_active == 2


async def test_no_token_of_a_stream_waits_for_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url) as server:
        store, can_commit = server.scheduler._access.store, asyncio.Event()
        commit = type(store).write

        async def held(self: Any, *given: Any, **more: Any) -> Any:
            await can_commit.wait()
            return await commit(self, *given, **more)

        body = chat("held-after-one", stream=True)
        async with asyncio.timeout(60), server.client.stream("POST", CHAT, json=body) as answer:
            lines = aiter(answer.aiter_lines())
            assert "an " in await anext(lines)
            monkeypatch.setattr(type(store), "write", held)
            upstream.opened.set()
            rest = [line async for line in lines if line]
            assert connected(server) == 1, "the end of the work is not stored yet"
            can_commit.set()

        assert [one for one in rest if "says" in one]
        assert rest[-1] == "data: [DONE]"
        await assert_nothing_is_left(server, upstream)


async def test_a_key_that_is_deleted_ends_its_streams(tmp_path: Path) -> None:
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url) as server:
        _, root = await server.scheduler.keys.create("root", ["admin"])
        key, text = await server.scheduler.keys.create("ada", ["submit"])
        body, headers = chat("held-in-the-middle", stream=True), {"Authorization": f"Bearer {text}"}
        async with asyncio.timeout(30), server.client.stream("POST", CHAT, json=body, headers=headers) as answer:
            lines = aiter(answer.aiter_lines())
            assert "an " in await anext(lines)
            await server.scheduler.keys.delete(key.key_id)
            rest = [line async for line in lines if line]

        assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "invalid_api_key"
        await eventually(lambda: upstream.hung_up)
        assert root


async def test_a_slow_reader_does_not_hold_the_slot_for_a_short_answer(tmp_path: Path) -> None:
    async with fake_upstream() as upstream, gateway(tmp_path, upstream.base_url) as server:
        url = server.client.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        body = json.dumps(chat("plain", stream=True)).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await eventually(lambda: len(upstream.asked) == 1 and not upstream.active)

        await assert_nothing_is_left(server, upstream)
        assert b"[DONE]" in await reader.readuntil(b"0\r\n\r\n")
        writer.close()
        await writer.wait_closed()


async def test_after_kill_9_callers_get_an_error_nothing_runs_on_and_the_next_start_frees_the_slot(
    tmp_path: Path,
) -> None:
    async with fake_upstream() as upstream:
        settings = f'[gateway.upstreams.fake]\nbase_url = "{upstream.base_url}"\n'
        (tmp_path / "nextslot.toml").write_text(settings)
        process, url = await started(tmp_path)
        async with httpx2.AsyncClient(base_url=url, timeout=60) as client:
            begun = client.stream("POST", CHAT, json=chat("held-in-the-middle", stream=True))
            answer = await begun.__aenter__()
            plain = asyncio.create_task(client.post(CHAT, json=chat("plain")))
            await asyncio.sleep(0.3)
            process.send_signal(signal.SIGKILL)
            with pytest.raises(httpx2.HTTPError):
                await answer.aread()
            with pytest.raises(httpx2.HTTPError):
                await plain
            await begun.__aexit__(None, None, None)
        await process.wait()
        await eventually(lambda: upstream.hung_up == 1 and not upstream.active, seconds=20)
        assert upstream.texts == ["Hello"], "who waited never reached the upstream"

        process, url = await started(tmp_path)
        async with httpx2.AsyncClient(base_url=url, timeout=60) as client:
            again = await client.post(CHAT, json=chat("plain"))
            ended = (await client.get("/api/direct")).json()["items"]
        process.terminate()
        await process.communicate()

        assert again.status_code == 200
        assert sorted(one["failure_kind"] or "" for one in ended) == ["", "crash", "crash"]


async def started(data: Path) -> tuple[asyncio.subprocess.Process, str]:
    command = [sys.executable, "-m", "nextslot.cli.main", "serve", "--data", str(data), "--port", "0", "--json"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    return process, json.loads(await process.stdout.readline())["url"]
