"""An office of five roles works through a graph of jobs; one times out and is retried, one fails once.

python examples/office/run.py [DIRECTORY]
"""

import asyncio
import json
import sys
import tempfile
import tomllib
from pathlib import Path

from nextslot import Scheduler
from nextslot.extensions.offices.office_service import OfficeJobService

HERE = Path(__file__).resolve().parent
SETTINGS = tomllib.loads((HERE / "nextslot.toml").read_text())
GRAPH = json.loads((HERE / "graph.json").read_text())


async def main(directory: Path) -> None:
    scheduler = Scheduler(f"sqlite:///{directory}/office.db", extensions=["offices"])
    office_jobs = scheduler.extension(OfficeJobService)
    office_jobs.use_roles(SETTINGS["roles"], HERE)
    async with scheduler:
        office = await scheduler.offices.create("login", **SETTINGS["offices"]["login"])
        jobs = await office_jobs.submit(office.office_id, GRAPH["jobs"], GRAPH["task_id"])
        for job in jobs:
            await scheduler.wait(job.job_id)
            done = await office_jobs.job(office.office_id, job.job_id)
            attempts = ", ".join(execution.status for execution in done.executions)
            print(f"{done.role:<10} {done.description:<25} {done.status:<10} {attempts}")
        stats = await office_jobs.stats(office.office_id)
        print(f"{stats.done} done, {stats.failed} failed, {stats.avg_completion_time / 1000:.1f} s on average")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(Path(sys.argv[1])))
    else:
        with tempfile.TemporaryDirectory() as made:
            asyncio.run(main(Path(made)))
