"""A node of several, as a process that a test kills, stops and starts again: `python -m tests.crash.node URL NAME DIR`.

With a number as fourth argument it first puts so many jobs into the queue. Each run leaves a line in DIR/runs.
"""

import asyncio
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

from nextslot import Limits, NewJob, Scheduler
from nextslot.domain.lease_times import LeaseTimes
from nextslot.errors import Invalid, Unavailable
from nextslot.system.sidecar_main import now as boottime

# One that stands still is let go at once, so that others have something to take over.
TIMES = LeaseTimes(renew_seconds=0.5, work_seconds=2.0, lease_seconds=4.0, unresponsive_seconds=1.0)
RUNNING, GPUS, COMMANDS = 6, 2, 2
# Of a short run the jobs are long, so that there is something to interrupt.
LONGEST = float(os.environ.get("NEXTSLOT_NODE_SECONDS", "0.4"))
PERSISTENT = {"max_attempts": 50, "backoff": "linear", "base_delay_seconds": 0.1}
# Ticks as long as it lives: what a node that stands still has left running must end before its replacement begins.
TICKING = (
    'for i in 1 2 3 4 5 6 7 8 9 10; do echo "$NEXTSLOT_RUN_ID $(cut -d" " -f1 /proc/uptime)" >> "$0"; sleep 0.05; done'
)


def node(url: str, name: str, directory: Path) -> Scheduler:
    limits = Limits(running=RUNNING, resources={"gpu": GPUS}, job_types={"command": COMMANDS})
    scheduler = Scheduler(url, node=name, data=directory / name, limits=limits, lease=TIMES)
    began = (directory / "runs").open("a", buffering=1)

    def note(run: Any) -> None:
        began.write(f"{run.run_id} {run.job_id} {name} {boottime():.3f}\n")

    @scheduler.job_type("quick", retry_policy=PERSISTENT)
    async def quick(run: Any, seconds: float) -> None:
        note(run)
        await asyncio.sleep(seconds)

    @scheduler.job_type("train", resources={"gpu": 1}, retry_policy=PERSISTENT)
    async def train(run: Any, seconds: float) -> None:
        note(run)
        await asyncio.sleep(seconds)

    command = ["sh", "-c", TICKING, str(directory / "ticks")]
    scheduler.job_types.add_command("command", command, retry_policy=PERSISTENT)
    return scheduler


def wanted(number: int, hook: str | None) -> NewJob:
    chance = random.Random(number)
    kind = "command" if number % 50 == 0 else "train" if number % 5 == 0 else "quick"
    params = {} if kind == "command" else {"seconds": round(chance.uniform(0, LONGEST), 4)}
    webhook = {"url": hook} if hook is not None and number % 40 == 0 else None
    return NewJob(job_type=kind, params=params, webhook=webhook)


async def be_impolite(scheduler: Scheduler) -> None:
    """Sends requests in a loop that are refused only after they have changed the shared transaction."""
    cycle = [NewJob(job_type="quick", key=one, depends_on=[other]) for one, other in ("ab", "ba")]
    while True:
        refusals = await asyncio.gather(
            *(scheduler.submit_many(cycle) for _ in range(3)),
            scheduler.submit_many([NewJob(job_type="command"), NewJob(job_type="command", depends_on=["nobody"])]),
            return_exceptions=True,
        )
        for one in refusals:
            if not isinstance(one, (Invalid, Unavailable)):
                sys.stderr.write(f"not refused as it should be: {one!r}\n")
                os._exit(1)
        await asyncio.sleep(0.05)


async def main(url: str, name: str, directory: Path, count: int, hook: str | None) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with (scheduler := node(url, name, directory)):
        await scheduler.offices.change("default", max_concurrent_jobs=0)
        for first in range(0, count, 1000):
            await scheduler.submit_many([wanted(one, hook) for one in range(first, min(first + 1000, count))])
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        impolite = asyncio.create_task(be_impolite(scheduler))
        await ended.wait()
        impolite.cancel()


if __name__ == "__main__":
    rest = sys.argv[4:]
    asyncio.run(
        main(
            sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(rest[0]) if rest else 0, rest[1] if len(rest) > 1 else None
        )
    )
