"""Spec 8: dependencies (US-JS01)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nextslot import Job, NewJob, Scheduler
from nextslot.engine.finish.dependents import find_cycle
from nextslot.errors import DependencyCycle, Invalid
from nextslot.testing import BEGINNING
from tests.support import counted_scheduler, history, started_order, states, steps_of

NO_RETRY = {"max_attempts": 0}


# When a job is ready.


async def test_a_job_without_prerequisites_is_ready_at_once(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()

        assert (await scheduler.submit("work")).status == "QUEUED"


async def test_US_JS01_a_job_waits_until_every_prerequisite_has_succeeded(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=0)
        slow = await scheduler.submit("work", {"seconds": 50})
        quick = await scheduler.submit("work", {"seconds": 5})
        skipped = await scheduler.submit("skip")
        job = await scheduler.submit("work", depends_on=[slow.job_id, quick.job_id, skipped.job_id])

        await asyncio.sleep(49)
        before = await states(scheduler, job)
        ended = await scheduler.wait(job.job_id)

        assert (job.status, before, ended.status) == ("WAITING", ["WAITING"], "COMPLETED")
        assert ended.job.started_at == slow.created_at.after(50)
        assert ended.job.depends_on == (slow.job_id, quick.job_id, skipped.job_id)
        assert [event.job_id for event in await history(scheduler) if event.type == "job_ready"] == [job.job_id]


async def test_the_success_of_a_retry_counts(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        first = await scheduler.submit("fail", {"times": 2})
        then = await scheduler.submit("work", depends_on=[first.job_id])
        await asyncio.sleep(11)
        before = await states(scheduler, then)

        await scheduler.wait(then.job_id)

        assert before == ["WAITING"]
        assert await states(scheduler, first, then) == ["FAILED", "COMPLETED"]


async def test_a_job_may_depend_on_a_retry_and_waits_for_its_chain(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        first = await scheduler.submit("fail", {"times": 2})
        await asyncio.sleep(1)
        retry = (await scheduler.chain(first.job_id))[1]
        then = await scheduler.submit("work", depends_on=[retry.job_id])

        assert (await scheduler.wait(then.job_id)).status == "COMPLETED"
        assert len(await scheduler.chain(first.job_id)) == 3


async def test_a_dependency_named_twice_counts_once(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        first = await scheduler.submit("work")
        then = await scheduler.submit("work", depends_on=[first.job_id, first.job_id])

        assert (await scheduler.wait(then.job_id)).status == "COMPLETED"
        assert then.depends_on == (first.job_id,)


async def test_a_job_whose_prerequisites_are_met_still_waits_for_its_time(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        first = await scheduler.submit("work", {"seconds": 10})
        later = await scheduler.submit("work", depends_on=[first.job_id], scheduled_for=BEGINNING.after(100))
        await asyncio.sleep(50)
        before = await states(scheduler, first, later)

        ended = await scheduler.wait(later.job_id)

        assert before == ["COMPLETED", "WAITING"]
        assert ended.job.started_at == BEGINNING.after(100)


# Who may be named.


async def test_jobs_of_one_request_depend_on_each_other_by_key(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        jobs = await scheduler.submit_many(
            [job("last", "left", "right"), job("left", "first"), job("right", "first"), job("first")]
        )
        await scheduler.wait(jobs[0].job_id)

        order = await started_order(scheduler)

        last, left, right, first = (job.job_id for job in jobs)
        assert (order[0], order[-1], set(order)) == (first, last, {first, left, right, last})
        assert jobs[0].depends_on == (left, right)


@pytest.mark.parametrize("case", ["unknown", "foreign", "own", "foreign key", "one of several"])
async def test_an_unknown_foreign_or_own_id_is_refused_and_nothing_is_stored(tmp_path: Path, case: str) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("other")
        await scheduler.pause()
        there = await scheduler.submit("work", office_id="other")
        named, others = {
            "unknown": ("nobody", []),
            "foreign": (there.job_id, []),
            "own": ("a", []),
            "foreign key": ("theirs", [NewJob(job_type="work", key="theirs", office_id="other")]),
            "one of several": ("nobody", [job("b")]),
        }[case]

        with pytest.raises(Invalid, match=named):
            await scheduler.submit_many([*others, job("a", named)])

        assert await scheduler.queue() == []
        assert await scheduler.queue("other") == [there]


# Cycles.


@pytest.mark.parametrize(
    ("edges", "cycle"),
    [
        ({"a": "a"}, ["a"]),
        ({"a": "b", "b": "a"}, ["a", "b"]),
        ({"a": "bc", "b": "d", "c": "a", "d": ""}, ["a", "c"]),
        ({"x": "a", "a": "b", "b": "c", "c": "a"}, ["a", "b", "c"]),
    ],
)
async def test_a_cycle_is_refused_with_its_jobs_in_order(
    tmp_path: Path, edges: dict[str, str], cycle: list[str]
) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        with pytest.raises(DependencyCycle) as refused:
            await scheduler.submit_many([job(key, *others) for key, others in edges.items()])

        assert is_rotation(refused.value.cycle, cycle)
        assert " → ".join([*refused.value.cycle, refused.value.cycle[0]]) in str(refused.value)
        assert refused.value.data()["cycle"] == refused.value.cycle
        assert await scheduler.queue() == []


async def test_the_order_of_a_sequential_group_counts_as_edges(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        wanted = [job("a", "c"), job("b"), job("c")]

        with pytest.raises(DependencyCycle) as refused:
            await scheduler.submit_group(wanted, mode="sequential")
        _, members = await scheduler.submit_group(wanted, mode="parallel")

        assert is_rotation(refused.value.cycle, ["a", "c", "b"])
        assert (await scheduler.wait(members[0].job_id)).status == "COMPLETED"


@pytest.mark.parametrize("waits", [{"a": "b", "b": "c", "c": ""}, {"a": "bc", "b": "d", "c": "d", "d": ""}, {}])
def test_a_graph_without_a_cycle_has_none(waits: dict[str, str]) -> None:
    assert find_cycle(waits) is None


def test_a_cycle_is_found_at_any_depth() -> None:
    around = {str(n): [str((n + 1) % 50_000)] for n in range(50_000)}

    found = find_cycle(around)

    assert found is not None
    assert len(found) == 50_000
    assert all(around[one] == [other] for one, other in zip(found, [*found[1:], found[0]], strict=True))


# When a prerequisite does not succeed.


@pytest.mark.parametrize("how", ["failed", "cancelled"])
async def test_a_lost_prerequisite_leaves_its_dependents_waiting(tmp_path: Path, how: str) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        first, then, beyond = await a_line(scheduler, 3)
        await lose(scheduler, first, how)

        assert await states(scheduler, then, beyond) == ["WAITING", "WAITING"]


@pytest.mark.parametrize("how", ["failed", "cancelled"])
async def test_the_cancel_policy_cancels_them_through_the_whole_graph(tmp_path: Path, how: str) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        first, *rest = await a_line(scheduler, 4, on_dependency_failure="cancel")
        bystander = await scheduler.submit("work")
        await lose(scheduler, first, how)

        assert await states(scheduler, *rest, bystander) == ["CANCELLED"] * 3 + ["COMPLETED"]
        lost = [await scheduler.job(job.job_id) for job in rest]
        assert {(job.cancel_reason, job.cancel_requested_at) for job in lost} == {("dependency failed", None)}


async def test_the_policy_is_the_job_s_else_the_office_s(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.change("default", on_dependency_failure="cancel")
        first = await scheduler.submit("fail", retry_policy=NO_RETRY)
        by_office = await scheduler.submit("work", depends_on=[first.job_id])
        by_job = await scheduler.submit("work", depends_on=[first.job_id], on_dependency_failure="wait")
        await scheduler.wait(first.job_id)

        assert await states(scheduler, by_office, by_job) == ["CANCELLED", "WAITING"]


async def test_retries_are_spent_before_a_dependent_is_cancelled(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        first = await scheduler.submit("fail")
        then = await scheduler.submit("work", depends_on=[first.job_id], on_dependency_failure="cancel")
        await asyncio.sleep(69)
        before = await states(scheduler, then)
        await scheduler.wait(first.job_id)

        assert (before, await states(scheduler, then)) == (["WAITING"], ["CANCELLED"])


async def test_a_cancelled_dependent_stays_cancelled_when_a_manual_retry_succeeds(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        first = await scheduler.submit("fail", {"times": 1}, retry_policy=NO_RETRY)
        waits = await scheduler.submit("work", depends_on=[first.job_id])
        gone = await scheduler.submit("work", depends_on=[first.job_id], on_dependency_failure="cancel")
        ended = await scheduler.wait(first.job_id)
        assert ended.run is not None

        await scheduler.retry(ended.run.run_id)
        await scheduler.wait(waits.job_id)

        assert await states(scheduler, waits, gone) == ["COMPLETED", "CANCELLED"]


async def test_the_cancel_reaches_the_end_of_a_very_long_line(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        first, *rest = await a_line(scheduler, 5000, on_dependency_failure="cancel")
        await lose(scheduler, first, "failed")

        assert {job.status for job in await all_of(scheduler, rest)} == {"CANCELLED"}


# Jobs that come after the end of what they depend on.


@pytest.mark.parametrize(
    ("params", "policy", "status"),
    [
        ({"times": 0}, "wait", "COMPLETED"),
        ({"times": 1}, "cancel", "COMPLETED"),
        ({}, "wait", "WAITING"),
        ({}, "cancel", "CANCELLED"),
    ],
    ids=["succeeded", "succeeded by a retry", "failed, waits", "failed, cancelled"],
)
async def test_a_new_job_meets_what_has_ended_already(tmp_path: Path, params: Any, policy: str, status: str) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        first = await scheduler.submit("fail", params)
        await scheduler.wait(first.job_id)

        job = await scheduler.submit("work", depends_on=[first.job_id], on_dependency_failure=policy)
        beyond = await scheduler.submit("work", depends_on=[job.job_id], on_dependency_failure=policy)
        await asyncio.sleep(10)

        assert await states(scheduler, job, beyond) == [status, status]
        assert job.status == ("QUEUED" if status == "COMPLETED" else status)


async def test_a_request_whose_root_is_doomed_is_cancelled_through_its_own_graph(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        dead = await scheduler.submit("fail", retry_policy=NO_RETRY)
        await scheduler.wait(dead.job_id)
        wanted = [
            NewJob(job_type="work", key=key, depends_on=[other], on_dependency_failure="cancel")  # type: ignore[arg-type]
            for key, other in (("a", dead.job_id), ("b", "a"), ("c", "b"))
        ]

        jobs = await scheduler.submit_many(wanted)

        assert [job.status for job in jobs] == ["CANCELLED"] * 3


async def test_while_a_retry_is_still_to_come_nothing_is_doomed(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        first = await scheduler.submit("fail", {"times": 1})
        await asyncio.sleep(1)

        job = await scheduler.submit("work", depends_on=[first.job_id], on_dependency_failure="cancel")

        assert job.status == "WAITING"
        assert (await scheduler.wait(job.job_id)).status == "COMPLETED"


async def test_while_a_chain_is_retried_by_hand_nothing_is_doomed(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        first = await scheduler.submit("fail", {"times": 1}, retry_policy={"max_attempts": 0})
        ended = await scheduler.wait(first.job_id)
        await scheduler.pause()
        assert ended.run is not None
        await scheduler.retry(ended.run.run_id)

        job = await scheduler.submit("work", depends_on=[first.job_id], on_dependency_failure="cancel")
        await scheduler.resume()

        assert job.status == "WAITING"
        assert (await scheduler.wait(job.job_id)).status == "COMPLETED"


# Cost.


async def test_20_000_jobs_and_40_000_edges_work_in_one_request(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        wanted = [job(str(n), *(str(n - back) for back in (1, 7) if n >= back)) for n in range(20_000)]

        jobs = await scheduler.submit_many(wanted)

        assert [job.status for job in jobs] == ["QUEUED", *["WAITING"] * 19_999]
        assert sum(len(job.depends_on) for job in jobs) == 39_992


@pytest.mark.sqlite_only("counts the steps of its machine")
async def test_the_end_of_a_job_costs_by_its_edges_and_not_by_the_jobs_of_its_office(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        costs = []
        for crowd in (100, 5000):
            await scheduler.submit_many([job("dam", scheduled=True), *(job(None, "dam") for _ in range(crowd))])
            first, *_ = await a_line(scheduler, 3)
            steps = steps_of(scheduler)
            await scheduler.wait(first.job_id)
            costs.append(steps.taken)

        assert costs[1] < 1.5 * costs[0]


# Arrangement.


async def test_a_job_that_expires_with_what_it_depends_on_ends_once(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        at = scheduler._clock.now().after(10)
        first = await scheduler.submit("work", expires_at=at)
        second = await scheduler.submit(
            "work", depends_on=[first.job_id], on_dependency_failure="cancel", expires_at=at
        )
        await asyncio.sleep(20)

        assert await states(scheduler, first, second) == ["CANCELLED"] * 2
        ends = [event.job_id for event in await history(scheduler) if event.type == "job_cancelled"]
        assert sorted(map(str, ends)) == sorted([first.job_id, second.job_id])


def job(key: str | None, *others: str, scheduled: bool = False) -> NewJob:
    when = BEGINNING.after(1e6) if scheduled else None
    return NewJob(job_type="work", key=key, depends_on=others, scheduled_for=when)


async def a_line(scheduler: Scheduler, length: int, **options: Any) -> list[Job]:
    """Makes jobs that each wait for the previous one; the first one fails when it starts."""
    soon = scheduler._clock.now().after(5)
    first = NewJob(job_type="fail", key="0", retry_policy=NO_RETRY, scheduled_for=soon)
    rest = [NewJob(job_type="work", key=str(n), depends_on=[str(n - 1)], **options) for n in range(1, length)]
    return await scheduler.submit_many([first, *rest])


async def lose(scheduler: Scheduler, job: Job, how: str) -> None:
    """Makes a job fail for good, or cancels it, and waits until all consequences are stored."""
    if how == "cancelled":
        await scheduler.cancel(job.job_id)
    await asyncio.sleep(100)
    assert (await scheduler.job(job.job_id)).status == how.upper()


async def all_of(scheduler: Scheduler, jobs: list[Job]) -> list[Job]:
    return [await scheduler.job(job.job_id) for job in jobs]


def is_rotation(found: list[str], expected: list[str]) -> bool:
    return any(found == expected[n:] + expected[:n] for n in range(len(expected)))
