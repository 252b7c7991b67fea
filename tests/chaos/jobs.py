"""A handler inside the server's process that leaves lines outside: `handler = "tests.chaos.jobs:inside"`."""

import asyncio
import os

from nextslot import RunContext


async def inside(run: RunContext, directory: str, key: str, seconds: float) -> None:
    _append(directory, f"began {run.job_id} {key}\n")
    await asyncio.sleep(seconds)
    _append(directory, f"ended {run.job_id} {key}\n")


def _append(directory: str, line: str) -> None:
    """Appends with one write, so that lines of several processes never mix."""
    file = os.open(f"{directory}/lines", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)
