"""A process whose disk is recorded: makes and runs jobs, and notes in the record what was acknowledged when.

python -m tests.crash.recorded_worker DIRECTORY SYNCHRONOUS JOBS
"""

import asyncio
import os
import sys
from pathlib import Path

from nextslot import RunContext, Scheduler
from tests.crash.power_cut import ACKNOWLEDGED


def scheduler_on(directory: Path, synchronous: str) -> Scheduler:
    scheduler = Scheduler(f"sqlite:///{directory}/nextslot.db", data=directory, synchronous=synchronous)

    @scheduler.job_type("work")
    async def work(run: RunContext, text: str = "") -> dict[str, int]:
        run.log.info("works on %d characters", len(text))
        return {"characters": len(text)}

    return scheduler


async def main(directory: Path, synchronous: str, jobs: int) -> None:
    file = os.open(directory / ACKNOWLEDGED, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    async with scheduler_on(directory, synchronous) as scheduler:
        for _ in range(jobs):
            job = await scheduler.submit("work", {"text": "x" * 3000})
            os.write(file, f"made {job.job_id}\n".encode())
            await scheduler.wait(job.job_id)
            os.write(file, f"ended {job.job_id}\n".encode())


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
