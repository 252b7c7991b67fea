"""Spec 10: schedules, and the account of every occurrence.

Virtual time begins on Sunday, 15 November 2026, at 07:00 UTC.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nextslot import Scheduler, testing
from nextslot.domain import Job, Occurrence, Schedule, SkipReason, catch_up, json_form
from nextslot.domain.cron import parse
from nextslot.errors import Conflict, Invalid, NotFound
from nextslot.system.clock import LoopAlarm, SchedulerAlarm, SystemClock
from nextslot.system.instant import Instant
from tests.support import database, history, new_scheduler, register_handlers, running_scheduler

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


def at(text: str) -> Instant:
    """Returns a time of 15 November 2026, or a whole date and time, in UTC."""
    whole = text if "-" in text else f"2026-11-15 {text}"
    return Instant.of(datetime.fromisoformat(whole).replace(tzinfo=UTC))


async def new_schedule(scheduler: Scheduler, cron: str = "* * * * *", job: Any = None, **fields: Any) -> Schedule:
    """Creates a schedule with a template of its own."""
    place = len((await scheduler.templates.page(limit=500)).items)
    name = f"template of {cron} {place}"
    office = {"office_id": fields["office_id"]} if fields.get("office_id") in ("research", "closing") else {}
    template = await scheduler.templates.create(
        name=name, **{"job_type": "work", "params": {"seconds": 1}, **office, **(job or {})}
    )
    return await scheduler.schedules.create(
        **{
            "name": f"it {place}" if place else "it",
            "template_id": template.template_id,
            "cron_expression": cron,
            **fields,
        }
    )


async def ledger(scheduler: Scheduler, schedule: Schedule) -> list[Occurrence]:
    """Returns all occurrences, the oldest first."""
    found: list[Occurrence] = []
    cursor: str | None = None
    while True:
        page = await scheduler.schedules.occurrences_page(schedule.schedule_id, 500, cursor)
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            return found[::-1]


async def told(scheduler: Scheduler, schedule: Schedule) -> list[str]:
    """Returns the occurrences in short: time and outcome; for a span also its end and count."""
    return [
        f"{one.instant.as_datetime():%H:%M}"
        + (f"-{one.until.as_datetime():%H:%M} {one.count}x" if one.until else "")
        + f" {one.reason or one.outcome}"
        for one in await ledger(scheduler, schedule)
    ]


async def passes(seconds: float) -> None:
    """Lets time pass, until everything that became due is done."""
    await asyncio.sleep(seconds)
    await testing.settled()


async def fresh(scheduler: Scheduler, schedule: Schedule) -> Schedule:
    return await scheduler.schedules.get(schedule.schedule_id)


def with_downtime(
    directory: Path,
    before: Callable[[Scheduler], Awaitable[Schedule]],
    seconds: float,
    after: Callable[[Scheduler, Schedule], Awaitable[None]],
) -> None:
    """Runs a scheduler that crashes, waits, and runs another one on the same database."""

    async def main() -> None:
        first = new_scheduler(directory)
        await first.start()
        schedule = await before(first)
        await testing.crash(first)
        await passes(seconds)
        async with new_scheduler(directory, seed=1) as second:
            await after(second, schedule)

    testing.run(main())


# Firing.


async def test_every_occurrence_makes_a_job_of_its_template(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        schedule = await new_schedule(
            scheduler, "*/2 * * * *", {"params": {"a": 1, "b": 1}}, param_overrides={"b": 2}, priority=5, name="two"
        )

        await passes(5 * MINUTE)

        fired = await ledger(scheduler, schedule)
        jobs = [await scheduler.job(one.job_id or "") for one in fired]
        assert [one.instant for one in fired] == [at("07:02"), at("07:04")]
        assert [(job.params, job.priority, job.title) for job in jobs] == [({"a": 1, "b": 2}, 5, "two")] * 2
        assert {(job.schedule_id, job.template_id) for job in jobs} == {(schedule.schedule_id, schedule.template_id)}
        assert [job.scheduled_for for job in jobs] == [job.started_at for job in jobs] == [at("07:02"), at("07:04")]


async def test_a_job_and_its_occurrence_and_the_event_are_told_together(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        schedule = await new_schedule(scheduler)

        await passes(MINUTE)

        [fired] = [event for event in await history(scheduler) if event.type == "schedule_fired"]
        [occurrence] = await ledger(scheduler, schedule)
        assert fired.job_id == occurrence.job_id
        assert fired.office_id == "default"
        assert fired.details == {"schedule_id": schedule.schedule_id, "instant": "2026-11-15T07:01:00.000000Z"}


async def test_next_trigger_at_is_always_right_and_null_when_disabled(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        schedule = await new_schedule(scheduler, "30 * * * *")
        assert (schedule.next_trigger_at, schedule.last_triggered_at) == (at("07:30"), None)

        await passes(40 * MINUTE)
        schedule = await fresh(scheduler, schedule)
        assert (schedule.next_trigger_at, schedule.last_triggered_at) == (at("08:30"), at("07:30"))

        changed = await scheduler.schedules.change(schedule.schedule_id, enabled=False)
        assert changed.next_trigger_at is None
        assert await fresh(scheduler, schedule) == changed
        changed = await scheduler.schedules.change(schedule.schedule_id, enabled=True)
        assert changed.next_trigger_at == at("08:30")


async def test_a_trigger_changes_nothing_of_its_schedule_but_the_two_times(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        before = await new_schedule(scheduler, "30 * * * *")
        await passes(40 * MINUTE)
        after = await fresh(scheduler, before)

    changed = {name for name, value in after.to_dict().items() if before.to_dict()[name] != value}
    assert changed == {"next_trigger_at", "last_triggered_at"}


def test_DEC_010_a_schedule_without_a_zone_goes_by_UTC(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with running_scheduler(tmp_path) as scheduler:
            schedule = await new_schedule(scheduler, "30 12 * * *")

            assert (schedule.timezone, schedule.next_trigger_at) == ("UTC", at("12:30"))

    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "Asia/Kathmandu")
        time.tzset()
        try:
            testing.run(main())
        finally:
            elsewhere.undo()
            time.tzset()


async def test_a_schedule_made_disabled_fires_nothing(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        schedule = await new_schedule(scheduler, enabled=False)

        await passes(HOUR)

        assert schedule.next_trigger_at is None
        assert await scheduler.queue() == []


async def test_a_paused_queue_still_gets_its_jobs_and_they_wait(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        schedule = await new_schedule(scheduler)

        await passes(3 * MINUTE)

        assert await told(scheduler, schedule) == ["07:01 fired", "07:02 fired", "07:03 fired"]
        assert [job.status for job in await scheduler.queue()] == ["QUEUED"] * 3


async def test_jobs_go_to_the_schedules_office(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("research")
        schedule = await new_schedule(scheduler, office_id="research")

        await passes(MINUTE)

        [fired] = await ledger(scheduler, schedule)
        job = await scheduler.job(fired.job_id or "")
        assert (job.office_id, job.timeout_seconds) == ("research", 1800)


async def test_many_that_are_due_together_fire_together_a_batch_a_transaction(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        template = await scheduler.templates.create(name="t", job_type="work")
        fields = {"template_id": template.template_id, "cron_expression": "0 * * * *"}
        settings = scheduler.schedules._settings
        await scheduler._access.write(
            lambda tx: [settings.create(tx, {**fields, "name": f"{n}"}, at("07:00")) for n in range(1200)]
        )

        await passes(HOUR)

        rows = database(tmp_path).execute(
            "select instant, count(*), count(distinct job_id) from occurrences group by 1"
        )
        assert rows.fetchall() == [(at("08:00"), 1200, 1200)]
        created = database(tmp_path).execute("select distinct created_at from jobs").fetchall()
        assert created == [(at("08:00"),)]


# Refusals.


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("cron_expression", "* * * *", "five fields"),
        ("cron_expression", "0 0 30 2 *", "never happens"),
        ("cron_expression", 5, "text"),
        ("timezone", "Mars/Olympus", "there is no time zone"),
        ("timezone", ["UTC"], "text"),
        ("name", "", "1 to 1,000"),
        ("template_id", "nobody", "there is no template"),
        ("office_id", "nowhere", "does not exist"),
        ("enabled", "yes", "neither true nor false"),
        ("catch_up", "some", "latest, all, none"),
        ("catch_up_window_seconds", -1, "from 0 on"),
        ("overlap", "maybe", "allow, skip"),
        ("priority", 10**7, "whole number"),
        ("param_overrides", [], "JSON object"),
        ("param_overrides", {"seconds": "long"}, "not of type"),
        ("colour", "red", "is not a field of a schedule"),
    ],
)
async def test_a_wrong_field_is_named_and_nothing_is_stored(
    tmp_path: Path, field: str, value: Any, reason: str
) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        with pytest.raises(Invalid) as refused:
            await new_schedule(scheduler, **{field: value})

        [problem] = refused.value.problems
        assert problem.field.partition(".")[0] == field
        assert reason in problem.problem
        assert (await scheduler.schedules.page()).items == ()


async def test_every_problem_is_named_at_once(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        with pytest.raises(Invalid) as refused:
            await new_schedule(scheduler, "x", timezone="y", overlap="z")

        assert [problem.field for problem in refused.value.problems] == ["cron_expression", "timezone", "overlap"]


# Downtime.


def test_catch_up_latest_makes_one_job_for_what_was_missed(tmp_path: Path) -> None:
    async def before(scheduler: Scheduler) -> Schedule:
        return await new_schedule(scheduler, "0 * * * *")

    async def after(scheduler: Scheduler, schedule: Schedule) -> None:
        assert await told(scheduler, schedule) == ["08:00 coalesced", "09:00 coalesced", "10:00 fired"]
        assert (await fresh(scheduler, schedule)).next_trigger_at == at("11:00")
        assert scheduler.recovered.occurrences == 3
        skipped = [event.details for event in await history(scheduler) if event.type == "schedule_skipped"]
        assert [(one["reason"], one["count"], one["instant"][11:16], one["until"][11:16]) for one in skipped] == [
            ("coalesced", 2, "08:00", "09:00")
        ]

    with_downtime(tmp_path, before, 3.5 * HOUR, after)


def test_catch_up_all_makes_a_job_for_each_the_oldest_first(tmp_path: Path) -> None:
    async def before(scheduler: Scheduler) -> Schedule:
        await scheduler.pause()
        return await new_schedule(scheduler, "0 * * * *", catch_up="all")

    async def after(scheduler: Scheduler, schedule: Schedule) -> None:
        assert await told(scheduler, schedule) == ["08:00 fired", "09:00 fired", "10:00 fired"]
        assert [job.scheduled_for for job in await scheduler.queue()] == [at("08:00"), at("09:00"), at("10:00")]

    with_downtime(tmp_path, before, 3.5 * HOUR, after)


def test_catch_up_all_stops_at_the_newest_hundred(tmp_path: Path) -> None:
    async def before(scheduler: Scheduler) -> Schedule:
        return await new_schedule(scheduler, catch_up="all")

    async def after(scheduler: Scheduler, schedule: Schedule) -> None:
        found = await ledger(scheduler, schedule)
        assert [one.reason for one in found] == [SkipReason.COALESCED] * 20 + [None] * 100
        assert [one.instant for one in found] == [at("07:00").after(MINUTE * n) for n in range(1, 121)]

    with_downtime(tmp_path, before, 2 * HOUR + 1, after)


def test_catch_up_none_lets_what_was_missed_go(tmp_path: Path) -> None:
    async def before(scheduler: Scheduler) -> Schedule:
        return await new_schedule(scheduler, "0 * * * *", catch_up="none")

    async def after(scheduler: Scheduler, schedule: Schedule) -> None:
        assert await told(scheduler, schedule) == ["08:00 missed", "09:00 missed"]
        await passes(HOUR)
        assert (await told(scheduler, schedule))[2:] == ["10:00 fired"]

    with_downtime(tmp_path, before, 2.5 * HOUR, after)


@pytest.mark.parametrize("policy", ["latest", "all", "none"])
def test_only_occurrences_inside_the_window_are_caught_up(tmp_path: Path, policy: str) -> None:
    async def before(scheduler: Scheduler) -> Schedule:
        return await new_schedule(scheduler, "0 * * * *", catch_up=policy, catch_up_window_seconds=2 * HOUR)

    async def after(scheduler: Scheduler, schedule: Schedule) -> None:
        inside = {
            "latest": ["11:00 coalesced", "12:00 fired"],
            "all": ["11:00 fired", "12:00 fired"],
            "none": ["11:00 missed", "12:00 missed"],
        }
        assert await told(scheduler, schedule) == ["08:00-10:00 3x outside_window", *inside[policy]]

    with_downtime(tmp_path, before, 5.5 * HOUR, after)


def test_a_year_of_minutes_is_accounted_for_in_few_rows(tmp_path: Path) -> None:
    async def before(scheduler: Scheduler) -> Schedule:
        return await new_schedule(scheduler)

    async def after(scheduler: Scheduler, schedule: Schedule) -> None:
        found = await ledger(scheduler, schedule)
        assert sum(one.count for one in found) == 365 * 24 * 60
        assert [one.reason for one in found[:2]] == [SkipReason.OUTSIDE_WINDOW, SkipReason.COALESCED]
        assert found[-1].outcome == "fired"
        assert len(found) == 2 + catch_up.MOST_ROWS + 1

    with_downtime(tmp_path, before, 365 * DAY, after)


def test_recovery_of_schedules_can_be_repeated(tmp_path: Path) -> None:
    async def before(scheduler: Scheduler) -> Schedule:
        return await new_schedule(scheduler, "0 * * * *")

    async def after(scheduler: Scheduler, schedule: Schedule) -> None:
        found = await ledger(scheduler, schedule)
        await testing.crash(scheduler)
        async with new_scheduler(tmp_path, seed=2) as third:
            assert await ledger(third, schedule) == found
            assert third.recovered.occurrences == 0

    with_downtime(tmp_path, before, 3.5 * HOUR, after)


def test_a_late_minute_is_on_time(tmp_path: Path) -> None:
    async def before(scheduler: Scheduler) -> Schedule:
        return await new_schedule(scheduler, "0 * * * *", catch_up="none")

    async def after(scheduler: Scheduler, schedule: Schedule) -> None:
        assert await told(scheduler, schedule) == ["08:00 fired"]

    with_downtime(tmp_path, before, HOUR + catch_up.GRACE_SECONDS - 1, after)


# The machine's clock.


@asynccontextmanager
async def scheduler_and_clock(directory: Path) -> AsyncIterator[tuple[Scheduler, testing.VirtualClock]]:
    """Runs a scheduler with an alarm that checks the clock once a minute, as in production."""
    clock = testing.VirtualClock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LoopAlarm, "LONGEST_WAIT", SchedulerAlarm.LONGEST_WAIT)
        async with running_scheduler(directory, clock=clock) as scheduler:
            yield scheduler, clock


@pytest.mark.parametrize(("policy", "fate"), [("latest", "fired"), ("none", "missed")])
async def test_a_laptop_that_slept_over_an_occurrence_has_missed_it(tmp_path: Path, policy: str, fate: str) -> None:
    async with scheduler_and_clock(tmp_path) as (scheduler, clock):
        schedule = await new_schedule(scheduler, "0 9 * * *", catch_up=policy)
        await passes(10 * MINUTE)

        # While the machine sleeps, the timers stand still and the wall clock continues.
        clock.jump(3 * HOUR)
        await passes(HOUR)

        assert await told(scheduler, schedule) == [f"09:00 {fate}"]


async def test_a_clock_set_forward_is_as_if_we_had_slept(tmp_path: Path) -> None:
    async with scheduler_and_clock(tmp_path) as (scheduler, clock):
        schedule = await new_schedule(scheduler, "*/10 * * * *")
        await passes(15 * MINUTE)

        clock.jump(35 * MINUTE)
        await passes(15 * MINUTE)

        fates = ["07:10 fired", "07:20 coalesced", "07:30 coalesced", "07:40 coalesced", "07:50 fired", "08:00 fired"]
        assert await told(scheduler, schedule) == fates


async def test_a_clock_set_back_fires_nothing_twice_and_goes_on(tmp_path: Path) -> None:
    async with scheduler_and_clock(tmp_path) as (scheduler, clock):
        schedule = await new_schedule(scheduler, "*/10 * * * *")
        await passes(35 * MINUTE)

        clock.jump(-20 * MINUTE)
        await passes(40 * MINUTE)

        fates = ["07:10 fired", "07:20 fired", "07:30 fired", "07:40 fired", "07:50 fired"]
        assert await told(scheduler, schedule) == fates


async def test_after_a_clock_was_set_back_a_schedule_goes_on_after_the_last_instant_that_fired(tmp_path: Path) -> None:
    async with scheduler_and_clock(tmp_path) as (scheduler, clock):
        schedule = await new_schedule(scheduler, "*/10 * * * *")
        await passes(25 * MINUTE)

        clock.jump(-HOUR)
        await passes(HOUR)
        before = await told(scheduler, schedule)
        assert (await fresh(scheduler, schedule)).next_trigger_at == at("07:30")
        await passes(6 * MINUTE)

        assert before == ["07:10 fired", "07:20 fired"]
        assert await told(scheduler, schedule) == [*before, "07:30 fired"]


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_what_has_not_fired_is_planned_by_the_corrected_clock(tmp_path: Path, is_restarted: bool) -> None:
    """It was planned for tomorrow, since its time had passed by a clock that was an hour ahead."""
    async with scheduler_and_clock(tmp_path) as (scheduler, clock):
        schedule = await new_schedule(scheduler, "30 6 * * *")
        await scheduler.schedules.change(schedule.schedule_id, name="renamed")
        await passes(5 * MINUTE)
        before = await fresh(scheduler, schedule)

        clock.jump(-HOUR)
        if is_restarted:
            await testing.crash(scheduler)
            scheduler = new_scheduler(tmp_path, seed=1, clock=clock)
            await scheduler.start()
        await passes(26 * MINUTE)

        assert before.next_trigger_at == at("2026-11-16 06:30")
        assert await told(scheduler, schedule) == ["06:30 fired"]
        await scheduler.stop()


def test_with_the_alarm_of_production_schedules_are_planned_again_when_the_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real time, cut into much shorter pieces than minutes; APScheduler sees the clock that was set, too."""
    monkeypatch.setattr(SchedulerAlarm, "LONGEST_WAIT", 0.02)
    began, hours = time.monotonic(), [0]

    class SetClock(SystemClock):
        def _wall(self) -> int:
            return testing.BEGINNING.after(self.monotonic() - began + hours[0] * HOUR)

    class Set(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(hours=hours[0])

    async def main() -> Instant | None:
        scheduler = Scheduler(f"sqlite:///{tmp_path}/nextslot.db", clock=SetClock())
        register_handlers(scheduler)
        async with scheduler:
            schedule = await new_schedule(scheduler, "0 * * * *")
            hours[0] = -1
            for _ in range(3000):
                if (await fresh(scheduler, schedule)).next_trigger_at != schedule.next_trigger_at:
                    break
                await asyncio.sleep(0.01)
            return (await fresh(scheduler, schedule)).next_trigger_at

    for module in ("apscheduler.schedulers.base", "nextslot.system.alarm_clock"):
        monkeypatch.setattr(f"{module}.datetime", Set)
    assert asyncio.run(main()) == at("07:00")


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_clock_that_was_far_ahead_stops_no_schedule(tmp_path: Path, is_restarted: bool) -> None:
    """What was made while the clock was wrong has no ledger yet, so nothing of it is done with."""
    async with scheduler_and_clock(tmp_path) as (scheduler, clock):
        clock.jump(365 * DAY)
        schedule = await new_schedule(scheduler, "0 * * * *")
        clock.jump(-365 * DAY)
        if is_restarted:
            await testing.crash(scheduler)
            scheduler = new_scheduler(tmp_path, seed=1, clock=clock)
            await scheduler.start()

        await passes(3 * HOUR)

        assert (await told(scheduler, schedule))[-1] == "10:00 fired"
        assert (await fresh(scheduler, schedule)).next_trigger_at == at("11:00")
        await scheduler.stop()


def test_a_zone_that_changed_its_rules_is_planned_again_at_the_next_start(tmp_path: Path) -> None:
    async def before(scheduler: Scheduler) -> Schedule:
        return await new_schedule(scheduler, "0 12 * * *", timezone="Europe/Berlin")

    async def after(scheduler: Scheduler, schedule: Schedule) -> None:
        await testing.crash(scheduler)
        # As if the zone had been an hour further west when the instant was worked out.
        database(tmp_path).execute(f"update schedules set next_trigger_at = {int(at('12:00'))}")
        async with new_scheduler(tmp_path, seed=2) as third:
            assert (await fresh(third, schedule)).next_trigger_at == at("11:00")

    with_downtime(tmp_path, before, 1, after)


async def test_a_schedule_keeps_to_the_wall_clock_of_its_zone(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        schedule = await new_schedule(scheduler, "30 2 * * *", timezone="Europe/Berlin", catch_up="all")
        await scheduler.pause()

        await passes(135 * DAY)

        instants = {one.instant for one in await ledger(scheduler, schedule)}
        assert {at("2027-03-27 01:30"), at("2027-03-28 01:00"), at("2027-03-29 00:30")} <= instants


# Overlap.


async def test_overlapping_jobs_are_allowed_unless_said_otherwise(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        schedule = await new_schedule(scheduler, job={"params": {"seconds": 150}})

        await passes(3 * MINUTE)

        assert await told(scheduler, schedule) == ["07:01 fired", "07:02 fired", "07:03 fired"]


async def test_overlap_skip_waits_for_the_previous_job(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        schedule = await new_schedule(scheduler, job={"params": {"seconds": 150}}, overlap="skip")

        await passes(5 * MINUTE)

        fates = ["07:01 fired", "07:02 overlap", "07:03 overlap", "07:04 fired", "07:05 overlap"]
        assert await told(scheduler, schedule) == fates


async def test_overlap_skip_waits_for_the_whole_chain(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        policy = {"max_attempts": 1, "base_delay_seconds": 90}
        job = {"job_type": "fail", "params": {}, "retry_policy": policy}
        schedule = await new_schedule(scheduler, job=job, overlap="skip")

        await passes(3 * MINUTE)

        assert await told(scheduler, schedule) == ["07:01 fired", "07:02 overlap", "07:03 fired"]


def test_catch_up_all_with_overlap_skip_makes_one_job(tmp_path: Path) -> None:
    async def before(scheduler: Scheduler) -> Schedule:
        return await new_schedule(scheduler, "0 * * * *", catch_up="all", overlap="skip")

    async def after(scheduler: Scheduler, schedule: Schedule) -> None:
        assert await told(scheduler, schedule) == ["08:00 fired", "09:00 overlap", "10:00 overlap"]

    with_downtime(tmp_path, before, 3.5 * HOUR, after)


# Changes.


async def test_times_while_disabled_are_one_row_for_the_whole_span(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        schedule = await new_schedule(scheduler, "*/10 * * * *")
        await passes(15 * MINUTE)
        await scheduler.schedules.change(schedule.schedule_id, enabled=False)

        await passes(HOUR)
        assert await told(scheduler, schedule) == ["07:10 fired", "07:20-08:10 6x disabled"]

        await scheduler.schedules.change(schedule.schedule_id, enabled=True)
        await passes(10 * MINUTE)
        assert await told(scheduler, schedule) == ["07:10 fired", "07:20-08:10 6x disabled", "08:20 fired"]


def test_times_while_disabled_are_accounted_for_after_a_restart_too(tmp_path: Path) -> None:
    async def before(scheduler: Scheduler) -> Schedule:
        schedule = await new_schedule(scheduler, "0 * * * *")
        return await scheduler.schedules.change(schedule.schedule_id, enabled=False)

    async def after(scheduler: Scheduler, schedule: Schedule) -> None:
        await scheduler.schedules.change(schedule.schedule_id, enabled=True)
        await passes(HOUR)
        assert await told(scheduler, schedule) == ["08:00-10:00 3x disabled", "11:00 fired"]

    with_downtime(tmp_path, before, 3.5 * HOUR, after)


@pytest.mark.parametrize("change", [{"cron_expression": "45 * * * *"}, {"timezone": "Asia/Kathmandu"}])
async def test_DEC_010_a_change_applies_to_the_next_occurrence(tmp_path: Path, change: Any) -> None:
    """Kathmandu is 5:45 ahead: its half hours are our quarters."""
    async with running_scheduler(tmp_path) as scheduler:
        schedule = await new_schedule(scheduler, "30 * * * *")
        await passes(40 * MINUTE)

        changed = await scheduler.schedules.change(schedule.schedule_id, **change)
        await passes(HOUR)

        assert changed.next_trigger_at == at("07:45")
        assert await told(scheduler, schedule) == ["07:30 fired", "07:45 fired"]
        assert (await fresh(scheduler, schedule)).next_trigger_at == at("08:45")


async def test_DEC_010_a_change_of_params_is_for_the_jobs_to_come(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        schedule = await new_schedule(scheduler, param_overrides={"a": 1})
        await passes(MINUTE)

        await scheduler.schedules.change(schedule.schedule_id, param_overrides={"a": 2}, name="renamed")
        await passes(MINUTE)

        assert [(job.params["a"], job.title) for job in await scheduler.queue()] == [(1, "it"), (2, "renamed")]


async def test_a_change_loses_nothing_that_was_due_before_it(tmp_path: Path) -> None:
    async with scheduler_and_clock(tmp_path) as (scheduler, clock):
        schedule = await new_schedule(scheduler, "0 * * * *")
        # The clock has gone on, and the alarm has not noticed yet.
        clock.jump(HOUR + 10)

        await scheduler.schedules.change(schedule.schedule_id, cron_expression="30 * * * *")

        assert await told(scheduler, schedule) == ["08:00 fired"]


async def test_a_wrong_change_changes_nothing(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        schedule = await new_schedule(scheduler)

        for change in ({"cron_expression": "x"}, {"timezone": "x"}, {"next_trigger_at": 1}, {"template_id": None}):
            with pytest.raises(Invalid):
                await scheduler.schedules.change(schedule.schedule_id, **change)
        with pytest.raises(NotFound):
            await scheduler.schedules.change("nobody", enabled=False)

        assert await fresh(scheduler, schedule) == schedule


# Deleting and archiving.


async def test_a_deleted_schedule_fires_no_more_and_its_ledger_stays(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        schedule = await new_schedule(scheduler, "0 * * * *")
        await passes(HOUR)

        deleted = await scheduler.schedules.delete(schedule.schedule_id)
        await passes(3 * HOUR)

        assert await told(scheduler, schedule) == ["08:00 fired"]
        assert (await scheduler.schedules.page()).items == ()
        assert deleted.deleted_at is not None
        assert await fresh(scheduler, schedule) == deleted
        for use in (scheduler.schedules.trigger, scheduler.schedules.delete, scheduler.schedules.change):
            with pytest.raises(NotFound):
                await use(schedule.schedule_id)


async def test_an_archived_template_disables_its_schedules(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        schedule, other = await new_schedule(scheduler, "0 * * * *"), await new_schedule(scheduler, "0 * * * *")
        await passes(HOUR)

        await scheduler.templates.archive(schedule.template_id)
        await passes(HOUR)

        found = await fresh(scheduler, schedule)
        assert (found.enabled, found.next_trigger_at) == (False, None)
        assert await told(scheduler, schedule) == ["08:00 fired", "09:00 disabled"]
        assert await told(scheduler, other) == ["08:00 fired", "09:00 fired"]
        with pytest.raises(Conflict, match="archived"):
            await scheduler.schedules.change(schedule.schedule_id, enabled=True)
        with pytest.raises(Conflict, match="archived"):
            await scheduler.schedules.trigger(schedule.schedule_id)


async def test_a_disabled_schedule_gets_another_template_and_goes_on(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        schedule, other = await new_schedule(scheduler, "0 * * * *"), await new_schedule(scheduler, enabled=False)
        await scheduler.templates.archive(schedule.template_id)

        await scheduler.schedules.change(schedule.schedule_id, template_id=other.template_id, enabled=True)
        await passes(HOUR)

        assert await told(scheduler, schedule) == ["08:00 fired"]


# A job that cannot be made.


async def test_a_schedule_whose_job_could_not_be_made_today_can_be_renamed_planned_anew_and_disabled(
    tmp_path: Path,
) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("closing")
        schedule = await new_schedule(scheduler, office_id="closing")
        await scheduler.offices.change("closing", status="archived")

        changed = await scheduler.schedules.change(
            schedule.schedule_id, name="other", cron_expression="@daily", enabled=False
        )

        assert (changed.name, changed.enabled) == ("other", False)
        with pytest.raises(Invalid, match="archived"):
            await scheduler.schedules.change(schedule.schedule_id, priority=5)


async def test_a_job_that_cannot_be_made_is_told_and_holds_up_no_other(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("strict")
        async def strict(run: Any, a: int) -> None: ...

        broken = await new_schedule(scheduler, job={"job_type": "strict", "params": {"a": 1}}, overlap="skip")
        sound = await new_schedule(scheduler)
        await scheduler.templates.change(broken.template_id, params={})

        await passes(MINUTE)

        [refused] = await ledger(scheduler, broken)
        assert (refused.outcome, refused.reason, refused.job_id) == ("skipped", SkipReason.REFUSED, None)
        assert '"a" is missing' in (refused.detail or "")
        [event] = [one for one in await history(scheduler) if one.type == "schedule_skipped"]
        assert event.details == {
            "schedule_id": broken.schedule_id, "reason": "refused", "instant": str(refused.instant), "until": None,
            "count": 1, "detail": refused.detail,
        }  # fmt: skip
        assert (await fresh(scheduler, broken)).last_triggered_at is None
        assert await told(scheduler, sound) == ["07:01 fired"]


async def test_a_type_that_has_gone_makes_no_jobs_and_every_occurrence_says_so(tmp_path: Path) -> None:
    first = new_scheduler(tmp_path)
    first.job_type("gone")(lambda run: None)
    async with first:
        schedule = await new_schedule(
            first, "0 * * * *", {"job_type": "gone", "params": {}}, catch_up="all", overlap="skip"
        )
    await passes(2 * HOUR + 1)

    async with new_scheduler(tmp_path, seed=1) as second:
        assert await told(second, schedule) == ["08:00 refused", "09:00 refused"]
        assert "there is no job type 'gone'" in ((await ledger(second, schedule))[0].detail or "")


@pytest.mark.parametrize("job", [{"job_type": "skip"}, {"job_type": None, "jobs": [{"job_type": "skip"}]}])
async def test_a_type_that_the_office_may_no_longer_make_is_skipped_and_told_and_holds_up_no_other(
    tmp_path: Path, job: dict[str, Any]
) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        denied = await new_schedule(scheduler, job={"params": {}, **job})
        allowed = await new_schedule(scheduler)
        await scheduler.offices.grant("default", job_types=["work"])

        await passes(MINUTE)

        [refused] = await ledger(scheduler, denied)
        assert (refused.outcome, refused.reason, refused.job_id) == ("skipped", SkipReason.REFUSED, None)
        assert refused.detail == "the office 'default' may not make jobs of the type 'skip', only work"
        [event] = [one for one in await history(scheduler) if one.type == "schedule_skipped"]
        assert (event.details or {})["detail"] == refused.detail
        assert await told(scheduler, allowed) == ["07:01 fired"]

        await scheduler.offices.grant("default", job_types=None)
        await passes(MINUTE)
        assert await told(scheduler, denied) == ["07:01 refused", "07:02 fired"]


async def test_occurrences_missed_before_a_grant_make_no_jobs_of_a_type_that_it_leaves_out(tmp_path: Path) -> None:
    async with new_scheduler(tmp_path) as first:
        schedule = await new_schedule(first, "0 * * * *", {"job_type": "skip", "params": {}}, catch_up="all")
        await first.offices.grant("default", job_types=["work"])
    await passes(2 * HOUR + 1)

    async with new_scheduler(tmp_path, seed=1) as second:
        assert await told(second, schedule) == ["08:00 refused", "09:00 refused"]
        [event] = [one for one in await history(second) if one.type == "schedule_skipped"]
        assert (event.details or {})["count"] == 2


async def test_an_archived_office_gets_no_jobs(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("closing")
        schedule = await new_schedule(scheduler, office_id="closing")
        await scheduler.offices.change("closing", status="archived")

        await passes(MINUTE)

        assert await told(scheduler, schedule) == ["07:01 refused"]


def test_a_schedule_whose_zone_has_gone_is_disabled_and_holds_up_no_other(tmp_path: Path) -> None:
    async def before(scheduler: Scheduler) -> Schedule:
        sound = await new_schedule(scheduler, "0 * * * *", name="sound")
        await new_schedule(scheduler, "0 * * * *", name="lost", timezone="Europe/Berlin")
        await testing.crash(scheduler)
        database(tmp_path).execute("update schedules set timezone = 'Atlantis/Capital' where name = 'lost'")
        return sound

    async def after(scheduler: Scheduler, schedule: Schedule) -> None:
        assert await told(scheduler, schedule) == ["08:00 fired"]
        [lost] = [one for one in (await scheduler.schedules.page()).items if one.name == "lost"]
        assert (lost.enabled, lost.next_trigger_at) == (False, None)

    with_downtime(tmp_path, before, 1.5 * HOUR, after)


# By hand, and looking ahead.


async def test_a_trigger_by_hand_is_no_occurrence(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        schedule = await new_schedule(
            scheduler, "0 * * * *", {"params": {"a": 1}}, param_overrides={"b": 1}, overlap="skip"
        )

        job = await scheduler.schedules.trigger(schedule.schedule_id, params={"b": 2}, priority=9)

        assert isinstance(job, Job)
        assert (job.params, job.priority, job.schedule_id) == ({"a": 1, "b": 2}, 9, schedule.schedule_id)
        assert (await scheduler.wait(job.job_id)).status == "COMPLETED"
        assert await ledger(scheduler, schedule) == []
        found = await fresh(scheduler, schedule)
        assert (found.last_triggered_at, found.next_trigger_at) == (at("07:00"), at("08:00"))


async def test_a_disabled_schedule_can_be_triggered_by_hand(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        schedule = await new_schedule(scheduler, enabled=False)

        job = await scheduler.schedules.trigger(schedule.schedule_id)

        assert isinstance(job, Job)
        assert (await scheduler.wait(job.job_id)).status == "COMPLETED"
        with pytest.raises(Invalid) as refused:
            await scheduler.schedules.trigger(schedule.schedule_id, params={"seconds": "x"})
        assert [problem.field for problem in refused.value.problems] == ["params.seconds"]


async def test_a_trigger_by_hand_while_disabled_leaves_no_gap_in_the_ledger(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        schedule = await new_schedule(scheduler, "*/10 * * * *", enabled=False)
        await passes(25 * MINUTE)

        await scheduler.schedules.trigger(schedule.schedule_id)

        await scheduler.schedules.change(schedule.schedule_id, enabled=True)
        assert await told(scheduler, schedule) == ["07:10-07:20 2x disabled"]


@pytest.mark.parametrize("enabled", [True, False])
async def test_upcoming_shows_what_is_to_come_and_fires_nothing(tmp_path: Path, enabled: bool) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        schedule = await new_schedule(scheduler, "30 2 * * *", timezone="Europe/Berlin", enabled=enabled)

        soon = await scheduler.schedules.upcoming(schedule.schedule_id, count=2)
        later = await scheduler.schedules.upcoming(schedule.schedule_id, 1, datetime(2027, 3, 27, 12, tzinfo=UTC))

        assert [json_form.upcoming(one) for one in (*soon, *later)] == [
            {"utc": "2026-11-16T01:30:00.000000Z", "local": "2026-11-16T02:30:00+01:00"},
            {"utc": "2026-11-17T01:30:00.000000Z", "local": "2026-11-17T02:30:00+01:00"},
            {"utc": "2027-03-28T01:00:00.000000Z", "local": "2027-03-28T03:00:00+02:00"},
        ]
        assert await fresh(scheduler, schedule) == schedule
        with pytest.raises(Invalid, match="limit"):
            await scheduler.schedules.upcoming(schedule.schedule_id, count=0)


# Lists and forms.


async def test_schedules_are_listed_by_pages_the_newest_first(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("research")
        made = [await new_schedule(scheduler, name=str(n), office_id=("default", "research")[n % 2]) for n in range(5)]

        first = await scheduler.schedules.page(limit=3)
        rest = await scheduler.schedules.page(cursor=first.next_cursor, limit=3)

        assert [one.name for one in (*first.items, *rest.items)] == ["4", "3", "2", "1", "0"]
        assert [one.name for one in (await scheduler.schedules.page(office_id="research")).items] == ["3", "1"]
        of_one = await scheduler.schedules.page(template_id=made[2].template_id)
        assert [one.name for one in of_one.items] == ["2"]


async def test_the_ledger_is_listed_by_pages_the_newest_first(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        schedule = await new_schedule(scheduler)
        await passes(5 * MINUTE)

        first = await scheduler.schedules.occurrences_page(schedule.schedule_id, limit=3)
        rest = await scheduler.schedules.occurrences_page(schedule.schedule_id, 3, first.next_cursor)

        shown = [one.to_dict()["instant"][11:16] for one in (*first.items, *rest.items)]
        assert shown == ["07:05", "07:04", "07:03", "07:02", "07:01"]
        assert rest.next_cursor is None
        with pytest.raises(Invalid, match="cursor"):
            await scheduler.schedules.occurrences_page(schedule.schedule_id, cursor="soon")
        with pytest.raises(NotFound):
            await scheduler.schedules.occurrences_page("nobody")


async def test_a_schedule_is_shown_with_its_cron_in_words(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        schedule = await new_schedule(scheduler, "30 6 * * 1-5")

        shown = json_form.schedule(schedule)

        assert shown["cron_words"] == "At 06:30 on Monday through Friday"
        assert (shown["next_trigger_at"], shown["last_triggered_at"]) == ("2026-11-16T06:30:00.000000Z", None)


# A year.

EXAMPLES = int(os.environ.get("NEXTSLOT_EXAMPLES", "8"))
PLAN_NAMES = ["0 */6 * * *", "30 2 * * *", "0 12 * * 1-5", "15 3 1,15 * *", "*/30 2 * * *", "0 0 13 * 5"]
ZONE_NAMES = ["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/Havana", "Asia/Kathmandu"]
PLANS, ZONES = st.sampled_from(PLAN_NAMES), st.sampled_from(ZONE_NAMES)
STEPS = st.one_of(
    st.tuples(st.just("runs"), st.floats(0, 4 * DAY)),
    st.tuples(st.just("crashes"), st.floats(0, 60 * DAY)),
    st.tuples(st.just("sleeps"), st.floats(0, 20 * DAY)),
    st.tuples(st.just("change"), st.fixed_dictionaries({"cron_expression": PLANS, "timezone": ZONES})),
    st.tuples(st.just("change"), st.fixed_dictionaries({"enabled": st.booleans()})),
    st.tuples(st.just("change"), st.fixed_dictionaries({"catch_up": st.sampled_from(["latest", "all", "none"])})),
    st.tuples(st.just("change"), st.fixed_dictionaries({"overlap": st.sampled_from(["allow", "skip"])})),
    st.tuples(st.just("change"), st.fixed_dictionaries({"catch_up_window_seconds": st.floats(0, 30 * DAY)})),
)


@pytest.mark.sqlite_only("each example has a database of its own")
@given(st.lists(STEPS, min_size=8, max_size=16))
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_over_a_year_every_occurrence_is_in_the_ledger_once_with_a_job_or_a_reason(steps: list[Any]) -> None:
    with TemporaryDirectory() as directory:
        testing.run(a_year(Path(directory), steps))


async def a_year(directory: Path, steps: list[tuple[str, Any]]) -> None:
    clock = testing.VirtualClock()
    scheduler = new_scheduler(directory, clock=clock, synchronous="NORMAL")
    await scheduler.start()
    schedule = await new_schedule(scheduler, "0 */6 * * *", timezone="Europe/Berlin")
    expected: list[Instant] = []
    for number, (step, value) in enumerate([*steps, ("runs", DAY), ("change", {"name": "the end"})], start=1):
        if step == "runs":
            await passes(value)
        elif step == "sleeps":
            clock.jump(value)
            await passes(2 * HOUR)
        elif step == "crashes":
            await testing.crash(scheduler)
            await asyncio.sleep(value)
            scheduler = new_scheduler(directory, seed=number, clock=clock, synchronous="NORMAL")
            await scheduler.start()
        else:
            before, schedule = schedule, await scheduler.schedules.change(schedule.schedule_id, **value)
            plan = parse(before.cron_expression, before.timezone)
            expected += plan.between(before.accounted_until, schedule.accounted_until)
    assert await accounted(scheduler, schedule) == expected
    await scheduler.stop()


async def accounted(scheduler: Scheduler, schedule: Schedule) -> list[Instant]:
    """Yields every stored instant in order; of a span, those of the expression that applied at that time."""
    found: list[Instant] = []
    for one in await ledger(scheduler, schedule):
        if one.outcome == "fired":
            assert (await scheduler.job(one.job_id or "")).scheduled_for == one.instant
        else:
            assert one.reason is not None
        found += [one.instant] if one.until is None else inside(one)
    return found


def inside(span: Occurrence) -> list[Instant]:
    """Returns the instants of a span by the expression that has that many instants from its first to its last."""
    assert span.until is not None
    for expression in PLAN_NAMES:
        for zone in ZONE_NAMES:
            instants = parse(expression, zone).between(Instant(span.instant - 1), span.until)
            if len(instants) == span.count and (instants[0], instants[-1]) == (span.instant, span.until):
                return instants
    raise AssertionError(f"no plan has these: {span}")


# Names.


async def test_a_name_is_given_once_in_its_office_until_its_schedule_is_deleted(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        first, other = await new_schedule(scheduler, name="nightly"), await new_schedule(scheduler, name="other")

        with pytest.raises(Conflict, match="is named 'nightly'"):
            await new_schedule(scheduler, name="nightly")
        with pytest.raises(Conflict, match="is named 'nightly'"):
            await scheduler.schedules.change(other.schedule_id, name="nightly")

        await scheduler.schedules.delete(first.schedule_id)
        assert (await new_schedule(scheduler, name="nightly")).schedule_id != first.schedule_id


async def test_a_schedule_that_is_put_by_its_name_is_created_then_made_what_the_fields_say(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        template = await scheduler.templates.create(name="t", job_type="work")
        asked: Any = {"template_id": template.template_id, "cron_expression": "0 6 * * *"}

        made, is_new = await scheduler.schedules.put("nightly", **asked, priority=5, overlap="skip")
        await scheduler.schedules.change(made.schedule_id, enabled=False)
        again, is_new_again = await scheduler.schedules.put("nightly", **asked, timezone="Europe/Berlin")

        assert (is_new, is_new_again) == (True, False)
        assert again.schedule_id == made.schedule_id
        assert (again.priority, again.overlap, again.timezone) == (None, "allow", "Europe/Berlin")
        # The user who disabled it decides when it continues, not a new deployment.
        assert (again.enabled, again.next_trigger_at) == (False, None)
        with pytest.raises(Invalid, match="template_id"):
            await scheduler.schedules.put("nightly", "nobody", cron_expression="0 6 * * *")


async def test_of_two_who_put_one_name_at_once_the_second_changes_what_the_first_has_made(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        template = await scheduler.templates.create(name="t", job_type="work")
        asked: Any = {"template_id": template.template_id, "cron_expression": "@daily"}

        both = await asyncio.gather(*(scheduler.schedules.put("nightly", **asked) for _ in range(2)))

        assert sorted(is_new for _, is_new in both) == [False, True]
        assert len((await scheduler.schedules.page()).items) == 1


async def test_a_full_queue_skips_the_occurrences_of_its_office_and_no_others(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("closing")
        await scheduler.pause()
        full = [await new_schedule(scheduler, office_id="closing", name=f"s{number}") for number in range(3)]
        other = await new_schedule(scheduler)
        await scheduler.offices.grant("closing", queued_jobs=2)

        await passes(MINUTE)

        assert [await told(scheduler, one) for one in full] == [["07:01 fired"], ["07:01 fired"], ["07:01 refused"]]
        [refused] = await ledger(scheduler, full[2])
        assert refused.detail == "the office 'closing' may have 2 jobs that have not ended"
        assert await told(scheduler, other) == ["07:01 fired"]

        await passes(MINUTE)
        assert await told(scheduler, full[0]) == ["07:01 fired", "07:02 refused"]
        assert await told(scheduler, other) == ["07:01 fired", "07:02 fired"]

        await scheduler.offices.grant("closing", queued_jobs=None)
        await passes(MINUTE)
        assert await told(scheduler, full[2]) == ["07:01 refused", "07:02 refused", "07:03 fired"]


async def test_a_group_for_which_the_queue_has_no_room_is_skipped_as_a_whole(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        three = await new_schedule(scheduler, job={"job_type": None, "params": {}, "jobs": [{"job_type": "skip"}] * 3})
        await scheduler.offices.grant("default", queued_jobs=2)

        await passes(MINUTE)

        assert await told(scheduler, three) == ["07:01 refused"]
        assert (await scheduler.lists.jobs()).items == ()


async def test_an_occurrence_that_would_be_one_combination_too_many_is_skipped(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        fired = [
            await new_schedule(
                scheduler, name=f"s{number}", job={"job_type": "skip", "params": {}, "resources": needed}
            )
            for number, needed in enumerate([["gpu"], ["gpu"], ["disk"]])
        ]
        await scheduler.offices.grant("default", lanes=1)

        await passes(2 * MINUTE)

        assert [await told(scheduler, one) for one in fired] == [
            ["07:01 fired", "07:02 fired"],
            ["07:01 fired", "07:02 fired"],
            ["07:01 refused", "07:02 refused"],
        ]
        assert (await ledger(scheduler, fired[2]))[0].detail == (
            "the office 'default' may have 1 different combinations of job type and resources"
        )


async def test_an_office_with_too_many_bytes_of_files_fires_nothing(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        scheduler.job_types.add("leave", lambda run: (run.artifacts / "film.bin").write_bytes(b"x" * 5000))
        job = await scheduler.submit("leave")
        await scheduler.wait(job.job_id)
        schedule = await new_schedule(scheduler)
        await scheduler.offices.grant("default", stored_bytes=1000)

        await passes(MINUTE)

        assert await told(scheduler, schedule) == ["07:01 refused"]
        assert "may have 1,000 bytes of logs and artifacts" in ((await ledger(scheduler, schedule))[0].detail or "")
