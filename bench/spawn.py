"""Measures the cost of a guardian: runs `true` as a plain asyncio subprocess, under guardians from one fork server, and
under a new Python for each command, in one run.

    uv run python bench/spawn.py [--commands 200] [--rounds 3]

A spawn lasts from the call to the report that no process of the command is left. `cpu` is the CPU time of all processes
per spawn; on a busy machine it says more than the times. Compare within one run only.
"""

import argparse
import asyncio
import os
import resource
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from nextslot.executors.process_tree.cgroups import own_cgroup
from nextslot.executors.process_tree.fork_server import Guardians
from nextslot.executors.process_tree.process import Start

Spawn = Callable[[], Awaitable[object]]
TRUE = Start(argv=("true",), env={"PATH": os.environ["PATH"], "NEXTSLOT_RUN_ID": "bench"})


async def plain() -> None:
    process = await asyncio.create_subprocess_exec(
        "true", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    await process.communicate(b"{}")


async def under(guardians: Guardians) -> None:
    process = await guardians.start(TRUE, lambda data: None)
    assert (await process.ended()).exit_code == 0


async def under_a_new_one() -> None:
    guardians = Guardians()
    await under(guardians)
    guardians.close()


async def measure(
    name: str, spawn: Spawn, commands: int, at_once: int, close: Callable[[], None] = lambda: None
) -> None:
    before, began = cpu(), time.perf_counter()
    times: list[float] = []

    async def one_after_the_other() -> None:
        while len(times) < commands:
            start = time.perf_counter()
            times.append(0)
            await spawn()
            times[times.index(0)] = 1000 * (time.perf_counter() - start)

    await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))
    rate = len(times) / (time.perf_counter() - began)
    times.sort()
    p50, p99 = times[len(times) // 2], times[int(0.99 * len(times))]
    close()
    reaped()
    used = 1000 * (cpu() - before) / len(times)
    print(f"{name:22} {at_once:2} at once: {rate:6.0f}/s   p50 {p50:6.1f} ms   p99 {p99:6.1f} ms   cpu {used:5.1f} ms")


def cpu() -> float:
    """Returns the CPU seconds of this process and of its ended children."""
    own, below = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + below.ru_utime + below.ru_stime


def reaped() -> None:
    """Waits until the fork servers have ended, since only then their CPU time counts."""
    while Path(f"/proc/self/task/{os.getpid()}/children").read_text():
        time.sleep(0.01)


async def main(commands: int, rounds: int) -> None:
    for _ in range(rounds):
        for at_once in (1, 8):
            await measure("plain subprocess", plain, commands, at_once)
            guardians = Guardians(cgroup="")
            await measure("one fork server", partial(under, guardians), commands, at_once, guardians.close)
            if own_cgroup() is not None:
                guardians = Guardians()
                await measure("with a cgroup each", partial(under, guardians), commands, at_once, guardians.close)
            await measure("a Python per command", under_a_new_one, commands, at_once)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--commands", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.commands, arguments.rounds))
