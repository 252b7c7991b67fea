"""Section 3 of the specification: the queue and its order."""

from pathlib import Path

from nextslot import Scheduler
from tests.support import with_scheduler


def test_INV_004_jobs_start_by_priority_then_position(tmp_path: Path) -> None:
    async def main(scheduler: Scheduler) -> None:
        await scheduler.pause()
        low = await scheduler.submit("work", priority=-1)
        first = await scheduler.submit("work")
        second = await scheduler.submit("work")
        high = await scheduler.submit("work", priority=5)
        await scheduler.resume()

        for job in (low, first, second, high):
            await scheduler.wait(job.job_id)

        started = sorted(
            [await scheduler.job(job.job_id) for job in (low, first, second, high)], key=lambda j: j.started_at or 0
        )
        assert [job.job_id for job in started] == [high.job_id, first.job_id, second.job_id, low.job_id]

    with_scheduler(tmp_path, main)
