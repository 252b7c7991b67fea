"""Mistakes with event loops: a handler that blocks one is named in the log, and a call on another one is refused."""

import asyncio
import logging
import time
from pathlib import Path

import pytest

from nextslot import Scheduler
from nextslot.errors import Invalid


@pytest.mark.real_time
async def test_a_coroutine_that_blocks_the_loop_is_reported_with_the_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path}/nextslot.db")

    @scheduler.job_type()
    async def sleepy() -> None:
        time.sleep(2)  # noqa: ASYNC251 - the mistake that is reported

    async with scheduler:
        await scheduler.wait(await sleepy.submit(), timeout=60)

    (report,) = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    assert "of type sleepy blocks it at" in report
    assert report.endswith("make its handler a plain function, which gets a thread, or isolate it")


@pytest.mark.real_time
async def test_a_call_on_another_event_loop_is_refused_with_the_remedy_instead_of_hanging(tmp_path: Path) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path}/nextslot.db")

    @scheduler.job_type()
    async def double(number: int) -> int:
        return number * 2

    async with scheduler:
        job, loop = await double.submit(1), asyncio.get_running_loop()
        with pytest.raises(Invalid, match="runs on another event loop"):
            await asyncio.to_thread(lambda: asyncio.run(double.submit(2)))
        with pytest.raises(Invalid, match="runs on another event loop"):
            await asyncio.to_thread(lambda: asyncio.run(scheduler.wait(job)))
        await asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(double.submit(3), loop).result(60))

        assert (await scheduler.wait(job, timeout=60)).result == 2
        assert [one.job.params for one in (await scheduler.lists.jobs()).items] == [{"number": 3}, {"number": 1}]


def test_a_scheduler_that_was_stopped_may_start_on_another_event_loop(tmp_path: Path) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path}/nextslot.db")

    @scheduler.job_type()
    async def double(number: int) -> int:
        return number * 2

    async def once(number: int) -> int:
        async with scheduler:
            return await double.run_direct(number)

    assert [asyncio.run(once(number)) for number in (1, 2)] == [2, 4]
