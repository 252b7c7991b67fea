"""Spec 5, time: a wall clock that steps changes no timeout, stall, retry delay or other wait of a live process.

Calendar times follow the wall clock. On Linux a machine that sleeps is the same as a clock that is set forward: the
monotonic clock stands still meanwhile, and so does virtual time when `jump` is called.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nextslot import (
    Fail,
    FailureKind,
    Job,
    Limits,
    NewJob,
    RunContext,
    Scheduler,
    testing,
)
from nextslot.engine.effects import ChainEnded
from nextslot.engine.webhooks.delivery_worker import EndpointResponse
from nextslot.errors import SlotBusy, Unavailable
from nextslot.store.contract import Tx
from nextslot.system.clock import LoopAlarm, SchedulerAlarm
from nextslot.testing import BEGINNING, Mailbox, VirtualClock
from tests.support import database, history, new_scheduler, running_scheduler, states

HOUR = 3600
STEPS = pytest.mark.parametrize("step", [2 * HOUR, -HOUR, 1.5, -1.5], ids=["ahead", "back", "a bit", "a bit back"])
ONCE = {"max_attempts": 0}
HOOK = "http://example.com/hook"


@pytest.fixture(autouse=True)
def as_in_production(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the alarm check the clock once a minute."""
    monkeypatch.setattr(LoopAlarm, "LONGEST_WAIT", SchedulerAlarm.LONGEST_WAIT)


@asynccontextmanager
async def scheduler_and_clock(directory: Path, **options: Any) -> AsyncIterator[tuple[Scheduler, VirtualClock]]:
    clock = VirtualClock()
    async with running_scheduler(directory, clock=clock, **options) as scheduler:
        yield scheduler, clock


def seconds() -> float:
    return asyncio.get_running_loop().time()


async def until(seconds_: float) -> None:
    await asyncio.sleep(seconds_ - seconds())


# What a live process counts by monotonic time.


@STEPS
async def test_a_timeout_lasts_its_seconds(tmp_path: Path, step: float) -> None:
    async with scheduler_and_clock(tmp_path) as (scheduler, clock):
        job = await scheduler.submit("work", {"seconds": 10_000}, timeout_seconds=600, retry_policy=ONCE)
        await until(60)
        clock.jump(step)

        await until(599.9)
        before = await states(scheduler, job)
        ended = await scheduler.wait(job.job_id)

        assert before == ["RUNNING"]
        assert seconds() == pytest.approx(600, abs=0.01)
        assert ended.run is not None
        assert (ended.run.failure_kind, ended.run.error) == (FailureKind.TIMEOUT, "timed out after 600 seconds")
        assert ended.run.timeout_at == BEGINNING.after(600 + step), "and it is shown by the clock as it is now"


@STEPS
async def test_a_timeout_lasts_its_seconds_though_others_write_meanwhile(tmp_path: Path, step: float) -> None:
    async with scheduler_and_clock(tmp_path) as (scheduler, clock):
        job = await scheduler.submit("work", {"seconds": 10_000}, timeout_seconds=600, retry_policy=ONCE)
        await until(60)
        clock.jump(step)
        for number in range(10):
            await scheduler.submit("work", title=str(number))
            await until(60 + number * 53)

        await scheduler.wait(job.job_id)

        assert seconds() == pytest.approx(600, abs=0.01)


async def test_the_time_that_a_machine_sleeps_does_not_count(tmp_path: Path) -> None:
    """The lid is closed twice: while it sleeps, the monotonic clock stands still and the wall clock goes on."""
    async with scheduler_and_clock(tmp_path) as (scheduler, clock):
        job = await scheduler.submit("work", {"seconds": 500}, timeout_seconds=600, stall_timeout_seconds=550)
        for at in (60, 300):
            await until(at)
            clock.jump(8 * HOUR)
        ended = await scheduler.wait(job.job_id)

        assert ended.status == "COMPLETED"
        assert seconds() == pytest.approx(500, abs=0.01)
        assert ended.job.finished_at == BEGINNING.after(16 * HOUR + 500)


@STEPS
async def test_a_stall_timeout_lasts_its_seconds(tmp_path: Path, step: float) -> None:
    async with scheduler_and_clock(tmp_path) as (scheduler, clock):

        @scheduler.job_type("silent")
        async def silent(run: RunContext) -> None:
            await asyncio.sleep(10)
            run.progress(0.5)
            await asyncio.sleep(10_000)

        job = await scheduler.submit("silent", stall_timeout_seconds=300, retry_policy=ONCE)
        await until(60)
        clock.jump(step)
        ended = await scheduler.wait(job.job_id)

        assert seconds() == pytest.approx(310, abs=0.01)
        assert ended.run is not None
        assert ended.run.error == "no output and no progress for 300 seconds"


@STEPS
async def test_a_retry_waits_for_its_delay(tmp_path: Path, step: float) -> None:
    async with scheduler_and_clock(tmp_path) as (scheduler, clock):
        policy = {"max_attempts": 1, "base_delay_seconds": 600}
        job = await scheduler.submit("fail", {"times": 1}, retry_policy=policy)
        await until(60)
        clock.jump(step)
        await scheduler.wait(job.job_id)

        assert seconds() == pytest.approx(600, abs=0.01)


@STEPS
async def test_a_caller_waits_as_long_as_it_said(tmp_path: Path, step: float) -> None:
    async with scheduler_and_clock(tmp_path) as (scheduler, clock):
        await scheduler.submit("work", {"seconds": 10_000})
        caller = asyncio.ensure_future(scheduler.run_direct("work", wait_timeout_seconds=300))
        await until(60)
        clock.jump(step)
        with pytest.raises(SlotBusy):
            await caller

        assert seconds() == pytest.approx(300, abs=0.01)


@STEPS
async def test_a_callers_work_has_its_time_and_its_reservation_stays(tmp_path: Path, step: float) -> None:
    async with scheduler_and_clock(tmp_path) as (scheduler, clock):
        caller = asyncio.ensure_future(scheduler.run_direct("work", {"seconds": 10_000}, timeout_seconds=2000))
        await until(60)
        clock.jump(step)
        ended = await caller

        assert seconds() == pytest.approx(2000, abs=0.01)
        assert ended.failure_kind is FailureKind.TIMEOUT
        kinds = [event.type for event in await history(scheduler) if event.type.startswith("reservation")]
        assert kinds == ["reservation_made", "reservation_released"]


@STEPS
@pytest.mark.parametrize("when", [2, 6, 12])
async def test_a_delivery_is_tried_again_after_5_and_15_seconds(tmp_path: Path, step: float, when: float) -> None:
    """Whether the clock steps while an attempt is under way (they take 4 seconds), or between two of them."""
    tries: list[float] = []

    class Slow(Mailbox):
        async def send(self, *message: Any) -> EndpointResponse:
            tries.append(seconds())
            await asyncio.sleep(4)
            return EndpointResponse(500)

    async with scheduler_and_clock(tmp_path, sender=Slow()) as (scheduler, clock):
        await scheduler.submit("skip", webhook={"url": HOOK})
        await until(when)
        clock.jump(step)
        await until(1000)

        assert tries == [pytest.approx(at, abs=0.01) for at in (0, 4 + 5, 9 + 4 + 15, 28 + 4 + 45)]


@STEPS
@pytest.mark.parametrize("has_probe", [True, False])
async def test_a_resource_that_does_not_answer_is_tried_after_its_pause(
    tmp_path: Path, step: float, has_probe: bool
) -> None:
    tried: list[float] = []

    async with scheduler_and_clock(tmp_path) as (scheduler, clock):

        @scheduler.job_type("ask", resources=["server"], retry_policy=ONCE)
        async def ask(run: RunContext) -> None:
            tried.append(seconds())
            raise Fail("no answer", FailureKind.UNAVAILABLE)

        async def probe() -> bool:
            tried.append(seconds())
            return False

        if has_probe:
            scheduler.probe("server", probe)
        await scheduler.submit_many([NewJob(job_type="ask")] * 20)
        await until(5)
        clock.jump(step)
        await until(100)

        assert tried[5:] == [pytest.approx(at, abs=0.01) for at in (10, 30, 70)]


@STEPS
async def test_a_job_that_others_go_past_starves_after_its_time(tmp_path: Path, step: float) -> None:
    async with scheduler_and_clock(tmp_path, limits=Limits(resources={"disk": 2})) as (scheduler, clock):
        await scheduler.offices.change("default", max_concurrent_jobs=0)
        await scheduler.submit("work", {"seconds": 100}, resources=["disk"])
        large = await scheduler.submit("work", {"seconds": 1}, resources={"disk": 2})
        small = [NewJob(job_type="work", params={"seconds": 100}, resources={"disk": 1})] * 100
        await until(50)
        await scheduler.submit_many(small)
        await until(120)
        clock.jump(step)
        await scheduler.wait(large.job_id)

        started = await started_after(scheduler, large)
        assert 650 <= started <= 750


async def started_after(scheduler: Scheduler, job: Job) -> float:
    """Returns after how many monotonic seconds the job started; its run takes one second."""
    assert (await states(scheduler, job)) == ["COMPLETED"]
    return seconds() - 1


# What follows the wall clock.


async def test_a_job_that_a_caller_planned_starts_when_the_clock_says_so(tmp_path: Path) -> None:
    async with scheduler_and_clock(tmp_path) as (scheduler, clock):
        early = await scheduler.submit("work", scheduled_for=BEGINNING.after(2 * HOUR).as_datetime())
        late = await scheduler.submit("work", scheduled_for=BEGINNING.after(4 * HOUR).as_datetime())
        await until(60)

        clock.jump(2 * HOUR)
        await until(130)
        first = await states(scheduler, early, late)
        clock.jump(-2 * HOUR)
        await until(4 * HOUR - 1)
        second = await states(scheduler, early, late)
        await until(4 * HOUR + 2)

        assert (first, second) == (["COMPLETED", "WAITING"], ["COMPLETED", "WAITING"])
        assert await states(scheduler, late) == ["COMPLETED"]


async def test_a_job_expires_when_the_clock_says_so(tmp_path: Path) -> None:
    async with scheduler_and_clock(tmp_path) as (scheduler, clock):
        await scheduler.submit("work", {"seconds": 100_000})
        job = await scheduler.submit("work", expires_at=BEGINNING.after(4 * HOUR).as_datetime())
        clock.jump(-HOUR)
        await until(5 * HOUR - 120)
        before = await states(scheduler, job)
        clock.jump(HOUR)
        await until(5 * HOUR - 50)

        assert (before, await states(scheduler, job)) == (["QUEUED"], ["CANCELLED"])


async def test_the_first_that_is_stored_after_a_step_has_the_right_time(tmp_path: Path) -> None:
    """On a scheduler that had nothing to do, as on a laptop that is opened in the morning."""
    async with scheduler_and_clock(tmp_path) as (scheduler, clock):
        await until(60)
        clock.jump(9 * HOUR)

        job = await scheduler.submit("work", timeout_seconds=600)
        group, _ = await scheduler.submit_group([NewJob(job_type="work")])

        assert [job.created_at, group.created_at] == [BEGINNING.after(9 * HOUR + 60)] * 2


async def test_a_step_is_told_of_in_one_sentence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "nextslot"):
        async with scheduler_and_clock(tmp_path) as (scheduler, clock):
            await scheduler.submit("work", {"seconds": 1000}, timeout_seconds=600)
            clock.jump(-HOUR)
            await until(10)
            await scheduler.submit("work")
            await until(20)
            await scheduler.submit("work")
    assert [record.getMessage() for record in caplog.records if "stepped" in record.getMessage()] == [
        "the wall clock has stepped by -3600.000 s (it was set, or the machine slept): timeouts, retries and other "
        "waits are moved by as much; schedules, `scheduled_for` and `expires_at` follow the clock"
    ]


# What is stored together.


@STEPS
async def test_a_step_that_could_not_be_stored_is_stored_by_the_next_transaction_and_once(
    tmp_path: Path, step: float
) -> None:
    async with scheduler_and_clock(tmp_path) as (scheduler, clock):
        job = await scheduler.submit("work", {"seconds": 10_000}, timeout_seconds=600, retry_policy=ONCE)
        store = scheduler._store
        assert store is not None
        await until(60)
        clock.jump(step)

        results = await asyncio.gather(
            store.write(broken), store.write(harmless), store.write(broken), return_exceptions=True
        )
        await store.write(harmless)

        assert [type(one) for one in results] == [Unavailable, type(None), Unavailable]
        assert await timeout_at(scheduler, job) == BEGINNING.after(600 + step)
        await scheduler.wait(job.job_id)
        assert seconds() == pytest.approx(600, abs=0.01)


def broken(tx: Tx) -> None:
    tx.announce("work")
    tx.cause(ChainEnded("nobody"))
    raise Unavailable("as asked")


def harmless(tx: Tx) -> None:
    """A function that changes nothing."""


async def test_steps_to_and_fro_leave_every_time_as_it_was(tmp_path: Path) -> None:
    async with scheduler_and_clock(tmp_path) as (scheduler, clock):
        job = await scheduler.submit("work", {"seconds": 10_000}, timeout_seconds=600, retry_policy=ONCE)
        before = due_times(tmp_path)
        for step in (HOUR, -2 * HOUR, 5, HOUR, -5):
            clock.jump(step)
            await scheduler.submit("work", priority=-1)

        assert due_times(tmp_path) == before
        await scheduler.wait(job.job_id)
        assert seconds() == pytest.approx(600, abs=0.01)


async def test_after_a_crash_the_stored_time_counts(tmp_path: Path) -> None:
    """The process dies between the step and the transaction that would have moved the times."""
    clock = VirtualClock()
    first = new_scheduler(tmp_path, clock=clock)
    await first.start()
    await first.submit("fail", {"times": 1}, retry_policy={"max_attempts": 1, "base_delay_seconds": 600})
    await until(60)
    stored = due_times(tmp_path)
    clock.jump(300)
    await testing.crash(first)

    async with new_scheduler(tmp_path, seed=1, clock=clock) as second:
        assert due_times(tmp_path) == stored == [BEGINNING.after(600)]
        await until(601)
        assert await second.queue() == []
        started = [event.timestamp for event in await history(second) if event.type == "job_started"]
        assert started == [BEGINNING, BEGINNING.after(600)], "300 s of them were the step"


def due_times(directory: Path) -> list[int]:
    connection = database(directory)
    try:
        return [
            row[0]
            for sql in (
                "select timeout_at from runs where status is null and timeout_at is not null",
                "select scheduled_for from jobs where stage = 'QUEUED' and retry_of is not null and is_due = 0",
            )
            for row in connection.execute(sql).fetchall()
        ]
    finally:
        connection.close()


async def timeout_at(scheduler: Scheduler, job: Job) -> int | None:
    (run,) = [one for one in (await scheduler.lists.runs(limit=50)).items if one.job_id == job.job_id]
    return run.timeout_at


# Orders that depend on times.


async def test_of_two_reservations_the_older_is_first_though_the_clock_was_set_back(tmp_path: Path) -> None:
    async with scheduler_and_clock(tmp_path, limits=Limits(running=1)) as (scheduler, clock):
        for office_id in ("a", "b", "c"):
            await scheduler.offices.create(office_id)
        await scheduler.submit("work", {"seconds": 100}, office_id="c")
        first = asyncio.ensure_future(scheduler.run_direct("work", {"seconds": 1}, office_id="a"))
        await until(10)
        clock.jump(-HOUR)
        second = asyncio.ensure_future(scheduler.run_direct("work", {"seconds": 1}, office_id="b"))
        ended = await asyncio.gather(first, second)

        assert [one.started_at for one in ended] == sorted(one.started_at or 0 for one in ended)


async def test_offices_take_turns_and_jobs_keep_their_order_while_the_clock_is_set_back(tmp_path: Path) -> None:
    async with scheduler_and_clock(tmp_path, limits=Limits(running=1)) as (scheduler, clock):
        for office_id in ("a", "b"):
            await scheduler.offices.create(office_id, max_concurrent_jobs=1)
        made = []
        for _ in range(4):
            made += [await scheduler.submit("work", {"seconds": 10}, office_id=office_id) for office_id in ("a", "b")]
            clock.jump(-HOUR)
        await until(200)

        started = [event.job_id for event in await history(scheduler) if event.type == "job_started"]
        assert started == [job.job_id for job in made]
