"""A node with short leases, as a process: `python -m tests.nodes.blocking_node URL NAME DIR UNRESPONSIVE [types …]`."""

import asyncio
import sys
from pathlib import Path

from nextslot import Limits, Scheduler
from nextslot.domain.lease_times import LeaseTimes
from tests.nodes import blocking_jobs


async def main(url: str, name: str, directory: str, unresponsive: str, *types: str) -> None:
    times = LeaseTimes(renew_seconds=0.5, work_seconds=4.0, lease_seconds=7.0, unresponsive_seconds=float(unresponsive))
    scheduler = Scheduler(url, node=name, data=Path(directory) / name, lease=times, limits=Limits(running=0))
    for job_type in types:
        if job_type == "tick":
            scheduler.job_types.add_command("tick", ["sleep", "{seconds}"])
        else:
            scheduler.job_types.add(job_type, getattr(blocking_jobs, job_type))
    async with scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=0)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await scheduler._listen_for_signals().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
