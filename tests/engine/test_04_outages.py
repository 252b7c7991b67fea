"""Spec 4.17, outage hold, and spec 5.15, stall timeout."""

import asyncio
from pathlib import Path
from typing import Any

from nextslot import (
    Fail,
    FailureKind,
    Job,
    Limits,
    Scheduler,
    testing,
)
from tests.support import history, new_scheduler, running_scheduler, states


class Server:
    """Something that a job needs, and that may not answer."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.is_up = False
        self.asked = 0

        @scheduler.job_type("ask", resources=["server"], retry_policy={"max_attempts": 1, "base_delay_seconds": 1})
        async def ask(run: Any) -> None:
            self.asked += 1
            await asyncio.sleep(1)
            if not self.is_up:
                raise Fail("no answer", FailureKind.UNAVAILABLE)


async def test_five_failures_in_a_row_hold_the_resource_and_the_queue_keeps_its_retries(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        server = Server(scheduler)
        jobs = await submit(scheduler, 20)

        await asyncio.sleep(12)

        assert server.asked == 5
        assert len([job for job in jobs if await attempts(scheduler, job)]) == 5, "the others have lost nothing"
        (held,) = [event for event in await history(scheduler) if event.type == "resource_held"]
        assert (held.details["resource"], held.details["failures"]) == ("server", 5)


async def test_without_a_probe_one_job_is_let_through_after_each_growing_pause(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        server = Server(scheduler)
        await submit(scheduler, 20)
        await asyncio.sleep(5)
        asked = []

        for pause in (10, 20, 40, 80):
            await asyncio.sleep(pause + 1.5)
            asked.append(server.asked)

        assert asked == [6, 7, 8, 9]


async def test_a_held_resource_is_tried_though_nothing_else_is_due(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        server = Server(scheduler)
        once = {"max_attempts": 0}
        for _ in range(6):
            await scheduler.submit("ask", retry_policy=once)
        await asyncio.sleep(14.5)
        before = server.asked

        await asyncio.sleep(1)

        assert (before, server.asked) == (5, 6), "the fifth failed after 5 seconds, and the pause is 10"


async def test_of_several_that_could_run_at_once_one_tries(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path, limits=Limits(resources={"server": 5})) as scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=0)
        server = Server(scheduler)
        await submit(scheduler, 20)
        await asyncio.sleep(5)
        before = server.asked

        await asyncio.sleep(6.5)
        await submit(scheduler, 1)  # During its attempt, every lane is checked again.
        await asyncio.sleep(1.5)

        assert (before, server.asked) == (5, 6)


async def test_a_caller_on_the_line_who_tries_is_the_only_one_too(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path, limits=Limits(resources={"server": 5})) as scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=0)
        server = Server(scheduler)
        await submit(scheduler, 20)
        await asyncio.sleep(5)
        caller = asyncio.ensure_future(scheduler.run_direct("ask"))
        await asyncio.sleep(8)

        assert server.asked == 6
        assert (await caller).failure_kind is FailureKind.UNAVAILABLE


async def test_when_the_job_that_tries_succeeds_the_queue_goes_on(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        server = Server(scheduler)
        jobs = await submit(scheduler, 12)
        await asyncio.sleep(6)
        server.is_up = True

        for job in jobs:
            assert (await scheduler.wait(job.job_id)).status == "COMPLETED"

        types = [event.type for event in await history(scheduler) if event.type.startswith("resource_")]
        assert types == ["resource_held", "resource_released"]


async def test_a_probe_is_asked_instead_of_a_job(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        server = Server(scheduler)
        answers: list[bool] = []

        async def probe() -> bool:
            answers.append(server.is_up)
            if len(answers) == 1:
                raise OSError("refused")
            return server.is_up

        scheduler.probe("server", probe)
        jobs = await submit(scheduler, 8)
        await asyncio.sleep(60)
        assert (server.asked, answers) == (5, [False, False])

        server.is_up = True

        for job in jobs:
            assert (await scheduler.wait(job.job_id)).status == "COMPLETED"
        assert answers == [False, False, True]


async def test_another_failure_or_a_success_in_between_starts_the_count_again(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        server = Server(scheduler)
        await submit(scheduler, 4)
        await asyncio.sleep(4.5)
        server.is_up = True
        await submit(scheduler, 1)
        await asyncio.sleep(6)
        server.is_up = False
        await submit(scheduler, 4)
        await asyncio.sleep(3.9)

        assert "resource_held" not in [event.type for event in await history(scheduler)]


async def test_a_cancelled_run_says_nothing_about_its_resource(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        Server(scheduler)
        await submit(scheduler, 4)
        await asyncio.sleep(4.5)
        (running,) = await scheduler.running()
        await scheduler.cancel(running.job_id, interrupt=True)
        await submit(scheduler, 1)
        await asyncio.sleep(1.5)

        assert "resource_held" in [event.type for event in await history(scheduler)], "it was the fifth in a row"


async def test_after_a_probe_was_cancelled_another_job_probes(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        Server(scheduler)
        await submit(scheduler, 10)
        await asyncio.sleep(6)
        assert "resource_held" in [event.type for event in await history(scheduler)]
        while not (probe := await scheduler.running()):  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.5)

        await scheduler.cancel(probe[0].job_id, interrupt=True)
        await asyncio.sleep(600)

        started = [event.timestamp for event in await history(scheduler) if event.type == "job_started"]
        assert started[-1] > (probe[0].started_at or 0)


async def test_jobs_that_do_not_need_the_resource_go_on(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        Server(scheduler)
        waiting = await submit(scheduler, 10)
        wanted: list[list[str]] = [[], ["disk"], ["disk", "server"]]
        others = [await scheduler.submit("work", resources=needs) for needs in wanted]

        await asyncio.sleep(9)

        assert await states(scheduler, *others, waiting[-1]) == ["COMPLETED", "COMPLETED", "QUEUED", "QUEUED"]


async def test_a_hold_survives_a_restart_and_a_probe_that_died_is_forgotten(tmp_path: Path) -> None:
    first = new_scheduler(tmp_path)
    Server(first)
    await first.start()
    await submit(first, 10)
    await asyncio.sleep(15.5)  # The sixth is the one that tries.
    await testing.crash(first)

    second = new_scheduler(tmp_path, seed=1)
    server = Server(second)
    async with second:
        server.is_up = True
        await testing.settled()
        assert server.asked == 1, "one tries again, and no more until it has been heard"
        await asyncio.sleep(30)
        assert server.asked > 5


async def test_no_output_and_no_progress_for_the_stall_time_is_a_timeout(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("slow")
        async def slow(run: Any, beats: int) -> None:
            for beat in range(beats):
                await asyncio.sleep(8)
                run.progress(beat / beats) if beat % 2 else run.log.info("alive")
            await asyncio.sleep(1000)

        job = await scheduler.submit("slow", {"beats": 5}, stall_timeout_seconds=10, retry_policy={"max_attempts": 0})

        ended = await scheduler.wait(job.job_id)

        assert ended.run is not None
        assert ended.run.failure_kind is FailureKind.TIMEOUT
        assert ended.error == "no output and no progress for 10 seconds"
        assert (ended.run.finished_at or 0) - ended.run.started_at == 50_000_000


async def submit(scheduler: Scheduler, count: int) -> list[Job]:
    return [await scheduler.submit("ask") for _ in range(count)]


async def attempts(scheduler: Scheduler, job: Job) -> int:
    return len([link for link in await scheduler.chain(job.job_id) if link.started_at is not None])
