"""Named devices: a run gets particular units of a resource, and no other run has them at the same time."""

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nextslot import Limits, Scheduler
from nextslot.domain.devices import NodeDevices, counted, named, names_problem
from nextslot.errors import Invalid, Unavailable
from nextslot.executors import gpus
from nextslot.executors.gpus import Gpu
from nextslot.store.tables import devices
from tests.support import new_scheduler, running_scheduler

FOUR = {"gpu": ["a", "b", "c", "d"]}
WIDE = Limits(resources={"gpu": 4})


async def wide(scheduler: Scheduler) -> None:
    await scheduler.offices.change("default", max_concurrent_jobs=0)


async def held(scheduler: Scheduler) -> dict[tuple[str, str], str]:
    return await scheduler._access.read(lambda tx: devices.held(tx, scheduler._runtime.workers.node))


def add_training(scheduler: Scheduler) -> dict[str, tuple[str, ...]]:
    using: dict[str, tuple[str, ...]] = {}

    @scheduler.job_type("train", resources={"gpu": 1})
    async def train(run: Any, seconds: float = 1) -> list[str]:
        mine = run.devices["gpu"]
        assert not {name for names in using.values() for name in names} & set(mine), "two runs have one device"
        using[run.run_id] = mine
        await asyncio.sleep(seconds)
        del using[run.run_id]
        return list(mine)

    return using


async def test_runs_at_the_same_time_have_different_devices_and_a_free_one_is_given_again(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path, limits=WIDE, node_resources=FOUR) as scheduler:
        add_training(scheduler)
        await wide(scheduler)

        jobs = [await scheduler.submit("train", {"seconds": 1 + number % 3}) for number in range(20)]
        ended = [await scheduler.wait(job.job_id) for job in jobs]

        assert {job.status for job in ended} == {"COMPLETED"}
        assert {name for job in ended for name in job.result} == {"a", "b", "c", "d"}
        assert await held(scheduler) == {}


async def test_a_run_that_takes_several_units_has_as_many_devices_and_they_are_stored_with_it(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path, limits=WIDE, node_resources=FOUR) as scheduler:
        add_training(scheduler)
        await wide(scheduler)

        job = await scheduler.submit("train", resources={"gpu": 3})
        await scheduler.wait(job.job_id)
        run = await scheduler.run_of(job.job_id)

        assert run is not None
        assert run.devices == {"gpu": ["a", "b", "c"]}


async def test_a_direct_request_gets_a_device_of_its_own(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path, limits=WIDE, node_resources={"gpu": ["a", "b"]}) as scheduler:
        add_training(scheduler)
        await wide(scheduler)
        await scheduler.submit("train", {"seconds": 10})

        done = await scheduler.run_direct("train", {"seconds": 1})

        assert done.result == ["b"]
        assert done.devices == {"gpu": ["b"]}


async def test_a_recovery_leaves_direct_work_its_devices(tmp_path: Path) -> None:
    """As where one of several nodes recovers another one, while this work goes on."""
    async with running_scheduler(tmp_path, limits=WIDE, node_resources=FOUR) as scheduler:
        add_training(scheduler)
        caller = asyncio.ensure_future(scheduler.run_direct("train", {"seconds": 5}))
        await asyncio.sleep(1)

        await scheduler._access.write(devices.release_left)

        assert [name for _, name in await held(scheduler)] == ["a"]
        assert (await caller).result == ["a"]


async def test_what_a_dead_scheduler_held_is_free_after_the_next_start(tmp_path: Path) -> None:
    first = new_scheduler(tmp_path, limits=WIDE, node_resources=FOUR)
    add_training(first)
    await first.start()
    await wide(first)
    await first.submit("train", {"seconds": 1000}, retry_policy={"max_attempts": 1})
    await asyncio.sleep(1)
    assert await held(first)
    await first._crash()

    async with new_scheduler(tmp_path, limits=WIDE) as second:
        assert await held(second) == {}


async def test_the_database_refuses_to_give_a_device_to_two_workers(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler._access.write(lambda tx: devices.hold(tx, "local", "local/slot-1", {"gpu": ("a",)}))

        with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
            await scheduler._access.write(lambda tx: devices.hold(tx, "local", "local/slot-2", {"gpu": ("a",)}))


class Machine:
    """A machine with two cards, on which a process of somebody else may compute."""

    def __init__(self) -> None:
        self.other: int | None = os.getppid()

    def gpus(self) -> Sequence[Gpu]:
        processes = {} if self.other is None else {self.other: 3 * 2**30}
        return [Gpu("0", "GPU-aaa", processes), Gpu("1", "GPU-bbb", {os.getpid(): None})]


async def test_a_card_on_which_somebody_else_computes_is_not_given_and_why_says_so(tmp_path: Path) -> None:
    machine = Machine()
    scheduler = new_scheduler(tmp_path, limits=WIDE, node_resources={"gpu": ["GPU-aaa", "GPU-bbb"]})
    scheduler._runtime.gpu_watch._find = machine.gpus
    add_training(scheduler)
    async with scheduler:
        await wide(scheduler)
        first = await scheduler.submit("train", {"seconds": 100})
        second = await scheduler.submit("train")
        await asyncio.sleep(1)

        why = await scheduler.forecast.why(second.job_id)
        (reason,) = [one for one in why.reasons if one.code == "device_busy"]
        assert f"gpu 'GPU-aaa' by {Path(f'/proc/{os.getppid()}/comm').read_text().strip()} (process" in reason.text
        assert "3.0 GiB" in reason.text
        assert why.expected.expected_start is None, "nobody knows when the other process ends"

        machine.other = None
        ended = await scheduler.wait(second.job_id)
        assert ended.result == ["GPU-aaa"], "it starts when the other process has ended"
        assert (await scheduler.job(first.job_id)).status == "RUNNING"


class SlowReading:
    """Threads in which each call takes a second."""

    async def run(self, call: Callable[[], Any]) -> Any:
        await asyncio.sleep(1)
        return call()


async def test_nothing_starts_before_the_cards_were_read(tmp_path: Path) -> None:
    machine = Machine()
    cards = {"gpu": ["GPU-aaa", "GPU-bbb"]}
    scheduler = new_scheduler(tmp_path, limits=WIDE, node_resources=cards, threads=SlowReading())
    scheduler._runtime.gpu_watch._find = machine.gpus
    add_training(scheduler)

    async def submitted() -> str:
        while True:
            try:
                return (await scheduler.submit("train")).job_id
            except Unavailable:
                await asyncio.sleep(0.1)

    first = asyncio.ensure_future(submitted())
    async with scheduler:
        ended = await scheduler.wait(await first)

        assert ended.result == ["GPU-bbb"], "somebody else computes on the other one"


async def test_a_machine_whose_cards_cannot_be_read_gives_them_all_the_same(tmp_path: Path) -> None:
    scheduler = new_scheduler(tmp_path, limits=WIDE, node_resources={"gpu": ["0"]})

    def broken() -> Sequence[Gpu]:
        raise Invalid("no driver")

    scheduler._runtime.gpu_watch._find = broken
    add_training(scheduler)
    async with scheduler:
        job = await scheduler.submit("train")
        assert (await scheduler.wait(job.job_id)).result == ["0"]


def test_the_environment_names_the_devices_and_keeps_the_order_of_the_driver() -> None:
    node = NodeDevices({"gpu": ("1", "2"), "licence": ("x",)}, {"gpu": "CUDA_VISIBLE_DEVICES"})

    assert node.environment({}) == {}
    assert node.environment({"gpu": ("2", "1"), "licence": ("x",)}) == {
        "NEXTSLOT_DEVICES": '{"gpu": ["2", "1"], "licence": ["x"]}',
        "CUDA_VISIBLE_DEVICES": "2,1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


def test_a_resource_has_a_number_of_units_or_names() -> None:
    assert counted({"gpu": ["0", "1"], "llm": 3}) == {"gpu": 2, "llm": 3}
    assert named({"gpu": ["0", "1"], "llm": 3}) == {"gpu": ("0", "1")}


@pytest.mark.parametrize(
    ("names", "words"),
    [([], "is an empty list"), (["0", "0"], "names the device '0' twice"), ([0], "has the name 0"), (["a b"], "'a b'")],
)
def test_names_of_devices_that_cannot_be_used_are_refused(names: list[object], words: str) -> None:
    assert words in str(names_problem(names))
    assert names_problem(["0", "GPU-1f/2"]) is None


class FakeNvml:
    """NVIDIA's library as `gpus` uses it: two cards, or an error at one of the calls."""

    class NVMLError(Exception):
        pass

    def __init__(self, cards: int = 2, fails_at: str = "") -> None:
        self.cards = cards
        self.fails_at = fails_at

    def __getattr__(self, name: str) -> Any:
        if name == self.fails_at:
            raise self.NVMLError("Driver Not Loaded")
        process = type("Process", (), {"pid": 7, "usedGpuMemory": None})
        answers = {"nvmlDeviceGetCount": self.cards, "nvmlDeviceGetUUID": b"GPU-1"}
        return lambda *asked: [process] if name.endswith("RunningProcesses") else answers.get(name)


def test_nvml_finds_the_cards_with_their_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())

    assert gpus.find_gpus() == [Gpu("0", "GPU-1", {7: None}), Gpu("1", "GPU-1", {7: None})]


@pytest.mark.parametrize(
    ("library", "words"),
    [
        (None, "needs the extra"),
        (FakeNvml(cards=0), "finds no GPU"),
        (FakeNvml(fails_at="nvmlDeviceGetCount"), "cannot read the GPUs"),
    ],
)
def test_a_machine_without_cards_says_what_to_do(library: object, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library)

    with pytest.raises(Invalid, match=words):
        gpus.find_gpus()


def test_without_a_driver_the_real_library_says_so() -> None:
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has a driver")

    with pytest.raises(Invalid, match="NVML cannot be used on this machine"):
        gpus.find_gpus()
