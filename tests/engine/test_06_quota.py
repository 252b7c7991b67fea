"""Spec 6.13: a used-up quota holds its resource until it is renewed, and costs no retry."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from nextslot import Fail, Job, Limits, NewJob, NextslotError, QuotaExceeded, Scheduler
from tests.support import history, new_scheduler, running_scheduler, states


class Provider:
    """A provider that answers until its quota is used up, and then names the time at which it is renewed, or not."""

    def __init__(self, scheduler: Scheduler, left: int = 0, seconds: float | None = 3600, kind: str = "") -> None:
        self.left = left
        self.seconds = seconds
        self.asked: list[float] = []
        self.begin = asyncio.get_running_loop().time()

        @scheduler.job_type("ask", resources=["llm"], retry_policy={"max_attempts": 1, "base_delay_seconds": 1})
        async def ask(run: Any) -> None:
            self.asked.append(asyncio.get_running_loop().time() - self.begin)
            await asyncio.sleep(1)
            if self.left == 0:
                if kind:
                    raise Fail("come back later", kind)
                raise QuotaExceeded("come back later", retry_after=self.seconds)
            self.left -= 1


async def test_a_used_up_quota_holds_its_resource_until_it_is_renewed_and_asks_once(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        provider = Provider(scheduler)
        jobs = [await scheduler.submit("ask") for _ in range(20)]

        await asyncio.sleep(3599)
        before = list(provider.asked)
        provider.left = 1_000
        for job in jobs:
            assert (await scheduler.wait(job.job_id)).status == "COMPLETED"

        assert before == [0], "nothing is tried before"
        assert provider.asked[1] == pytest.approx(3601)
        types = [event.type for event in await history(scheduler) if event.type.startswith("resource_")]
        assert types == ["resource_held", "resource_released"]


async def test_a_used_up_quota_costs_no_retry_however_often_it_comes(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        provider = Provider(scheduler, seconds=60)
        job = await scheduler.submit("ask", retry_policy={"max_attempts": 1, "retry_on": ["error"]})

        await asyncio.sleep(620)
        provider.left = 1
        ended = await scheduler.wait(job.job_id)

        assert ended.status == "COMPLETED"
        assert len(provider.asked) > 8


async def test_no_attempts_means_no_retry_after_a_quota_either_but_others_are_spared(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        provider = Provider(scheduler)
        first = await scheduler.submit("ask", retry_policy={"max_attempts": 0})
        second = await scheduler.submit("ask")

        await asyncio.sleep(100)

        assert await states(scheduler, first, second) == ["FAILED", "QUEUED"]
        assert (await scheduler.job(first.job_id)).permanently_failed
        assert len(provider.asked) == 1


@pytest.mark.parametrize("kind", ["", "quota"])
async def test_a_provider_that_names_no_time_is_asked_after_growing_pauses(tmp_path: Path, kind: str) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        provider = Provider(scheduler, seconds=None, kind=kind)
        await scheduler.submit("ask")

        await asyncio.sleep(80)

        assert provider.asked == pytest.approx([0, 11, 32, 73])


async def test_a_provider_whose_time_is_always_over_is_not_asked_without_end(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        provider = Provider(scheduler, seconds=-5)
        await scheduler.submit("ask")

        await asyncio.sleep(1000)

        assert len(provider.asked) <= 11


async def test_a_success_that_began_before_does_not_end_the_hold(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path, limits=Limits(resources={"llm": 2})) as scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=0)
        provider = Provider(scheduler)
        scheduler.job_type("slow", resources=["llm"])(slow)
        long = await scheduler.submit("slow")
        await scheduler.submit("ask")

        await scheduler.wait(long.job_id)
        await scheduler.submit("ask")
        await asyncio.sleep(100)

        assert len(provider.asked) == 1


async def slow(run: Any) -> None:
    await asyncio.sleep(30)


async def test_of_two_answers_the_later_time_counts(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path, limits=Limits(resources={"llm": 2})) as scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=0)

        @scheduler.job_type("until", resources=["llm"])
        async def until(run: Any, seconds: float) -> None:
            raise QuotaExceeded(retry_after=seconds)

        await scheduler.submit_many([new(500), new(50)])
        await asyncio.sleep(1)
        (held,) = (await scheduler.lists.status()).held

        assert held.quota_until is not None
        assert (held.quota_until - held.since) / 1e6 == pytest.approx(500, abs=1)


def new(seconds: float) -> NewJob:
    return NewJob(job_type="until", params={"seconds": seconds})


async def test_only_the_resource_that_is_named_is_held(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("both", resources=["gpu", "api"])
        async def both(run: Any) -> None:
            raise QuotaExceeded(until=scheduler_now(scheduler) + timedelta(hours=1), resource="api")

        await scheduler.submit("both")
        await asyncio.sleep(1)
        other = await scheduler.submit("work", resources=["gpu"])

        assert (await scheduler.wait(other.job_id)).status == "COMPLETED"
        assert [one.resource for one in (await scheduler.lists.status()).held] == ["api"]


async def test_a_resource_that_a_job_names_is_held_though_the_job_needs_none(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("outside")
        async def outside(run: Any) -> None:
            raise QuotaExceeded(until=scheduler_now(scheduler) + timedelta(hours=1), resource="api")

        await scheduler.submit("outside")
        await asyncio.sleep(1)
        other = await scheduler.submit("work", resources=["api"])
        await asyncio.sleep(100)

        assert [one.resource for one in (await scheduler.lists.status()).held] == ["api"]
        assert (await scheduler.job(other.job_id)).status == "QUEUED"


def scheduler_now(scheduler: Scheduler) -> Any:
    return scheduler._runtime.outages._clock.now().as_datetime()


async def test_a_hold_survives_a_restart_and_ends_at_its_time(tmp_path: Path) -> None:
    scheduler = new_scheduler(tmp_path)
    async with scheduler:
        provider = Provider(scheduler)
        job = await scheduler.submit("ask")
        await asyncio.sleep(2)
    again = new_scheduler(tmp_path)
    provider = Provider(again, left=9)
    async with again:
        await asyncio.sleep(3500)
        before = len(provider.asked)
        await asyncio.sleep(200)

        assert (before, len(provider.asked)) == (0, 1)
        assert (await again.wait(job.job_id)).status == "COMPLETED"


async def test_why_status_and_forecast_say_until_when_the_quota_is_used_up(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        Provider(scheduler)
        await scheduler.submit("ask")
        await asyncio.sleep(2)
        waiting = await scheduler.submit("ask")

        (held,) = (await scheduler.lists.status()).held
        why = await scheduler.forecast.why(waiting.job_id)
        expected = (await scheduler.forecast.queue("default")).jobs[waiting.job_id]

        assert held.quota_until is not None
        (reason,) = [one for one in why.reasons if one.code == "quota_used_up"]
        assert reason.text == f"The quota of the resource 'llm' is used up until {held.quota_until}."
        assert reason.data["quota_until"] == str(held.quota_until)
        assert expected.expected_start is not None
        assert expected.expected_start >= held.quota_until


async def test_an_operator_can_end_a_hold(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        provider = Provider(scheduler)
        await scheduler.submit("ask")
        other: Job = await scheduler.submit("ask")
        await asyncio.sleep(2)
        provider.left = 9

        await scheduler.release("llm")

        assert (await scheduler.wait(other.job_id)).status == "COMPLETED"
        with pytest.raises(NextslotError, match="there is no hold of the resource 'llm'"):
            await scheduler.release("llm")


async def test_a_direct_caller_waits_while_the_quota_is_used_up(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        provider = Provider(scheduler, seconds=100)
        await scheduler.submit("ask", retry_policy={"max_attempts": 0})
        await asyncio.sleep(2)
        provider.left = 9

        caller = await scheduler.run_direct("ask", wait_timeout_seconds=600)

        assert caller.status == "COMPLETED"
        assert provider.asked[-1] == pytest.approx(101, abs=1)


async def test_a_direct_request_that_is_refused_holds_the_resource_too(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        Provider(scheduler)

        caller = await scheduler.run_direct("ask")

        assert (caller.status, caller.failure_kind) == ("FAILED", "quota")
        assert [one.resource for one in (await scheduler.lists.status()).held] == ["llm"]
