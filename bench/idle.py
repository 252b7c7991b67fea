"""Measures CPU time and wake-ups of an idle scheduler, extrapolated to an hour and a day.

    uv run python bench/idle.py [--seconds 120]

Also measures a bare event loop that only sleeps, because the interpreter itself costs something. A wake-up is a
voluntary context switch, as the system counts them.
"""

import argparse
import asyncio
import resource
import subprocess
import sys
from tempfile import TemporaryDirectory

from nextslot import RunContext, Scheduler


def spent() -> tuple[float, int]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, used.ru_nvcsw


async def measured(seconds: float) -> tuple[float, int]:
    await asyncio.sleep(1)  # By now, the work that the start left for later is done.
    cpu, switches = spent()
    await asyncio.sleep(seconds)
    after, switches_after = spent()
    return after - cpu, switches_after - switches


async def scheduler(seconds: float) -> tuple[float, int]:
    with TemporaryDirectory(prefix="nextslot-bench-") as folder:
        idle = Scheduler(f"sqlite:///{folder}/nextslot.db")

        @idle.job_type("noop")
        async def noop(run: RunContext) -> None: ...

        async with idle:
            await idle.wait((await idle.submit("noop")).job_id)
            return await measured(seconds)


WHO = {"bare event loop": measured, "scheduler": scheduler}


def begin(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.of:
        print(*asyncio.run(WHO[options.of](options.seconds)))
        return
    begun = {who: begin("--of", who, "--seconds", str(options.seconds)) for who in WHO}
    print(f"{'':16} {'CPU s an hour':>14} {'wake-ups an hour':>17} {'CPU s a day':>12}")
    for who, process in begun.items():
        cpu, switches = map(float, process.communicate()[0].split())
        hours = options.seconds / 3600
        print(f"{who:16} {cpu / hours:14.2f} {switches / hours:17,.0f} {cpu / hours * 24:12.1f}")


if __name__ == "__main__":
    main()
