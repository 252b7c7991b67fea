"""An office of five roles works through a graph of jobs; one times out and is retried, one fails once.

python examples/office/run.py [DIRECTORY]
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from nextslot import Scheduler

AGENT = [sys.executable, str(Path(__file__).with_name("agent.py"))]
ROLES = {
    "PO": {"command": AGENT, "timeout_seconds": 900},
    "Architect": {"command": AGENT, "timeout_seconds": 1200},
    "FE": {"command": AGENT, "timeout_seconds": 1800},
    "BE": {"command": AGENT, "timeout_seconds": 1800},
    "QA": {"command": AGENT, "timeout_seconds": 2700},
}
GRAPH = [
    {"key": "stories", "role": "PO", "description": "Write the user stories"},
    {"key": "design", "role": "Architect", "description": "Design the API", "depends_on": ["stories"]},
    {"key": "page", "role": "FE", "description": "Build the login page", "depends_on": ["design"],
     "params": {"hangs": 1}, "timeout_ms": 2000},
    {"key": "api", "role": "BE", "description": "Build the login API", "depends_on": ["design"],
     "params": {"fails": 1}},
    {"key": "tests", "role": "QA", "description": "Test the login", "depends_on": ["page", "api"]},
]  # fmt: skip


async def main(directory: Path) -> None:
    scheduler = Scheduler(f"sqlite:///{directory}/office.db")
    scheduler.job_types.use_roles(ROLES)
    async with scheduler:
        # Retried after a second instead of the usual minute, so that you do not have to wait.
        office = await scheduler.offices.create(
            name="Login team", retry_policy={"max_attempts": 2, "base_delay_seconds": 1}
        )
        jobs = await scheduler.offices.submit(office.office_id, GRAPH, task_id="login")
        for job in jobs:
            await scheduler.wait(job.job_id)
            done = await scheduler.offices.job(office.office_id, job.job_id)
            attempts = ", ".join(execution.status for execution in done.executions)
            print(f"{done.role:<10} {done.description:<25} {done.status:<10} {attempts}")
        stats = await scheduler.offices.stats(office.office_id)
        print(f"{stats.done} done, {stats.failed} failed, {stats.avg_completion_time / 1000:.1f} s on average")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(Path(sys.argv[1])))
    else:
        with tempfile.TemporaryDirectory() as made:
            asyncio.run(main(Path(made)))
