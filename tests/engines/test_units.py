"""What a run on an engine takes: units there, no slot of its node, and time from its wrapper's claim on."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from nextslot import Limits, Scheduler, testing
from nextslot.config.engine_tables import engine_problems, slots
from nextslot.config.settings import EngineTable
from nextslot.domain import Job
from nextslot.errors import Invalid
from nextslot.executors.engines.contract import Key, Seen, Sight, Submission
from nextslot.executors.engines.local_engine import LocalEngine
from nextslot.system.instant import Instant
from tests.engines.rig import Rig, until, until_running

SECOND = 1_000_000


class QueueingEngine(LocalEngine):
    """Starts nothing before its gate is opened; until then its runs are queued there."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.waiting: list[Submission] = []

    def submit(self, submission: Submission) -> str:
        if self.gate.is_set():
            return super().submit(submission)
        self.waiting.append(submission)
        return "1@1"

    def find(self, run_id: str) -> list[str]:
        return ["1@1"] if run_id in [one.run_id for one in self.waiting] else super().find(run_id)

    def observe(self, keys: Sequence[Key]) -> Mapping[str, Seen]:
        return {key.run_id: Seen(Sight.QUEUED) for key in keys}

    def open(self) -> None:
        self.gate.set()
        for one in self.waiting:
            super().submit(one)
        self.waiting.clear()


async def placed_as(scheduler: Scheduler, job: Job, state: str) -> None:
    async def is_so() -> bool:
        run = await scheduler.run_of(job)
        return run is not None and run.placement is not None and run.placement["state"] == state

    await until(is_so)


async def test_runs_on_an_engine_take_no_slot_of_their_node(tmp_path: Path) -> None:
    engine = QueueingEngine()
    rig = Rig(tmp_path, engine)
    async with rig.scheduler(node_running=1) as scheduler:

        @scheduler.job_type("here")
        async def here() -> None:
            await asyncio.sleep(60)

        await scheduler.offices.change("default", max_concurrent_jobs=0)
        there = [await scheduler.submit("work", {"key": str(n), "seconds": "0"}) for n in range(3)]
        own = [await scheduler.submit("here") for _ in range(2)]
        workers = [(await scheduler.job(job)).worker_id for job in (*there, *own)]
        node = (await scheduler.nodes.list())[0]
        why = await scheduler.forecast.why(own[1].job_id)

        engine.open()
        for job in there:
            await scheduler.wait(job, 60)
        more = await scheduler.submit("work", {"key": "more", "seconds": "0"})
        ended = await scheduler.wait(more, 60)

    # The second run of the node itself waits for the first; the full node hands runs over all the same.
    assert workers == [*(f"local/slot-placed-{n}" for n in (1, 2, 3)), "local/slot-1", None]
    assert node.running == 1
    assert [(one.code, one.data["nodes"][0]["problem"]) for one in why.reasons] == [("no_node", "full")]
    assert ended.job.worker_id == "local/slot-placed-1"


async def test_a_node_that_starts_again_counts_only_what_it_runs_itself(tmp_path: Path) -> None:
    rig = Rig(tmp_path, LocalEngine())
    first = rig.scheduler(node_running=1)
    await first.start()
    await first.offices.change("default", max_concurrent_jobs=0)
    jobs = [await first.submit("work", {"key": str(n), "seconds": "1.5"}) for n in range(2)]
    for job in jobs:
        await until_running(first, job)
    await testing.crash(first)

    async with rig.scheduler(node_running=1) as second:

        @second.job_type("here")
        async def here() -> str:
            return "done"

        own = await second.submit("here")
        done = await second.wait(own, 10)
        held = [(await second.job(job)).worker_id for job in jobs]
        for job in jobs:
            await second.wait(job, 60)

    assert done.job.worker_id == "local/slot-1"
    assert held == ["local/slot-placed-1", "local/slot-placed-2"]


def with_units(tmp_path: Path, engine: LocalEngine) -> tuple[Rig, Scheduler]:
    rig = Rig(tmp_path, engine, units={"gpu": 4, "memory_gb": 100})
    limits = Limits(resources={"box": 4, "box:gpu": 4, "box:memory_gb": 100})
    scheduler = Scheduler(f"sqlite:///{tmp_path}/units.db", data=tmp_path, limits=limits)
    scheduler.job_types.engines.add(rig.settings, engine)
    for name, units in (("big", {"gpu": 3}), ("small", {"gpu": 1, "memory_gb": 40}), ("free", {})):
        command = ["sleep", "0.1"]
        scheduler.job_types.add_command(name, command, engine="box", engine_units=units, cwd=str(rig.work))
    return rig, scheduler


@pytest.mark.sqlite_only("counts are the same; its own database")
async def test_what_runs_on_an_engine_takes_no_more_units_than_there_are(tmp_path: Path) -> None:
    engine = QueueingEngine()
    _, scheduler = with_units(tmp_path, engine)
    async with scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=0)
        first, second = await scheduler.submit("big"), await scheduler.submit("big")
        small = [await scheduler.submit("small") for _ in range(2)]
        free = await scheduler.submit("free")
        running = [(await scheduler.job(job)).is_running for job in (first, second, *small, free)]
        why = await scheduler.forecast.why(second.job_id)
        expected = await scheduler.forecast.why(small[1].job_id)
        with pytest.raises(Invalid, match="needs 5 units of 'resource:box:gpu', which has only 4"):
            await scheduler.submit("free", resources={"box:gpu": 5})
        engine.open()
        for job in (first, second, *small, free):
            await scheduler.wait(job, 60)

    assert running == [True, False, True, False, True]
    full = [one for one in why.reasons if one.code == "limit_full"]
    assert [(one.data["limit"], one.data["capacity"], one.data["used"], one.data["needs"]) for one in full] == [
        ("resource:box:gpu", 4, 4, 3)
    ]
    assert [one.data["limit"] for one in expected.reasons if one.code == "limit_full"] == ["resource:box:gpu"]


async def test_the_queue_of_an_engine_is_not_work(tmp_path: Path) -> None:
    engine = QueueingEngine()
    rig = Rig(tmp_path, engine)
    async with rig.scheduler() as scheduler:
        durations = scheduler._runtime.durations
        durations.fill([])
        job = await scheduler.submit("work", {"key": "a", "seconds": "0.2"})
        await placed_as(scheduler, job, "queued")
        queued = await scheduler.run_of(job)
        await asyncio.sleep(1.5)
        engine.open()
        ended = await scheduler.wait(job, 60)

    run = ended.run
    assert queued is not None
    assert queued.began_at is None
    assert run is not None
    assert run.began_at is not None
    assert run.finished_at is not None
    assert run.began_at - run.started_at >= 1.5 * SECOND
    assert run.finished_at - run.began_at >= 0.2 * SECOND
    [work] = durations.estimates().values()
    assert work.seconds == pytest.approx((run.finished_at - run.began_at) / SECOND, abs=0.01)


async def test_an_adopted_run_has_worked_since_its_wrapper_began(tmp_path: Path) -> None:
    rig = Rig(tmp_path, LocalEngine())
    first = rig.scheduler()
    await first.start()
    job = await first.submit("work", {"key": "a", "seconds": "3"})
    await until_running(first, job)
    began = await first.run_of(job)
    await asyncio.sleep(1)
    await testing.crash(first)

    async with rig.scheduler() as second:
        durations = second._runtime.durations
        durations.fill([])
        held = await second.run_of(job)
        ended = await second.wait(job, 60)

    assert began is not None
    assert held is not None
    assert held.began_at == began.began_at
    [work] = durations.estimates().values()
    assert work.seconds >= 3
    assert ended.run is not None


async def test_a_forecast_counts_the_work_of_a_run_from_its_beginning_on_the_engine(tmp_path: Path) -> None:
    rig = Rig(tmp_path, QueueingEngine())
    async with rig.scheduler() as scheduler:
        scheduler._runtime.durations.fill([("work", 30.0, {})] * 3)
        job = await scheduler.submit("work", {"key": "a", "seconds": "0.2"})
        await placed_as(scheduler, job, "queued")
        await asyncio.sleep(1.2)
        now = Instant(scheduler._clock.now())
        why = await scheduler.forecast.why(job.job_id)
        await scheduler.cancel(job, interrupt=True)
        await scheduler.wait(job, 60)

    # It has not begun its 30 seconds, though it was handed over more than a second ago.
    assert why.expected.expected_end is not None
    assert why.expected.expected_end - now >= 30 * SECOND


def problems_of(engine: dict[str, object], job_type: dict[str, object], **more: object) -> list[tuple[str, str]]:
    values = {"engines": {"box": engine}, "job_types": {"train": job_type}, **more}
    return [(".".join(place), text) for place, text in engine_problems(values)]


def test_units_are_checked_with_the_configuration() -> None:
    box: dict[str, object] = {"kind": "local", "units": {"gpu": 4}}

    assert problems_of(box, {"engine": "box", "engine_units": {"gpu": 4}}) == []
    assert problems_of(box, {"engine": "box", "engine_units": {"gpu": 5, "cpus": 1}}) == [
        ("job_types.train.engine_units.gpu", "is more than the engine 'box' has, so no run could start: it has 4"),
        (
            "job_types.train.engine_units.cpus",
            "is no unit of the engine 'box'; add it to units in [engines.box]; there are: gpu",
        ),
    ]
    assert [place for place, _ in problems_of({**box, "units": {"a b": 1}}, {})] == ["engines.box.units.a b"]
    limits = {"resources": {"box": 1, "box:gpu": 1, "box:other": 1}}
    assert [place for place, _ in problems_of(box, {}, limits=limits)] == [
        "limits.resources.box",
        "limits.resources.box:gpu",
    ]
    assert slots({"box": EngineTable(kind="local", slots=3, units={"gpu": 4})}) == {"box": 3, "box:gpu": 4}


def test_a_job_type_takes_only_units_that_its_engine_has(tmp_path: Path) -> None:
    _, scheduler = with_units(tmp_path, LocalEngine())

    with pytest.raises(Invalid, match="the engine 'box' has no units 'tapes'"):
        scheduler.job_types.add_command("tape", ["true"], engine="box", engine_units={"tapes": 1})
