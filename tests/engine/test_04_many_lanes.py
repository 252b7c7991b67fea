"""Offices with many lanes: the order and the limits are those of few lanes, and so is the cost (issue H2)."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from nextslot import Limits, NewJob, Scheduler
from nextslot.engine.dispatch import dispatcher, limits_and_slots
from nextslot.engine.dispatch.dispatch_round import DispatchRound
from nextslot.store.maintenance import doctor
from nextslot.store.tables import lanes
from tests.engine.test_cost import in_order, transactions
from tests.support import counted_scheduler, running_scheduler


@pytest.fixture(params=[1, 3, limits_and_slots.LANES_AT_ONCE])
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Sets how many lanes one read returns: with few, every search must continue after the first ones."""
    monkeypatch.setattr(limits_and_slots, "LANES_AT_ONCE", request.param)
    monkeypatch.setattr(limits_and_slots, "MOST_IN_MEMORY", 4 * request.param)
    return int(request.param)


def starts_of(scheduler: Scheduler) -> list[str]:
    """Returns the titles of jobs of the type `note`, in the order of their starts."""
    started: list[str] = []

    @scheduler.job_type("note")
    async def note(run: Any) -> None:
        started.append(run.title)
        await asyncio.sleep(1)

    return started


async def drained(scheduler: Scheduler, office_id: str = "default") -> None:
    for job in await scheduler.queue(office_id):
        await scheduler.wait(job.job_id)


@pytest.mark.parametrize("seed", range(2))
async def test_jobs_of_many_lanes_start_in_the_order_of_the_queue(tmp_path: Path, at_once: int, seed: int) -> None:
    chance = random.Random(seed)
    async with counted_scheduler(tmp_path) as scheduler:
        started = starts_of(scheduler)
        await scheduler.pause()
        made = await scheduler.submit_many(
            [
                NewJob(
                    job_type="note",
                    title=str(number),
                    role=f"r{chance.randrange(25)}",
                    priority=chance.randrange(3),
                    resources=chance.choice([None, ["gpu"], ["disk"]]),
                )
                for number in range(60)
            ]
        )
        for job in chance.sample(made, 25):
            other = chance.choice([one for one in made if one is not job])
            match chance.randrange(4):
                case 0:
                    await scheduler.move(job.job_id, to="front")
                case 1:
                    await scheduler.move(job.job_id, before=other.job_id)
                case 2:
                    await scheduler.change(job.job_id, priority=chance.randrange(5))
                case _:
                    await scheduler.cancel(job.job_id)
        queue = [job.title for job in await scheduler.queue()]

        await scheduler.resume()
        await drained(scheduler)

        assert started == queue


async def test_many_lanes_that_a_limit_holds_back_hold_back_no_later_job(tmp_path: Path, at_once: int) -> None:
    async with counted_scheduler(tmp_path, limits=Limits(resources={"gpu": 1})) as scheduler:
        started = starts_of(scheduler)
        await scheduler.offices.create("crowded", max_concurrent_jobs=4, role_limits={"full": 1})
        await scheduler.submit("work", {"seconds": 100}, office_id="crowded", resources=["gpu"], role="full")
        needs = [None, ["gpu"], ["gpu", "disk"]]
        await scheduler.submit_many(
            [
                NewJob(job_type="note", office_id="crowded", role=role, resources=resources, title="held back")
                for number in range(30)
                for role, resources in ([("full", needs[number % 3])], [(f"r{number}", ["gpu"])])[number % 2]
            ]
        )

        last = await scheduler.submit("note", office_id="crowded", role="last", title="fits")
        await scheduler.wait(last.job_id)

        assert started == ["fits"]


async def test_a_caller_closes_the_lanes_that_share_its_limit_and_no_others(tmp_path: Path, at_once: int) -> None:
    async with counted_scheduler(tmp_path, limits=Limits(resources={"gpu": 1})) as scheduler:
        started = starts_of(scheduler)
        await scheduler.offices.create("crowded", max_concurrent_jobs=0, role_limits={})

        @scheduler.job_type("draw", resources={"gpu": 1})
        async def draw(run: Any) -> None:
            await asyncio.sleep(5)

        await scheduler.submit("draw", office_id="crowded")
        caller = asyncio.create_task(scheduler.run_direct("draw", office_id="crowded"))
        await asyncio.sleep(1)
        for number in range(12):
            needs = ["gpu"] if number % 2 else []
            await scheduler.submit(
                "note", office_id="crowded", role=f"r{number}", resources=needs, title="gpu" if needs else "free"
            )
        await asyncio.sleep(3)

        assert started == ["free"] * 6
        await caller
        await drained(scheduler, "crowded")
        assert started == ["free"] * 6 + ["gpu"] * 6


async def test_a_job_of_many_lanes_that_starves_gets_the_units_that_come_free(tmp_path: Path, at_once: int) -> None:
    limits = Limits(resources={"gpu": 2})
    async with counted_scheduler(tmp_path, limits=limits, starvation_after_seconds=60) as scheduler:
        started = starts_of(scheduler)
        await scheduler.offices.create("crowded", max_concurrent_jobs=0)
        await scheduler.submit("work", {"seconds": 10}, office_id="crowded", resources={"gpu": 1})
        await scheduler.submit("note", office_id="crowded", role="wide", resources={"gpu": 2}, title="wide")
        for number in range(100):
            await scheduler.submit(
                "work", {"seconds": 15}, office_id="crowded", role=f"r{number}", resources={"gpu": 1}
            )
        await asyncio.sleep(50)
        assert started == []

        await asyncio.sleep(60)

        assert started == ["wide"]


@pytest.mark.parametrize("lanes", [20, 200])
async def test_a_hand_over_executes_as_many_statements_with_many_lanes_as_with_few(tmp_path: Path, lanes: int) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.submit_many(
            [NewJob(job_type="work", params={"seconds": 1}, role=f"r{number}") for number in range(lanes)]
        )
        await asyncio.sleep(3.5)

        with transactions() as seen:
            await asyncio.sleep(1)

        (statements,) = in_order(seen)
        assert len(statements) <= 18, statements
        assert statements.count("lanes.get") <= 1


async def test_a_search_reads_so_many_lanes_that_are_held_back_and_what_is_behind_them_starts_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an office that gives each of its jobs a key of its own, behind one full role, stops all writers."""
    monkeypatch.setattr(lanes, "MOST_SEARCHED", 50)
    async with counted_scheduler(tmp_path) as scheduler:
        started = starts_of(scheduler)
        await scheduler.offices.create("crowded", max_concurrent_jobs=4, role_limits={"full": 1})
        await scheduler.submit("work", {"seconds": 100}, office_id="crowded", role="full")
        await scheduler.pause(office_id="crowded")
        held_back = [
            NewJob(job_type="note", office_id="crowded", role="full", limit_keys=[f"key {n}"], title="held back")
            for n in range(200)
        ]
        behind = [NewJob(job_type="note", office_id="crowded", role="free", title="behind")] * 2
        await scheduler.submit_many([*held_back, *behind])

        with transactions() as seen:
            await scheduler.resume(office_id="crowded")
            await scheduler.submit("note", office_id="crowded", role="new", title="new")
            await asyncio.sleep(5)
        before, found = list(started), await scheduler._access.read(doctor.examine)
        await drained(scheduler, "crowded")

        assert max(statements.count("lanes.of_class") for statements in in_order(seen)) <= 10
        # A lane that the transaction itself has changed is no part of the search.
        assert (before, found) == (["new"], [])
        assert started.count("held back") == 200
        assert 130 <= started.index("behind") < 200
        assert started.count("behind") == 2


async def test_an_office_does_not_read_the_lanes_of_another(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("crowded", max_concurrent_jobs=1)
        await scheduler.submit_many(
            [NewJob(job_type="work", params={"seconds": 1000}, office_id="crowded", role=f"r{n}") for n in range(200)]
        )
        await scheduler.submit_many([NewJob(job_type="work", params={"seconds": 1}) for _ in range(10)])
        await asyncio.sleep(3.5)

        with transactions() as seen:
            await asyncio.sleep(1)

        (statements,) = in_order(seen)
        assert len(statements) == 12, statements


async def test_one_lane_of_each_class_is_open_for_all(tmp_path: Path, at_once: int) -> None:
    async with counted_scheduler(tmp_path, limits=Limits(running=1)) as scheduler:
        await scheduler.offices.create("crowded", max_concurrent_jobs=0)
        await scheduler.submit("work", {"seconds": 100})
        await scheduler.submit_many(
            [
                NewJob(job_type="work", office_id="crowded", role=f"r{n}", resources=[["a"], ["b"]][n % 2])
                for n in range(40)
            ]
        )

        opened = await scheduler._access.read(lambda tx: tx.select("select class_key from lanes where is_open = 1", {}))
        found = await scheduler._access.read(doctor.examine)

        assert len(opened) == 2 == len(set(opened))
        assert found == []


async def test_a_transaction_starts_so_many_jobs_and_the_next_ones_start_the_rest_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "MOST_STARTS", 5)
    together: list[int] = []
    write_starts = DispatchRound.write_starts

    def counted(self: DispatchRound) -> None:
        together.append(len(self._starting))
        write_starts(self)

    monkeypatch.setattr(DispatchRound, "write_starts", counted)
    async with running_scheduler(tmp_path) as scheduler:
        started = starts_of(scheduler)
        await scheduler.offices.create("b", max_concurrent_jobs=0)
        await scheduler.pause(office_id="b")
        titles = [str(number) for number in range(23)]
        await scheduler.submit_many([NewJob(job_type="note", office_id="b", title=title) for title in titles])
        together.clear()
        await scheduler.resume(office_id="b")
        await asyncio.sleep(1)

        assert started == titles
        assert max(together) == 5
        assert sum(together) == 23
