"""Spec 7: cancel and retry in bulk, by filter, in small steps that hold up nobody."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from nextslot import (
    Fail,
    Job,
    NewJob,
    Scheduler,
    testing,
)
from nextslot.domain import OnDependencyFailure
from nextslot.domain.filters import JobFilter
from nextslot.errors import Draining, Invalid
from nextslot.services import bulk
from tests.support import (
    assert_counters,
    counted_scheduler,
    history,
    named,
    new_scheduler,
    running_scheduler,
    states,
)

NO_RETRY = {"max_attempts": 0}


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "STEP", 5)


# Cancel.


async def test_every_job_that_matches_and_has_not_started_is_cancelled_and_no_other(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        running = await scheduler.submit("work", {"seconds": 50}, task_id="t")
        queued = [await scheduler.submit("work", task_id="t") for _ in range(3)]
        waiting = await scheduler.submit("work", task_id="t", depends_on=[running.job_id])
        other = await scheduler.submit("work", task_id="u")

        done = await scheduler.bulk.cancel(JobFilter(task_id="t"), reason="not needed")

        wanted = [*queued, waiting]
        assert (done.cancelled.count, set(done.cancelled.ids)) == (4, {job.job_id for job in wanted})
        assert (done.stopping.count, done.finishing.count) == (0, 0)
        assert await states(scheduler, *wanted, running, other) == ["CANCELLED"] * 4 + ["RUNNING", "QUEUED"]
        assert (await scheduler.job(waiting.job_id)).cancel_reason == "not needed"


@pytest.mark.parametrize(
    ("interrupt", "stopping", "finishing"), [(None, 1, 1), (True, 2, 0), (False, 0, 2)], ids=["office", "yes", "no"]
)
async def test_running_jobs_are_told_to_stop_or_left_to_finish_if_they_are_included(
    tmp_path: Path, interrupt: bool | None, stopping: int, finishing: int
) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o")
        for office_id in ("default", "o"):
            await scheduler.submit("work", {"seconds": 50}, office_id=office_id, title="x")
            await scheduler.submit("work", office_id=office_id, title="x", scheduled_for=a_day_later(scheduler))

        done = await scheduler.bulk.cancel(JobFilter(q="x"), include_running=True, interrupt=interrupt)

        assert (done.cancelled.count, done.stopping.count, done.finishing.count) == (2, stopping, finishing)
        assert len(done.stopping.ids + done.finishing.ids) == 2


async def test_an_empty_filter_needs_to_say_that_all_are_meant(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        jobs = [await scheduler.submit("work") for _ in range(3)]
        for call in (scheduler.bulk.cancel, scheduler.bulk.retry):
            for nothing in (None, JobFilter(), JobFilter(status=[])):
                with pytest.raises(Invalid) as refused:
                    await call(nothing)
                assert [problem.field for problem in refused.value.problems] == ["all"]
        assert await states(scheduler, *jobs) == ["QUEUED"] * 3

        done = await scheduler.bulk.cancel(all=True)

        assert done.cancelled.count == 3


@pytest.mark.one_thread("with threads, a job may be stored before the call reads what exists")
@pytest.mark.usefixtures("small_steps")
async def test_only_what_existed_when_it_was_called_is_cancelled(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        await scheduler.submit_many([NewJob(job_type="work")] * 23)

        done, later = await asyncio.gather(scheduler.bulk.cancel(all=True), trickle(scheduler, 20))

        assert done.cancelled.count == 23
        assert await states(scheduler, *later) == ["QUEUED"] * 20


@pytest.mark.usefixtures("small_steps")
async def test_what_a_job_became_between_the_look_and_the_step_decides(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        jobs = [await scheduler.submit("work", {"seconds": 1000}) for _ in range(4)]
        await interfere(scheduler, lambda: scheduler.offices.change("default", max_concurrent_jobs=2))

        done = await scheduler.bulk.cancel(JobFilter(job_type="work"))

        assert set(done.cancelled.ids) == {job.job_id for job in jobs[2:]}
        assert (done.finishing.count, (await scheduler.job(jobs[1].job_id)).cancel_requested_at) == (0, None)
        assert await states(scheduler, *jobs) == ["RUNNING", "RUNNING", "CANCELLED", "CANCELLED"]


@pytest.mark.usefixtures("small_steps")
async def test_dispatch_goes_on_between_the_steps(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        await scheduler.submit_many([NewJob(job_type="work", task_id="t")] * 50)
        await scheduler.resume()
        await scheduler.offices.create("o")
        before = await states_of(scheduler, "RUNNING")

        other: list[Any] = []
        await interfere(scheduler, lambda: submit_to(scheduler, other), at=3)
        await scheduler.bulk.cancel(JobFilter(task_id="t"))

        assert len(before) == 1
        assert await states(scheduler, *other) == ["RUNNING"]


@pytest.mark.usefixtures("small_steps")
async def test_if_the_process_dies_in_between_what_is_done_is_done_and_the_same_call_does_the_rest(
    tmp_path: Path,
) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        await scheduler.submit_many([NewJob(job_type="work")] * 23)
        await interfere(scheduler, lambda: testing.crash(scheduler), at=3)
        with pytest.raises(BaseException):  # noqa: B017, PT011 - whatever a power cut looks like from inside
            await scheduler.bulk.cancel(all=True)

        async with new_scheduler(tmp_path, seed=1) as second:
            assert len(await states_of(second, "CANCELLED")) == 10
            done = await second.bulk.cancel(all=True)
            assert done.cancelled.count == 13
            assert len(await states_of(second, "CANCELLED")) == 23
    assert_counters(tmp_path)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("mode", ["sequential", "parallel"])
async def test_the_members_of_a_group_are_cancelled_together_each_by_request(tmp_path: Path, mode: str) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        group, members = await scheduler.submit_group([NewJob(job_type="work")] * 12, mode)

        done = await scheduler.bulk.cancel(JobFilter(group_id=group.group_id), reason="enough")

        assert done.cancelled.count == 12
        assert {(await scheduler.job(job.job_id)).cancel_reason for job in members} == {"enough"}
        assert (await scheduler.group(group.group_id)).status == "CANCELLED"


@pytest.mark.usefixtures("small_steps")
async def test_what_ends_as_a_consequence_is_not_counted(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        first = await scheduler.submit("work", task_id="t")
        dependent = await scheduler.submit("work", depends_on=[first.job_id], on_dependency_failure="cancel")

        done = await scheduler.bulk.cancel(JobFilter(task_id="t"))

        assert done.cancelled.ids == (first.job_id,)
        assert (await scheduler.job(dependent.job_id)).cancel_reason == "dependency failed"


@pytest.mark.usefixtures("small_steps")
async def test_dependents_that_match_are_cancelled_by_request_before_what_they_wait_for(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        jobs = [await scheduler.submit("work")]
        for _ in range(11):
            jobs.append(await scheduler.submit("work", depends_on=[jobs[-1].job_id], on_dependency_failure="cancel"))

        done = await scheduler.bulk.cancel(all=True, reason="enough")

        assert done.cancelled.count == 12
        assert {(await scheduler.job(job.job_id)).cancel_reason for job in jobs} == {"enough"}


@pytest.mark.usefixtures("small_steps")
async def test_dependents_that_match_are_cancelled_by_request_also_if_they_are_older(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        jobs = await scheduler.submit_many(
            [
                NewJob(
                    job_type="work",
                    key=str(number),
                    depends_on=[str(number + 1)] if number < 11 else [],
                    on_dependency_failure=OnDependencyFailure.CANCEL,
                )
                for number in range(12)
            ]
        )

        done = await scheduler.bulk.cancel(all=True, reason="enough")

        assert (done.cancelled.count, set(done.job_ids)) == (12, {job.job_id for job in jobs})
        assert {(await scheduler.job(job.job_id)).cancel_reason for job in jobs} == {"enough"}


@pytest.mark.usefixtures("small_steps")
async def test_as_long_as_jobs_are_cancelled_those_that_run_keep_their_slots_and_nothing_starts_in_vain(
    tmp_path: Path,
) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("o", max_concurrent_jobs=2)
        wanted = [NewJob(job_type="work", params={"seconds": 1000}, office_id="o")] * 23
        await scheduler.submit_many(wanted)

        done = await scheduler.bulk.cancel(JobFilter(office_id="o"), include_running=True)
        await testing.settled()

        assert (done.cancelled.count, done.stopping.count) == (21, 2)
        assert [event.type for event in await history(scheduler)].count("job_started") == 2


@pytest.mark.usefixtures("small_steps")
async def test_the_retry_of_what_failed_in_between_is_cancelled_too(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        breaks = asyncio.Event()

        @scheduler.job_type("held")
        async def held(run: Any) -> None:
            await breaks.wait()
            raise Fail("it broke", "error")

        async def break_it() -> None:
            breaks.set()
            await testing.settled()
            later.append(await scheduler.submit("work"))

        later: list[Job] = []
        running = await scheduler.submit("held")
        await scheduler.submit_many([NewJob(job_type="work", scheduled_for=a_day_later(scheduler))] * 12)
        await interfere(scheduler, break_it, at=2)

        done = await scheduler.bulk.cancel(all=True, include_running=True)

        first, retry = await scheduler.chain(running.job_id)
        assert (first.status, retry.status, done.cancelled.count) == ("FAILED", "CANCELLED", 13)
        assert await states(scheduler, *later) == ["RUNNING"]


async def test_of_many_ids_the_first_thousand_are_told(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        await scheduler.submit_many([NewJob(job_type="work")] * 1_203)

        done = await scheduler.bulk.cancel(all=True)

        assert (done.cancelled.count, len(set(done.cancelled.ids))) == (1_203, 1_000)


async def test_a_reason_that_cannot_be_stored_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        job = await scheduler.submit("work")

        with pytest.raises(Invalid, match="reason"):
            await scheduler.bulk.cancel(all=True, reason="a\0b")

        assert await states(scheduler, job) == ["QUEUED"]


@pytest.mark.usefixtures("small_steps")
async def test_the_audit_log_has_one_line_for_a_call_of_many_steps(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        await scheduler.submit_many([NewJob(job_type="work")] * 23)

        await named(scheduler, "me", "cancel").bulk.cancel(all=True)

        assert [entry.action for entry in (await scheduler.lists.audit()).items] == ["cancel"]


# Retry.


async def test_only_chains_whose_last_job_failed_are_retried(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=0)
        failed = await scheduler.submit("fail", retry_policy={"max_attempts": 1}, title="failed")
        await scheduler.submit("fail", {"times": 1}, title="succeeded later")
        await scheduler.submit("work", title="succeeded")
        await scheduler.submit("skip", title="skipped")
        waits = await scheduler.submit("fail", retry_policy={"base_delay_seconds": 1e6}, title="waits")
        cancelled = await scheduler.submit(
            "fail", {"kind": "error"}, title="cancelled", scheduled_for=a_day_later(scheduler)
        )
        await scheduler.cancel(cancelled.job_id)
        await asyncio.sleep(60)
        last = (await scheduler.chain(failed.job_id))[-1]

        done = await scheduler.bulk.retry(all=True)

        assert done.retried.count == 1
        assert (await scheduler.job(done.retried.ids[0])).retry_of == last.job_id
        assert len(await scheduler.chain(waits.job_id)) == 2


async def test_a_retry_in_bulk_goes_by_the_filter(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await failures(scheduler, 3, task_id="t")
        await failures(scheduler, 2, task_id="u")

        done = await scheduler.bulk.retry(JobFilter(task_id="t"))
        nothing = await scheduler.bulk.retry(JobFilter(task_id="u", status="COMPLETED"))

        assert (done.retried.count, len(done.retried.ids), nothing.retried.count) == (3, 3, 0)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("jump", [0, -3600], ids=["", "with a clock that was set back"])
async def test_a_bulk_retry_never_retries_what_it_has_made_itself(tmp_path: Path, jump: float) -> None:
    """The retries fail at once, while the call is still going on."""
    clock = testing.VirtualClock()

    async with counted_scheduler(tmp_path, clock=clock) as scheduler:
        await failures(scheduler, 23)
        clock.jump(jump)
        await failures(scheduler, 4)
        await interfere(scheduler, lambda: asyncio.sleep(1), every=True)

        done = await scheduler.bulk.retry(all=True)

        assert done.retried.count == 27
        assert len({(await scheduler.job(job_id)).chain_id for job_id in done.retried.ids}) == 27


async def test_a_scheduler_that_is_stopping_takes_no_retries(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        await failures(scheduler, 1)
        await scheduler.submit("work", {"seconds": 100})
        stopping = asyncio.ensure_future(scheduler.stop())
        await testing.settled()

        with pytest.raises(Draining):
            await scheduler.bulk.retry(all=True)

        await stopping


# How the tests arrange it.


def a_day_later(scheduler: Scheduler) -> Any:
    return scheduler._clock.now().after(86400)


async def failures(scheduler: Scheduler, count: int, **options: Any) -> None:
    for _ in range(count):
        job = await scheduler.submit("fail", retry_policy=NO_RETRY, **options)
        await scheduler.wait(job.job_id)


async def trickle(scheduler: Scheduler, count: int) -> list[Any]:
    return [await scheduler.submit("work") for _ in range(count)]


async def submit_to(scheduler: Scheduler, made: list[Any]) -> None:
    made.append(await scheduler.submit("work", {"seconds": 1000}, office_id="o"))


async def states_of(scheduler: Scheduler, status: str) -> list[str]:
    page = await scheduler.lists.jobs(JobFilter(status=status), limit=500)
    return [one.job.job_id for one in page.items]


async def interfere(scheduler: Scheduler, what: Callable[[], Awaitable[Any]], at: int = 1, every: bool = False) -> None:
    """Calls a function just before the n-th step of the next bulk call writes, or before each step."""
    steps = 0
    bulk_step = scheduler.bulk._step

    async def disturbed(*arguments: Any, **options: Any) -> Any:
        nonlocal steps
        steps += 1
        if every or steps == at:
            await what()
        return await bulk_step(*arguments, **options)

    scheduler.bulk._step = disturbed  # type: ignore[method-assign]
