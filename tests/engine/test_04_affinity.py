"""Affinity: on a resource that goes by it, jobs that need what is loaded go first, for a limited time."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nextslot import Limits, NewJob, NextslotError, Scheduler
from tests.support import counted_scheduler, new_scheduler, running_scheduler

PATIENT = Limits(resources={"gpu": 1}, affinity_waits={"gpu": 100})


def watched(scheduler: Scheduler) -> list[str]:
    """Records the models of the runs, in the order of their starts."""
    started: list[str] = []

    @scheduler.job_type("infer", resources=["gpu"])
    async def infer(run: Any, model: str, seconds: float = 1) -> None:
        started.append(model)
        await asyncio.sleep(seconds)

    return started


def jobs(models: str, office_id: str = "default", **params: Any) -> list[NewJob]:
    return [
        NewJob(job_type="infer", params={"model": one, **params}, affinity=one, office_id=office_id) for one in models
    ]


async def ended(scheduler: Scheduler, wanted: list[NewJob]) -> None:
    for job in await scheduler.submit_many(wanted):
        await scheduler.wait(job.job_id)


async def test_without_the_setting_jobs_start_in_order_whatever_their_affinity(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        started = watched(scheduler)
        await ended(scheduler, jobs("ABCABC"))

        assert "".join(started) == "ABCABC"


async def test_jobs_of_one_affinity_go_together(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path, limits=PATIENT) as scheduler:
        started = watched(scheduler)
        await ended(scheduler, jobs("ABCABCACB"))

        assert "".join(started) == "AAABBBCCC"


async def test_the_next_job_in_order_goes_when_it_was_passed_over_for_that_long(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path, limits=PATIENT) as scheduler:
        started = watched(scheduler)
        await ended(scheduler, jobs("AB" + 9 * "A", seconds=30))

        assert "".join(started) == "AAAAABAAAAA", "passed over after 30 s, and no longer after 130 s"


async def test_offices_take_turns_by_affinity_too_for_a_limited_time(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path, limits=PATIENT) as scheduler:
        await scheduler.offices.create("other")
        started = watched(scheduler)
        await ended(scheduler, [*jobs("AAA"), *jobs("BBB", office_id="other")])

        assert "".join(started) == "AAABBB"


async def test_an_office_that_went_first_for_what_is_loaded_has_had_its_turn(tmp_path: Path) -> None:
    limits = Limits(resources={"gpu": 1, "seats": 2}, affinity_waits={"gpu": 100})
    async with running_scheduler(tmp_path, limits=limits) as scheduler:
        started: list[str] = []

        async def sit(run: Any, seconds: float = 100) -> None:
            started.append(run.office_id)
            await asyncio.sleep(seconds)

        scheduler.job_types.add("infer", sit, resources=["gpu", "seats"])
        scheduler.job_types.add("plain", sit, resources=["seats"])
        scheduler.job_types.add("block", sit, resources={"seats": 2})
        for office_id in "wxyz":
            await scheduler.offices.create(office_id, max_concurrent_jobs=0)
        turns = [NewJob(job_type="plain", params={"seconds": 1}, office_id=one) for one in "xyz"]
        loads = NewJob(job_type="infer", params={"seconds": 1}, office_id="w", affinity="small")
        await ended(scheduler, [*turns, loads])
        await scheduler.submit("block", {"seconds": 10}, office_id="w")
        await asyncio.sleep(1)
        started.clear()

        await scheduler.submit("infer", office_id="x", affinity="large")
        await scheduler.submit("infer", office_id="y", affinity="small")
        for office_id in "yz":
            await scheduler.submit("plain", office_id=office_id)
        await asyncio.sleep(10)

        assert started == ["y", "z"]


async def test_what_is_loaded_survives_a_restart(tmp_path: Path) -> None:
    async with new_scheduler(tmp_path, limits=PATIENT) as scheduler:
        watched(scheduler)
        await ended(scheduler, jobs("B"))
    async with new_scheduler(tmp_path, limits=PATIENT) as again:
        started = watched(again)
        await again.pause()
        made = await again.submit_many(jobs("AB"))
        await again.resume()
        for job in made:
            await again.wait(job.job_id)

        assert "".join(started) == "BA"


async def test_a_pause_holds_back_what_is_loaded_as_well(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path, limits=PATIENT) as scheduler:
        await scheduler.offices.create("other")
        started = watched(scheduler)
        await ended(scheduler, jobs("A"))
        await scheduler.pause(office_id="other")
        await scheduler.submit_many(jobs("A", office_id="other"))
        await ended(scheduler, jobs("B"))

        assert "".join(started) == "AB"


async def test_a_waiting_caller_holds_back_what_is_loaded_as_well(tmp_path: Path) -> None:
    limits = Limits(resources={"gpu": 1, "disk": 1}, affinity_waits={"gpu": 100})
    async with running_scheduler(tmp_path, limits=limits, concurrency=5) as scheduler:
        await scheduler.offices.create("other", max_concurrent_jobs=5)
        started = watched(scheduler)

        @scheduler.job_type("copy", resources=["disk"])
        async def copy(run: Any, seconds: float) -> None:
            await asyncio.sleep(seconds)

        await ended(scheduler, jobs("A"))
        await scheduler.submit("copy", {"seconds": 50}, office_id="other")
        caller = asyncio.ensure_future(scheduler.run_direct("copy", {"seconds": 1}))
        await asyncio.sleep(1)
        await scheduler.submit_many([*jobs("A"), *jobs("B", office_id="other")])
        await asyncio.sleep(1)
        while_it_waits = "".join(started)
        await caller
        await asyncio.sleep(10)

        assert (while_it_waits, "".join(started)) == ("AB", "ABA")


async def test_direct_callers_with_what_is_loaded_go_first(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path, limits=PATIENT) as scheduler:
        started = watched(scheduler)
        callers = []
        for model in "ABABAB":
            asked = scheduler.run_direct("infer", {"model": model}, affinity=model)
            callers.append(asyncio.ensure_future(asked))
            await asyncio.sleep(0.01)

        await asyncio.gather(*callers)

        assert "".join(started) == "AAABBB"


async def test_a_direct_caller_is_passed_over_for_a_limited_time(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path, limits=PATIENT) as scheduler:
        started = watched(scheduler)
        callers = []
        for model in "ABAAAAAAA":
            asked = scheduler.run_direct(
                "infer", {"model": model, "seconds": 30}, affinity=model, wait_timeout_seconds=999
            )
            callers.append(asyncio.ensure_future(asked))
            await asyncio.sleep(0.01)

        await asyncio.gather(*callers)

        assert "".join(started) == "AAAAABAAA"


async def test_a_job_that_needs_nothing_loaded_ends_no_preference_for_what_is_loaded(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path, limits=PATIENT) as scheduler:
        started = watched(scheduler)
        plain = NewJob(job_type="infer", params={"model": "-", "seconds": 30})
        await ended(scheduler, [*jobs("A", seconds=30), plain, *jobs("AAAAAA", seconds=30)])
        before = "".join(started)
        started.clear()
        await ended(scheduler, jobs("ABAB"))

        assert (before, "".join(started)) == ("A-AAAAAA", "AABB")


async def test_a_direct_caller_that_needs_nothing_loaded_goes_in_its_turn_and_ends_no_preference(
    tmp_path: Path,
) -> None:
    async with running_scheduler(tmp_path, limits=PATIENT) as scheduler:
        started = watched(scheduler)

        async def asked(models: str) -> str:
            started.clear()
            callers = []
            for model in models:
                affinity = None if model == "-" else model
                params = {"model": model, "seconds": 30}
                direct = scheduler.run_direct("infer", params, affinity=affinity, wait_timeout_seconds=999)
                callers.append(asyncio.ensure_future(direct))
                await asyncio.sleep(0.01)
            await asyncio.gather(*callers)
            return "".join(started)

        assert [await asked("A-AAAAAA"), await asked("ABAB")] == ["A-AAAAAA", "AABB"]


async def test_why_and_forecast_know_what_is_loaded(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path, limits=PATIENT) as scheduler:
        watched(scheduler)
        await ended(scheduler, jobs("A", seconds=10))
        made = await scheduler.submit_many(jobs("ABA", seconds=10))
        await asyncio.sleep(1)

        why = await scheduler.forecast.why(made[1].job_id)
        expected = (await scheduler.forecast.queue()).jobs

        (reason,) = [one for one in why.reasons if one.code == "other_affinity"]
        assert reason.text.startswith("The resource 'gpu' has 'A' loaded: jobs that need it go first, ")
        assert reason.data["affinity"] == "A"
        starts = [expected[job.job_id].expected_start for job in made]
        assert starts[1] is not None
        assert starts[2] is not None
        assert starts[2] < starts[1]


async def test_a_retry_and_a_template_keep_the_affinity(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path, limits=PATIENT) as scheduler:
        made = await scheduler.templates.create(name="t", job_type="fail", affinity="A", resources={"gpu": 1})
        job = await scheduler.submit(template_id=made.template_id, retry_policy={"base_delay_seconds": 0})
        last = await scheduler.wait(job.job_id)

        assert job.affinity == "A"
        assert last.job.affinity == "A"
        assert last.job.job_id != job.job_id


@pytest.mark.parametrize("affinity", ["", "x" * 201, 7])
async def test_an_affinity_is_a_text_of_at_most_200_characters(tmp_path: Path, affinity: Any) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        with pytest.raises(NextslotError, match="affinity"):
            await scheduler.submit("work", affinity=affinity)
        with pytest.raises(NextslotError, match="affinity"):
            await scheduler.run_direct("work", affinity=affinity)
