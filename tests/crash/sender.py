"""A process to be killed while it delivers: ends jobs and sends their webhooks until all have arrived.

python -m tests.crash.sender DIRECTORY JOBS PORT LIFE
"""

import asyncio
import sys
from pathlib import Path

from nextslot import (
    NewJob,
    RunContext,
    Scheduler,
    Skip,
)


async def main(directory: Path, jobs: int, port: int, life: int) -> None:
    scheduler = Scheduler(f"sqlite:///{directory}/nextslot.db", synchronous="NORMAL")

    @scheduler.job_type("tiny")
    async def tiny(run: RunContext) -> None:
        raise Skip("nothing to do")

    async with scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=0)
        if life == 0:
            webhook = {"url": f"http://127.0.0.1:{port}/hook"}
            await scheduler.submit_many([NewJob(job_type="tiny", webhook=webhook) for _ in range(jobs)])
        while await is_busy(scheduler):  # noqa: ASYNC110 - the end of a delivery cannot be waited for
            await asyncio.sleep(0.02)


async def is_busy(scheduler: Scheduler) -> bool:
    if await scheduler.queue(limit=1) or await scheduler.running():
        return True
    return bool((await scheduler.webhooks.deliveries_page(status="PENDING", limit=1)).items)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
