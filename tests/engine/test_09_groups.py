"""Spec 9: groups (INV-006, DEC-012)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nextslot import (
    Group,
    Job,
    NewJob,
    Scheduler,
    testing,
)
from nextslot.domain import ChainEnd
from nextslot.domain.group_failure import Action
from nextslot.errors import Invalid
from tests.support import assert_counters, counted_scheduler, history, new_scheduler, states, steps_of

MODES = pytest.mark.parametrize("mode", ["sequential", "parallel"])
# What becomes of a member that has not started when another has failed or was cancelled.
REST = {"stop": "CANCELLED", "skip": "SKIPPED", "continue": "COMPLETED"}
POLICIES = pytest.mark.parametrize("on_failure", list(REST))


# The two modes.


async def test_in_a_sequential_group_each_waits_until_the_chain_before_it_has_ended(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=0)
        _, members = await scheduler.submit_group([work(10), flaky(times=1), work(10)])

        at_first = [job.status for job in members]
        await asyncio.sleep(15)
        during_the_retry_s_wait = await states(scheduler, *members)
        await scheduler.wait(members[2].job_id)

        assert at_first == ["QUEUED", "WAITING", "WAITING"]
        assert during_the_retry_s_wait == ["COMPLETED", "FAILED", "WAITING"]
        last = await scheduler.job(members[2].job_id)
        assert last.started_at == (await scheduler.chain(members[1].job_id))[1].finished_at


async def test_the_turn_of_a_cancelled_member_passes_to_the_next_when_it_comes(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=0)
        _, members = await scheduler.submit_group([work(10)] * 5, on_failure="continue")
        for member in (members[1], members[3], members[2]):
            await scheduler.cancel(member.job_id)
        await asyncio.sleep(9)
        before = await states(scheduler, members[0], members[4])
        await asyncio.sleep(100)

        assert before == ["RUNNING", "WAITING"]
        assert await states(scheduler, *members) == ["COMPLETED", *["CANCELLED"] * 3, "COMPLETED"]


async def test_a_member_whose_turn_has_come_still_waits_for_its_time_and_for_what_it_depends_on(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=0)
        later = scheduler._clock.now().after(50)
        other = await scheduler.submit("work", {"seconds": 100})
        _, members = await scheduler.submit_group(
            [work(10), work(10, scheduled_for=later), work(10, depends_on=[other.job_id])]
        )
        await asyncio.sleep(20)
        second = await states(scheduler, members[1])
        await asyncio.sleep(60)
        third = await states(scheduler, members[2])
        await scheduler.wait(members[2].job_id)

        assert (second, third) == (["WAITING"], ["WAITING"])
        started = [(await scheduler.job(job.job_id)).started_at for job in members]
        assert started[1:] == [pytest.approx(later, abs=1000), (await scheduler.job(other.job_id)).finished_at]
        assert types(await history(scheduler), members[2]).count("job_ready") == 1


async def test_in_a_parallel_group_members_wait_only_for_limits(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=2)
        _, members = await scheduler.submit_group([work(10)] * 3, mode="parallel")

        assert [job.status for job in members] == ["QUEUED"] * 3
        assert await states(scheduler, *members) == ["RUNNING", "RUNNING", "QUEUED"]


# A member fails.


@MODES
@POLICIES
async def test_DEC_012_when_a_member_has_failed_for_good(tmp_path: Path, mode: str, on_failure: str) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        group, members = await scheduler.submit_group([fails(), work(10), work(10)], mode, on_failure)
        await asyncio.sleep(100)

        rest = REST[on_failure]
        assert await states(scheduler, *members) == ["FAILED", rest, rest]
        assert (await scheduler.group(group.group_id)).status == "PARTIAL"
        assert await reasons(scheduler, members[1:]) == ({None} if on_failure == "continue" else {"predecessor failed"})


@MODES
@POLICIES
async def test_when_a_member_was_cancelled_on_request(tmp_path: Path, mode: str, on_failure: str) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        group, members = await scheduler.submit_group([work(10), work(10), work(10)], mode, on_failure)
        await scheduler.cancel(members[0].job_id, reason="by me", interrupt=True)
        await asyncio.sleep(100)

        rest = REST[on_failure]
        assert await states(scheduler, *members) == ["CANCELLED", rest, rest]
        assert (await scheduler.group(group.group_id)).status == "PARTIAL"
        assert await reasons(scheduler, members[:1]) == {"by me"}


@MODES
@POLICIES
async def test_when_a_member_was_cancelled_before_it_started(tmp_path: Path, mode: str, on_failure: str) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        _, members = await scheduler.submit_group([work(10), work(10), work(10)], mode, on_failure)
        await scheduler.cancel(members[1].job_id)
        await asyncio.sleep(100)

        assert await states(scheduler, *members) == ["COMPLETED", "CANCELLED", REST[on_failure]]


@MODES
@POLICIES
async def test_retries_are_spent_before_the_others_are_touched(tmp_path: Path, mode: str, on_failure: str) -> None:
    async with gated_scheduler(tmp_path) as scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=1)
        wanted = [flaky(times=99, max_attempts=1), blocked(), blocked()]
        _, (failing, *rest) = await scheduler.submit_group(wanted, mode, on_failure)

        await asyncio.sleep(9)
        before = await states(scheduler, *rest)
        await scheduler.wait(failing.job_id)
        await scheduler.resume(resource="gate")
        await asyncio.sleep(100)

        assert set(before) <= {"WAITING", "QUEUED"}
        assert await states(scheduler, *rest) == [REST[on_failure]] * 2


@MODES
@POLICIES
async def test_a_member_that_failed_and_then_succeeded_is_a_success(tmp_path: Path, mode: str, on_failure: str) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        group, members = await scheduler.submit_group([flaky(times=2), work(10)], mode, on_failure)
        for member in members:
            await scheduler.wait(member.job_id)

        assert await states(scheduler, *members) == ["FAILED", "COMPLETED"]
        assert counts(await scheduler.group(group.group_id)) == ("COMPLETED", 2, 2, 2, 0)


@pytest.mark.parametrize("on_failure", ["stop", "skip"])
async def test_members_that_have_started_go_on_and_so_do_their_retries(tmp_path: Path, on_failure: str) -> None:
    async with gated_scheduler(tmp_path) as scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=3)
        too_slow = work(5, timeout_seconds=3, retry_policy={"max_attempts": 0})
        _, members = await scheduler.submit_group(
            [too_slow, work(30), flaky(times=1), blocked()], "parallel", on_failure
        )
        await asyncio.sleep(100)

        assert await states(scheduler, *members) == ["FAILED", "COMPLETED", "FAILED", REST[on_failure]]
        assert (await scheduler.wait(members[2].job_id)).status == "COMPLETED"


async def test_a_member_left_to_finish_counts_by_its_outcome(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        group, members = await scheduler.submit_group([work(10), work(10)])
        await scheduler.cancel(members[0].job_id, interrupt=False)
        await asyncio.sleep(100)

        assert await states(scheduler, *members) == ["COMPLETED", "COMPLETED"]
        assert (await scheduler.group(group.group_id)).status == "COMPLETED"


async def test_skipped_members_have_a_run_on_no_worker_and_under_no_limit(tmp_path: Path) -> None:
    async with gated_scheduler(tmp_path) as scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=1)
        _, members = await scheduler.submit_group([fails(), blocked(), blocked()], "parallel", "skip")
        await testing.settled()

        for member in members[1:]:
            job, run = await scheduler.job(member.job_id), await scheduler.run_of(member.job_id)
            assert run is not None
            assert (job.status, job.worker_id, run.status, run.reason) == (
                "SKIPPED",
                None,
                "SKIPPED",
                "predecessor failed",
            )
            assert run.started_at == run.finished_at == job.started_at == job.finished_at
        assert types(await history(scheduler), members[1]) == ["job_queued", "job_skipped"]


# Its status.


async def test_INV_006_a_group_is_queued_then_running_then_ended(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        group, members = await scheduler.submit_group([work(10), work(10)], name="both")
        queued = await scheduler.group(group.group_id)
        await scheduler.resume()
        await asyncio.sleep(15)
        running = await scheduler.group(group.group_id)
        await asyncio.sleep(10)
        ended = await scheduler.group(group.group_id)

        assert queued == group
        assert (queued.status, queued.name, queued.started_at, queued.finished_at) == ("QUEUED", "both", None, None)
        assert (running.status, running.ended, running.finished_at) == ("RUNNING", 1, None)
        assert running.started_at == (await scheduler.job(members[0].job_id)).started_at
        assert (ended.status, ended.finished_at) == ("COMPLETED", (await scheduler.job(members[1].job_id)).finished_at)


async def test_a_group_stays_queued_until_a_member_starts_also_when_one_is_cancelled(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        group, members = await scheduler.submit_group([work(1), work(1)], "parallel", "continue")
        await scheduler.cancel(members[0].job_id)
        before = await scheduler.group(group.group_id)
        await scheduler.resume()
        during = await scheduler.group(group.group_id)
        await scheduler.wait(members[1].job_id)

        assert (before.status, during.status) == ("QUEUED", "RUNNING")
        assert counts(await scheduler.group(group.group_id)) == ("PARTIAL", 2, 2, 1, 1)


class UntilTwoHaveFailed:
    def after_member(self, group: Group, end: ChainEnd) -> Action:
        return Action.CANCEL_REST if group.ended - group.succeeded >= 2 else Action.GO_ON


async def test_OQ_002_the_failure_policy_of_groups_can_be_replaced(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path, group_failure=UntilTwoHaveFailed()) as scheduler:
        failing = NewJob(job_type="fail", retry_policy={"max_attempts": 0})
        members = [failing, work(1), failing, work(1)]

        group, made = await scheduler.submit_group(members, on_failure="stop")
        await scheduler.wait(made[2].job_id)

        assert await states(scheduler, *made) == ["FAILED", "COMPLETED", "FAILED", "CANCELLED"]
        assert (await scheduler.group(group.group_id)).status == "PARTIAL"


class Broken:
    def after_member(self, group: Group, end: ChainEnd) -> Action:
        raise RuntimeError("no idea")


class Foreign:
    def after_member(self, group: Group, end: ChainEnd) -> str:
        return "stop"


@pytest.mark.parametrize("policy", [Broken(), Foreign(), object()])
async def test_OQ_002_a_policy_without_an_answer_leaves_the_decision_to_on_failure(
    tmp_path: Path, policy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with counted_scheduler(tmp_path, group_failure=policy) as scheduler:
        failing = NewJob(job_type="fail", retry_policy={"max_attempts": 0})

        group, made = await scheduler.submit_group([work(1), failing, work(1)], on_failure="stop")
        await scheduler.wait(made[1].job_id)

        assert await states(scheduler, *made) == ["COMPLETED", "FAILED", "CANCELLED"]
        assert f"on_failure decides about group {group.group_id}" in caplog.text


@MODES
@pytest.mark.parametrize(
    ("members", "status"),
    [
        (["work", "work"], "COMPLETED"),
        (["work", "skip"], "COMPLETED"),
        (["skip", "skip"], "COMPLETED"),
        (["work", "fail"], "PARTIAL"),
        (["fail", "fail"], "PARTIAL"),
        (["cancel", "work"], "PARTIAL"),
        (["cancel", "fail"], "PARTIAL"),
        (["cancel", "cancel"], "CANCELLED"),
    ],
)
async def test_how_a_group_ends(tmp_path: Path, members: list[str], mode: str, status: str) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        wanted = [
            NewJob(job_type="work" if kind == "cancel" else kind, retry_policy={"max_attempts": 0}) for kind in members
        ]
        group, jobs = await scheduler.submit_group(wanted, mode, "continue")
        for job, kind in zip(jobs, members, strict=True):
            if kind == "cancel":
                await scheduler.cancel(job.job_id)
        await scheduler.resume()
        await asyncio.sleep(100)

        assert (await scheduler.group(group.group_id)).status == status
        assert await finished(scheduler) == [(group.group_id, status)]


async def test_one_member_cancelled_by_request_and_the_rest_by_the_policy_is_partial(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        group, members = await scheduler.submit_group([work(1), work(1)])

        await scheduler.cancel(members[0].job_id)

        assert await states(scheduler, *members) == ["CANCELLED", "CANCELLED"]
        assert counts(await scheduler.group(group.group_id)) == ("PARTIAL", 2, 2, 0, 1)


async def test_a_manual_retry_opens_a_stopped_group_and_does_not_bring_back_the_cancelled(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        wanted = [flaky(times=1, max_attempts=0), work(1)]
        group, members = await scheduler.submit_group(wanted)
        ended = await scheduler.wait(members[0].job_id)
        assert ended.run is not None

        await scheduler.retry(ended.run.run_id)
        during = await scheduler.group(group.group_id)
        await scheduler.wait(members[0].job_id)

        assert counts(during) == ("RUNNING", 2, 1, 0, 0)
        assert counts(await scheduler.group(group.group_id)) == ("PARTIAL", 2, 2, 1, 0)
        assert await states(scheduler, members[1]) == ["CANCELLED"]
        assert [status for _, status in await finished(scheduler)] == ["PARTIAL", "PARTIAL"]


@pytest.mark.parametrize("how", ["waiting retry", "running retry", "finishing"])
async def test_a_cancelled_member_retried_by_hand_is_counted_once(tmp_path: Path, how: str) -> None:
    async with gated_scheduler(tmp_path) as scheduler:
        group, (member,) = await scheduler.submit_group([NewJob(job_type="slow_fail", params={"seconds": 20})])
        await asyncio.sleep({"waiting retry": 25, "running retry": 35, "finishing": 5}[how])
        last = (await scheduler.chain(member.job_id))[-1]
        await scheduler.cancel(last.job_id, interrupt=how != "finishing")
        await scheduler.wait(member.job_id)
        before = await scheduler.group(group.group_id)
        run = await scheduler.run_of(member.job_id)
        assert run is not None

        await scheduler.retry(run.run_id)
        during = await scheduler.group(group.group_id)

        assert counts(before) == (("PARTIAL", 1, 1, 0, 0) if how == "finishing" else ("CANCELLED", 1, 1, 0, 1))
        assert counts(during) == ("RUNNING", 1, 0, 0, 0)


# With everything else.


async def test_members_may_depend_on_others_and_a_lost_dependency_stops_the_group(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        outside = await scheduler.submit("fail", retry_policy={"max_attempts": 0})
        await scheduler.wait(outside.job_id)
        doomed = NewJob(job_type="work", depends_on=[outside.job_id], on_dependency_failure="cancel")  # type: ignore[arg-type]

        group, members = await scheduler.submit_group([doomed, work(1)])

        assert [job.status for job in members] == ["CANCELLED", "CANCELLED"]
        assert counts(group) == ("PARTIAL", 2, 2, 0, 0)


@MODES
async def test_a_group_survives_a_crash(tmp_path: Path, mode: str) -> None:
    first = new_scheduler(tmp_path)
    await first.start()
    group, members = await first.submit_group([work(10), work(10), work(10)], mode)
    await asyncio.sleep(15)
    await testing.crash(first)

    async with new_scheduler(tmp_path, seed=1) as second:
        before = await second.group(group.group_id)
        await asyncio.sleep(100)

        assert counts(before)[:3] == ("RUNNING", 3, 1)
        assert counts(await second.group(group.group_id)) == ("COMPLETED", 3, 3, 3, 0)
        assert await states(second, *members) == ["COMPLETED", "FAILED", "COMPLETED"]
    assert_counters(tmp_path)


@pytest.mark.parametrize(
    ("wanted", "options", "field"),
    [
        ([], {}, "jobs"),
        ([NewJob(job_type="work")], {"mode": "zigzag"}, "mode"),
        ([NewJob(job_type="work")], {"on_failure": "panic"}, "on_failure"),
        ([NewJob(job_type="work"), NewJob(job_type="work", office_id="other")], {}, "jobs"),
    ],
)
async def test_an_empty_or_impossible_group_is_refused(tmp_path: Path, wanted: Any, options: Any, field: str) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("other")

        with pytest.raises(Invalid) as refused:
            await scheduler.submit_group(wanted, **options)

        assert refused.value.problems[0].field == field
        assert await history(scheduler) == []


@pytest.mark.sqlite_only("counts the steps of its machine")
@pytest.mark.parametrize("on_failure", ["stop", "skip"])
async def test_the_end_of_a_large_group_costs_in_proportion(tmp_path: Path, on_failure: str) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        costs = []
        for size in (200, 2000):
            await scheduler.pause()
            _, members = await scheduler.submit_group([fails(), *[work(1)] * (size - 1)], on_failure=on_failure)
            steps = steps_of(scheduler)
            await scheduler.resume()
            await scheduler.wait(members[0].job_id)
            costs.append(steps.taken / size)

        assert costs[1] < 2 * costs[0]


# Arrangement.


def work(seconds: float, **options: Any) -> NewJob:
    return NewJob(job_type="work", params={"seconds": seconds}, **options)


def fails() -> NewJob:
    return NewJob(job_type="fail", retry_policy={"max_attempts": 0})


def flaky(times: int, max_attempts: int = 3) -> NewJob:
    return NewJob(job_type="fail", params={"times": times}, retry_policy={"max_attempts": max_attempts})


def blocked() -> NewJob:
    """Submits a job that cannot start while the gate is closed."""
    return NewJob(job_type="work", resources=["gate"])


@asynccontextmanager
async def gated_scheduler(directory: Path) -> AsyncIterator[Scheduler]:
    """Runs a scheduler in which the resource `gate` is paused, with a handler that fails after a while."""
    async with counted_scheduler(directory) as scheduler:

        @scheduler.job_type("slow_fail")
        async def slow_fail(run: Any, seconds: float) -> None:
            await asyncio.sleep(seconds)
            raise ValueError

        await scheduler.pause(resource="gate")
        yield scheduler


def counts(group: Group) -> tuple[str, int, int, int, int]:
    return group.status.value, group.members, group.ended, group.succeeded, group.cancelled


async def reasons(scheduler: Scheduler, jobs: list[Job]) -> set[str | None]:
    """Returns why jobs were cancelled or skipped."""
    found: set[str | None] = set()
    for job in jobs:
        run = await scheduler.run_of(job.job_id)
        found.add((await scheduler.job(job.job_id)).cancel_reason or (run.reason if run else None))
    return found


async def finished(scheduler: Scheduler) -> list[tuple[object, object]]:
    told = [event.details for event in await history(scheduler) if event.type == "group_finished"]
    return [(details["group_id"], details["status"]) for details in told]


def types(events: Any, job: Job) -> list[str]:
    return [event.type for event in events if event.job_id == job.job_id]
