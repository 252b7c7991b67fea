"""Spec 14: the office API's words over the engine; every acceptance criterion of US-JS01 to US-JS06 by its name."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nextslot import (
    Fail,
    Limits,
    NewJob,
    Scheduler,
    testing,
)
from nextslot.domain import MAX_PRIORITY, Event, FailureKind
from nextslot.errors import (
    AlreadyDispatched,
    AlreadyFinished,
    Conflict,
    DependencyCycle,
    Invalid,
    NoHandler,
    NotFound,
)
from nextslot.extensions.offices import office_json
from nextslot.extensions.offices.office_jobs import STEP
from nextslot.extensions.offices.office_words import (
    Blocker,
    ExecutionStatus,
    OfficeConfig,
    OfficeJob,
    OfficeStats,
)
from tests.extensions.offices.support import (
    counted_scheduler,
    new_scheduler,
    office_jobs,
    running_scheduler,
)
from tests.support import (
    database,
    history,
    peaks,
    started_order,
    steps_of,
)

pytestmark = pytest.mark.virtual_time


MINUTE = 60


def item(description: str = "a job", **fields: Any) -> dict[str, Any]:
    """Makes a job of a request, of a type that takes a second unless its params say more; `failing` makes it fail
    retryably.
    """
    if fields.get("job_type") == "fail":
        fields["params"] = {"kind": "session_error", **fields.get("params", {})}
    return {"description": description, "job_type": "work", **fields}


def graph(**depends_on: str) -> list[dict[str, Any]]:
    """Makes jobs by their keys, each with the keys for which it waits, in one word: `c="ab"`."""
    return [item(key, key=key, depends_on=list(others)) for key, others in depends_on.items()]


async def statuses(scheduler: Scheduler, jobs: list[OfficeJob]) -> list[str]:
    return [(await office_jobs(scheduler).job(job.office_id, job.job_id)).status.value for job in jobs]


async def until_ended(scheduler: Scheduler, jobs: list[OfficeJob]) -> list[OfficeJob]:
    for job in jobs:
        await scheduler.wait(job.job_id)
    return [await office_jobs(scheduler).job(job.office_id, job.job_id) for job in jobs]


async def one(scheduler: Scheduler, **fields: Any) -> OfficeJob:
    """Submits a job of its own in the office `o`."""
    return (await office_jobs(scheduler).submit("o", [item(**fields)]))[0]


async def now(scheduler: Scheduler, job: OfficeJob) -> OfficeJob:
    return await office_jobs(scheduler).job(job.office_id, job.job_id)


async def told(scheduler: Scheduler, type: str) -> list[Event]:
    return [event for event in await history(scheduler) if event.type == type]


# US-JS01: dependencies.


async def test_US_JS01_AC1_a_job_without_dependencies_is_ready_when_it_is_created(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")

        job = await one(scheduler)

        assert (job.status, job.blocked_by, job.executions) == ("ready", (), ())
        assert (await now(scheduler, job)).status == "processing"


async def test_US_JS01_AC2_a_job_with_dependencies_is_ready_after_they_are_done(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=1)
        first, second = await office_jobs(scheduler).submit("o", graph(a="", b="a"))
        assert (second.status, second.blocked_by) == ("pending", (Blocker(job_id=first.job_id, status=first.status),))

        await scheduler.wait(first.job_id)
        await testing.settled()

        assert await statuses(scheduler, [first, second]) == ["done", "processing"]
        assert [event.job_id for event in await told(scheduler, "job_ready")] == [second.job_id]


@pytest.mark.one_thread("a job ends in the instant in which it is read")
async def test_US_JS01_AC3_a_job_is_ready_only_when_all_of_its_dependencies_are_done(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=0)
        jobs = graph(a="", b="", c="ab")
        jobs[1]["params"] = {"seconds": 5}
        a, b, c = await office_jobs(scheduler).submit("o", jobs)
        await asyncio.sleep(2)

        waiting = await now(scheduler, c)
        assert (waiting.status, [blocker.job_id for blocker in waiting.blocked_by]) == ("pending", [b.job_id])
        await asyncio.sleep(4)

        assert await statuses(scheduler, [a, b, c]) == ["done", "done", "processing"]


async def test_US_JS01_AC4_a_cycle_is_refused_with_the_jobs_that_form_it_and_nothing_is_stored(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")

        with pytest.raises(DependencyCycle) as refused:
            await office_jobs(scheduler).submit("o", graph(free="", a="c", b="a", c="b"))

        cycle = refused.value.cycle
        assert sorted(cycle) == ["a", "b", "c"]
        assert cycle == [{"a": "c", "b": "a", "c": "b"}[before] for before in [cycle[-1], *cycle[:-1]]]
        assert (await office_jobs(scheduler).jobs("o")).items == ()


async def test_a_job_may_wait_for_an_existing_one_and_not_for_one_of_another_office(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        await scheduler.offices.create("p")
        done, running = await one(scheduler), await one(scheduler, params={"seconds": 60})
        await scheduler.wait(done.job_id)

        job = await one(scheduler, depends_on=[done.job_id, running.job_id])

        assert job.depends_on == (done.job_id, running.job_id)
        assert [blocker.job_id for blocker in job.blocked_by] == [running.job_id]
        for foreign in (done.job_id, "nobody"):
            with pytest.raises(Invalid) as refused:
                await office_jobs(scheduler).submit("p", [item(depends_on=[foreign])])
            assert [problem.field for problem in refused.value.problems] == ["jobs.0.depends_on"]


async def test_what_waits_for_a_failed_job_says_so_and_goes_on_when_a_retry_by_hand_succeeds(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o", retry_policy={"max_attempts": 0})
        failing = item("a", key="a", job_type="fail", params={"times": 1})
        a, b = await office_jobs(scheduler).submit("o", [failing, item("b", key="b", depends_on=["a"])])
        await scheduler.wait(a.job_id)

        stuck = await now(scheduler, b)
        assert [(blocker.job_id, blocker.status) for blocker in stuck.blocked_by] == [(a.job_id, "failed")]
        retried = await office_jobs(scheduler).retry("o", a.job_id)
        await until_ended(scheduler, [a, b])

        assert (retried.job_id, retried.retry_count) == (a.job_id, 1)
        assert await statuses(scheduler, [a, b]) == ["done", "done"]


async def test_an_office_can_cancel_what_waits_for_a_failure_through_the_whole_graph(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o", retry_policy={"max_attempts": 0}, on_dependency_failure="cancel")
        jobs = graph(a="", b="a", c="b", free="")
        jobs[0] |= {"job_type": "fail"}
        made = await office_jobs(scheduler).submit("o", jobs)

        ended = await until_ended(scheduler, made)

        assert [job.status for job in ended] == ["failed", "cancelled", "cancelled", "done"]
        assert [job.blocked_by for job in ended] == [()] * 4


# US-JS02: limits.


async def test_US_JS02_AC1_an_office_runs_three_jobs_at_once_unless_told_otherwise(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        office = await scheduler.offices.create("o")
        jobs = await office_jobs(scheduler).submit("o", [item() for _ in range(30)])

        assert (await statuses(scheduler, jobs))[:5] == ["processing"] * 3 + ["ready"] * 2
        await until_ended(scheduler, jobs)

        assert office.max_concurrent_jobs == 3
    assert peaks(tmp_path)["office:o"] == 3


@pytest.mark.parametrize("limit", [1, 3, 6, 10])
async def test_US_JS02_AC1_thirty_jobs_never_exceed_a_limit_by_their_stored_starts_and_ends(
    tmp_path: Path, limit: int
) -> None:
    chance = random.Random(limit)

    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=limit)
        jobs = [item(params={"seconds": chance.uniform(0.1, 9)}) for _ in range(30)]
        await until_ended(scheduler, await office_jobs(scheduler).submit("o", jobs))
    assert peaks(tmp_path)["office:o"] == limit


async def test_US_JS02_AC2_ready_jobs_beyond_the_limit_wait_in_the_queue_and_start_when_one_ends(
    tmp_path: Path,
) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=2)
        jobs = await office_jobs(scheduler).submit("o", [item() for _ in range(3)])
        assert await statuses(scheduler, jobs) == ["processing", "processing", "ready"]

        await scheduler.wait(jobs[0].job_id)
        await testing.settled()

        assert (await now(scheduler, jobs[2])).status == "processing"


async def test_US_JS02_AC3_a_role_has_a_limit_of_its_own_and_does_not_hold_back_others(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        roles = ["FE", "FE", "BE", "PO", "PO"]
        jobs = await office_jobs(scheduler).submit("o", [item(role=role) for role in roles])

        assert await statuses(scheduler, jobs) == ["processing", "ready", "processing", "processing", "ready"]
        await until_ended(scheduler, jobs)
    assert (peaks(tmp_path)["role:o/FE"], peaks(tmp_path)["office:o"]) == (1, 3)


async def test_US_JS02_AC4_jobs_start_by_priority(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=1, status="paused")
        jobs = await office_jobs(scheduler).submit("o", [item(priority=priority) for priority in (5, 1, 3)])
        await scheduler.offices.change("o", status="active")

        await until_ended(scheduler, jobs)

        assert await started_order(scheduler) == [jobs[1].job_id, jobs[2].job_id, jobs[0].job_id]


async def test_limits_are_changed_while_running_and_a_lower_one_stops_nothing(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        jobs = await office_jobs(scheduler).submit("o", [item(role="FE", params={"seconds": 10}) for _ in range(6)])
        assert (await statuses(scheduler, jobs)).count("processing") == 1

        await office_jobs(scheduler).change_config("o", {"maxConcurrentJobs": 5, "maxConcurrentByRole": {"FE": 4}})
        assert (await statuses(scheduler, jobs)).count("processing") == 4
        await office_jobs(scheduler).change_config("o", {"maxConcurrentJobs": 1})
        assert (await statuses(scheduler, jobs)).count("processing") == 4
        await asyncio.sleep(11)

        assert (await office_jobs(scheduler).stats("o")).processing == 1
        await until_ended(scheduler, jobs)


async def test_offices_share_the_machine_in_turn_and_resources_count_across_them(tmp_path: Path) -> None:
    offices = [f"o{number}" for number in range(5)]

    async with scheduler_with_gpu(tmp_path, gpu=2) as scheduler:
        jobs: list[OfficeJob] = []
        for office_id in offices:
            await scheduler.offices.create(office_id)
            jobs += await office_jobs(scheduler).submit(office_id, [item(job_type="render") for _ in range(6)])
        await until_ended(scheduler, jobs)
        office_of = {job.job_id: job.office_id for job in jobs}
        served = [office_of[job_id] for job_id in await started_order(scheduler)]

        # The first two offices had started before the others came; from then on each round serves each office once.
        rounds = [served[first : first + 5] for first in range(5, 25, 5)]
        assert all(len(set(round_)) == 5 for round_ in rounds), rounds
    assert peaks(tmp_path)["resource:gpu"] == 2


@asynccontextmanager
async def scheduler_with_gpu(directory: Path, gpu: int) -> AsyncIterator[Scheduler]:
    scheduler = new_scheduler(directory, limits=Limits(resources={"gpu": gpu}))

    @scheduler.job_type("render", resources=["gpu"])
    async def render(run: Any) -> None:
        await asyncio.sleep(1)

    async with scheduler:
        yield scheduler


# US-JS03: timeouts.


async def test_US_JS03_AC1_a_job_may_take_thirty_minutes_unless_told_otherwise(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=0)
        usual = await one(scheduler, params={"seconds": 10**6})
        quick = await one(scheduler, params={"seconds": 10**6}, timeout_ms=1500)
        await testing.settled()

        executions = [(await now(scheduler, job)).executions[0] for job in (usual, quick)]

        assert (usual.timeout_ms, quick.timeout_ms) == (1_800_000, 1500)
        assert [(e.timeout_at or 0) - e.started_at for e in executions] == [1_800_000_000, 1_500_000]


async def test_US_JS03_AC2_a_job_that_times_out_is_failed_when_its_retries_are_spent(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        job = await one(scheduler, params={"seconds": 10**6}, timeout_ms=10_000)
        await asyncio.sleep(11)
        waiting = await now(scheduler, job)

        (ended,) = await until_ended(scheduler, [job])

        assert (waiting.status, waiting.executions[0].status) == ("timeout", "timeout")
        assert (ended.status, ended.retry_count) == ("failed", 2)
        assert [execution.status for execution in ended.executions] == ["timeout"] * 3
        assert ended.executions[0].error_message == "timed out after 10 seconds"


async def test_US_JS03_AC3_the_session_that_runs_is_told_to_cancel(tmp_path: Path) -> None:
    heard: list[bool] = []

    async with counted_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("listening")
        async def listening(run: Any) -> None:
            try:
                await asyncio.sleep(10**6)
            finally:
                heard.append(run.is_stopped)

        await scheduler.offices.create("o", retry_policy={"max_attempts": 0})
        await until_ended(scheduler, [await one(scheduler, job_type="listening", timeout_ms=1000)])

        assert heard == [True]


async def test_US_JS03_AC4_a_timeout_is_told_as_an_event_of_the_office(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        job = await one(scheduler, params={"seconds": 10**6}, timeout_ms=1000)
        await until_ended(scheduler, [job])

        events = (await office_jobs(scheduler).events("o")).items

        timeouts = [event for event in events if event.type == "job_timeout"]
        assert [(event.job_id, event.office_id) for event in timeouts] == [(job.job_id, "o")] * 3
        assert timeouts[0].details["failure_kind"] == "timeout"


async def test_a_timeout_is_stored_and_each_retry_has_its_full_time_after_a_restart_too(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        job = await one(scheduler, params={"seconds": 10**6}, timeout_ms=100_000)
        await asyncio.sleep(60)
        await testing.crash(scheduler)

        async with new_scheduler(tmp_path, seed=1) as second:
            (ended,) = await until_ended(second, [job])

        assert [e.status for e in ended.executions] == ["failed", "timeout", "timeout"]
        assert ended.executions[0].error_message == "Scheduler crash recovery"
        lasted = [(e.completed_at or 0) - e.started_at for e in ended.executions]
        assert lasted == [60_000_000, 100_000_000, 100_000_000]


async def test_the_time_of_a_job_is_its_own_else_its_types_else_its_roles_else_its_offices(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("typed", timeout_seconds=20)
        async def typed(run: Any) -> None:
            pass

        office_jobs(scheduler).use_roles({"FE": {"command": ["true"], "timeout_seconds": 30}})
        await scheduler.offices.create("o", timeout_seconds=40)

        jobs = [
            await one(scheduler, job_type="typed", role="FE", timeout_ms=10_000),
            await one(scheduler, job_type="typed", role="FE"),
            await one(scheduler, role="FE"),
            await one(scheduler, role="BE"),
        ]

        assert [job.timeout_ms for job in jobs] == [10_000, 20_000, 30_000, 40_000]


async def test_a_job_of_an_office_without_a_timeout_has_that_of_its_role_else_half_an_hour(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o", role_limits={})
        roles = ("PO", "Architect", "FE", "BE", "QA", "DevOps", "Poet")

        jobs = [await one(scheduler, role=role) for role in roles]
        await office_jobs(scheduler).put_role("o", "QA", timeout_ms=5000)
        own = await one(scheduler, role="QA")
        await office_jobs(scheduler).change_config("o", {"defaultTimeout": 7000})
        configured = [await one(scheduler, role=role) for role in ("PO", "QA")]

        minutes = [(job.timeout_ms or 0) / 60_000 for job in jobs]
        assert minutes == [15, 20, 30, 30, 45, 20, 30]
        assert (own.timeout_ms, [job.timeout_ms for job in configured]) == (5000, [7000, 5000])


# US-JS04: retries.


async def test_US_JS04_AC1_a_job_is_retried_twice_unless_told_otherwise(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        spent, saved = await office_jobs(scheduler).submit(
            "o", [item(job_type="fail"), item(job_type="fail", params={"times": 2})]
        )

        ended = await until_ended(scheduler, [spent, saved])

        assert [(job.status, job.retry_count) for job in ended] == [("failed", 2), ("done", 2)]
        assert [e.attempt for e in ended[1].executions] == [1, 2, 3]
        assert [e.status for e in ended[1].executions] == ["failed", "failed", "completed"]
        assert {e.job_id for e in ended[1].executions} == {saved.job_id}


@pytest.mark.parametrize(("backoff", "minutes"), [("exponential", [1, 2, 4]), ("linear", [1, 2, 3])])
async def test_US_JS04_AC2_the_wait_grows_with_each_retry(tmp_path: Path, backoff: str, minutes: list[int]) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        await office_jobs(scheduler).change_config("o", {"maxRetries": 3, "retryBackoff": backoff})
        (job,) = await until_ended(scheduler, [await one(scheduler, job_type="fail")])

        pairs = zip(job.executions, job.executions[1:], strict=False)
        waits = [round((after.started_at - (before.completed_at or 0)) / 1_000_000) for before, after in pairs]
        assert waits == [minute * MINUTE for minute in minutes]


@pytest.mark.parametrize(
    ("kind", "is_retried"),
    [("timeout", True), ("session_error", True), ("error", False), ("unavailable", False),
     ("git_conflict", False), ("permission", False), ("dependency", False)],
)  # fmt: skip
async def test_US_JS04_AC3_what_can_be_retried_is_said_by_the_kind_of_failure(
    tmp_path: Path, kind: str, is_retried: bool
) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        (job,) = await until_ended(
            scheduler, [await one(scheduler, job_type="fail", params={"kind": kind, "times": 1})]
        )

        assert (job.status, len(job.executions)) == (("done", 2) if is_retried else ("failed", 1))


async def test_US_JS04_AC4_a_permanent_failure_is_told_once_after_the_last_retry(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        job = await one(scheduler, job_type="fail")
        await until_ended(scheduler, [job])

        events = (await office_jobs(scheduler).events("o")).items

        permanent = [event for event in events if event.type == "job_failed_permanently"]
        assert [(event.job_id, event.details["failure_kind"]) for event in permanent] == [(job.job_id, "session_error")]
        assert [event.type for event in events].count("job_retrying") == 2


async def test_a_retry_that_waits_for_its_time_is_pending_and_is_brought_forward_by_hand(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        job = await one(scheduler, job_type="fail", params={"times": 1})
        await asyncio.sleep(1)
        assert (await now(scheduler, job)).status == "pending"

        await office_jobs(scheduler).retry("o", job.job_id)
        await testing.settled()

        assert await statuses(scheduler, [job]) == ["done"]
        with pytest.raises(Conflict, match="succeeded"):
            await office_jobs(scheduler).retry("o", job.job_id)


async def test_95_percent_succeed_when_30_percent_of_the_attempts_fail_at_random(tmp_path: Path) -> None:
    chance = random.Random(14)

    async with counted_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("unsure")
        async def unsure(run: Any) -> None:
            await asyncio.sleep(chance.uniform(0.1, 2))
            if chance.random() < 0.3:
                raise Fail("bad luck", "session_error")

        await scheduler.offices.create("o", max_concurrent_jobs=10)
        jobs = await office_jobs(scheduler).submit("o", [item(job_type="unsure") for _ in range(400)])
        await until_ended(scheduler, jobs)
        stats = await office_jobs(scheduler).stats("o")

        assert stats.done + stats.failed == 400
        assert stats.done / 400 >= 0.95


# US-JS05: priority.


async def test_US_JS05_AC1_the_lower_priority_goes_first_and_is_shown_as_it_was_given(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o", status="paused")
        priorities = [3, -5, 0, MAX_PRIORITY, -MAX_PRIORITY]
        jobs = await office_jobs(scheduler).submit("o", [item(priority=priority) for priority in priorities])

        ready = await office_jobs(scheduler).jobs("o", status="ready")

        assert [job.priority for job in jobs] == priorities
        assert [job.priority for job in ready.items] == sorted(priorities)


async def test_US_JS05_AC2_jobs_of_one_priority_go_in_the_order_of_their_creation(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=1)
        jobs = [await one(scheduler, priority=2) for _ in range(3)]
        jobs += await office_jobs(scheduler).submit("o", [item(priority=2) for _ in range(3)])

        await until_ended(scheduler, jobs)

        assert await started_order(scheduler) == [job.job_id for job in jobs]


async def test_US_JS05_AC3_an_urgent_job_goes_before_everything_in_its_office(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=1, status="paused")
        first = await one(scheduler, priority=-MAX_PRIORITY)
        urgent = await one(scheduler, urgent=True)
        await scheduler.offices.change("o", status="active")

        await until_ended(scheduler, [first, urgent])

        assert await started_order(scheduler) == [urgent.job_id, first.job_id]
        assert urgent.priority < first.priority


async def test_US_JS05_AC4_a_priority_is_changed_while_the_job_waits_and_not_after_it_has_started(
    tmp_path: Path,
) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=1)
        running, second, third, last = await office_jobs(scheduler).submit("o", [item() for _ in range(4)])

        changed = await office_jobs(scheduler).change_priority("o", third.job_id, -1)
        urgent = await office_jobs(scheduler).change_priority("o", last.job_id, urgent=True)
        with pytest.raises(AlreadyDispatched):
            await office_jobs(scheduler).change_priority("o", running.job_id, 5)
        await until_ended(scheduler, [second, third, last])

        assert (changed.priority, urgent.priority) == (-1, -1_000_000)
        assert (await started_order(scheduler))[1:] == [last.job_id, third.job_id, second.job_id]


async def test_an_urgent_job_can_be_made_an_ordinary_one_again(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o", status="paused")
        job = await one(scheduler, urgent=True)

        usual = await office_jobs(scheduler).change_priority("o", job.job_id, urgent=False)
        lower = await office_jobs(scheduler).change_priority("o", job.job_id, priority=7, urgent=False)

        assert (usual.priority, lower.priority) == (0, 7)
        for wrong in ({}, {"priority": 1.5}, {"priority": 10**6 + 1}):
            with pytest.raises(Invalid, match="priority"):
                await office_jobs(scheduler).change_priority("o", job.job_id, **wrong)


# US-JS06: bulk cancel.


async def two_tasks(scheduler: Scheduler) -> tuple[list[OfficeJob], list[OfficeJob]]:
    """Submits one running, one ready and one pending job for each of two tasks."""
    await scheduler.offices.create("o", max_concurrent_jobs=2, status="paused")
    jobs = graph(a="", b="", c="a")
    for job in jobs:
        job["params"] = {"seconds": 100}
    jobs[1]["priority"] = 1
    first = await office_jobs(scheduler).submit("o", jobs, task_id="first")
    second = await office_jobs(scheduler).submit("o", jobs, task_id="second")
    await scheduler.offices.change("o", status="active")
    assert await statuses(scheduler, [*first, *second]) == ["processing", "ready", "pending"] * 2
    return first, second


async def test_US_JS06_AC1_every_pending_and_ready_job_of_an_office_is_cancelled(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        first, second = await two_tasks(scheduler)
        await scheduler.offices.create("p")
        (other,) = await office_jobs(scheduler).submit("p", [item()])

        done = await office_jobs(scheduler).cancel_all("o", include_running=False)

        assert (done.cancelled.count, done.stopping.count, done.finishing.count) == (4, 0, 0)
        assert set(done.job_ids) == {job.job_id for job in [*first[1:], *second[1:]]}
        assert await statuses(scheduler, [*first, *second]) == ["processing", "cancelled", "cancelled"] * 2
        assert await statuses(scheduler, [other]) == ["processing"]


async def test_US_JS06_AC2_every_job_of_a_task_is_cancelled_and_no_other(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        first, second = await two_tasks(scheduler)

        done = await office_jobs(scheduler).cancel_all("o", task_id="first", reason="not needed")
        await testing.settled()

        assert (done.cancelled.count, done.stopping.count) == (2, 1)
        assert await statuses(scheduler, first) == ["cancelled"] * 3
        assert await statuses(scheduler, second) == ["processing", "processing", "pending"]


async def test_US_JS06_AC3_running_jobs_are_told_to_stop_too(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        first, second = await two_tasks(scheduler)

        done = await office_jobs(scheduler).cancel_all("o")
        await testing.settled()

        assert (done.cancelled.count, done.stopping.count) == (4, 2)
        assert [(await now(scheduler, job)).executions[0].status for job in (first[0], second[0])] == ["cancelled"] * 2


async def test_US_JS06_AC4_what_was_cancelled_is_cancelled_says_when_and_never_runs(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        first, second = await two_tasks(scheduler)
        await asyncio.sleep(5)
        await office_jobs(scheduler).cancel_all("o")
        await asyncio.sleep(3600)

        ended = [await now(scheduler, job) for job in [*first, *second]]

        assert {job.status for job in ended} == {"cancelled"}
        assert {job.cancelled_at for job in ended} == {testing.BEGINNING.after(5)}
        assert len(await started_order(scheduler)) == 2
        assert await office_jobs(scheduler).stats("o") == stats(cancelled=6)


async def test_one_job_is_cancelled_and_one_that_has_ended_is_refused(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=1, cancel_mode="finish")
        running, queued = await office_jobs(scheduler).submit("o", [item(), item()])

        answers = [await office_jobs(scheduler).cancel("o", job.job_id, "enough") for job in (running, queued)]
        await until_ended(scheduler, [running])

        assert [(job.status, what) for job, what in answers] == [
            ("processing", "finishing"),
            ("cancelled", "cancelled"),
        ]
        assert await statuses(scheduler, [running]) == ["done"]
        with pytest.raises(AlreadyFinished, match="COMPLETED"):
            await office_jobs(scheduler).cancel("o", running.job_id)


# Statistics.


def stats(**numbers: Any) -> OfficeStats:
    zero = dict.fromkeys(("pending", "ready", "processing", "done", "failed", "cancelled"), 0)
    return OfficeStats(**{"office_id": "o", **zero, "avg_completion_time": 0.0, **numbers})


async def test_the_statistics_of_a_new_office_are_all_zero(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")

        assert await office_jobs(scheduler).stats("o") == stats()
        with pytest.raises(NotFound, match="'nowhere'"):
            await office_jobs(scheduler).stats("nowhere")


async def test_the_average_is_from_the_first_start_to_the_completion_of_what_was_completed(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=0)
        jobs = [
            item(params={"seconds": 2}),
            item(params={"seconds": 4}),
            item(job_type="skip"),
            item(job_type="fail", params={"times": 1}),
        ]
        await until_ended(scheduler, await office_jobs(scheduler).submit("o", jobs))

        # 2 s, 4 s, and a minute between the two attempts of one that took no time.
        assert await office_jobs(scheduler).stats("o") == stats(done=4, avg_completion_time=22_000.0)


@pytest.mark.one_thread("two reads are compared, and others commit between them")
async def test_the_statistics_are_right_at_every_moment(tmp_path: Path) -> None:
    chance = random.Random(3)

    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=4, retry_policy={"base_delay_seconds": 3})
        for step in range(60):
            await disturb(scheduler, chance)
            await asyncio.sleep(chance.choice([0, 0.5, 2]))
            if step == 30:
                await scheduler.offices.change("o", on_dependency_failure="cancel")

            assert await office_jobs(scheduler).stats("o") == await counted(scheduler)


async def disturb(scheduler: Scheduler, chance: random.Random) -> None:
    """Does one of the things that can be done to the jobs of an office."""
    known = list((await office_jobs(scheduler).jobs("o", limit=500)).items)
    match chance.randrange(6):
        case 0 | 1 | 2:
            await office_jobs(scheduler).submit(
                "o", [some_job(chance, known) for _ in range(chance.randint(1, 4))], "t"
            )
        case 3 if failed := [job for job in known if job.status == "failed"]:
            await office_jobs(scheduler).retry("o", chance.choice(failed).job_id)
        case 4 if live := [job for job in known if job.status in ("pending", "ready", "processing", "timeout")]:
            await office_jobs(scheduler).cancel("o", chance.choice(live).job_id)
        case 5 if chance.random() < 0.2:
            await office_jobs(scheduler).cancel_all("o", include_running=chance.random() < 0.5)


def some_job(chance: random.Random, known: list[OfficeJob]) -> dict[str, Any]:
    waits = [chance.choice(known).job_id] if known and chance.random() < 0.4 else []
    if chance.random() < 0.5:
        return item(depends_on=waits, role="FE", params={"seconds": chance.randint(1, 5)}, timeout_ms=4000)
    return item(depends_on=waits, job_type="fail", params={"times": chance.randint(0, 4)})


async def counted(scheduler: Scheduler) -> OfficeStats:
    """Counts the same numbers by reading every job."""
    jobs = (await office_jobs(scheduler).jobs("o", limit=500)).items
    word = {"timeout": "pending"}
    numbers = dict.fromkeys(("pending", "ready", "processing", "done", "failed", "cancelled"), 0)
    for job in jobs:
        numbers[word.get(job.status, job.status.value)] += 1
    took = [(job.completed_at or 0) - (job.started_at or 0) for job in jobs if job.status == "done"]
    average = round(sum(took) / len(took) / 1000, 3) if took else 0.0
    return stats(**numbers, avg_completion_time=average)


@pytest.mark.sqlite_only("the steps of its machine")
async def test_the_statistics_cost_the_same_whatever_has_been_done(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        costs = []
        for count in (1, 100):
            await until_ended(scheduler, await office_jobs(scheduler).submit("o", [item() for _ in range(count)]))
            steps = steps_of(scheduler)
            await scheduler._access.write(lambda tx: office_jobs(scheduler)._jobs.stats(tx, "o"))
            costs.append(steps.taken)

        assert costs[0] == costs[1] > 0


async def test_the_statistics_survive_a_crash(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=2)
        await office_jobs(scheduler).submit("o", [item(params={"seconds": 10}) for _ in range(5)])
        await asyncio.sleep(15)
        await testing.crash(scheduler)

        async with new_scheduler(tmp_path, seed=1) as second:
            found = await office_jobs(second).stats("o")
            assert found == await counted(second)
            assert (found.done, found.processing, found.ready + found.pending) == (2, 2, 1)


# Lists.


async def test_a_list_goes_on_where_its_page_ended_and_has_every_job_once(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=1)
        jobs = await office_jobs(scheduler).submit("o", [item(str(n), role="FE" if n % 2 else "BE") for n in range(25)])

        for wanted in ({}, {"status": "ready"}, {"role": "BE"}, {"status": "ready", "role": "FE"}):
            found = await walk(scheduler, limit=4, **wanted)
            expected = [job.job_id for job in (await office_jobs(scheduler).jobs("o", limit=500, **wanted)).items]
            assert found == expected
            assert len(found) == {(): 25, ("status",): 24, ("role",): 13, ("status", "role"): 12}[tuple(wanted)]
        assert await walk(scheduler, limit=25) == [job.job_id for job in jobs]


async def walk(scheduler: Scheduler, **wanted: Any) -> list[str]:
    found: list[str] = []
    cursor = None
    while True:
        page = await office_jobs(scheduler).jobs("o", cursor=cursor, **wanted)
        found += [job.job_id for job in page.items]
        cursor = page.next_cursor
        if cursor is None:
            return found


async def test_jobs_are_found_by_each_of_their_statuses_and_by_task(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=1, retry_policy={"max_attempts": 0})
        jobs = [item("done"), item("failed", job_type="fail"), item("processing", params={"seconds": 100}),
                item("ready", key="r"), item("pending", depends_on=["r"]), item("cancelled")]  # fmt: skip
        made = await office_jobs(scheduler).submit("o", jobs, task_id="t")
        await asyncio.sleep(5)
        await office_jobs(scheduler).cancel("o", made[5].job_id)

        for job in made:
            for task_id in (None, "t"):
                page = await office_jobs(scheduler).jobs("o", status=job.description, task_id=task_id)
                assert [found.job_id for found in page.items] == [job.job_id]
        assert len((await office_jobs(scheduler).jobs("o", task_id="t")).items) == 6
        assert (await office_jobs(scheduler).jobs("o", task_id="other")).items == ()


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"status": "finished"}, "status"),
        ({"limit": 0}, "limit"),
        ({"limit": 501}, "limit"),
        ({"cursor": "nonsense"}, "cursor"),
    ],
)
async def test_a_list_that_cannot_be_is_refused(tmp_path: Path, wanted: dict[str, Any], field: str) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")

        with pytest.raises(Invalid) as refused:
            await office_jobs(scheduler).jobs("o", **wanted)

        assert [problem.field for problem in refused.value.problems] == [field]


# Requests.


@pytest.mark.parametrize(
    ("job", "field"),
    [
        ({"job_type": "work"}, "jobs.0.description"),
        (item(""), "jobs.0.description"),
        pytest.param(item("x" * 65_537), "jobs.0.description", id="a long description"),
        (item(title="x"), "jobs.0.title"),
        (item(priority="high"), "jobs.0.priority"),
        (item(priority=MAX_PRIORITY + 1), "jobs.0.priority"),
        (item(timeout_ms=0), "jobs.0.timeout_ms"),
        (item(timeout_ms="soon"), "jobs.0.timeout_ms"),
        (item(urgent="yes"), "jobs.0.urgent"),
        (item(urgent=True, priority=3), "jobs.0.urgent"),
        (item(depends_on="a"), "jobs.0.depends_on"),
        (item(role=7), "jobs.0.role"),
        (item(key=7), "jobs.0.key"),
        (item(params=[1]), "jobs.0.params"),
        (item(job_type="fail", params={"kind": 7}), "jobs.0.params.kind"),
        ("a job", "jobs.0"),
    ],
    ids=str,
)
async def test_a_job_that_makes_no_sense_is_refused_in_the_words_of_the_office(
    tmp_path: Path, job: Any, field: str
) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")

        for jobs, where in (([job], field), ([item(), job], field.replace("jobs.0", "jobs.1"))):
            with pytest.raises(Invalid) as refused:
                await office_jobs(scheduler).submit("o", jobs)
            assert [problem.field for problem in refused.value.problems] == [where]
        assert (await office_jobs(scheduler).jobs("o")).items == ()


async def test_jobs_that_nothing_can_run_are_refused_with_a_code_of_their_own(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        roleless = {"description": "d"}
        with pytest.raises(NoHandler, match="needs a role"):
            await office_jobs(scheduler).submit("o", [roleless])
        office_jobs(scheduler).use_roles({"FE": {"command": ["true"]}})

        with pytest.raises(NoHandler) as refused:
            await office_jobs(scheduler).submit("o", [roleless, item(), {**roleless, "role": "BE"}, item(job_type="x")])

        assert refused.value.code == "unknown_job_type"
        fields = [problem.field for problem in refused.value.problems]
        assert fields == ["jobs.0.role", "jobs.2.role", "jobs.3.job_type"]


@pytest.mark.parametrize("wrong", [{"job_type": "unknown"}, {"urgent": "yes"}])
async def test_of_a_request_that_is_wrong_all_over_the_first_hundred_problems_are_named(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")

        with pytest.raises(Invalid) as refused:
            await office_jobs(scheduler).submit("o", [item(**wrong)] * 150)

        named = [problem.field.split(".")[1] for problem in refused.value.problems]
        assert named == [str(number) for number in range(100)]


async def test_a_request_sent_twice_with_one_key_is_carried_out_once(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        first = await office_jobs(scheduler).submit("o", graph(a="", b="a"), idempotency_key="k")
        await until_ended(scheduler, first)

        again = await office_jobs(scheduler).submit("o", graph(a="", b="a"), idempotency_key="k")

        assert [job.job_id for job in again] == [job.job_id for job in first]
        assert [job.status for job in again] == ["done", "done"]


async def test_a_job_is_found_only_in_its_own_office(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        await scheduler.offices.create("p")
        job = await one(scheduler)

        asks = [
            office_jobs(scheduler).job,
            office_jobs(scheduler).executions,
            office_jobs(scheduler).retry,
            office_jobs(scheduler).cancel,
        ]
        for ask in asks:
            with pytest.raises(NotFound):
                await ask("p", job.job_id)
            with pytest.raises(NotFound, match="'nowhere'"):
                await ask("nowhere", job.job_id)


# The offices themselves.


async def test_an_office_without_an_id_gets_one_and_offices_are_listed_by_their_ids(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        made = [await scheduler.offices.create(name=f"team {number}") for number in range(4)]

        first = await scheduler.offices.page(limit=3)
        rest = await scheduler.offices.page(cursor=first.next_cursor, limit=3)

        names = {office.name for office in (*first.items, *rest.items)}
        assert (len(first.items), len(rest.items), rest.next_cursor) == (3, 2, None)
        assert names == {"Default", "team 0", "team 1", "team 2", "team 3"}
        assert len({office.office_id for office in made}) == 4


async def test_a_paused_office_starts_nothing_until_it_is_active_again(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        paused = await scheduler.offices.change("o", status="paused")
        job = await one(scheduler)
        await asyncio.sleep(60)
        assert (paused.to_dict()["status"], await statuses(scheduler, [job])) == ("paused", ["ready"])

        active = await scheduler.offices.change("o", status="active")

        assert (active.to_dict()["status"], await statuses(scheduler, [job])) == ("active", ["processing"])
        assert [event.type for event in await history(scheduler) if event.type.startswith("queue")] == [
            "queue_paused",
            "queue_resumed",
        ]


async def test_an_archived_office_takes_no_jobs_and_says_so(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        await scheduler.offices.change("o", status="archived")

        with pytest.raises(Invalid, match="archived"):
            await one(scheduler)
        with pytest.raises(NotFound, match="'nowhere'"):
            await office_jobs(scheduler).submit("nowhere", [item()])


async def test_process_answers_what_it_started(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        await office_jobs(scheduler).submit("o", [item(), item()])
        assert await office_jobs(scheduler).process("o") == []
        await scheduler.offices.change("o", status="paused")
        (job,) = await office_jobs(scheduler).submit("o", [item()])
        database(tmp_path).execute("update offices set is_paused = 0 where office_id = 'o'")

        started = await office_jobs(scheduler).process("o")

        assert [(one.job_id, one.status) for one in started] == [(job.job_id, "processing")]


# Configuration.


async def test_the_configuration_has_the_names_units_and_defaults_of_the_office_design(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")

        assert office_json.office_config(await office_jobs(scheduler).config("o")) == {
            "maxConcurrentJobs": 3,
            "maxConcurrentByRole": {"FE": 1, "BE": 1, "QA": 1, "DevOps": 1},
            "defaultTimeout": 1_800_000,
            "maxRetries": 2,
            "retryBackoff": "exponential",
            "retryBaseDelay": 60_000,
            "retryOn": [],
            "priorityAging": None,
        }


async def test_the_configuration_is_changed_while_running_and_stored(tmp_path: Path) -> None:
    changes = {"maxConcurrentJobs": 7, "maxConcurrentByRole": None, "defaultTimeout": 1.5, "maxRetries": 0,
               "retryBackoff": "linear", "retryBaseDelay": 250}  # fmt: skip

    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        changed = await office_jobs(scheduler).change_config("o", changes)
        await testing.crash(scheduler)

        async with new_scheduler(tmp_path, seed=1) as second:
            assert await office_jobs(second).config("o") == changed

        assert changed == OfficeConfig(
            max_concurrent_jobs=7,
            max_concurrent_by_role={},
            default_timeout=1.5,
            max_retries=0,
            retry_backoff="linear",  # type: ignore[arg-type]
            retry_base_delay=250,
            retry_on=(),
            priority_aging=None,
        )


async def test_limits_by_role_change_for_the_named_roles_only_also_when_two_change_them_at_once(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        service = office_jobs(scheduler)
        await asyncio.gather(
            service.change_config("o", {"maxConcurrentByRole": {"FE": 4}}),
            service.change_config("o", {"maxConcurrentByRole": {"PO": 2, "QA": None}}),
        )

        expected = {"FE": 4, "BE": 1, "DevOps": 1, "PO": 2}
        assert (await service.config("o")).max_concurrent_by_role == expected


async def test_retryOn_names_the_kinds_that_an_office_retries_besides_the_usual_ones(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        service = office_jobs(scheduler)

        async def attempts(kind: str) -> int:
            (job,) = await until_ended(scheduler, [await one(scheduler, job_type="fail", params={"kind": kind})])
            return len(job.executions)

        await service.change_config("o", {"retryOn": [], "maxRetries": 1, "retryBaseDelay": 0})
        without = [await attempts(kind) for kind in ("error", "timeout", "session_error")]
        changed = await service.change_config("o", {"retryOn": ["error"]})
        with_it = [await attempts(kind) for kind in ("error", "unavailable")]

        assert (without, with_it) == ([1, 2, 2], [2, 1])
        assert changed.retry_on == (FailureKind.ERROR,)
        for wrong in (["cancelled"], ["nothing"], "error"):
            with pytest.raises(Invalid, match="retryOn"):
                await service.change_config("o", {"retryOn": wrong})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_concurrent_jobs", 3),
        ("maxConcurrentJobs", -1),
        ("maxConcurrentJobs", "3"),
        ("maxConcurrentByRole.FE", {"FE": -1}),
        ("maxConcurrentByRole", [1]),
        ("defaultTimeout", "soon"),
        ("defaultTimeout", 0),
        ("maxRetries", 1.5),
        ("retryBackoff", "fibonacci"),
        ("retryBaseDelay", None),
        ("retryBaseDelay", -1),
    ],
)
async def test_a_configuration_that_makes_no_sense_is_refused_by_its_own_names(
    tmp_path: Path, field: str, value: Any
) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")

        with pytest.raises(Invalid) as refused:
            await office_jobs(scheduler).change_config("o", {field.split(".")[0]: value})

        assert [problem.field for problem in refused.value.problems] == [field]
        assert (await office_jobs(scheduler).config("o")).max_concurrent_jobs == 3


# Executions and events.


async def test_an_execution_has_its_session_times_and_end(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        sessions: list[str] = []

        @scheduler.job_type("talk", has_session=True)
        async def talk(run: Any) -> None:
            sessions.append(run.session_id)
            assert (run.title, run.role, run.task_id) == ("Login page", "FE", "t1")
            await asyncio.sleep(2)
            if run.attempt == 1:
                raise Fail("lost", "session_error")

        await scheduler.offices.create("o")
        (job,) = await office_jobs(scheduler).submit("o", [item("Login page", role="FE", job_type="talk")], "t1")
        await asyncio.sleep(1)
        (running,) = await office_jobs(scheduler).executions("o", job.job_id)
        assert (running.status, running.completed_at, running.session_id) == (
            ExecutionStatus.RUNNING,
            None,
            sessions[0],
        )
        await until_ended(scheduler, [job])

        first, second = await office_jobs(scheduler).executions("o", job.job_id)

        assert (first.status, first.error_message, second.status) == ("failed", "lost", "completed")
        assert [first.session_id, second.session_id] == sessions
        assert sessions[0] != sessions[1]


async def test_the_events_of_an_office_are_read_a_page_at_a_time_by_its_jobs_ids(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        await scheduler.submit("work")
        job = await one(scheduler, job_type="fail", params={"times": 1})
        await until_ended(scheduler, [job])
        types: list[str] = []
        cursor, after = None, 0
        while after == 0 or cursor is not None:
            page = await office_jobs(scheduler).events("o", cursor=cursor, limit=2)
            cursor, after = page.next_cursor, page.next_after
            types += [event.type for event in page.items]
            assert {(event.job_id, event.office_id) for event in page.items} <= {(job.job_id, "o")}

        assert types == [
            "job_queued", "job_started", "job_failed", "job_queued", "job_retrying", "job_ready", "job_started",
            "job_completed",
        ]  # fmt: skip
        assert (await office_jobs(scheduler).events("o", after)).items == ()
        await one(scheduler)
        assert [event.type for event in (await office_jobs(scheduler).events("o", after)).items] == [
            "job_queued",
            "job_started",
        ]


async def test_the_events_of_an_office_are_found_behind_however_many_of_others(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        await scheduler.pause()
        await scheduler.submit_many([NewJob(job_type="work")] * (2 * STEP))
        job = await one(scheduler)

        page = await office_jobs(scheduler).events("o")

        assert [(event.type, event.job_id) for event in page.items] == [("job_queued", job.job_id)]
        assert page.next_cursor is None


async def test_an_office_job_is_shown_with_all_its_fields(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o", status="paused")
        first, second = await office_jobs(scheduler).submit(
            "o", [item("A", key="a", role="FE", priority=3, timeout_ms=5000), item("B", depends_on=["a"])], "t"
        )
        shown = second.to_dict()

        assert first.to_dict() == {
            "job_id": first.job_id, "office_id": "o", "job_type": "work", "task_id": "t", "role": "FE",
            "description": "A", "status": "ready", "priority": 3, "aged_steps": 0, "params": {},
            "timeout_ms": 5000, "depends_on": [], "blocked_by": [], "retry_count": 0, "executions": [],
            "created_at": str(testing.BEGINNING), "started_at": None, "completed_at": None, "cancelled_at": None,
        }  # fmt: skip
        assert (shown["depends_on"], shown["blocked_by"]) == (
            [first.job_id],
            [{"job_id": first.job_id, "status": "ready"}],
        )


# Graphs.


async def test_a_graph_of_100_jobs_and_200_edges_runs_in_an_order_that_keeps_every_edge(tmp_path: Path) -> None:
    chance = random.Random(8)
    jobs = [
        item(str(n), key=str(n), depends_on=[str(m) for m in chance.sample(range(n), min(n, 2))]) for n in range(100)
    ]

    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=10)
        made = await office_jobs(scheduler).submit("o", jobs)
        ended = {job.job_id: job for job in await until_ended(scheduler, made)}

        for job in ended.values():
            assert job.status == "done"
            assert all((ended[other].completed_at or 0) <= (job.started_at or 0) for other in job.depends_on)
    assert peaks(tmp_path)["office:o"] <= 10
