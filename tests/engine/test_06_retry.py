"""Spec 6: retries (DEC-007)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from nextslot import (
    Job,
    Limits,
    NewJob,
    Scheduler,
    testing,
)
from nextslot.domain import OnDependencyFailure
from nextslot.errors import Conflict, Invalid, NotFound
from tests.support import assert_counters, counted_scheduler, history, new_scheduler, states

# What a retry has of its own: ids, times, its place at the back, and how far it is. Everything else is intent.
OF_ITS_OWN = {
    "job_id", "retry_of", "position", "created_at", "queued_at", "scheduled_for", "started_at", "finished_at",
    "outcome", "decision", "worker_id", "stage", "is_due", "unique_key", "expires_at", "passed_over_since",
    "webhook_status", "error_line", "fingerprint",
}  # fmt: skip


# A retry is a new job.


async def test_DEC_007_a_failed_run_makes_a_new_job_like_it(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await submit_with_everything(scheduler)
        await asyncio.sleep(1)

        failed, retry = await scheduler.chain(job.job_id)

        assert (failed.status, retry.status) == ("FAILED", "WAITING")
        assert differences(failed, retry) <= OF_ITS_OWN
        assert {name for name, value in vars(failed).items() if value is None} <= {
            "group_id", "sequence", "retry_of", "cancel_requested_at", "cancel_mode", "cancelled_at", "cancel_reason",
            "expires_at", "scheduled_for", "passed_over_since", "schedule_id", "ages_at", "affinity", "limit_keys",
            "await_signal",
            "asked_at", "answer_by",
        }  # fmt: skip
        assert retry.retry_of == failed.job_id
        assert retry.unique_key is None
        assert (retry.started_at, retry.worker_id, retry.outcome, retry.decision) == (None,) * 4


async def test_a_retry_keeps_its_schedule(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        template = await scheduler.templates.create(name="template", job_type="fail", params={"times": 1})
        schedule = await scheduler.schedules.create(
            name="schedule", template_id=template.template_id, cron_expression="@yearly"
        )
        job = await scheduler.schedules.trigger(schedule.schedule_id)
        assert isinstance(job, Job)
        await scheduler.wait(job.job_id)

        chain = await scheduler.chain(job.job_id)

        assert [one.schedule_id for one in chain] == [schedule.schedule_id] * 2


async def test_a_retry_keeps_its_group_and_place(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        group, (first, second) = await scheduler.submit_group([a_job("work"), a_job("fail", times=1)])
        await scheduler.wait(second.job_id)

        chain = await scheduler.chain(second.job_id)

        assert [(job.group_id, job.sequence) for job in chain] == [(group.group_id, 1)] * 2
        assert [job.job_id for job in await scheduler.members(group.group_id)] == [
            first.job_id, *(job.job_id for job in chain)
        ]  # fmt: skip


async def test_a_retry_goes_to_the_back_of_its_priority(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        await scheduler.submit("fail", priority=3)
        others = [await scheduler.submit("work", {"seconds": 100}, priority=priority) for priority in (3, 3, 2)]
        await scheduler.resume()
        await asyncio.sleep(50)

        queue = await scheduler.queue()

        assert [job.retry_of is not None for job in queue] == [False, True, False]
        assert [queue[0].job_id, queue[2].job_id] == [others[1].job_id, others[2].job_id]


async def test_a_retry_has_not_been_passed_over_yet(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path, limits=Limits(resources={"gpu": 2})) as scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=0)
        await scheduler.submit("work", {"seconds": 10}, resources=["gpu"])
        large = await scheduler.submit("fail", resources={"gpu": 2})
        await scheduler.submit("work", {"seconds": 5}, resources=["gpu"], priority=-1)
        await asyncio.sleep(12)

        failed, retry = await scheduler.chain(large.job_id)

        assert (failed.passed_over_since, retry.passed_over_since) == (large.created_at, None)


async def test_a_chain_is_a_line_of_at_most_four_jobs(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("fail")

        ended = await scheduler.wait(job.job_id)

        chain = await scheduler.chain(job.job_id)
        assert [link.retry_of for link in chain] == [None, *(link.job_id for link in chain[:-1])]
        assert len(chain) == 4
        assert {link.chain_id for link in chain} == {job.job_id}
        assert ended.job == chain[-1]
        for link in chain:
            assert await scheduler.chain(link.job_id) == chain


async def test_a_handler_knows_which_attempt_it_is(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        attempts = []

        @scheduler.job_type("count")
        async def count(run: Any) -> None:
            attempts.append(run.attempt)
            raise ValueError

        await scheduler.wait((await scheduler.submit("count")).job_id)

        assert attempts == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("office", "policy", "delays"),
    [
        ("default", None, [10, 20, 40]),
        ("other", None, [60, 120]),
        ("other", {"max_attempts": 3}, [60, 120, 240]),
        ("default", {"backoff": "linear"}, [10, 20, 30]),
        ("default", {"max_delay_seconds": 15}, [10, 15, 15]),
        ("default", {"base_delay_seconds": 0.5}, [0.5, 1, 2]),
        ("default", {"max_attempts": 0}, []),
        ("default", {"retry_on": ["timeout"]}, []),
    ],
)
async def test_the_delays_between_retries(
    tmp_path: Path, office: str, policy: dict | None, delays: list[float]
) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("other")
        job = await scheduler.submit("fail", {"kind": "session_error"}, office_id=office, retry_policy=policy)
        await scheduler.wait(job.job_id)

        assert gaps(await scheduler.chain(job.job_id)) == delays


async def test_a_type_may_have_a_policy_and_a_job_another(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("typed", retry_policy={"base_delay_seconds": 3})
        async def typed(run: Any) -> None:
            raise ValueError

        by_type = await scheduler.submit("typed")
        by_job = await scheduler.submit("typed", retry_policy={"max_attempts": 1})
        for job in (by_type, by_job):
            await scheduler.wait(job.job_id)

        assert gaps(await scheduler.chain(by_type.job_id)) == [3, 6, 12]
        assert gaps(await scheduler.chain(by_job.job_id)) == [3]


async def test_jitter_spreads_the_delays_within_its_bounds(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        policy = {"max_attempts": 1, "base_delay_seconds": 100, "jitter": 0.2}
        jobs = [await scheduler.submit("fail", retry_policy=policy) for _ in range(20)]

        found = [planned(*(await scheduler.chain((await scheduler.wait(job.job_id)).job.job_id))) for job in jobs]

        assert all(80 <= delay <= 120 for delay in found)
        assert len(set(found)) == 20


@pytest.mark.parametrize("kind", ["cancelled", "git_conflict", "permission", "dependency", "invalid"])
async def test_some_kinds_are_never_retried(tmp_path: Path, kind: str) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        ended = await scheduler.wait((await scheduler.submit("fail", {"kind": kind})).job_id)

        assert (ended.status, ended.job.permanently_failed) == ("FAILED", True)
        assert len(await scheduler.chain(ended.job.job_id)) == 1


@pytest.mark.parametrize("is_same", [True, False], ids=["the same object", "another"])
@pytest.mark.parametrize("is_crash", [True, False], ids=["crash", "stop"])
async def test_the_delay_is_stored_and_survives_a_restart(tmp_path: Path, is_same: bool, is_crash: bool) -> None:
    scheduler = new_scheduler(tmp_path)
    await scheduler.start()
    job = await scheduler.submit("fail", {"times": 1}, retry_policy={"base_delay_seconds": 100})
    await asyncio.sleep(30)
    await (testing.crash(scheduler) if is_crash else scheduler.stop())
    await asyncio.sleep(30)

    next_life = scheduler if is_same else new_scheduler(tmp_path, seed=1)
    async with next_life:
        await asyncio.sleep(39)
        before = await next_life.chain(job.job_id)
        await asyncio.sleep(2)
        after = await next_life.chain(job.job_id)

    assert [link.status for link in before] == ["FAILED", "WAITING"]
    assert [link.status for link in after] == ["FAILED", "COMPLETED"]
    assert gaps(after) == [100]
    assert_counters(tmp_path)


# Failed for good.


async def test_a_failure_that_no_retry_follows_is_permanent_a_stored_fact_and_an_event(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("fail", retry_policy={"max_attempts": 1})
        await scheduler.wait(job.job_id)

        chain = await scheduler.chain(job.job_id)

        assert [link.permanently_failed for link in chain] == [False, True]
        told = [event.job_id for event in await history(scheduler) if event.type == "job_failed_permanently"]
        assert told == [chain[-1].job_id]


async def test_a_failure_after_a_cancel_request_is_for_good_but_not_permanent(tmp_path: Path) -> None:
    async with slow_failing_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("slow_fail")
        await scheduler.cancel(job.job_id)

        ended = await scheduler.wait(job.job_id)

        assert (ended.status, ended.job.permanently_failed) == ("FAILED", False)
        assert "job_failed_permanently" not in {event.type for event in await history(scheduler)}


async def test_every_failure_has_its_decision_in_the_transaction_of_the_failure(tmp_path: Path) -> None:
    """Nobody ever reads a failure that is undecided: each reader looks between two transactions."""
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("fail")
        seen = set()
        async for event in scheduler.events():
            seen |= {link.decision for link in await scheduler.chain(job.job_id) if link.outcome == "FAILED"}
            if event.type == "job_failed_permanently":
                break

        assert seen == {"retry", "permanent"}


# Retry by hand.


async def test_a_manual_retry_is_possible_after_the_limit(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("fail", {"times": 4})
        failed = await scheduler.wait(job.job_id)
        assert failed.run is not None

        retried = await scheduler.accept_retry(failed.run.run_id, priority=7)
        ended = await scheduler.wait(job.job_id)

        assert (retried.is_new, retried.job.retry_of, retried.job.priority) == (True, failed.job.job_id, 7)
        assert (ended.job.job_id, ended.status) == (retried.job.job_id, "COMPLETED")
        assert (ended.job.scheduled_for, ended.job.started_at) == (ended.job.created_at,) * 2  # At once.


async def test_a_manual_link_counts_like_any_other(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("fail")
        failed = await scheduler.wait(job.job_id)
        assert failed.run is not None

        await scheduler.retry(failed.run.run_id)
        ended = await scheduler.wait(job.job_id)

        assert len(await scheduler.chain(job.job_id)) == 5
        assert ended.job.permanently_failed


async def test_a_manual_retry_of_an_early_run_is_appended_to_the_end_of_the_chain(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("fail", {"times": 4})
        last = (await scheduler.wait(job.job_id)).job

        retried = await scheduler.accept_retry(await run_id_of(scheduler, job))

        assert retried.job.retry_of == last.job_id


async def test_a_manual_retry_brings_a_waiting_retry_forward(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("fail", {"times": 1})
        await asyncio.sleep(4)
        waiting = (await scheduler.chain(job.job_id))[1]

        retried = await scheduler.accept_retry(await run_id_of(scheduler, job), priority=9)
        await testing.settled()

        assert (retried.is_new, retried.job.job_id, retried.job.priority) == (False, waiting.job_id, 9)
        assert await states(scheduler, waiting) == ["COMPLETED"]
        assert gaps(await scheduler.chain(job.job_id)) == [4]


async def test_a_manual_retry_of_a_chain_that_is_queued_changes_at_most_its_priority(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("fail", {"times": 1})
        await asyncio.sleep(4)
        await scheduler.pause()
        await asyncio.sleep(20)

        retried = await scheduler.accept_retry(await run_id_of(scheduler, job))

        assert (retried.is_new, retried.job.status) == (False, "QUEUED")
        assert len(await scheduler.chain(job.job_id)) == 2


async def test_a_manual_retry_of_what_runs_or_has_succeeded_is_refused(tmp_path: Path) -> None:
    async with flaky_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("flaky")
        await asyncio.sleep(15)
        run_id = await run_id_of(scheduler, job)

        with pytest.raises(Conflict, match="running now"):
            await scheduler.retry(run_id)
        ended = await scheduler.wait(job.job_id)
        with pytest.raises(Conflict, match="succeeded since"):
            await scheduler.retry(run_id)
        assert ended.run is not None
        with pytest.raises(Conflict, match="COMPLETED: only a FAILED run"):
            await scheduler.retry(ended.run.run_id)
        assert len(await scheduler.chain(job.job_id)) == 2


async def test_a_manual_retry_after_a_cancel_is_appended(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("fail", {"times": 1})
        await asyncio.sleep(1)
        waiting = (await scheduler.chain(job.job_id))[1]
        await scheduler.cancel(waiting.job_id)

        retried = await scheduler.accept_retry(await run_id_of(scheduler, job))
        ended = await scheduler.wait(job.job_id)

        assert (retried.is_new, retried.job.retry_of) == (True, waiting.job_id)
        assert [link.status for link in await scheduler.chain(job.job_id)] == ["FAILED", "CANCELLED", "COMPLETED"]
        assert (ended.job.cancel_reason, ended.job.cancel_requested_at) == (None, None)


async def test_a_manual_retry_of_an_interrupted_job_forgets_the_cancel_request(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", {"seconds": 50})
        await scheduler.cancel(job.job_id, reason="not now", interrupt=True)
        await scheduler.wait(job.job_id)

        await scheduler.retry(await run_id_of(scheduler, job))
        ended = await scheduler.wait(job.job_id)

        assert ended.status == "COMPLETED"
        assert (ended.job.cancel_mode, ended.job.cancel_reason, ended.job.cancelled_at) == (None, None, None)


@pytest.mark.parametrize("priority", [1_000_001, -1_000_000, "high", 1.5])
async def test_a_manual_retry_with_an_impossible_priority_is_refused(tmp_path: Path, priority: int) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("fail", retry_policy={"max_attempts": 0})
        await scheduler.wait(job.job_id)

        with pytest.raises(Invalid, match="priority"):
            await scheduler.retry(await run_id_of(scheduler, job), priority=priority)
        assert len(await scheduler.chain(job.job_id)) == 1


async def test_a_manual_retry_of_nothing_is_refused(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", {"seconds": 10})

        with pytest.raises(NotFound, match="no run 'none'"):
            await scheduler.retry("none")
        with pytest.raises(Conflict, match="still running"):
            await scheduler.retry(await run_id_of(scheduler, job))


async def test_two_manual_retries_at_once_make_one_job(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("fail", {"times": 1}, retry_policy={"max_attempts": 0})
        await scheduler.wait(job.job_id)
        run_id = await run_id_of(scheduler, job)
        await scheduler.pause()

        one, other = await asyncio.gather(scheduler.accept_retry(run_id), scheduler.accept_retry(run_id))

        assert one.job.job_id == other.job.job_id
        assert (one.is_new, other.is_new) == (True, False)


async def test_a_manual_retry_opens_its_group_until_it_ends(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        group, (job,) = await scheduler.submit_group([a_job("fail", times=1, max_attempts=0)])
        await scheduler.wait(job.job_id)
        ended = await scheduler.group(group.group_id)
        await scheduler.pause()

        await scheduler.retry(await run_id_of(scheduler, job))
        reopened = await scheduler.group(group.group_id)
        await scheduler.resume()
        await scheduler.wait(job.job_id)

        assert (ended.status, reopened.status, reopened.finished_at) == ("PARTIAL", "RUNNING", None)
        assert (await scheduler.group(group.group_id)).status == "COMPLETED"


async def test_a_dependent_goes_on_when_a_manual_retry_succeeds(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        first = await scheduler.submit("fail", {"times": 1}, retry_policy={"max_attempts": 0})
        then = await scheduler.submit("work", depends_on=[first.job_id])
        await asyncio.sleep(100)
        before = await states(scheduler, then)

        await scheduler.retry(await run_id_of(scheduler, first))
        await asyncio.sleep(100)

        assert (before, await states(scheduler, then)) == (["WAITING"], ["COMPLETED"])


# Waiting for a chain.


async def test_wait_waits_for_the_chain_from_whichever_of_its_jobs(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("fail", {"times": 2})
        await asyncio.sleep(1)
        retry = (await scheduler.chain(job.job_id))[1]

        ended = await asyncio.gather(scheduler.wait(job.job_id), scheduler.wait(retry.job_id))
        again = await scheduler.wait(job.job_id)

        assert list(ended) == [again, again]
        assert (again.status, again.job.job_id) == ("COMPLETED", (await scheduler.chain(job.job_id))[2].job_id)


# Arrangement.


def a_job(job_type: str, max_attempts: int = 3, **params: object) -> NewJob:
    return NewJob(job_type=job_type, params=params, retry_policy={"max_attempts": max_attempts})


async def submit_with_everything(scheduler: Scheduler) -> Job:
    """Submits a job in which every field that a caller may set differs from its default."""
    before = await scheduler.submit("work", {"seconds": 0})
    await scheduler.wait(before.job_id)
    template = await scheduler.templates.create(name="template", job_type="fail")
    return await scheduler.submit(
        "fail",
        {"kind": "unavailable"},
        priority=5,
        depends_on=[before.job_id],
        on_dependency_failure=OnDependencyFailure.CANCEL,
        role="BE",
        task_id="task",
        title="title",
        resources={"gpu": 1},
        timeout_seconds=77,
        stall_timeout_seconds=55,
        retry_policy={"max_attempts": 2, "backoff": "linear", "jitter": 0.1, "retry_on": ["unavailable"]},
        webhook={"url": "http://localhost/hook"},
        unique_key="only one",
        template_id=template.template_id,
        created_by="somebody",
    )


@asynccontextmanager
async def slow_failing_scheduler(directory: Path) -> AsyncIterator[Scheduler]:
    async with counted_scheduler(directory) as scheduler:

        @scheduler.job_type("slow_fail")
        async def slow_fail(run: Any) -> None:
            await asyncio.sleep(10)
            raise ValueError

        yield scheduler


@asynccontextmanager
async def flaky_scheduler(directory: Path) -> AsyncIterator[Scheduler]:
    async with counted_scheduler(directory) as scheduler:

        @scheduler.job_type("flaky")
        async def flaky(run: Any) -> None:
            if run.attempt == 1:
                raise ValueError
            await asyncio.sleep(100)

        yield scheduler


def differences(one: Job, other: Job) -> set[str]:
    theirs = vars(other)
    return {name for name, value in vars(one).items() if value != theirs[name]}


def gaps(chain: list[Job]) -> list[float]:
    """Returns the seconds between each failure and the start of its retry."""
    return [((after.started_at or 0) - (before.finished_at or 0)) / 1e6 for before, after in pairwise(chain)]


def planned(failed: Job, retry: Job) -> float:
    return ((retry.scheduled_for or 0) - (failed.finished_at or 0)) / 1e6


async def run_id_of(scheduler: Scheduler, job: Job) -> str:
    run = await scheduler.run_of(job.job_id)
    assert run is not None
    return run.run_id
