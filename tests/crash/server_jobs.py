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


def checkpoints(run: RunContext, record: str) -> None:
    """Stores a checkpoint for each step. Writes to a file which ones were acknowledged and with which one it began."""
    file = os.open(record, os.O_WRONLY | os.O_APPEND)
    begun = 0 if run.last_checkpoint is None else run.last_checkpoint["step"]
    os.write(file, f"began {begun}\n".encode())
    for step in range(begun + 1, begun + 2_000):
        os.write(file, f"wrote {step}\n".encode())
        run.checkpoint({"step": step, "filler": "x" * 20_000})
        os.write(file, f"acknowledged {step}\n".encode())
