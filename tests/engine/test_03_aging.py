"""Spec 3.13: a job that has been ready for a period of its office goes before others by one priority more."""

import asyncio
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from nextslot import Job, Scheduler, testing
from nextslot.domain import MAX_PRIORITY, URGENT, NewJob, aging
from nextslot.domain.jobs import order_priority
from nextslot.engine.dispatch import aging_steps
from nextslot.errors import Conflict, Invalid
from nextslot.store.contract import Tx
from nextslot.store.tables import jobs as jobs_table
from nextslot.system.instant import Instant
from tests.support import (
    assert_counters,
    counted_scheduler,
    database,
    history,
    named,
    new_scheduler,
    queued_ids,
    running_scheduler,
    started_order,
)

PERIOD = 60.0
HOUR = 3600.0


async def aged(scheduler: Scheduler, job: Job) -> tuple[int, int]:
    """Returns (priority, steps)."""
    found = await scheduler.job(job.job_id)
    return found.priority, found.aged_steps


def now_of(scheduler: Scheduler) -> Instant:
    return scheduler._access.clock.now()


async def ages(scheduler: Scheduler, seconds: float | None = PERIOD, office_id: str = "default") -> None:
    await scheduler.offices.change(office_id, priority_aging_seconds=seconds)


# The decision.


def test_a_job_gets_a_step_for_each_period_that_it_was_ready() -> None:
    due = Instant(60_000_000)

    assert aging.aged(0, 2, due, 60.0, True, due) == (3, Instant(120_000_000))
    assert aging.aged(0, 2, due, 60.0, True, Instant(119_999_999)) == (3, Instant(120_000_000))
    assert aging.aged(0, 2, due, 60.0, True, Instant(180_000_000)) == (5, Instant(240_000_000))


@pytest.mark.parametrize(("priority", "period", "is_ready"), [(0, None, True), (0, 60.0, False), (URGENT, 60.0, True)])
def test_a_job_that_does_not_age_any_more_keeps_its_steps(priority: int, period: float | None, is_ready: bool) -> None:
    assert aging.aged(priority, 2, Instant(0), period, is_ready, Instant(10**12)) == (2, None)


def test_a_job_ages_up_to_the_highest_priority_but_not_to_urgent() -> None:
    assert aging.aged(MAX_PRIORITY - 3, 1, Instant(0), 1.0, True, Instant(10**9)) == (3, None)
    assert order_priority(MAX_PRIORITY - 3, 3) == MAX_PRIORITY < order_priority(URGENT, 0)


@pytest.mark.parametrize("period", [1.0, 1.37, 2.5, 9.9, 60.0, 77.777777, 3600.0])
def test_steps_share_times_a_tenth_of_the_period_apart_and_none_comes_late(period: float) -> None:
    period_us = round(period * 1_000_000)
    begun = [Instant(1_790_000_000_000_000 + n * period_us // 997) for n in range(2 * 997)]

    firsts = [aging.next_step(since, period) for since in begun]

    early = [since + period_us - first for since, first in zip(begun, firsts, strict=True)]
    assert 0 <= min(early) <= max(early) < max(period_us // 10, 2_000_000)
    assert len(set(firsts)) <= 2 * min(10, period) + 2
    assert firsts == sorted(firsts)
    # From there on, it is exactly a period from step to step.
    later = {aging.aged(0, 5, first, period, True, Instant(first + 3 * period_us)) for first in firsts}
    assert later == {(9, first + 4 * period_us) for first in firsts}


def test_a_next_step_between_the_shared_times_comes_back_to_them_before_it_is_due() -> None:
    assert aging.aged(0, 2, Instant(61_000_000), 60.0, True, Instant(61_000_000)) == (3, Instant(120_000_000))


# Steps.


async def test_a_ready_job_ages_by_one_step_a_period_and_shows_its_priority_unchanged(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await ages(scheduler)
        await scheduler.pause()
        job = await scheduler.submit("work", priority=2)

        await asyncio.sleep(3.5 * PERIOD)

        assert await aged(scheduler, job) == (2, 3)
        assert (await scheduler.job(job.job_id)).order_priority == 5


async def test_by_default_no_job_ages(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        job = await scheduler.submit("work")

        await asyncio.sleep(10 * HOUR)

        assert await aged(scheduler, job) == (0, 0)


async def test_a_job_counts_from_the_moment_at_which_it_is_ready(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await ages(scheduler)
        await scheduler.pause(job_type="work")
        first = await scheduler.submit("stubborn", {"seconds": 5 * PERIOD})
        behind = await scheduler.submit("work", depends_on=[first.job_id])
        later = await scheduler.submit("work", scheduled_for=now_of(scheduler).after(4.5 * PERIOD))
        group, _ = await scheduler.submit_group([NewJob(job_type="skip"), NewJob(job_type="work")])

        await asyncio.sleep(7.1 * PERIOD)

        assert await aged(scheduler, behind) == (0, 2)
        assert await aged(scheduler, later) == (0, 2)
        assert await aged(scheduler, (await scheduler.members(group.group_id))[1]) == (0, 2)


async def test_the_first_step_of_jobs_that_were_queued_before_comes_a_period_after_the_setting(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        jobs = await scheduler.submit_many([NewJob(job_type="work") for _ in range(2 * aging_steps.BATCH + 7)])
        waiting = await scheduler.submit("work", scheduled_for=now_of(scheduler).after(10 * HOUR))
        await asyncio.sleep(HOUR)

        await ages(scheduler)
        await asyncio.sleep(PERIOD + 1)

        assert {(one.aged_steps) for one in await scheduler.queue(limit=500)} == {1}
        with database(tmp_path) as connection:
            [(steps, rows)] = connection.execute("select sum(aged_steps), count(*) from jobs where ages_at is not null")
        assert steps == rows == len(jobs)
        assert await aged(scheduler, waiting) == (0, 0)


async def test_a_tick_changes_at_most_a_thousand_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    kept = jobs_table.age

    def counted(tx: Tx, rows: Iterable[tuple[int, Instant | None, str]]) -> None:
        written.append(len(found := list(rows)))
        kept(tx, found)

    monkeypatch.setattr(jobs_table, "age", counted)
    async with running_scheduler(tmp_path) as scheduler:
        await ages(scheduler)
        await scheduler.pause()
        await scheduler.submit_many([NewJob(job_type="work") for _ in range(2500)])

        await asyncio.sleep(PERIOD + 1)

    assert written == [1000, 1000, 500]


async def test_steps_of_jobs_that_came_one_by_one_are_stored_in_few_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions: list[Tx] = []
    kept = jobs_table.age

    def counted(tx: Tx, rows: Iterable[tuple[int, Instant | None, str]]) -> None:
        transactions.append(tx)
        kept(tx, rows)

    monkeypatch.setattr(jobs_table, "age", counted)
    async with running_scheduler(tmp_path) as scheduler:
        await ages(scheduler)
        await scheduler.pause()
        ids = []
        for _ in range(300):
            ids.append((await scheduler.submit("work")).job_id)
            await asyncio.sleep(PERIOD / 300)

        await asyncio.sleep(2 * PERIOD)

        assert {(await scheduler.job(job_id)).aged_steps for job_id in ids} <= {2, 3}
        assert len(transactions) <= 3 * 11
        assert await queued_ids(scheduler) == ids


async def test_a_shorter_period_counts_from_its_setting_on_and_a_setting_taken_away_stops_aging(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await ages(scheduler, 24 * HOUR)
        await scheduler.pause()
        job = await scheduler.submit("work")
        await ages(scheduler)
        await asyncio.sleep(2.5 * PERIOD)
        assert await aged(scheduler, job) == (0, 2)

        await ages(scheduler, None)
        await asyncio.sleep(5 * PERIOD)
        assert await aged(scheduler, job) == (0, 2)

        await ages(scheduler)
        await asyncio.sleep(1.5 * PERIOD)
        assert await aged(scheduler, job) == (0, 3)


async def test_a_job_that_waits_again_keeps_its_steps_and_gets_none_meanwhile(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await ages(scheduler)
        await scheduler.pause()
        job = await scheduler.submit("work")
        await asyncio.sleep(2.5 * PERIOD)

        await scheduler.change(job.job_id, scheduled_for=now_of(scheduler).after(10 * PERIOD))
        await asyncio.sleep(9 * PERIOD)
        assert await aged(scheduler, job) == (0, 2)

        await asyncio.sleep(2.5 * PERIOD)
        assert await aged(scheduler, job) == (0, 3)


async def test_an_urgent_job_does_not_age_and_stays_first(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await ages(scheduler, 1)
        await scheduler.pause()
        old = await scheduler.submit("work", priority=MAX_PRIORITY - 5)
        urgent = await scheduler.submit("work", urgent=True)
        await asyncio.sleep(HOUR)

        assert (await aged(scheduler, old))[1] == 5
        assert (await aged(scheduler, urgent))[1] == 0
        assert await queued_ids(scheduler) == [urgent.job_id, old.job_id]


def test_steps_survive_a_crash_and_those_of_the_time_between_are_counted(tmp_path: Path) -> None:
    async def first() -> str:
        scheduler = new_scheduler(tmp_path)
        await scheduler.start()
        await ages(scheduler)
        await scheduler.pause()
        job = await scheduler.submit("work")
        await asyncio.sleep(2.5 * PERIOD)
        await testing.crash(scheduler)
        return job.job_id

    async def second(job_id: str) -> int:
        clock = testing.VirtualClock()
        clock.jump(10 * PERIOD)
        async with running_scheduler(tmp_path, clock=clock) as scheduler:
            await asyncio.sleep(1)
            return (await scheduler.job(job_id)).aged_steps

    job_id = testing.run(first())

    assert testing.run(second(job_id)) == 10


@pytest.mark.parametrize("step", [2 * HOUR, -HOUR], ids=["ahead", "back"])
async def test_a_wall_clock_that_steps_changes_no_count(tmp_path: Path, step: float) -> None:
    clock = testing.VirtualClock()
    async with running_scheduler(tmp_path, clock=clock) as scheduler:
        await ages(scheduler, HOUR)
        await scheduler.pause()
        job = await scheduler.submit("work")
        await asyncio.sleep(HOUR / 2)
        clock.jump(step)

        await asyncio.sleep(HOUR / 2 - 100)
        assert await aged(scheduler, job) == (0, 0)

        await asyncio.sleep(200)
        assert await aged(scheduler, job) == (0, 1)


# Order.


@pytest.mark.parametrize("others", [0, 5])
async def test_under_a_flood_of_higher_priority_an_aged_job_runs_within_the_gap_times_the_period(
    tmp_path: Path, others: int
) -> None:
    gap, took = 100, 30.0
    async with counted_scheduler(tmp_path) as scheduler:
        await ages(scheduler)

        async def flood() -> None:
            while True:  # There is always one more that waits.
                await scheduler.submit("work", {"seconds": took}, priority=gap)
                await asyncio.sleep(took)

        await scheduler.submit("work", {"seconds": took}, priority=gap)
        flooding = asyncio.get_running_loop().create_task(flood())
        await asyncio.sleep(took)
        old = [await scheduler.submit("work", priority=0) for _ in range(others + 1)]
        await asyncio.sleep(4 * HOUR)
        flooding.cancel()

        for place, job in enumerate(old):
            found = await scheduler.job(job.job_id)
            assert found.started_at is not None
            waited = (found.started_at - found.created_at) / 1_000_000
            assert gap * PERIOD - took <= waited <= gap * PERIOD + took + place
            assert found.aged_steps == gap
        assert len(await started_order(scheduler)) > 4 * HOUR / took - others - 20


async def test_without_aging_the_same_flood_holds_a_job_back_for_ever(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        old = await scheduler.submit("work", {"seconds": 10}, priority=1)
        old = await scheduler.submit("work", priority=0)
        for _ in range(400):
            await scheduler.submit("work", {"seconds": 10}, priority=1)
            await asyncio.sleep(10)

        assert (await scheduler.job(old.job_id)).started_at is None


async def test_a_job_that_reaches_the_level_of_others_goes_before_those_that_came_after_it(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await ages(scheduler)
        await scheduler.pause()
        fillers = [await scheduler.submit("work", priority=1) for _ in range(3)]
        old = await scheduler.submit("work", priority=0)
        await asyncio.sleep(PERIOD / 2)
        for one in fillers:
            await scheduler.cancel(one.job_id)
        before = await scheduler.submit("work", priority=1)
        await asyncio.sleep(PERIOD * 0.75)
        after = await scheduler.submit("work", priority=1)

        assert (await aged(scheduler, old), await aged(scheduler, before)) == ((0, 1), (1, 0))
        assert await queued_ids(scheduler) == [old.job_id, before.job_id, after.job_id]


async def test_every_view_of_the_queue_has_the_same_order(tmp_path: Path) -> None:
    chance = random.Random(4)
    async with counted_scheduler(tmp_path) as scheduler:
        await ages(scheduler)
        await scheduler.pause()
        for _ in range(60):
            await scheduler.submit("work", priority=chance.randint(-3, 3))
            await asyncio.sleep(chance.random() * PERIOD / 2)
        ids = await queued_ids(scheduler)

        by_pages: list[str] = []
        cursor = None
        while True:
            page = await scheduler.lists.queue(cursor=cursor, limit=7)
            by_pages += [one.job.job_id for one in page.queue]
            cursor = page.next_cursor
            if cursor is None:
                break
        ahead = [(await scheduler.forecast.why(job_id)).ahead for job_id in ids]
        with database(tmp_path) as connection:
            order = "order_priority desc, position, created_at, job_id"
            stored = [
                row[0] for row in connection.execute(f"select job_id from jobs where stage = 'QUEUED' order by {order}")
            ]
        await ages(scheduler, None)
        await scheduler.resume()
        await asyncio.sleep(HOUR)

        assert ids == by_pages == stored
        assert ahead == list(range(60))
        assert await started_order(scheduler) == ids
        assert_counters(tmp_path)


# Moves.


async def mixed(scheduler: Scheduler) -> list[str]:
    """Makes a paused queue in which jobs of several priorities and ages are mixed."""
    await ages(scheduler)
    await scheduler.pause()
    for priority in (0, 0, 2, 1):
        await scheduler.submit("work", priority=priority)
        await asyncio.sleep(0.7 * PERIOD)
    for priority in (3, 2, 0):
        await scheduler.submit("work", priority=priority)
    return await queued_ids(scheduler)


@pytest.mark.parametrize("seed", range(8))
async def test_no_move_changes_the_relative_order_of_other_jobs_also_of_aged_ones(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    async with counted_scheduler(tmp_path) as scheduler:
        ids = await mixed(scheduler)
        for _ in range(40):
            job_id, other = chance.sample(ids, 2)
            rest = [one for one in ids if one != job_id]
            moves: list[tuple[dict[str, Any], int]] = [
                ({"to": "front"}, 0),
                ({"to": "back"}, len(rest)),
                ({"before": other}, rest.index(other)),
                ({"after": other}, rest.index(other) + 1),
                ({"place": 3}, 2),
            ]
            how, place = chance.choice(moves)

            moved = await scheduler.move(job_id, **how)

            ids = [*rest[:place], job_id, *rest[place:]]
            assert await queued_ids(scheduler) == ids, how
            assert moved.aged_steps == 0
        assert_counters(tmp_path)


async def test_a_moved_job_takes_the_level_of_its_neighbour_and_its_age_counts_anew(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await ages(scheduler)
        await scheduler.pause()
        old = await scheduler.submit("work", priority=1)
        await asyncio.sleep(2.5 * PERIOD)
        new = await scheduler.submit("work", priority=0)

        moved = await scheduler.move(new.job_id, before=old.job_id)

        assert (moved.priority, moved.aged_steps) == (3, 0)
        assert await queued_ids(scheduler) == [new.job_id, old.job_id]
        await asyncio.sleep(0.9 * PERIOD)
        assert await aged(scheduler, moved) == (3, 0)
        await asyncio.sleep(0.2 * PERIOD)
        assert await aged(scheduler, moved) == (3, 1)


@pytest.mark.parametrize("priority", [0, 4])
async def test_a_change_of_the_priority_resets_the_steps(tmp_path: Path, priority: int) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await ages(scheduler)
        await scheduler.pause()
        job = await scheduler.submit("work")
        await asyncio.sleep(2.5 * PERIOD)

        changed = await scheduler.change(job.job_id, priority=priority)

        assert (changed.priority, changed.aged_steps) == (priority, 0)
        await asyncio.sleep(0.9 * PERIOD)
        assert await aged(scheduler, job) == (priority, 0)
        await asyncio.sleep(0.2 * PERIOD)
        assert await aged(scheduler, job) == (priority, 1)


async def test_a_new_order_holds_also_for_jobs_that_have_met_at_one_place(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        zero = await scheduler.submit("work", priority=0)
        await ages(scheduler)
        one = await scheduler.submit("work", priority=1)
        await asyncio.sleep(1.1 * PERIOD)
        await scheduler.change(one.job_id, scheduled_for=now_of(scheduler).after(HOUR))
        with database(tmp_path) as connection:
            connection.execute("update jobs set position = 7")
            connection.execute("update jobs set aged_steps = 1 where job_id = ?", (zero.job_id,))
            connection.execute("update jobs set aged_steps = 0 where job_id = ?", (one.job_id,))
        assert await queued_ids(scheduler) == [zero.job_id, one.job_id]

        await scheduler.reorder([one.job_id, zero.job_id])
        assert await queued_ids(scheduler) == [one.job_id, zero.job_id]

        third = await scheduler.submit("work", priority=1)
        await scheduler.move(third.job_id, before=zero.job_id)
        assert await queued_ids(scheduler) == [one.job_id, third.job_id, zero.job_id]


async def test_a_retry_begins_with_the_priority_of_its_job_and_no_steps(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await ages(scheduler)
        await scheduler.pause()
        job = await scheduler.submit("fail", priority=2, retry_policy={"max_attempts": 1, "base_delay_seconds": HOUR})
        await asyncio.sleep(3.5 * PERIOD)
        await scheduler.resume()
        await asyncio.sleep(10)

        chain = await scheduler.chain(job.job_id)
        assert [(one.priority, one.aged_steps) for one in chain] == [(2, 3), (2, 0)]


# Explanations and settings.


async def test_why_says_that_a_job_has_aged_and_by_how_much(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await ages(scheduler)
        await scheduler.pause()
        job = await scheduler.submit("work", priority=-2)
        await asyncio.sleep(3.5 * PERIOD)

        [reason] = [one for one in (await scheduler.forecast.why(job.job_id)).reasons if one.code == "aged"]

        assert reason.data == {"aged_steps": 3, "priority": -2, "order_priority": 1}
        assert "aged by 3 steps" in reason.text


async def test_forecasts_know_that_a_job_will_age(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.wait((await scheduler.submit("work", {"seconds": 100})).job_id)
        await ages(scheduler, 150)
        await scheduler.submit("work", {"seconds": 100}, priority=3)
        old = await scheduler.submit("work", {"seconds": 100}, priority=0)
        await asyncio.sleep(30)
        for _ in range(20):
            await scheduler.submit("work", {"seconds": 100}, priority=1)
        made = await scheduler.forecast.queue()
        planned = sorted(made.jobs, key=lambda job_id: made.jobs[job_id].expected_start or Instant(0))
        await asyncio.sleep(HOUR)

        started = await started_order(scheduler)
        assert planned == started[-len(planned) :]
        assert 1 < planned.index(old.job_id) < 20


@pytest.mark.parametrize("seconds", [0, -1, 0.5, "often", True, float("nan")])
async def test_a_wrong_period_is_refused_with_a_sentence(tmp_path: Path, seconds: Any) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        with pytest.raises(Invalid, match=r"priority_aging_seconds is .*; it must be a number of seconds from 1 to"):
            await ages(scheduler, seconds)


async def test_a_change_of_the_period_is_in_the_audit_log(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await named(scheduler, "ada").offices.change("default", priority_aging_seconds=PERIOD)

        office = await scheduler.offices.get("default")
        assert office.priority_aging_seconds == office.to_dict()["priority_aging_seconds"] == PERIOD
        [entry, *_] = (await scheduler.lists.audit()).items
        assert entry.details is not None
        assert [entry.details[when]["priority_aging_seconds"] for when in ("before", "after")] == [None, PERIOD]


async def test_a_period_of_the_configuration_file_is_fixed(tmp_path: Path) -> None:
    scheduler = new_scheduler(tmp_path)
    scheduler.settings.offices.use(
        scheduler.settings.offices._lanes.policy, {"default": {"priority_aging_seconds": 60.0}}
    )
    async with scheduler:
        await scheduler.pause()
        job = await scheduler.submit("work")
        await asyncio.sleep(1.5 * PERIOD)

        assert await aged(scheduler, job) == (0, 1)
        with pytest.raises(Conflict, match="is set in the configuration file"):
            await ages(scheduler, None)


async def test_aging_tells_nobody(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await ages(scheduler)
        await scheduler.pause()
        await scheduler.submit("work")
        before = await history(scheduler)

        await asyncio.sleep(10 * PERIOD)

        assert await history(scheduler) == before
