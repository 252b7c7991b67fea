"""Several nodes on one PostgreSQL (spec 15): real threads, real time, short leases."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nextslot import Limits, Scheduler
from nextslot.domain.lease_times import LeaseTimes
from nextslot.errors import (
    AlreadyOpen,
    Conflict,
    Draining,
    NotFound,
)
from tests import postgres

QUICK = LeaseTimes(renew_seconds=0.2, work_seconds=1.0, lease_seconds=2.0)


@pytest.fixture
def database() -> Iterator[str]:
    name = postgres.borrow()
    yield postgres.address(name)
    postgres.give_back(name)


def node(database: str, name: str, directory: Path, **options: Any) -> Scheduler:
    scheduler = Scheduler(
        database,
        node=name,
        data=directory / name,
        **{"lease": QUICK, "limits": Limits(running=0), "shutdown_grace_seconds": 5.0, **options},
    )

    @scheduler.job_type("work")
    async def work(run: Any, seconds: float = 0.0) -> str:
        await asyncio.sleep(seconds)
        return name

    @scheduler.job_type("fail")
    async def fail(run: Any) -> None:
        raise RuntimeError("as asked")

    return scheduler


@contextlib.asynccontextmanager
async def running(*schedulers: Scheduler) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        for scheduler in schedulers:
            await stack.enter_async_context(scheduler)
            await scheduler.offices.change("default", max_concurrent_jobs=0)
        yield


async def eventually(check: Callable[[], Awaitable[bool]], seconds: float = 90) -> None:
    for _ in range(int(seconds / 0.05)):
        if await check():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it never came")


async def status_of(scheduler: Scheduler, node_id: str) -> str:
    return next(one.status for one in await scheduler.nodes.list() if one.node_id == node_id)


async def test_every_node_is_known_with_what_it_has_and_one_leads(database: str, tmp_path: Path) -> None:
    a, b = node(database, "a", tmp_path, node_resources={"gpu": 2}), node(database, "b", tmp_path)
    async with running(a, b):

        async def one_leads() -> bool:
            return [one.is_leader for one in await b.nodes.list()].count(True) == 1

        await eventually(one_leads)
        known = await b.nodes.list()

    assert [(one.node_id, one.status, dict(one.resources)) for one in known] == [
        ("a", "live", {"gpu": 2}),
        ("b", "live", {}),
    ]
    assert {"work", "fail"} <= set(known[0].job_types)


async def test_a_name_is_had_by_one_process_at_a_time(database: str, tmp_path: Path) -> None:
    async with running(node(database, "a", tmp_path)):
        with pytest.raises(AlreadyOpen, match="another name"):
            await node(database, "a", tmp_path).start()


async def test_what_one_node_cannot_run_another_is_told_of(database: str, tmp_path: Path) -> None:
    slow = LeaseTimes(renew_seconds=60, work_seconds=120, lease_seconds=200)  # So that nothing is found by looking.
    a = node(database, "a", tmp_path, node_running=1, lease=slow)
    b = node(database, "b", tmp_path, lease=slow)
    async with running(a, b):
        await asyncio.sleep(0.5)
        first = await a.submit("work", {"seconds": 2})
        second = await a.submit("work")

        ended = await asyncio.wait_for(a.wait(second.job_id), 10)

        assert ended.result == "b"
        assert (await a.job(first.job_id)).status == "RUNNING"


async def test_a_resource_that_a_node_counts_is_used_there_and_nowhere_else(database: str, tmp_path: Path) -> None:
    a, b = node(database, "a", tmp_path), node(database, "b", tmp_path, node_resources={"gpu": 1})
    places: list[str] = []
    for one in (a, b):

        @one.job_type("train", resources={"gpu": 1})
        async def train(run: Any, name: str = one.node) -> None:
            places.append(name)
            await asyncio.sleep(0.1)

    async with running(a, b):
        jobs = [await a.submit("train") for _ in range(4)]
        for job in jobs:
            assert (await asyncio.wait_for(a.wait(job.job_id), 20)).status == "COMPLETED"

    assert places == ["b"] * 4


async def test_limits_hold_across_nodes(database: str, tmp_path: Path) -> None:
    at_once, most = 0, 0
    is_full = asyncio.Event()
    schedulers = [node(database, name, tmp_path, limits=Limits(running=3), node_running=2) for name in "abc"]
    for one in schedulers:

        @one.job_type("count")
        async def count(run: Any) -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            if at_once == 3:
                is_full.set()
            await is_full.wait()
            await asyncio.sleep(0.02)
            at_once -= 1

    async with running(*schedulers):
        jobs = [await schedulers[number % 3].submit("count") for number in range(30)]
        for job in jobs:
            await asyncio.wait_for(schedulers[0].wait(job.job_id), 30)

    assert most == 3


async def test_a_forecast_knows_what_every_node_can_run(database: str, tmp_path: Path) -> None:
    a = node(database, "a", tmp_path, node_running=1, node_resources={"gpu": 1})
    b = node(database, "b", tmp_path, node_running=1)
    async with running(a, b):
        for _ in range(3):
            await a.wait((await a.submit("work", {"seconds": 0.01})).job_id)
        jobs = [await a.submit("work", {"seconds": 60}, resources=needs) for needs in ({"gpu": 1}, {})]

        async def both_run() -> bool:
            return [one.running for one in await b.nodes.list()] == [1, 1]

        await eventually(both_run)
        more: list[dict[str, int]] = [{"gpu": 1}, {"gpu": 1}, {}]
        jobs += [await b.submit("work", {"seconds": 60}, resources=needs) for needs in more]
        made = await b.forecast.queue()
        for job in jobs:
            await b.cancel(job.job_id, interrupt=True)

    on_a, on_b, first, second, beside = (made.jobs[job.job_id] for job in jobs)
    assert (first.expected_start, second.expected_start) == (on_a.expected_end, first.expected_end)
    assert beside.expected_start == on_b.expected_end


async def test_a_cancelled_job_is_stopped_on_whatever_node_it_runs(database: str, tmp_path: Path) -> None:
    a, b = node(database, "a", tmp_path), node(database, "b", tmp_path)
    async with running(a, b):
        job = await a.submit("work", {"seconds": 60})

        await b.cancel(job.job_id, interrupt=True)

        assert (await asyncio.wait_for(b.wait(job.job_id), 10)).status == "CANCELLED"


async def test_a_direct_caller_is_served_by_the_node_that_took_the_call(database: str, tmp_path: Path) -> None:
    a, b = node(database, "a", tmp_path), node(database, "b", tmp_path)
    async with running(a, b):
        await a.offices.change("default", max_concurrent_jobs=1)
        await a.submit("work", {"seconds": 0.5})
        calls = [asyncio.create_task(one.run_direct("work")) for one in (b, a, b)]

        answers = await asyncio.wait_for(asyncio.gather(*calls), 20)

    assert [one.result for one in answers] == ["b", "a", "b"]


async def test_events_of_every_node_reach_a_follower_of_any(database: str, tmp_path: Path) -> None:
    a, b = node(database, "a", tmp_path), node(database, "b", tmp_path)
    async with running(a, b):
        heard = []

        async def follow() -> None:
            async for event in b.events():
                heard.append(event)  # noqa: PERF401 it never ends

        following = asyncio.create_task(follow())
        jobs = [await a.submit("work") for _ in range(10)]

        async def all_heard() -> bool:
            done = {event.job_id for event in heard if event.type == "job_completed"}
            return done == {job.job_id for job in jobs}

        await eventually(all_heard)
        following.cancel()

    assert [event.seq for event in heard] == list(range(1, len(heard) + 1))


async def test_a_lost_node_loses_its_jobs_to_others_and_comes_back_with_a_new_life(
    database: str, tmp_path: Path
) -> None:
    a, b = node(database, "a", tmp_path), node(database, "b", tmp_path)
    async with running(a, b):
        await b.nodes.drain("b")

        async def held() -> bool:
            return b._runtime.dispatcher.is_held

        await eventually(held)
        job = await a.submit("work", {"seconds": 600}, retry_policy={"max_attempts": 2, "base_delay_seconds": 0})
        await b.nodes.drain("b", undo=True)
        lease = stand_still(a)

        async def lost() -> bool:
            return await status_of(b, "a") == "lost"

        async def retried() -> bool:
            return len(await b.chain(job.job_id)) == 2

        await eventually(lost)
        await eventually(retried)
        lease.set()

        async def back() -> bool:
            return await status_of(b, "a") == "live"

        await eventually(back)
        first, second = await b.chain(job.job_id)
        first_run = await b.run_of(job.job_id)

    assert first_run is not None
    assert (first_run.failure_kind, first_run.error) == ("crash", "Scheduler crash recovery")
    assert first.worker_id == "a/slot-1"
    assert second.retry_of == first.job_id


async def test_clearing_up_after_a_node_that_is_back_takes_nothing_of_its_new_life(
    database: str, tmp_path: Path
) -> None:
    a, b = node(database, "a", tmp_path), node(database, "b", tmp_path)
    async with running(a, b):
        job = await a.submit("work", {"seconds": 2})

        await b._runtime.recovery.clear_up(b._access.store, "a")

        assert (await a.job(job.job_id)).status == "RUNNING"
        assert (await asyncio.wait_for(a.wait(job.job_id), 20)).status == "COMPLETED"


async def test_a_drained_node_starts_nothing_and_others_take_its_queue(database: str, tmp_path: Path) -> None:
    a, b = node(database, "a", tmp_path), node(database, "b", tmp_path)
    async with running(a, b):
        await b.nodes.drain("a")

        async def held() -> bool:
            return a._runtime.dispatcher.is_held

        await eventually(held)
        ended = await asyncio.wait_for(a.wait((await a.submit("work")).job_id), 10)
        with pytest.raises(Draining, match="node a is being drained"):
            await a.run_direct("work")
        with pytest.raises(NotFound):
            await a.nodes.drain("nobody")
        await b.nodes.drain("a", undo=True)
        await b.nodes.drain("b")

        async def b_held() -> bool:
            return b._runtime.dispatcher.is_held and not a._runtime.dispatcher.is_held

        await eventually(b_held)
        again = await asyncio.wait_for(b.wait((await b.submit("work")).job_id), 10)

    assert (ended.result, again.result) == ("b", "a")


async def test_who_waits_for_the_slot_at_a_node_that_is_drained_is_sent_to_another(
    database: str, tmp_path: Path
) -> None:
    a, b = (node(database, name, tmp_path, limits=Limits(running=1)) for name in "ab")
    async with running(a, b):
        job = await a.submit("work", {"seconds": 3})
        waiting = asyncio.ensure_future(a.run_direct("work"))
        await asyncio.sleep(0.5)
        assert not waiting.done()

        await b.nodes.drain("a")

        with pytest.raises(Draining, match="this node is being drained; ask another one"):
            await asyncio.wait_for(waiting, 10)
        assert (await asyncio.wait_for(b.run_direct("work"), 20)).result == "b"
        assert (await b.job(job.job_id)).status == "COMPLETED"


async def test_a_node_that_has_left_cannot_be_drained_and_its_work_is_not_waited_for(
    database: str, tmp_path: Path
) -> None:
    a, b = node(database, "a", tmp_path), node(database, "b", tmp_path)
    async with running(a):
        async with running(b):
            pass
        status = await status_of(a, "b")
        with pytest.raises(Conflict, match="b is left since"):
            await a.nodes.drain("b")

    assert status == "left"


async def test_when_the_leader_goes_another_fires_what_is_due(database: str, tmp_path: Path) -> None:
    a, b = node(database, "a", tmp_path), node(database, "b", tmp_path)
    async with running(b):
        async with running(a):
            await a.submit("work", scheduled_for=a._clock.now().after(3).as_datetime())
        # `a` came second and never led, or has left: the remaining node does the work.
        job = (await b.queue())[0]

        assert (await asyncio.wait_for(b.wait(job.job_id), 20)).status == "COMPLETED"


def stand_still(scheduler: Scheduler) -> asyncio.Event:
    """Stops the renewal of a lease, as if the machine slept, until the event is set."""
    awake = asyncio.Event()
    scheduler.watchdog.sidecar.keep(None)
    lease = scheduler._access.store._lease  # type: ignore[attr-defined]
    loop = asyncio.get_running_loop()
    renew = lease._renew

    async def slept(connection: Any) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(awake.wait(), loop))
        await renew(connection)

    lease._renew = slept
    return awake
