"""Spec 19: rollups say what history says, minute by minute, and a series of them costs what its range costs."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nextslot import Limits, NewJob, Scheduler, testing
from nextslot.domain import Series
from nextslot.domain.rollups import DAY, HOUR, MAX_ERROR, MINUTE, SECOND, SERIES_STEPS, floor
from nextslot.engine.retention import Keep
from nextslot.errors import Invalid, NextslotError, NotFound
from nextslot.store.maintenance import doctor
from nextslot.system.instant import Instant
from nextslot.testing import BEGINNING, VirtualClock
from tests import databases
from tests.support import IS_ALL, Steps, database, new_scheduler, running_scheduler

ONCE = {"max_attempts": 0}
EXAMPLES = 30 if IS_ALL else 10


class Stored(NamedTuple):
    """What history has of a job."""

    office_id: str
    job_type: str
    status: str
    free_at: int
    created_at: int
    started_at: int | None
    finished_at: int | None

    @property
    def left_at(self) -> int | None:
        """Returns when a job left the queue."""
        return self.started_at or self.finished_at


def stored_jobs(directory: Path) -> list[Stored]:
    with closing(database(directory)) as connection:
        rows = connection.execute(
            "select office_id, job_type, case when stage = 'CANCELLED' then stage else coalesce(outcome, 'OPEN') end, "
            "queued_at, scheduled_for, created_at, case when worker_id is null then null else started_at end, "
            "finished_at from jobs"
        ).fetchall()
    return [
        Stored(office_id, job_type, status, max(queued_at, scheduled_for or 0), created_at, started_at, finished_at)
        for office_id, job_type, status, queued_at, scheduled_for, created_at, started_at, finished_at in rows
    ]


def brute_force(jobs: Iterable[Stored], series: Series, now: Instant, wanted: dict[str, str]) -> None:
    """Compares every point with what a look at every job says."""
    jobs = [one for one in jobs if all(getattr(one, name) == value for name, value in wanted.items())]
    for point in series.points:
        until = point.at + series.step * SECOND
        inside = [one for one in jobs if one.finished_at is not None and point.at <= one.finished_at < until]
        counts = Counter(one.status for one in inside)
        ran = [one for one in inside if one.started_at is not None]
        assert (point.completed, point.failed, point.skipped, point.cancelled) == (
            counts["COMPLETED"], counts["FAILED"], counts["SKIPPED"], counts["CANCELLED"]
        ), point  # fmt: skip
        waits = [max((one.started_at or 0) - one.free_at, 0) for one in ran]
        durations = [max((one.finished_at or 0) - (one.started_at or 0), 0) for one in ran]
        for found, times, fraction in (
            (point.wait_p50_seconds, waits, 50),
            (point.wait_p95_seconds, waits, 95),
            (point.duration_p50_seconds, durations, 50),
            (point.duration_p95_seconds, durations, 95),
        ):
            assert_near(found, times, fraction)
        moment = min(until, now + 1)
        depth = sum(one.created_at < moment and (one.left_at is None or one.left_at >= moment) for one in jobs)
        assert point.queue_depth == depth, point


def assert_near(found: float | None, times: list[int], percent: int) -> None:
    if not times:
        assert found is None
        return
    exact = sorted(times)[max(1, -(-len(times) * percent // 100)) - 1] / SECOND
    assert found is not None
    assert abs(found - exact) <= exact * MAX_ERROR + 1e-6


def now_of(scheduler: Scheduler) -> Instant:
    return scheduler._clock.now()


def findings(directory: Path) -> list[doctor.Finding]:
    from nextslot import offline_commands
    from nextslot.config import load

    return list(offline_commands.doctor(load(directory, overrides={"store.url": databases.url(directory)})).findings)


def rows_of(directory: Path, table: str) -> int:
    with closing(database(directory)) as connection:
        count: int = connection.execute(f"select count(*) from {table}").fetchall()[0][0]
    return count


# What is counted.


async def test_every_way_to_end_is_counted_by_its_status(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path, limits=Limits()) as scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=10)
        await scheduler.submit("work", {"seconds": 8})
        await scheduler.submit("fail", retry_policy={"max_attempts": 1, "base_delay_seconds": 5})
        await scheduler.submit("skip")
        stopped = await scheduler.submit("work", {"seconds": 100})
        waiting = await scheduler.submit("work", scheduled_for=now_of(scheduler).after(HOUR))
        await asyncio.sleep(20)
        await scheduler.cancel(stopped.job_id, interrupt=True)
        await scheduler.cancel(waiting.job_id)
        await asyncio.sleep(1)

        series = await scheduler.stats.series(step=60)

        point = series.points[-1]
        assert (point.completed, point.failed, point.skipped, point.cancelled) == (1, 2, 1, 2)
        assert point.queue_depth == 0
        brute_force(stored_jobs(tmp_path), series, now_of(scheduler), {})


async def test_wait_and_duration_are_those_of_jobs_that_started(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        for _ in range(3):
            await scheduler.submit("work", {"seconds": 10})
        await asyncio.sleep(40)

        point = (await scheduler.stats.series(step=60)).points[-1]

        assert point.completed == 3
        assert point.duration_p50_seconds == pytest.approx(10, rel=MAX_ERROR)
        assert point.wait_p50_seconds == pytest.approx(10, rel=MAX_ERROR)
        assert point.wait_p95_seconds == pytest.approx(20, rel=MAX_ERROR)


async def test_the_wait_of_a_scheduled_job_begins_at_its_time(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.submit("work", scheduled_for=now_of(scheduler).after(600))
        await asyncio.sleep(620)

        [point] = [one for one in (await scheduler.stats.series(step=60)).points if one.completed]

        assert (point.wait_p50_seconds or 0) < 1


async def test_the_total_has_the_quantiles_of_the_whole_range_and_not_those_of_a_step(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        for seconds in (1, 1, 1, 100):
            job = await scheduler.submit("work", {"seconds": seconds})
            await scheduler.wait(job.job_id)
            await asyncio.sleep(HOUR)

        series = await scheduler.stats.series(BEGINNING, step=HOUR)

        last = [point for point in series.points if point.completed][-1]
        assert last.duration_p50_seconds == pytest.approx(100, rel=0.07)
        assert series.total.completed == 4
        assert series.total.duration_p50_seconds == pytest.approx(1, rel=0.07)
        assert series.total.duration_p95_seconds == pytest.approx(100, rel=0.07)
        assert (series.total.at, series.total.queue_depth) == (series.points[0].at, 0)


async def test_direct_executions_are_a_series_of_their_own_without_a_queue(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.run_direct("work", {"seconds": 4})

        jobs, direct = await scheduler.stats.series(step=60), await scheduler.stats.series(step=60, kind="direct")

        assert [one.completed for one in jobs.points if one.completed] == []
        assert direct.points[-1].completed == 1
        assert direct.points[-1].duration_p50_seconds == pytest.approx(4, rel=MAX_ERROR)
        assert direct.points[-1].queue_depth is None


async def test_an_office_and_a_type_are_seen_alone(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("other")
        for office_id in ("default", "other", "other"):
            await scheduler.submit("work", office_id=office_id)
        await scheduler.submit("skip", office_id="other")
        await scheduler.submit("work", {"seconds": 1_000}, office_id="default")
        await scheduler.submit("work", {"seconds": 1_000}, office_id="default")
        await asyncio.sleep(30)

        filters: list[dict[str, Any]] = [{}, {"office_id": "other"}, {"job_type": "work"}]
        for wanted in filters:
            brute_force(
                stored_jobs(tmp_path), await scheduler.stats.series(step=60, **wanted), now_of(scheduler), wanted
            )
        series = await scheduler.stats.series(step=60, office_id="other", job_type="skip")
        assert sum(one.completed for one in series.points) == 0
        assert sum(one.skipped for one in series.points) == 1


# Against a look at every job.

STEPS = st.one_of(
    st.tuples(st.just("submit"), st.sampled_from(["work", "fail", "skip"]), st.integers(0, 400)),
    st.tuples(st.just("later"), st.just("work"), st.integers(1, 5_000)),
    st.tuples(st.just("cancel"), st.sampled_from(["all", "running"]), st.integers(0, 5)),
    st.tuples(st.just("passes"), st.just(""), st.one_of(st.integers(0, 300), st.integers(0, 4 * HOUR))),
    st.tuples(st.just("idles"), st.just(""), st.integers(HOUR, 3 * DAY)),
    st.tuples(st.just("crashes"), st.just(""), st.integers(0, 1_000)),
)


@pytest.mark.no_cover  # Measured, it takes three times as long.
@pytest.mark.sqlite_only("each example has a database of its own")
@given(st.lists(STEPS, min_size=5, max_size=25))
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_series_says_what_a_look_at_every_job_says(steps: list[tuple[str, str, int]]) -> None:
    with TemporaryDirectory() as directory:
        testing.run(played(Path(directory), steps))
        assert findings(Path(directory)) == []


async def played(directory: Path, steps: list[tuple[str, str, int]]) -> None:
    clock = VirtualClock()
    scheduler = new_scheduler(directory, clock=clock, synchronous="NORMAL")
    await scheduler.start()
    await scheduler.offices.create("other")
    for number, (step, what, value) in enumerate(steps, start=1):
        office_id = ("default", "other")[value % 2]
        if step == "submit":
            params = {"seconds": value} if what == "work" else {}
            await scheduler.submit(what, params, office_id=office_id, retry_policy={"max_attempts": value % 2})
        elif step == "later":
            await scheduler.submit("work", office_id=office_id, scheduled_for=now_of(scheduler).after(value))
        elif step == "cancel":
            for job in list(await scheduler.queue(office_id))[: value or 1]:
                await scheduler.cancel(job.job_id)
        elif step in ("passes", "idles"):
            await asyncio.sleep(value)
        else:
            await testing.crash(scheduler)
            await asyncio.sleep(value)
            scheduler = new_scheduler(directory, seed=number, clock=clock, synchronous="NORMAL")
            await scheduler.start()
    await check(scheduler, directory)
    await asyncio.sleep(4 * DAY)
    await scheduler.submit("work")
    await check(scheduler, directory)
    await scheduler.stop()


FILTERS: list[dict[str, Any]] = [{}, {"office_id": "other"}, {"job_type": "work", "office_id": "default"}]


async def check(scheduler: Scheduler, directory: Path) -> None:
    now, jobs = now_of(scheduler), stored_jobs(directory)
    for step in SERIES_STEPS:
        begin = max(now.after(-2 * DAY if step < HOUR else -30 * DAY), now.after(-990 * step))
        for wanted in FILTERS:
            series = await scheduler.stats.series(begin, None, step, **wanted)
            assert [one.at for one in series.points] == list(
                range(floor(begin, step), floor(now, step) + 1, step * SECOND)
            )
            brute_force(jobs, series, now, wanted)


# Rows stay few.


async def test_minutes_become_hours_and_hours_days_and_nothing_is_lost(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        for _ in range(3):
            for _ in range(90):
                await scheduler.submit("work", {"seconds": 5})
                await asyncio.sleep(60)
            await asyncio.sleep(60 * DAY)
        for _ in range(60):
            await scheduler.submit("work", {"seconds": 5})
            await asyncio.sleep(60)
        now = now_of(scheduler)

        days = await scheduler.stats.series(now.after(-250 * DAY), now, DAY)
        hours = await scheduler.stats.series(now.after(-40 * DAY), now, HOUR)

        assert sum(one.completed for one in days.points) == 3 * 90 + 60
        assert sum(one.completed for one in hours.points) == 60
        with closing(database(tmp_path)) as connection:
            steps = Counter(dict(connection.execute("select step, count(*) from rollups group by step").fetchall()))
        assert steps[MINUTE] <= 61
        assert steps[HOUR] <= 4
        assert steps[DAY] <= 4
        assert rows_of(tmp_path, "rollups_recent") <= 3
        assert rows_of(tmp_path, "queue_depths") < 200
    assert findings(tmp_path) == []


async def test_ends_that_are_alike_are_one_row(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path, limits=Limits()) as scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=100)
        await scheduler.submit_many([NewJob(job_type="work", params={"seconds": 1}) for _ in range(100)])
        await asyncio.sleep(2)

        assert rows_of(tmp_path, "rollups_recent") == 1
        assert (await scheduler.stats.series(step=60)).points[-1].completed == 100


async def test_an_idle_scheduler_writes_no_rollup(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.submit("work")
        await asyncio.sleep(90)
        before = scheduler._access.store.health.writes

        await asyncio.sleep(3 * HOUR)

        assert scheduler._access.store.health.writes == before


async def test_the_depth_of_a_minute_is_that_of_its_beginning_and_of_idle_ones_that_of_the_next(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        for _ in range(4):
            await scheduler.submit("work")
        await asyncio.sleep(30 * MINUTE)
        await scheduler.resume()
        await asyncio.sleep(10 * MINUTE)
        await scheduler.pause()
        await scheduler.submit("work")

        points = (await scheduler.stats.series(BEGINNING, step=60)).points

        assert [one.queue_depth for one in points] == [4] * 29 + [4] + [0] * 10 + [1]


# When things go wrong.


@pytest.mark.parametrize("jump", [-5 * HOUR, -400 * DAY, 3 * HOUR, 400 * DAY])
async def test_a_clock_that_steps_breaks_nothing_and_every_end_is_counted_where_history_has_it(
    tmp_path: Path, jump: int
) -> None:
    clock = VirtualClock()
    async with running_scheduler(tmp_path, clock=clock) as scheduler:
        for _ in range(3):
            await scheduler.submit("work", {"seconds": 100})
        await asyncio.sleep(130)
        clock.jump(jump)
        await asyncio.sleep(300)
        clock.jump(-jump)
        await scheduler.submit("work")
        await asyncio.sleep(300)

        now = now_of(scheduler)
        ended = [one for one in stored_jobs(tmp_path) if one.finished_at is not None]
        series = await scheduler.stats.series(now.after(-450 * DAY), now, DAY)
        counts = Counter(
            floor(one.finished_at or 0, DAY) for one in ended if (one.finished_at or 0) < floor(now, DAY) + DAY * SECOND
        )
        assert len(ended) == 4
        assert {one.at: one.completed for one in series.points if one.completed} == counts
    assert findings(tmp_path) == []


async def test_what_a_rolled_back_transaction_ended_is_not_counted(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", scheduled_for=now_of(scheduler).after(HOUR))

        def cancelled_and_refused(tx: Any) -> None:
            scheduler._runtime.finisher.cancel(tx, job.job_id, None, None, now_of(scheduler))
            raise Invalid("not this time")

        with pytest.raises(Invalid):
            await scheduler._access.store.write(cancelled_and_refused)
        await scheduler.cancel(job.job_id)

        assert [one.cancelled for one in (await scheduler.stats.series(step=60)).points if one.cancelled] == [1]
    assert findings(tmp_path) == []


async def test_purged_history_leaves_its_rollups_and_the_doctor_compares_what_is_left(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        for _ in range(6):
            await scheduler.submit("work")
            await asyncio.sleep(DAY)
        scheduler.retention.keep = Keep(jobs_days=3)

        purged = await scheduler.retention.purge()

        assert purged.jobs == 3
        series = await scheduler.stats.series(now_of(scheduler).after(-10 * DAY), step=DAY)
        assert sum(one.completed for one in series.points) == 6
    assert findings(tmp_path) == []


async def test_statistics_go_when_retention_says_so_and_the_series_says_from_when_it_counts(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        for _ in range(6):
            await scheduler.submit("work")
            await asyncio.sleep(DAY)
        scheduler.retention.keep = Keep(stats_days=3)
        would = await scheduler.retention.purge(dry_run=True)

        purged = await scheduler.retention.purge()

        begin = now_of(scheduler).after(-10 * DAY)
        series = await scheduler.stats.series(begin, step=DAY)
        assert would.stats == purged.stats > 0
        assert purged.jobs == 0
        assert sum(one.completed for one in series.points) == 3
        assert series.counted_from is not None
        assert [one.queue_depth is None for one in series.points] == [
            one.at + DAY * SECOND < series.counted_from for one in series.points
        ]
    assert findings(tmp_path) == []


async def test_the_doctor_finds_a_wrong_rollup_and_makes_them_again_from_history(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        for _ in range(3):
            await scheduler.submit("work", {"seconds": 5})
            await asyncio.sleep(3 * DAY)
        await scheduler.submit("work", {"seconds": 5})
        await asyncio.sleep(10)
        before = await scheduler.stats.series(BEGINNING, step=DAY)
    with closing(database(tmp_path)) as connection:
        connection.execute("update rollups set jobs = jobs + 1, waits = '{}'")
        connection.execute("delete from rollups_recent")

    found = findings(tmp_path)

    assert {one.check for one in found} == {"rollups.jobs"}
    assert "stores 2 ends, but 1 are counted" in found[0].problem
    repair(tmp_path)
    assert findings(tmp_path) == []
    async with running_scheduler(tmp_path) as scheduler:
        after = await scheduler.stats.series(BEGINNING, before.points[-1].at.after(DAY), step=DAY)
    assert after.points[: len(before.points)] == before.points


async def test_a_repair_counts_the_history_of_an_older_release(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.submit("work", {"seconds": 5})
        await asyncio.sleep(2 * DAY)
    with closing(database(tmp_path)) as connection:
        for table in ("rollups", "rollups_recent", "queue_depths"):
            connection.execute(f"delete from {table}")
        connection.execute("insert into rollup_bounds select 'written_from', max(finished_at) + 1 from jobs")
    assert findings(tmp_path) == []

    assert repair(tmp_path) == 1

    assert findings(tmp_path) == []
    async with running_scheduler(tmp_path) as scheduler:
        series = await scheduler.stats.series(BEGINNING, step=DAY)
        assert (sum(one.completed for one in series.points), series.counted_from) == (1, None)


def repair(directory: Path) -> int:
    from nextslot import offline_commands
    from nextslot.config import load

    return offline_commands.doctor(
        load(directory, overrides={"store.url": databases.url(directory)}), repair=True
    ).repaired


# What is asked for.


async def test_a_series_that_makes_no_sense_is_refused_with_a_sentence(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        now = now_of(scheduler)
        wrong: list[tuple[dict[str, Any], type[NextslotError], str]] = [
            ({"step": 7}, Invalid, "it must be one of 60, 300, 900, 3600, 86400 seconds"),
            ({"step": True}, Invalid, "it must be one of"),
            ({"from_": now.after(-HOUR), "to": now.after(-HOUR)}, Invalid, "it must be before `to`, and before now"),
            ({"from_": now.after(HOUR)}, Invalid, "it must be before `to`, and before now"),
            ({"from_": now.after(-DAY), "step": 60}, Invalid, "makes 1,441 points of this range; use a larger step"),
            (
                {"from_": now.after(-3 * DAY), "step": 300},
                Invalid,
                "only larger steps are stored; use 3600, or a later",
            ),
            (
                {"from_": now.after(-99 * DAY), "to": now.after(-95 * DAY)},
                Invalid,
                "use 86400",
            ),
            ({"from_": Instant(-(10**17)), "step": DAY}, Invalid, "it must not be before 1970"),
            ({"kind": "other"}, Invalid, "it must be one of job, direct"),
            ({"office_id": "nowhere"}, NotFound, "there is no office"),
        ]

        for asked, error, sentence in wrong:
            with pytest.raises(error, match=sentence):
                await scheduler.stats.series(**asked)


async def test_a_range_is_rounded_to_steps_and_ends_with_now(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await asyncio.sleep(100)

        series = await scheduler.stats.series(BEGINNING.after(30), BEGINNING.after(DAY), step=60)

        assert [one.at - BEGINNING for one in series.points] == [0, 60 * SECOND]
        assert len((await scheduler.stats.series(step=DAY)).points) == 31
        assert len((await scheduler.stats.series()).points) == 25


@pytest.mark.sqlite_only("counts the steps of its machine")
@pytest.mark.one_thread
async def test_a_series_costs_what_its_range_costs_and_not_what_history_has(tmp_path: Path) -> None:
    async def cost(scheduler: Scheduler) -> int:
        steps = Steps()
        steps.watch(scheduler._access.store._writer)  # type: ignore[attr-defined]
        await scheduler._access.store.write(lambda tx: read(tx, scheduler))
        return steps.taken

    def read(tx: Any, scheduler: Scheduler) -> None:
        from nextslot.services.stats import _range, _series

        now = now_of(scheduler)
        begin, until = _range(now.after(-3 * HOUR), now, 300, now)
        _series(tx, begin, until, 300, "", "", "job", now)

    async def hours(scheduler: Scheduler, count: int) -> None:
        for _ in range(count * 6):
            await scheduler.submit("work")
            await asyncio.sleep(600)

    async with running_scheduler(tmp_path) as scheduler:
        await hours(scheduler, 4)
        little = await cost(scheduler)
        await hours(scheduler, 90)
        much = await cost(scheduler)

        assert rows_of(tmp_path, "rollups") > 300
        assert much < little * 1.3
