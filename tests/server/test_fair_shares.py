"""Callers share the server: none waits for the flood, the streams or the waiting calls of another one."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from nextslot.server.app import Options
from nextslot.server.fair_shares import HISTORY_SECONDS, FairShares, ShareLimits
from nextslot.server.problems import HttpProblem

from .support import Server, serving


@asynccontextmanager
async def of_two_offices(
    tmp_path: Path, shares: FairShares
) -> AsyncIterator[tuple[Server, httpx2.AsyncClient, httpx2.AsyncClient]]:
    async with serving(tmp_path, Options(shares=shares)) as server:
        await server.scheduler.keys.create("admin", ["admin"])
        keys = []
        for office in ("a", "b"):
            await server.scheduler.offices.create(office)
            keys.append((await server.scheduler.keys.create(office, ["submit"], office))[1])
        async with AsyncExitStack() as clients:
            a, b = [
                await clients.enter_async_context(
                    httpx2.AsyncClient(
                        base_url=server.client.base_url,
                        timeout=60,
                        headers={"X-API-Key": key},
                        limits=httpx2.Limits(max_connections=None),
                    )
                )
                for key in keys
            ]
            yield server, a, b


async def until(is_so: Any) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - the server's time
            await asyncio.sleep(0.01)


async def test_a_caller_with_too_many_streams_is_refused_and_another_is_not(tmp_path: Path) -> None:
    shares = FairShares(ShareLimits(streams_of_lane=3, refused_seconds=0.01))
    stream = {"accept": "text/event-stream"}
    async with of_two_offices(tmp_path, shares) as (_, a, b):
        async with AsyncExitStack() as held:
            for _ in range(3):
                await held.enter_async_context(b.stream("GET", "/api/events", headers=stream))
            refused = await b.get("/api/events", headers=stream)
            other = await held.enter_async_context(a.stream("GET", "/api/events", headers=stream))

            assert (refused.status_code, refused.json()["code"]) == (429, "overloaded")
            assert int(refused.headers["retry-after"]) >= 1
            assert other.status_code == 200
        await until(lambda: shares.streams == 0)
        async with b.stream("GET", "/api/events", headers=stream) as again:
            assert again.status_code == 200


async def test_direct_callers_who_wait_count_as_streams_and_hold_up_no_other_request(tmp_path: Path) -> None:
    shares = FairShares(
        ShareLimits(in_progress=2, in_progress_beside_others=1, streams_of_lane=5, refused_seconds=0.01)
    )
    async with of_two_offices(tmp_path, shares) as (server, _, b):
        calls = [asyncio.create_task(b.post("/api/direct/gate", json={"office_id": "b"})) for _ in range(5)]
        await until(lambda: shares.streams == 5)
        refused = await b.post("/api/direct/gate", json={"office_id": "b"})
        created = await b.post("/api/jobs", json={"job_type": "echo", "office_id": "b"})
        server.gate.opened.set()

        assert (refused.status_code, created.status_code) == (429, 201)
        assert {(await call).status_code for call in calls} == {200}


async def test_a_caller_beyond_its_rate_is_told_when_to_come_back_and_another_is_served(tmp_path: Path) -> None:
    shares = FairShares(ShareLimits(per_second=0.001))
    async with of_two_offices(tmp_path, shares) as (_, a, b):
        answers = [await b.get("/api/jobs") for _ in range(2)]

        assert [answer.status_code for answer in answers] == [200, 429]
        assert answers[1].json()["code"] == "over_quota"
        assert int(answers[1].headers["retry-after"]) > 500
        assert (await a.get("/api/jobs")).status_code == 200


async def test_requests_beyond_the_bound_of_those_that_wait_are_refused() -> None:
    shares = FairShares(ShareLimits(in_progress=1, waiting=2))
    async with shares.request("b"):
        waiting = [asyncio.create_task(enter(shares, "b", [])) for _ in range(2)]
        await until(lambda: shares.waiting == 2)

        with pytest.raises(HttpProblem) as refusal:
            await enter(shares, "b", [])
    await asyncio.gather(*waiting)

    assert refusal.value.status == 429
    assert (shares.in_progress, shares.waiting) == (0, 0)


async def test_streams_of_a_caller_take_turns_to_read_old_events_and_another_caller_reads_at_once() -> None:
    shares, read = FairShares(), list[str]()

    async def follow(lane: str) -> None:
        await shares.turn_of_history(lane)
        read.append(lane)

    began = time.monotonic()
    flood = [asyncio.create_task(follow("b")) for _ in range(20)]
    await asyncio.sleep(0)
    await follow("a")
    first = list(read)
    await asyncio.gather(*flood)

    assert first == ["b", "a"]
    assert time.monotonic() - began > 18 * HISTORY_SECONDS


async def test_a_flood_leaves_room_for_another_caller_who_begins_at_once() -> None:
    shares = FairShares(ShareLimits(in_progress=64, in_progress_beside_others=4))
    ended, order = asyncio.Event(), list[str]()

    async def work(lane: str) -> None:
        async with shares.request(lane):
            order.append(lane)
            await ended.wait()

    async with shares.request("a"):
        flood = [asyncio.create_task(work("b")) for _ in range(100)]
        await until(lambda: shares.waiting == 96)
    others = [asyncio.create_task(work("a")) for _ in range(4)]
    await until(lambda: len(order) == 8)
    ended.set()
    await asyncio.gather(*flood, *others)

    assert order[4:8] == ["a"] * 4


async def test_requests_about_many_jobs_rest_in_between_while_others_are_active() -> None:
    now = [100.0]
    shares = FairShares(seconds=lambda: now[0])

    async def act(lane: str, seconds: float) -> float:
        async with shares.bulk(lane):
            began = now[0]
            now[0] += seconds
            return began

    async def pass_time() -> None:
        while True:
            await asyncio.sleep(0.01)
            now[0] += 0.5

    async with shares.request("a"):
        clock = asyncio.create_task(pass_time())
        await act("b", 2.0)
        ended = now[0]
        began = await act("b", 0.0)
        clock.cancel()

    assert began - ended >= 6.0


async def test_requests_about_many_jobs_follow_each_other_at_once_if_nobody_else_is_there() -> None:
    shares = FairShares(seconds=lambda: 100.0)

    async with asyncio.timeout(5):
        for _ in range(3):
            async with shares.bulk("b"):
                pass


async def test_alone_a_caller_gets_the_whole_server() -> None:
    shares = FairShares(ShareLimits(in_progress=64, in_progress_beside_others=4))
    async with AsyncExitStack() as held:
        for _ in range(64):
            await held.enter_async_context(shares.request("b"))

        assert (shares.in_progress, shares.waiting) == (64, 0)


async def flood(shares: FairShares, lane: str, callers: int, seconds: float) -> int:
    """Sends requests of 10 ms in a loop. Returns how many were carried out."""
    done, until = 0, asyncio.get_running_loop().time() + seconds

    async def one() -> None:
        nonlocal done
        while asyncio.get_running_loop().time() < until:
            async with shares.request(lane):
                await asyncio.sleep(0.01)
            done += 1

    await asyncio.gather(*(one() for _ in range(callers)))
    return done


async def now_and_then(shares: FairShares, lane: str, seconds: float) -> list[float]:
    """Sends a request of 10 ms every 40 ms. Returns how long each one waited."""
    waited, until = [], asyncio.get_running_loop().time() + seconds
    while (began := asyncio.get_running_loop().time()) < until:
        async with shares.request(lane):
            waited.append(asyncio.get_running_loop().time() - began)
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.03)
    return waited


@pytest.mark.virtual_time
@pytest.mark.parametrize("callers", [2, 10, 100])
async def test_a_flood_beside_a_caller_who_sends_little_rests_for_at_least_half_of_the_time(
    callers: int,
) -> None:
    shares = FairShares(seconds=asyncio.get_running_loop().time)

    done, waited = await asyncio.gather(flood(shares, "b", callers, 10), now_and_then(shares, "a", 10))

    # 2 places without rests carry out 2,000 requests.
    assert 500 < done < 1100
    assert max(waited) == 0


@pytest.mark.virtual_time
async def test_two_floods_share_the_server_without_rests() -> None:
    shares = FairShares(seconds=asyncio.get_running_loop().time)

    one, two = await asyncio.gather(flood(shares, "a", 50, 10), flood(shares, "b", 60, 10))

    assert one > 1900
    assert two > 1900


@pytest.mark.virtual_time
async def test_a_caller_who_got_less_than_another_has_more_places() -> None:
    shares, entered, ended = FairShares(seconds=asyncio.get_running_loop().time), list[str](), asyncio.Event()

    async def hold(lane: str) -> None:
        async with shares.request(lane):
            entered.append(lane)
            await ended.wait()

    for lane in "cbbbbbbbbbb":
        await enter(shares, lane, [])
    many = [asyncio.create_task(hold("b")) for _ in range(10)]
    await asyncio.sleep(0)
    few = [asyncio.create_task(hold("a")) for _ in range(12)]
    await asyncio.sleep(0)
    begun = sorted(entered)
    ended.set()
    await asyncio.gather(*many, *few)

    # 4 places for each of the three, of which b may use 2.
    assert begun == ["a"] * 10 + ["b"] * 2


@pytest.mark.virtual_time
async def test_a_caller_who_waits_for_long_work_keeps_its_place_for_a_moment_only() -> None:
    shares = FairShares(seconds=asyncio.get_running_loop().time)
    async with AsyncExitStack() as held:
        await held.enter_async_context(shares.request("a"))
        for _ in range(10):
            await held.enter_async_context(shares.request("b", at_most=0.025))

        assert asyncio.get_running_loop().time() <= 1.5
        await asyncio.sleep(1)
        assert shares.in_progress == 1


async def test_a_caller_who_leaves_while_waiting_passes_its_turn_on() -> None:
    shares = FairShares(ShareLimits(in_progress=1))
    entered: list[str] = []
    async with shares.request("b"):
        leaving = asyncio.create_task(enter(shares, "b", entered))
        staying = asyncio.create_task(enter(shares, "b", entered))
        await until(lambda: shares.waiting == 2)
        leaving.cancel()
    # The turn of the first one came in the same moment in which it left.
    await asyncio.gather(leaving, staying, return_exceptions=True)

    assert entered == ["b"]
    assert (shares.in_progress, shares.waiting) == (0, 0)


async def enter(shares: FairShares, lane: str, entered: list[str]) -> None:
    async with shares.request(lane):
        entered.append(lane)
