"""A scheduler with an engine as a process of its own, for tests that kill it.

placed_server.py PLACE SLURM_CONF|RAY_ADDRESS|- [SETTINGS]
"""

import asyncio
import json
import sys
from pathlib import Path

from nextslot.executors.engines.contract import Engine
from nextslot.executors.engines.local_engine import LocalEngine
from nextslot.extensions.ray.ray_engine import RayEngine
from nextslot.extensions.slurm.slurm_engine import SlurmEngine
from tests.engines.rig import Rig


async def main() -> None:
    place, config, *more = sys.argv[1:]
    engine: Engine = LocalEngine()
    if config.startswith("http:"):
        engine = RayEngine({"address": config})
    elif config != "-":
        engine = SlurmEngine({"config_file": config})
    scheduler = Rig(Path(place), engine, **(json.loads(more[0]) if more else {})).scheduler()
    await scheduler.start()
    # What was accepted is acknowledged on stdout, once it is durable.
    for line in iter(sys.stdin.readline, ""):
        key, seconds = line.split()
        job = await scheduler.submit("work", {"key": key, "seconds": seconds})
        say(job.job_id)
    say("submitted")
    await asyncio.Event().wait()


def say(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
