"""A handler that blocks the event loop of a program is named in its log, with the remedy."""

import logging
import time
from pathlib import Path

import pytest

from nextslot import Scheduler


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
