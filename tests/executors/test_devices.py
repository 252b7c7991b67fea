"""Named devices, as programs see them: real processes under a real scheduler."""

import json
from pathlib import Path

from nextslot import Scheduler
from nextslot.executors.command import CommandType, register_command
from tests.executors import isolated_examples as examples

TWO = {"gpu": ["7", "9"]}
SHOW = ("sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER"; echo "$NEXTSLOT_DEVICES"')


async def test_a_command_finds_its_devices_in_its_environment(tmp_path: Path) -> None:
    async with Scheduler(f"sqlite:///{tmp_path}/nextslot.db", node_resources=TWO) as scheduler:
        command = CommandType(command=SHOW, resources={"gpu": 1})
        register_command(scheduler.job_types, "show", command, scheduler.job_types.guardians)

        job = await scheduler.submit("show")
        await scheduler.wait(job.job_id)
        run = await scheduler.run_of(job.job_id)

        assert run is not None
        first, second = (tmp_path / str(run.log_path)).read_text().splitlines()
        assert first == "7 PCI_BUS_ID"
        assert json.loads(second) == {"gpu": ["7"]}


async def test_an_isolated_handler_finds_its_devices_too(tmp_path: Path) -> None:
    async with Scheduler(f"sqlite:///{tmp_path}/nextslot.db", node_resources=TWO) as scheduler:
        scheduler.job_types.add("show", examples.which_devices, isolate=True, resources={"gpu": 1})

        job = await scheduler.submit("show")

        assert (await scheduler.wait(job.job_id)).result == [["7"], "7"]
