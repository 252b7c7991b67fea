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


def asks(run: RunContext, record: str, steps: int = 5) -> int:
    """Asks for an answer to each of its steps, and notes outside which ones it began with."""
    had = [f"{step}={run.signals[f'step {step}']['payload']}" for step in range(1, steps + 1) if _has(run, step)]
    with Path(record).open("a", encoding="utf-8") as file:
        file.write(f"{run.job_id} began with {' '.join(had) or 'nothing'}\n")
    if len(had) < steps:
        run.checkpoint({"step": len(had) + 1})
        run.park(f"step {len(had) + 1}", question="Go on?")
    return len(had)


def _has(run: RunContext, step: int) -> bool:
    return f"step {step}" in run.signals
