"""A process to be killed: runs jobs that carry keys, of which one run at a time is allowed.

    python -m tests.crash.key_worker DIRECTORY JOBS LIFE

Beside the files of `tests.crash.worker` it writes `spans`: a line when a handler begins, and one when it ends.
"""

import asyncio
import os
import sys
from pathlib import Path

from nextslot import Limits, NewJob, RunContext, Scheduler
from tests.crash.worker import SYNCHRONOUS, Witness

KEYS = [f"customer:{number}" for number in range(4)]


async def main(directory: Path, jobs: int, life: str) -> None:
    witness = Witness(directory)
    spans = os.open(directory / "spans", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    url, limits = f"sqlite:///{directory}/nextslot.db", Limits(limit_keys={"customer:*": 1})
    scheduler = Scheduler(url, data=directory, synchronous=SYNCHRONOUS, limits=limits)

    @scheduler.job_type("tiny", retry_policy={"max_attempts": 100, "base_delay_seconds": 0})
    async def tiny(run: RunContext, key: str) -> None:
        os.write(spans, f"{life} {key} 1\n".encode())
        witness.began(run.job_id, run.run_id)
        await asyncio.sleep(0.01)
        os.write(spans, f"{life} {key} -1\n".encode())

    async with scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=0)
        if life == "0":
            new = [NewJob(job_type="tiny", params={"key": key}, limit_keys=[key]) for key in KEYS * (jobs // len(KEYS))]
            witness.acknowledged([job.job_id for job in await scheduler.submit_many(new)])
        while waiting := await scheduler.running() + await scheduler.queue(limit=jobs):
            await scheduler.wait(waiting[-1].job_id)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
