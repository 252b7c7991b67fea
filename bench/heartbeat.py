"""Measures the CPU time of a heartbeat in the scheduler and in the guardian of a command that only sleeps.

    uv run python bench/heartbeat.py [--commands 50] [--seconds 10]

The beats are much more frequent than in a server, so that the clock can measure them. A second measurement without
beats shows what is used anyway. The kernel counts the time (`schedstat`), so a busy machine changes little.
"""

import argparse
import asyncio
import os
from pathlib import Path

from nextslot.executors.process_tree.fork_server import Guardians
from nextslot.executors.process_tree.guardian_heartbeat import BEAT_SECONDS
from nextslot.executors.process_tree.process import Start

SLEEP = Start(argv=("sleep", "600"), env={"PATH": os.environ["PATH"], "NEXTSLOT_RUN_ID": "bench"})
NEVER = 3600.0


def used(pid: int) -> float:
    """Returns the microseconds of CPU that a process has used."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1000


async def measure(commands: int, seconds: float, beat: float) -> tuple[float, float]:
    """Returns the microseconds of the scheduler, and of one guardian."""
    guardians = Guardians(beat, cgroup="")
    processes = [await guardians.start(SLEEP, lambda data: None) for _ in range(commands)]
    while any(process.pid is None for process in processes):  # noqa: ASYNC110 they say so to themselves alone
        await asyncio.sleep(0.05)
    pids = [process.guardian[0] for process in processes if process.guardian is not None]
    before = used(os.getpid()), sum(map(used, pids))
    await asyncio.sleep(seconds)
    found = used(os.getpid()) - before[0], (sum(map(used, pids)) - before[1]) / commands
    for process in processes:
        process.kill()
        await process.ended()
    guardians.close()
    return found


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commands", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=10)
    arguments = parser.parse_args()
    beat = 0.25
    idle = await measure(arguments.commands, arguments.seconds, NEVER)
    beating = await measure(arguments.commands, arguments.seconds, beat)
    beats = arguments.seconds / beat
    scheduler = (beating[0] - idle[0]) / beats / arguments.commands
    guardian = (beating[1] - idle[1]) / beats
    print(f"a beat: {scheduler:.0f} µs of the scheduler, {guardian:.0f} µs of the guardian")
    print(f"a command, one beat in {BEAT_SECONDS:g} s: {(scheduler + guardian) / BEAT_SECONDS / 10_000:.4f} % of a CPU")


if __name__ == "__main__":
    asyncio.run(main())
