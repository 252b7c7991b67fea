"""What a killed server runs: `handler = "tests.crash.server_jobs:tiny"` in its configuration."""

import asyncio
import os
from pathlib import Path

from nextslot import RunContext


async def tiny(run: RunContext) -> None:
    """Writes down that it began, in one write that outlives the process, and takes a moment."""
    line = f"{run.job_id} {run.run_id}\n".encode()
    file = os.open(Path(os.environ["CRASH_WITNESS"], "executions"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line)
    os.close(file)
    await asyncio.sleep(0.005)
