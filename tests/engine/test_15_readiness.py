"""Ready means that a write can be stored, that the file is sound, and that the disk has room for new work."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from nextslot import NewJob, Scheduler, testing
from nextslot.errors import DiskLow, Unavailable
from nextslot.executors.run_context import RunContext
from nextslot.store.sqlite import integrity_check
from nextslot.system.disk_space import DiskLimits
from nextslot.telemetry.meters import ProcessMeters
from nextslot.testing.faulty_disk import FaultyDisk, FaultyStore
from nextslot.testing.simulation.world import SimulatedScheduler
from tests import databases
from tests.store.test_sqlite_store import damage
from tests.support import eventually


def scheduler_on(directory: Path, **options: Any) -> Scheduler:
    url = None if databases.kind() == "sqlite" else databases.url(directory)
    scheduler = testing.scheduler(directory, url=url, **options)
    scheduler.job_types.add("work", lambda run: None)
    return scheduler


# A write within 30 seconds, else a probe.


async def test_a_scheduler_that_nobody_asks_writes_nothing_and_one_that_is_asked_writes_once_in_30_seconds(
    tmp_path: Path,
) -> None:
    meters = ProcessMeters()
    async with scheduler_on(tmp_path, meters=meters) as scheduler:
        counts = [meters.writes.count]
        await asyncio.sleep(600)
        counts.append(meters.writes.count)
        for _ in range(60):
            assert await scheduler.readiness() is None
            await asyncio.sleep(1)
        counts.append(meters.writes.count)

    assert [counts[1] - counts[0], counts[2] - counts[1]] == [0, 2]


async def test_after_a_write_of_somebody_the_question_writes_nothing(tmp_path: Path) -> None:
    meters = ProcessMeters()
    async with scheduler_on(tmp_path, meters=meters) as scheduler:
        await asyncio.sleep(60)
        await scheduler.pause()
        before = meters.writes.count
        assert await scheduler.readiness() is None

        assert meters.writes.count == before


async def test_all_who_ask_together_share_one_probe(tmp_path: Path) -> None:
    meters = ProcessMeters()
    async with scheduler_on(tmp_path, meters=meters) as scheduler:
        await asyncio.sleep(60)
        before = meters.writes.count
        answers = await asyncio.gather(*(scheduler.readiness() for _ in range(20)))

        assert answers == [None] * 20
        assert meters.writes.count == before + 1


@pytest.mark.sqlite_only("its disk fails from below")
@pytest.mark.parametrize("fault", ["full", "io"])
async def test_while_no_write_is_stored_it_is_not_ready_and_asks_the_disk_every_five_seconds(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []
    transaction = FaultyStore.transaction

    def counted(store: FaultyStore, works: list[Any]) -> Any:
        tried.append(works)
        return transaction(store, works)

    disk = FaultyDisk()
    clock, sender = testing.VirtualClock(), testing.Mailbox()
    path = tmp_path / "nextslot.db"
    scheduler = SimulatedScheduler(path, disk, lambda tx: None, clock=clock, sender=sender)
    scheduler.job_types.add("work", lambda run: None)
    async with scheduler:
        at_first = await scheduler.readiness()
        disk.arm(fault)
        with pytest.raises(Unavailable):
            await scheduler.submit("work")
        monkeypatch.setattr(FaultyStore, "transaction", counted)
        answers = []
        for _ in range(20):
            answers.append(await scheduler.readiness())
            await asyncio.sleep(1)
        probes = len(tried)
        disk.heal()
        at_last = await scheduler.readiness()

    assert at_first is None
    assert all("the database stores nothing" in (answer or "") for answer in answers)
    assert probes == 3
    assert at_last is None


@pytest.mark.sqlite_only("its disk fails from below")
async def test_a_write_that_is_stored_again_makes_it_ready_at_once(tmp_path: Path) -> None:
    disk = FaultyDisk()
    clock, sender = testing.VirtualClock(), testing.Mailbox()
    scheduler = SimulatedScheduler(tmp_path / "nextslot.db", disk, lambda tx: None, clock=clock, sender=sender)
    async with scheduler:
        disk.arm("full")
        with pytest.raises(Unavailable):
            await scheduler.pause()
        while_full = await scheduler.readiness()
        disk.heal()
        await scheduler.pause()

        assert while_full is not None
        assert await scheduler.readiness() is None


# Disk space.


class Space:
    """A file system of which a test says how much is free, and which counts how often it is asked."""

    def __init__(self) -> None:
        self.free = 10_000
        self.asked = 0

    def limits(self) -> DiskLimits:
        return DiskLimits(warn_bytes=5_000, refuse_bytes=1_000, free_bytes=self.free_bytes)

    def free_bytes(self, place: Path) -> int:
        self.asked += 1
        return self.free


NEW_WORK: dict[str, Callable[[Scheduler], Awaitable[object]]] = {
    "a job": lambda scheduler: scheduler.submit("work"),
    "jobs": lambda scheduler: scheduler.submit_many([NewJob(job_type="work")] * 3),
    "a group": lambda scheduler: scheduler.submit_group([NewJob(job_type="work")]),
    "a direct request": lambda scheduler: scheduler.run_direct("work"),
    "a stream": lambda scheduler: anext(scheduler.stream_direct("work")),
    "a schedule": lambda scheduler: scheduler.schedules.create(
        name="often", cron_expression="* * * * *", template_id="any"
    ),
    "failed jobs again": lambda scheduler: scheduler.bulk.retry(all=True),
}


@pytest.mark.parametrize("what", NEW_WORK)
async def test_below_the_lower_limit_new_work_is_refused_and_stores_nothing(tmp_path: Path, what: str) -> None:
    space = Space()
    async with scheduler_on(tmp_path, disk=space.limits()) as scheduler:
        scheduler.job_types.add("broken", fail, retry_policy={"max_attempts": 0})
        await scheduler.wait((await scheduler.submit("broken")).job_id)
        before = (await scheduler.lists.status()).last_event
        space.free = 999
        await asyncio.sleep(1)

        with pytest.raises(DiskLow, match=r"has 999 bytes left, less than 1,000, so new work is refused; free"):
            await NEW_WORK[what](scheduler)

        assert (await scheduler.lists.status()).last_event == before
        assert "new work is refused" in (await scheduler.readiness() or "")


async def fail(run: RunContext) -> None:
    raise ValueError("it broke")


async def test_below_the_lower_limit_outcomes_and_cancels_are_stored_and_reads_go_on(tmp_path: Path) -> None:
    space, gate = Space(), asyncio.Event()

    async def hold(run: RunContext) -> str:
        await gate.wait()
        return "through"

    async with scheduler_on(tmp_path, disk=space.limits()) as scheduler:
        scheduler.job_types.add("hold", hold)
        running = await scheduler.submit("hold")
        waiting = await scheduler.submit("work", scheduled_for=scheduler._clock.now().after(3600))
        space.free = 0
        await asyncio.sleep(1)
        await scheduler.cancel(waiting.job_id)
        gate.set()
        ended = await scheduler.wait(running.job_id)
        cancelled = await scheduler.job(waiting.job_id)

    assert ended.status == "COMPLETED"
    assert cancelled.status == "CANCELLED"


async def test_low_space_is_logged_once_and_so_is_its_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nextslot.system.disk_space")

    space = Space()
    async with scheduler_on(tmp_path, disk=space.limits()) as scheduler:
        for space.free in (10_000, 4_999, 4_000, 900, 4_000, 5_000, 10_000, 1):
            await asyncio.sleep(1)
            scheduler.disk.warning()
            scheduler.disk.refusal()

    levels = [(one.levelname, one.getMessage().split(" bytes")[0]) for one in caplog.records]
    assert levels == [
        ("WARNING", "the disk of the data directory has 4,999"),
        ("INFO", "there is enough disk space again"),
        ("WARNING", "the disk of the data directory has 1"),
    ]


async def test_a_burst_of_requests_asks_the_file_system_once_a_second(tmp_path: Path) -> None:
    space = Space()
    async with scheduler_on(tmp_path, disk=space.limits()) as scheduler:
        await scheduler.submit("work")
        a_look = space.asked
        for _ in range(50):
            await scheduler.submit("work")

        assert a_look == space.asked
        assert a_look <= 2


async def test_a_limit_of_0_is_none(tmp_path: Path) -> None:
    limits = DiskLimits(warn_bytes=0, refuse_bytes=0, free_bytes=lambda place: 0)
    async with scheduler_on(tmp_path, disk=limits) as scheduler:
        await scheduler.submit("work")

        assert scheduler.disk.warning() is None
        assert await scheduler.readiness() is None


async def test_the_fullest_place_counts_and_a_directory_that_is_not_made_yet_has_the_disk_of_the_one_above(
    tmp_path: Path,
) -> None:
    data = tmp_path / "not" / "made"
    free = {tmp_path: 10_000, data: 10}
    limits = DiskLimits(warn_bytes=5_000, refuse_bytes=1_000, free_bytes=lambda place: free.get(place, 10_000))
    async with scheduler_on(tmp_path, data=data, disk=limits) as scheduler:
        with pytest.raises(DiskLow, match="the disk of the data directory has 10 bytes left"):
            await scheduler.submit("work")
    assert DiskLimits().free_bytes(data) == pytest.approx(DiskLimits().free_bytes(tmp_path), rel=0.1)


# Damage.


@pytest.mark.sqlite_only("is about its file")
def test_damage_that_is_found_while_it_runs_stops_dispatch_and_new_work_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def new_scheduler() -> Scheduler:
        scheduler = Scheduler(f"sqlite:///{tmp_path}/nextslot.db")
        scheduler.job_types.add("work", lambda run: started.append(run.job_id))
        return scheduler

    async def before() -> str:
        async with new_scheduler() as scheduler:
            await scheduler.pause()
            return (await scheduler.submit("work")).job_id

    async def after(job_id: str) -> None:
        async with new_scheduler() as scheduler:
            store = scheduler._access.store
            await eventually(lambda: store.health.damage)
            said = await scheduler.readiness()
            with pytest.raises(Unavailable, match="No new work is accepted"):
                await scheduler.submit("work")
            await scheduler.resume()
            status = (await scheduler.job(job_id)).status

        assert "damaged" in (said or "")
        assert "nextslot restore FILE" in (said or "")
        assert str(tmp_path) not in (said or "")
        assert status == "QUEUED"
        assert started == []

    job_id = asyncio.run(before())
    damage(tmp_path / "nextslot.db", "artifacts")
    monkeypatch.setattr(integrity_check, "CHECKED_AT_ONCE_BYTES", 0)
    asyncio.run(after(job_id))
