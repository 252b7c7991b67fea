"""Spec 16: when a job will run. What is foreseen is compared with what then happens, on virtual time."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nextslot import (
    Job,
    Limits,
    NewJob,
    Scheduler,
    testing,
)
from nextslot.domain import Direct, Forecast
from nextslot.engine.forecast import forecast_simulator, queue_snapshot
from nextslot.errors import SlotBusy
from nextslot.system.instant import Instant
from tests.support import new_scheduler, running_scheduler

NOW = testing.BEGINNING
# Types with a constant length each, so that the past says exactly what will be.
LENGTHS = {"short": 7.0, "middle": 31.0, "long": 113.0}


# What is foreseen comes true.


async def test_one_after_the_other_each_starts_when_the_one_before_ends(tmp_path: Path) -> None:
    async with scheduler_with_past(tmp_path) as scheduler:
        jobs = await scheduler.submit_many([NewJob(job_type="middle")] * 5)
        await asyncio.sleep(10)

        made = await scheduler.forecast.queue()

        began = Instant(min(job.created_at for job in jobs))
        assert starts(made, jobs) == [began.after(31 * place) for place in range(5)]
        assert ends(made, jobs) == [began.after(31 * place) for place in range(1, 6)]


@pytest.mark.parametrize("seconds", [0, 40])
async def test_limits_resources_priorities_and_roles_are_respected(tmp_path: Path, seconds: float) -> None:
    async with scheduler_with_past(tmp_path, limits=Limits(running=4, resources={"gpu": 2})) as scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=3)
        await scheduler.offices.create("p", max_concurrent_jobs=2)
        wanted = [
            NewJob(job_type=job_type, office_id=office_id, role=role, resources=resources, priority=number % 3)
            for number, (job_type, office_id, role, resources) in enumerate(
                [
                    ("long", "o", "FE", {"gpu": 1}), ("short", "o", "FE", {}), ("middle", "p", None, {"gpu": 2}),
                    ("middle", "o", None, {"gpu": 1}), ("short", "p", "QA", {"gpu": 1}), ("long", "p", "QA", {}),
                    ("short", "o", None, {"disk": 1}), ("middle", "p", None, {"disk": 1}), ("long", "o", "BE", {}),
                ] * 4
            )
        ]  # fmt: skip
        jobs = await scheduler.submit_many(wanted)

        await asyncio.sleep(seconds)

        await assert_comes_true(scheduler, jobs)


@pytest.mark.parametrize("seconds", [0, 40])
async def test_what_the_machine_can_run_at_once_is_respected_between_offices(tmp_path: Path, seconds: float) -> None:
    async with scheduler_with_past(tmp_path, limits=Limits(), node_running=2) as scheduler:
        for office_id in "op":
            await scheduler.offices.create(office_id, max_concurrent_jobs=0)
        wanted = [NewJob(job_type=job_type, office_id=office_id) for job_type in LENGTHS for office_id in "opop"]
        jobs = await scheduler.submit_many(wanted)
        await asyncio.sleep(seconds)

        await assert_comes_true(scheduler, jobs)


@pytest.mark.parametrize("seconds", [0, 40])
async def test_the_units_that_the_machine_has_are_respected(tmp_path: Path, seconds: float) -> None:
    async with scheduler_with_past(
        tmp_path, limits=Limits(resources={"gpu": 0}), node_resources={"gpu": 3}
    ) as scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=0)
        wanted = [NewJob(job_type=job_type, resources={"gpu": units}) for job_type in LENGTHS for units in (1, 2, 1)]
        jobs = await scheduler.submit_many(wanted)
        await asyncio.sleep(seconds)

        await assert_comes_true(scheduler, jobs)


async def test_dependents_groups_and_jobs_for_later_are_released_in_the_forecast_too(tmp_path: Path) -> None:
    async with scheduler_with_past(tmp_path) as scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=2)
        graph = await scheduler.submit_many(
            [
                NewJob(job_type="long", office_id="o", key="a"),
                NewJob(job_type="short", office_id="o", key="b", depends_on=["a"]),
                NewJob(job_type="short", office_id="o", depends_on=["a", "b"], priority=9),
                NewJob(job_type="middle", office_id="o", scheduled_for=NOW.after(1000)),
            ]
        )
        _, members = await scheduler.submit_group([NewJob(job_type="short", office_id="o")] * 4)
        _, side_by_side = await scheduler.submit_group([NewJob(job_type="short", office_id="o")] * 3, mode="parallel")

        await assert_comes_true(scheduler, [*graph, *members, *side_by_side])


async def test_the_turn_passes_over_a_cancelled_member_in_the_forecast_too(tmp_path: Path) -> None:
    async with scheduler_with_past(tmp_path) as scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=2)
        wanted = [NewJob(job_type="middle", office_id="o")] * 3
        _, (first, second, third) = await scheduler.submit_group(wanted, mode="sequential", on_failure="continue")
        await scheduler.cancel(second.job_id)

        await assert_comes_true(scheduler, [first, third])


async def test_a_direct_caller_goes_first_in_the_forecast_too_DEC_004(tmp_path: Path) -> None:
    async with scheduler_with_past(tmp_path) as scheduler:
        jobs = await scheduler.submit_many([NewJob(job_type="middle")] * 3)
        callers = [asyncio.create_task(scheduler.run_direct("short", direct_id=f"d{n}")) for n in range(2)]
        await testing.settled()

        made = await assert_comes_true(scheduler, jobs)

        ended = [await caller for caller in callers]
        expected = [made.jobs[one.run_id].expected_start for one in ended]
        assert expected == pytest.approx([one.started_at for one in ended], abs=1000)


async def test_a_caller_whose_work_runs_is_given_its_usual_time(tmp_path: Path) -> None:
    async with scheduler_with_past(tmp_path) as scheduler:
        caller = asyncio.create_task(scheduler.run_direct("long"))
        await asyncio.sleep(20)
        jobs = await scheduler.submit_many([NewJob(job_type="short")] * 2)

        await assert_comes_true(scheduler, jobs)

        assert (await caller).ran_seconds == LENGTHS["long"]


async def test_a_caller_without_patience_is_not_waited_for(tmp_path: Path) -> None:
    async with scheduler_with_past(tmp_path) as scheduler:
        jobs = await scheduler.submit_many([NewJob(job_type="middle")] * 2)
        asyncio.create_task(scheduler.run_direct("long", wait_timeout_seconds=5)).add_done_callback(
            lambda done: done.exception()
        )
        await testing.settled()

        await assert_comes_true(scheduler, jobs)


async def test_callers_whose_waits_end_before_are_forecast_as_if_they_stayed(tmp_path: Path) -> None:
    async with scheduler_with_past(tmp_path) as scheduler:
        now = scheduler._clock.now()
        callers = [
            asyncio.create_task(scheduler.run_direct("long", direct_id=f"d{n}", wait_timeout_seconds=wait))
            for n, wait in enumerate((300, 5, 5, 300))
        ]
        await testing.settled()

        made = await scheduler.forecast.queue()
        places = [(await scheduler.direct(f"d{n}")).run_id for n in range(4)]
        starts = [made.jobs[run_id].expected_start for run_id in places]
        further = await scheduler.expected_direct_start("long", wait_timeout_seconds=0)
        ended = await asyncio.gather(*callers, return_exceptions=True)

        length = LENGTHS["long"]
        # The last one foresees that those before it leave.
        assert starts == pytest.approx([now, now.after(length), now.after(2 * length), now.after(length)], abs=1000)
        assert further == pytest.approx(now.after(4 * length), abs=1000)
        assert [type(one) for one in ended] == [Direct, SlotBusy, SlotBusy, Direct]
        last = ended[3]
        assert isinstance(last, Direct)
        assert last.started_at == pytest.approx(starts[3], abs=1000)
        assert len((await scheduler.lists.direct()).items) == 4, "a forecast stores no caller"


async def test_a_starving_job_keeps_its_units_in_the_forecast_too(tmp_path: Path) -> None:
    async with scheduler_with_past(
        tmp_path, limits=Limits(resources={"gpu": 2}), starvation_after_seconds=60
    ) as scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=5)
        small = [NewJob(job_type="middle", office_id="o", resources={"gpu": 1})]
        big = [NewJob(job_type="short", office_id="o", resources={"gpu": 2})]
        jobs = await scheduler.submit_many([*small, *big, *small * 12])

        await assert_comes_true(scheduler, jobs)


async def test_a_job_that_expires_before_its_turn_is_not_foreseen_and_not_waited_for(tmp_path: Path) -> None:
    async with scheduler_with_past(tmp_path) as scheduler:
        long = await scheduler.submit("long")
        expiring = await scheduler.submit("middle", expires_at=scheduler._clock.now().after(50))
        last = await scheduler.submit("short")

        made = await assert_comes_true(scheduler, [long, last])

        assert expiring.job_id not in made.jobs


async def test_a_job_that_was_told_to_stop_frees_its_slot_and_not_its_dependents(tmp_path: Path) -> None:
    async with scheduler_with_past(tmp_path) as scheduler:
        scheduler.job_types.add("deaf", deaf)
        running = await scheduler.submit("deaf")
        dependent = await scheduler.submit("short", depends_on=[running.job_id])
        following = await scheduler.submit("short")
        await scheduler.cancel(running.job_id, interrupt=True)

        made = await scheduler.forecast.queue()

        assert dependent.job_id not in made.jobs
        assert starts(made, [following]) == [scheduler._clock.now().after(10)]


WORK = st.fixed_dictionaries(
    {
        "job_type": st.sampled_from(sorted(LENGTHS)),
        "office_id": st.sampled_from(["o", "p"]),
        "priority": st.integers(-1, 1),
        "role": st.sampled_from([None, "FE"]),
        "resources": st.sampled_from([{}, {}, {"gpu": 1}, {"gpu": 2}]),
        "after": st.sampled_from([None, None, None, 3, 57, 400]),
        "waits_for": st.lists(st.integers(0, 30), max_size=2),
    }
)


@pytest.mark.sqlite_only("a database for each of many examples; the tests above ask both")
@settings(max_examples=25, deadline=None)
@given(
    work=st.lists(WORK, min_size=1, max_size=25),
    slots=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    running=st.integers(0, 3),
    machine=st.tuples(st.integers(0, 3), st.sampled_from([{}, {}, {"gpu": 2}])),
    later=st.floats(0, 300),
    is_group=st.booleans(),
)
def test_whatever_is_queued_starts_when_it_was_foreseen(
    work: list[Any], slots: tuple[int, int], running: int, machine: tuple[int, Any], later: float, is_group: bool
) -> None:
    async def main() -> None:
        async with scheduler_with_past(
            Path(directory), limits=limits, starvation_after_seconds=100, **options
        ) as scheduler:
            for office_id, count in zip("op", slots, strict=True):
                await scheduler.offices.create(office_id, max_concurrent_jobs=count)
            jobs = await scheduler.submit_many(workload(work, scheduler._clock.now()))
            if is_group:
                _, members = await scheduler.submit_group([NewJob(job_type="middle", office_id="o")] * 4)
                jobs += members
            await asyncio.sleep(later)

            await assert_comes_true(scheduler, jobs)

    with tempfile.TemporaryDirectory() as directory:
        limits = Limits(running=running, resources={"gpu": 2 if not machine[1] else 0})
        options = {"node_running": machine[0], "node_resources": machine[1]}
        testing.run(main())


def workload(work: list[Any], now: Instant) -> list[NewJob]:
    """Submits the drawn jobs; a prerequisite is an earlier job of the same office."""
    made: list[NewJob] = []
    for number, drawn in enumerate(work):
        options = dict(drawn)
        after, waits_for = options.pop("after"), options.pop("waits_for")
        same = [str(other) for other in waits_for if other < number and work[other]["office_id"] == drawn["office_id"]]
        # Odd microseconds: what is due never meets what ends, of which the order would be open.
        due = None if after is None else now.after(after + 0.000_777 * (number + 1))
        made.append(NewJob(key=str(number), depends_on=list(dict.fromkeys(same)), scheduled_for=due, **options))
    return made


# What cannot be foreseen.


@pytest.mark.parametrize("scope", [{}, {"office_id": "default"}, {"job_type": "middle"}, {"resource": "gpu"}])
async def test_what_is_paused_has_no_expected_start_and_the_rest_has(tmp_path: Path, scope: dict[str, str]) -> None:
    async with scheduler_with_past(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        running = await scheduler.submit("long", resources=["gpu"])
        paused = await scheduler.submit("middle", resources=["gpu"])
        other = await scheduler.submit("short", office_id="o", scheduled_for=scheduler._clock.now().after(50))
        await scheduler.pause(**scope)

        made, elsewhere = await scheduler.forecast.queue(), await scheduler.forecast.queue("o")

        assert paused.job_id not in made.jobs
        assert ends(made, [running]) == [scheduler._clock.now().after(113)]
        assert (other.job_id in elsewhere.jobs) == (scope != {})


async def test_of_a_type_that_never_ran_the_start_is_foreseen_and_the_end_is_not(tmp_path: Path) -> None:
    async with scheduler_with_past(tmp_path) as scheduler:
        known = await scheduler.submit("middle")
        unknown = await scheduler.submit("work", {"seconds": 5})
        following = await scheduler.submit("short")

        made = await scheduler.forecast.queue()

        assert starts(made, [known, unknown]) == [scheduler._clock.now(), scheduler._clock.now().after(31)]
        assert made.jobs[unknown.job_id].expected_end is None
        assert made.jobs[following.job_id].confidence == "low"


async def test_a_job_beyond_the_first_thousand_is_foreseen_at_their_pace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_snapshot, "WINDOW", 20)

    async with scheduler_with_past(tmp_path) as scheduler:
        jobs = await scheduler.submit_many([NewJob(job_type="middle")] * 41)

        made = await scheduler.forecast.queue()
        why = await scheduler.forecast.why(jobs[-1].job_id)

        assert (made.is_whole, made.places) == (False, 20)
        assert jobs[-1].job_id not in made.jobs
        began = scheduler._clock.now()
        assert why.expected.expected_start == began.after(31 * 40)
        assert (why.expected.expected_end, why.expected.confidence) == (None, "low")


# From what it is known.


async def test_with_more_past_runs_confidence_grows(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        seen = []
        for past in (0, 1, 3, 10):
            while len(await scheduler.forecast._access.read(_completed)) < past:
                await scheduler.wait((await scheduler.submit("work", {"seconds": 5})).job_id)
            running, queued = await scheduler.submit_many([NewJob(job_type="work", params={"seconds": 5})] * 2)
            seen.append((await scheduler.forecast.why(queued.job_id)).expected.confidence.value)
            for job in (queued, running):
                await scheduler.cancel(job.job_id, interrupt=True)
            await testing.settled()

        assert seen == ["low", "low", "medium", "high"]


async def test_the_past_is_known_again_after_a_restart(tmp_path: Path) -> None:
    async with scheduler_with_past(tmp_path) as scheduler:
        await scheduler.pause()
        job = await scheduler.submit("middle")
        await testing.crash(scheduler)

        async with timed_scheduler(tmp_path, seed=1) as second:
            await second.resume()
            await asyncio.sleep(1)
            why = await second.forecast.why(job.job_id)

            assert why.expected.expected_end == second._clock.now().after(30)


async def test_the_past_of_direct_requests_is_known_again_after_a_restart(tmp_path: Path) -> None:
    scheduler = timed_scheduler(tmp_path)
    async with scheduler:
        for _ in range(3):
            await scheduler.run_direct("middle")
        await testing.crash(scheduler)

    async with timed_scheduler(tmp_path, seed=1) as second:
        caller = asyncio.create_task(second.run_direct("middle"))
        await asyncio.sleep(1)

        start = await second.expected_direct_start("middle", wait_timeout_seconds=0)

        assert start == second._clock.now().after(LENGTHS["middle"] - 1)
        await caller


async def test_a_stray_run_changes_little_and_what_is_usual_changes_with_time(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await run_each(scheduler, [5] * 20 + [5000])
        job = await scheduler.submit("work", {"seconds": 5})
        first = (await scheduler.forecast.why(job.job_id)).expected.expected_end
        assert first == job.created_at.after(5)

        await run_each(scheduler, [50] * 50)
        later = await scheduler.submit("work", {"seconds": 50})

        expected = (await scheduler.forecast.why(later.job_id)).expected.expected_end
        assert expected == later.created_at.after(50)


async def test_of_several_that_run_side_by_side_the_first_is_over_sooner_than_each_on_average(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        lengths = iter(range(10, 110, 10))

        @scheduler.job_type("any")
        async def any_length(run: Any) -> None:
            """Nothing in its parameters says how long it takes."""
            await asyncio.sleep(next(lengths, 55))

        for _ in range(10):
            await scheduler.wait((await scheduler.submit("any")).job_id)
        await scheduler.offices.create("o", max_concurrent_jobs=8)
        *_, queued = await scheduler.submit_many([NewJob(job_type="any", office_id="o")] * 9)

        first, again = [(await scheduler.forecast.why(queued.job_id)).expected for _ in range(2)]

        assert first.expected_start is not None
        assert first.expected_start < queued.created_at.after(40)
        assert first.expected_end is not None
        assert first.expected_end < queued.created_at.after(40 + 55), "and so is what follows it"
        assert first == again


async def test_reported_progress_moves_the_expected_end(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("telling")
        async def telling(run: Any) -> None:
            run.progress(0.5)
            await asyncio.sleep(100)

        job = await scheduler.submit("telling")
        await asyncio.sleep(40)

        why = await scheduler.forecast.why(job.job_id)

        assert why.expected.expected_end == scheduler._clock.now().after(40)


async def test_a_timeout_bounds_what_is_expected(tmp_path: Path) -> None:
    async with scheduler_with_past(tmp_path) as scheduler:
        running, queued = await scheduler.submit_many([NewJob(job_type="long", timeout_seconds=20)] * 2)

        made = await scheduler.forecast.queue()

        now = scheduler._clock.now()
        assert ends(made, [running, queued]) == [now.after(20), now.after(40)]


# What it costs.


async def test_a_forecast_writes_nothing(tmp_path: Path) -> None:
    async with scheduler_with_past(tmp_path) as scheduler:
        jobs = await scheduler.submit_many([NewJob(job_type="middle")] * 3)
        before = [await scheduler.job(job.job_id) for job in jobs]

        await scheduler.forecast.queue()
        await scheduler.forecast.why(jobs[2].job_id)

        assert [await scheduler.job(job.job_id) for job in jobs] == before


async def test_a_forecast_of_a_queue_that_changes_is_used_for_ten_times_as_long_as_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scheduler_with_past(tmp_path) as scheduler:
        slow = SlowThreads()
        monkeypatch.setattr(scheduler.forecast, "_threads", slow)
        made = [await scheduler.forecast.queue() for _ in range(3)]
        await scheduler.submit("short")
        await asyncio.sleep(1.9)
        made.append(await scheduler.forecast.queue())
        await asyncio.sleep(0.2)
        made.append(await scheduler.forecast.queue())

        assert [one is made[0] for one in made] == [True, True, True, True, False]
        assert slow.calls == 2


async def test_a_forecast_is_made_again_only_after_a_change_or_a_foreseen_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scheduler_with_past(tmp_path) as scheduler:
        slow = SlowThreads()
        monkeypatch.setattr(scheduler.forecast, "_threads", slow)
        await scheduler.submit_many([NewJob(job_type="middle")] * 2)

        async def calls_after(seconds: float) -> int:
            await asyncio.sleep(seconds)
            await scheduler.forecast.queue()
            return slow.calls

        assert [await calls_after(0), await calls_after(5), await calls_after(5)] == [1, 1, 1]
        await scheduler.pause()
        assert [await calls_after(5), await calls_after(5)] == [2, 2]
        await asyncio.sleep(10)  # The job that runs ends.
        assert await calls_after(1) == 3


async def test_reported_progress_makes_a_new_forecast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scheduler_with_past(tmp_path) as scheduler:
        progress: list[float] = [0.5]
        monkeypatch.setattr(scheduler.forecast, "_progress", lambda run_id: (progress[0], ""))
        await scheduler.submit("long")
        await asyncio.sleep(40)

        before = await scheduler.forecast.queue()
        progress[0] = 0.9

        assert await scheduler.forecast.queue() is not before


async def test_who_does_not_wait_gets_no_forecast_until_one_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scheduler_with_past(tmp_path) as scheduler:
        slow = SlowThreads()
        monkeypatch.setattr(scheduler.forecast, "_threads", slow)
        (_, job) = await scheduler.submit_many([NewJob(job_type="middle")] * 2)

        first = await scheduler.forecast.queue_within("default", 0)
        reasons = await scheduler.forecast.why(job.job_id, wait_seconds=0)
        await asyncio.sleep(0.3)
        second = await scheduler.forecast.queue_within("default", 0)

        assert first is None
        assert (reasons.reasons[0].code, reasons.expected.expected_start, reasons.forecast_at) == (
            "limit_full", None, None
        )  # fmt: skip
        assert second is not None
        assert (await scheduler.forecast.why(job.job_id, wait_seconds=0)).forecast_at == second.made_at
        assert slow.calls == 1


async def test_many_who_ask_at_once_share_one_forecast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scheduler_with_past(tmp_path) as scheduler:
        slow = SlowThreads()
        monkeypatch.setattr(scheduler.forecast, "_threads", slow)

        made = await asyncio.gather(*(scheduler.forecast.queue() for _ in range(10)))

        assert slow.calls == 1
        assert all(one is made[0] for one in made)


class SlowThreads:
    def __init__(self) -> None:
        self.calls = 0

    async def run(self, call: Any) -> Any:
        self.calls += 1
        await asyncio.sleep(0.2)
        return call()


# Arrangement.


def timed_scheduler(directory: Path, **options: Any) -> Scheduler:
    scheduler = new_scheduler(directory, **options)
    for name, seconds in LENGTHS.items():
        scheduler.job_types.add(name, timed(seconds))
    return scheduler


def timed(seconds: float) -> Any:
    async def handler(run: Any) -> None:
        await asyncio.sleep(seconds)

    return handler


async def deaf(run: Any) -> None:
    end = asyncio.get_running_loop().time() + 40
    while (left := end - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue


@asynccontextmanager
async def scheduler_with_past(directory: Path, **options: Any) -> AsyncIterator[Scheduler]:
    """Runs a scheduler that has one past run of each of the timed types."""
    async with timed_scheduler(directory, **options) as scheduler:
        for name in LENGTHS:
            await scheduler.wait((await scheduler.submit(name)).job_id)
        yield scheduler


@asynccontextmanager
async def scheduler_that_varies(directory: Path, lengths: Sequence[float]) -> AsyncIterator[Scheduler]:
    """Runs a scheduler with a past run of each length, which no parameter tells. Later runs are as long as the last."""
    scheduler = new_scheduler(directory)
    coming = list(lengths)

    @scheduler.job_type("varies")
    async def varies(run: Any) -> None:
        await asyncio.sleep(coming.pop(0) if len(coming) > 1 else coming[0])

    async with scheduler:
        for _ in lengths:
            await scheduler.wait(await scheduler.submit("varies"))
        yield scheduler


async def run_each(scheduler: Scheduler, lengths: list[int]) -> None:
    for seconds in lengths:
        await scheduler.wait((await scheduler.submit("work", {"seconds": seconds})).job_id)


async def assert_comes_true(scheduler: Scheduler, jobs: list[Job]) -> Forecast:
    """Checks that the current forecast for these jobs comes true, to the millisecond."""
    made: dict[str, Forecast] = {job.office_id: await scheduler.forecast.queue(job.office_id) for job in jobs}
    waiting = {job.job_id for job in jobs if not (await scheduler.job(job.job_id)).has_ended}
    await asyncio.sleep(100_000)
    happened = [await scheduler.job(job.job_id) for job in jobs if job.job_id in waiting]

    for job in happened:
        expected = made[job.office_id].jobs[job.job_id]
        assert expected.expected_start == pytest.approx(job.started_at, abs=1000), job
        assert expected.expected_end == pytest.approx(job.finished_at, abs=1000), job
    return made[jobs[0].office_id]


def starts(made: Forecast, jobs: list[Job]) -> list[Instant | None]:
    return [made.jobs[job.job_id].expected_start for job in jobs]


def ends(made: Forecast, jobs: list[Job]) -> list[Instant | None]:
    return [made.jobs[job.job_id].expected_end for job in jobs]


def _completed(tx: Any) -> list[Any]:
    from nextslot.store.tables import forecast_reads

    return forecast_reads.durations(tx, 1000)


# Schedules.


async def test_jobs_that_schedules_will_make_are_foreseen_and_not_listed(tmp_path: Path) -> None:
    async with scheduler_with_past(tmp_path) as scheduler:
        template = await scheduler.templates.create("report", job_type="middle", priority=5)
        await scheduler.schedules.create("often", template.template_id, "* * * * *")
        jobs = await scheduler.submit_many([NewJob(job_type="long")] * 4)
        await asyncio.sleep(5)

        made = await assert_comes_true(scheduler, jobs)

        assert made.jobs.keys() == {job.job_id for job in jobs}


async def test_a_schedule_of_another_office_that_shares_a_limit_is_foreseen(tmp_path: Path) -> None:
    async with scheduler_with_past(tmp_path, limits=Limits(resources={"gpu": 1})) as scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=0)
        template = await scheduler.templates.create("report", job_type="middle", resources={"gpu": 1}, office_id="o")
        await scheduler.schedules.create("often", template.template_id, "* * * * *", office_id="o")
        jobs = await scheduler.submit_many([NewJob(job_type="long", resources={"gpu": 1})] * 4)
        await asyncio.sleep(5)

        await assert_comes_true(scheduler, jobs)


async def test_an_occurrence_that_would_overlap_is_not_foreseen(tmp_path: Path) -> None:
    async with scheduler_with_past(tmp_path) as scheduler:
        template = await scheduler.templates.create("report", job_type="long", priority=5)
        await scheduler.schedules.create("often", template.template_id, "* * * * *", overlap="skip")
        jobs = await scheduler.submit_many([NewJob(job_type="middle")] * 4)
        await asyncio.sleep(5)

        await assert_comes_true(scheduler, jobs)


async def test_groups_of_schedules_are_foreseen(tmp_path: Path) -> None:
    async with scheduler_with_past(tmp_path) as scheduler:
        steps: list[Any] = [NewJob(job_type="short", key="a"), NewJob(job_type="middle", depends_on=["a"])]
        template = await scheduler.templates.create("steps", jobs=steps, priority=5)
        await scheduler.schedules.create("often", template.template_id, "*/3 * * * *")
        jobs = await scheduler.submit_many([NewJob(job_type="long")] * 4)
        await asyncio.sleep(5)

        await assert_comes_true(scheduler, jobs)


async def test_a_job_that_never_starts_does_not_make_a_forecast_follow_schedules_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast_simulator, "MOST_OF_SCHEDULES", 10)
    async with scheduler_with_past(tmp_path) as scheduler:
        template = await scheduler.templates.create("report", job_type="short")
        await scheduler.schedules.create("often", template.template_id, "* * * * *")
        await scheduler.pause(job_type="middle")
        [paused, later] = await scheduler.submit_many(
            [NewJob(job_type="middle"), NewJob(job_type="long", scheduled_for=NOW.after(10**6))]
        )

        made = await scheduler.forecast.queue()

        assert starts(made, [later]) == [later.scheduled_for]
        assert paused.job_id not in made.jobs


# Sizes.


async def test_durations_that_depend_on_a_parameter_are_foreseen_also_after_a_restart(tmp_path: Path) -> None:
    def sized(scheduler: Scheduler) -> None:
        @scheduler.job_type("sized")
        async def sized(run: Any, frames: int) -> None:
            await asyncio.sleep(frames / 10)

    scheduler = new_scheduler(tmp_path)
    sized(scheduler)
    async with scheduler:
        past = [NewJob(job_type="sized", params={"frames": frames}) for frames in range(100, 1100, 50)]
        for job in await scheduler.submit_many(past):
            await scheduler.wait(job.job_id)

    scheduler = new_scheduler(tmp_path)
    sized(scheduler)
    async with scheduler:
        wanted = [NewJob(job_type="sized", params={"frames": frames}) for frames in (800, 100, 3000, 400)]
        jobs = await scheduler.submit_many(wanted)
        await asyncio.sleep(1)

        made = await scheduler.forecast.queue()

        began = Instant(min(job.created_at for job in jobs))
        foreseen = [(one - began) / 1_000_000 for one in starts(made, jobs) if one is not None]
        assert foreseen == pytest.approx([0, 80, 90, 390], rel=0.05)


@pytest.mark.parametrize("frames", [1e12, 1e200, 1e308])
async def test_a_job_that_would_take_for_ever_leaves_the_forecast_of_the_others(tmp_path: Path, frames: float) -> None:
    scheduler = new_scheduler(tmp_path)

    @scheduler.job_type("sized")
    async def sized(run: Any, frames: float) -> None:
        await asyncio.sleep(min(frames**2 / 100, 1e6) if frames < 1e9 else 1e6)

    async with scheduler:
        for number in range(1, 13):
            await scheduler.wait(await scheduler.submit("sized", {"frames": number * 5.0}))
        wanted = [NewJob(job_type="sized", params={"frames": one}) for one in (10.0, 20.0, frames, 10.0)]
        jobs = await scheduler.submit_many(wanted)

        made = await scheduler.forecast.queue()

        third = made.jobs[jobs[2].job_id]
        assert [str(one) for one in starts(made, jobs[1:3]) if one is not None], "it can be shown"
        assert third.expected_start is not None
        assert third.expected_end is None or third.expected_end - third.expected_start <= 401 * 24 * 3600 * 1_000_000
        assert jobs[3].job_id not in made.jobs, "nothing is expected behind it"
        await scheduler.stop(grace_seconds=0)


async def test_durations_of_direct_requests_depend_on_their_parameters_too(tmp_path: Path) -> None:
    seconds = {"small": 10.0, "large": 300.0}
    scheduler = new_scheduler(tmp_path)

    @scheduler.job_type("model")
    async def model(run: Any, name: str) -> None:
        await asyncio.sleep(seconds[name])

    async with scheduler:
        for name in [*seconds] * 6:
            await scheduler.run_direct("model", {"name": name})
        names = ("large", "small", "large", "small")
        callers = [
            asyncio.create_task(
                scheduler.run_direct("model", {"name": name}, direct_id=f"d{n}", wait_timeout_seconds=1000)
            )
            for n, name in enumerate(names)
        ]
        await asyncio.sleep(1)

        made = await scheduler.forecast.queue()

        runs = [(await scheduler.direct(f"d{n}")).run_id for n in range(4)]
        ended = [await caller for caller in callers]
        started = [one.started_at for one in ended if one.started_at is not None]
        assert [made.jobs[run_id].expected_start for run_id in runs] == pytest.approx(started, abs=1000)
        assert [round((at - started[0]) / 1_000_000) for at in started] == [0, 300, 310, 610]


async def test_who_is_next_is_expected_when_half_of_such_runs_have_ended(tmp_path: Path) -> None:
    async with scheduler_that_varies(tmp_path, range(10, 100, 10)) as scheduler:
        running, following = await scheduler.submit_many([NewJob(job_type="varies")] * 2)

        made = await scheduler.forecast.queue()

        one = made.jobs[following.job_id]
        assert one.expected_start is not None
        assert round((one.expected_start - running.created_at) / 1_000_000) == 50


@pytest.mark.parametrize("age", [9.0, 9.9, 9.99, 9.999])
async def test_a_run_that_ends_in_a_moment_or_takes_long_has_an_interval_for_who_is_next(
    tmp_path: Path, age: float
) -> None:
    lengths = (10.0, 10.0, 100.0, 10.0, 10.0, 10.0, 10.0, 10.0, 100.0, 10.0, 10.0, 10.0)
    async with scheduler_that_varies(tmp_path, lengths) as scheduler:
        _, following = await scheduler.submit_many([NewJob(job_type="varies")] * 2)
        await asyncio.sleep(age)

        made = await scheduler.forecast.queue()

        one = made.jobs[following.job_id]
        assert one.earliest_start is not None
        assert one.expected_start is not None
        assert one.latest_start is not None
        assert one.earliest_start <= one.expected_start <= one.latest_start
        assert 20 < (one.latest_start - made.made_at) / 1_000_000 < 400, "such a run takes 90 seconds more"


async def test_a_start_has_an_interval_that_is_wider_the_less_is_known(tmp_path: Path) -> None:
    async with scheduler_with_past(tmp_path) as scheduler:
        jobs = await scheduler.submit_many([NewJob(job_type="middle")] * 3)
        await asyncio.sleep(1)

        made = await scheduler.forecast.queue()

        first, second, third = (made.jobs[job.job_id] for job in jobs)
        assert first.earliest_start is None
        for one in (second, third):
            assert one.earliest_start is not None
            assert one.expected_start is not None
            assert one.latest_start is not None
            assert made.made_at < one.earliest_start < one.expected_start < one.latest_start
        why = await scheduler.forecast.why(jobs[2].job_id)
        assert why.expected.latest_start == third.latest_start
