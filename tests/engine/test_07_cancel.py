"""Spec 7: cancelling."""

import asyncio
from pathlib import Path

import pytest

from nextslot import (
    NewJob,
    Run,
    RunContext,
    Scheduler,
    testing,
)
from nextslot.engine.finish.job_finisher import SLICE
from nextslot.errors import AlreadyFinished, NotFound
from tests.support import assert_counters, counted_scheduler, history, new_scheduler, states, steps_of

LONG = {"seconds": 1000}


# Not started yet.


async def test_a_queued_job_is_cancelled_at_once_with_a_reason_and_no_run(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.submit("work", LONG)
        job = await scheduler.submit("work")

        done = await scheduler.cancel(job.job_id, reason="changed my mind")

        assert (done.cancellation, done.job.status, done.job.cancel_reason) == (
            "cancelled", "CANCELLED", "changed my mind"
        )  # fmt: skip
        assert done.job.cancelled_at == done.job.finished_at == done.job.cancel_requested_at
        assert done.job.cancelled_at is not None
        assert await scheduler.run_of(job.job_id) is None


@pytest.mark.parametrize("interrupt", [None, False, True])
async def test_a_waiting_job_is_cancelled_at_once_too(tmp_path: Path, interrupt: bool | None) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        long = await scheduler.submit("work", LONG)
        later = await scheduler.submit("work", scheduled_for=long.created_at.after(100))
        dependent = await scheduler.submit("work", depends_on=[long.job_id])

        for job in (later, dependent):
            assert (await scheduler.cancel(job.job_id, interrupt=interrupt)).cancellation == "cancelled"

        await asyncio.sleep(2000)
        assert await states(scheduler, long, later, dependent) == ["COMPLETED", "CANCELLED", "CANCELLED"]


async def test_a_waiting_retry_can_be_cancelled_and_ends_its_chain(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("fail")
        await asyncio.sleep(1)
        await scheduler.cancel((await scheduler.chain(job.job_id))[1].job_id)

        ended = await scheduler.wait(job.job_id)
        await asyncio.sleep(100)

        assert (ended.status, len(await scheduler.chain(job.job_id))) == ("CANCELLED", 2)


# Running, left to finish.


async def test_finish_lets_the_work_end_in_peace_and_keeps_its_outcome(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", {"seconds": 50, "answer": 42})

        done = await scheduler.cancel(job.job_id, reason="enough")
        ended = await scheduler.wait(job.job_id)

        assert (done.cancellation, done.job.status, done.job.cancel_mode) == ("finishing", "RUNNING", "finish")
        assert (done.job.cancel_reason, done.job.cancel_requested_at) == ("enough", job.created_at)
        assert (ended.status, ended.result, seconds(ended.run)) == ("COMPLETED", {"answer": 42}, 50)


async def test_finish_means_that_nothing_is_retried(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", {"seconds": 50}, timeout_seconds=20)
        await scheduler.cancel(job.job_id)

        ended = await scheduler.wait(job.job_id)
        await asyncio.sleep(1000)

        assert ended.run is not None
        assert (ended.status, ended.run.failure_kind, ended.job.decision) == ("FAILED", "timeout", "cancelled")
        assert len(await scheduler.chain(job.job_id)) == 1


# Running, and has been told to stop.


async def test_interrupt_tells_the_work_to_stop_and_cancels_the_job(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", LONG)
        await asyncio.sleep(7)

        done = await scheduler.cancel(job.job_id, reason="stop it", interrupt=True)
        ended = await scheduler.wait(job.job_id)
        await asyncio.sleep(1000)

        assert (done.cancellation, done.job.status, done.job.cancel_mode) == ("stopping", "RUNNING", "interrupt")
        assert ended.run is not None
        assert (ended.run.status, ended.run.failure_kind, seconds(ended.run)) == ("FAILED", "cancelled", 7)
        assert (ended.status, ended.job.cancel_reason) == ("CANCELLED", "stop it")
        assert ended.job.cancelled_at == ended.job.finished_at == ended.run.finished_at
        assert len(await scheduler.chain(job.job_id)) == 1


@pytest.mark.parametrize(
    ("office", "interrupt", "cancellation", "mode"),
    [
        ("default", None, "finishing", "finish"),
        ("default", True, "stopping", "interrupt"),
        ("default", False, "finishing", "finish"),
        ("other", None, "stopping", "interrupt"),
        ("other", True, "stopping", "interrupt"),
        ("other", False, "finishing", "finish"),
    ],
)
async def test_the_request_decides_how_else_the_office(
    tmp_path: Path, office: str, interrupt: bool | None, cancellation: str, mode: str
) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("other")
        job = await scheduler.submit("work", {"seconds": 60}, office_id=office)

        done = await scheduler.cancel(job.job_id, interrupt=interrupt)
        ended = await scheduler.wait(job.job_id)

        assert (done.cancellation, done.job.cancel_mode) == (cancellation, mode)
        assert ended.status == ("COMPLETED" if mode == "finish" else "CANCELLED")


async def test_an_office_may_choose_its_cancel_mode(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.change("default", cancel_mode="interrupt")
        job = await scheduler.submit("work", LONG)

        assert (await scheduler.cancel(job.job_id)).cancellation == "stopping"


@pytest.mark.parametrize(("error", "status"), [(None, "COMPLETED"), (ValueError, "FAILED")])
async def test_work_that_ends_by_itself_first_keeps_its_real_outcome(
    tmp_path: Path, error: type[Exception] | None, status: str
) -> None:
    """The request is stored just before the end, and the work is over when it would have to be told."""
    async with counted_scheduler(tmp_path) as scheduler:
        requests = []

        @scheduler.job_type("racing")
        async def racing(run: RunContext) -> None:
            requests.append(asyncio.ensure_future(scheduler.cancel(run.job_id, interrupt=True)))
            await asyncio.sleep(0)
            if error is not None:
                raise error

        job = await scheduler.submit("racing")
        ended = await scheduler.wait(job.job_id)

        assert (await requests[0]).cancellation == "stopping"
        assert (ended.status, ended.job.cancel_mode) == (status, "interrupt")
        assert len(await scheduler.chain(job.job_id)) == 1


async def test_a_second_request_may_turn_finish_into_interrupt(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", LONG)
        await scheduler.cancel(job.job_id, reason="first")
        await asyncio.sleep(5)
        again = await scheduler.cancel(job.job_id, reason="second", interrupt=True)
        ended = await scheduler.wait(job.job_id)

        assert (again.cancellation, again.job.cancel_mode) == ("stopping", "interrupt")
        assert (ended.status, ended.job.cancel_requested_at) == ("CANCELLED", job.created_at)
        assert ended.job.cancel_reason == "first", "the first request is the reason"
        assert await cancel_requests(scheduler) == ["finish", "interrupt"]


async def test_an_interrupt_is_not_taken_back_and_asking_twice_changes_nothing(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("stubborn")
        await scheduler.cancel(job.job_id, interrupt=True)

        again = [await scheduler.cancel(job.job_id, interrupt=interrupt) for interrupt in (False, True)]
        ended = await scheduler.wait(job.job_id)

        assert {(done.cancellation, done.job.cancel_mode) for done in again} == {("stopping", "interrupt")}
        assert ended.status == "CANCELLED"
        assert await cancel_requests(scheduler) == ["interrupt"]


async def test_a_job_that_ignores_the_request_stays_running_and_keeps_its_slot(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        deaf = await scheduler.submit("stubborn", {"seconds": 100})
        waiting = await scheduler.submit("work")
        await scheduler.cancel(deaf.job_id, interrupt=True)

        await asyncio.sleep(99)
        before = await states(scheduler, deaf, waiting)
        await asyncio.sleep(10)

        assert before == ["RUNNING", "QUEUED"]
        assert await states(scheduler, deaf, waiting) == ["CANCELLED", "COMPLETED"]


# The scheduler dies in between.


@pytest.mark.parametrize(
    ("interrupt", "status", "kind"), [(True, "CANCELLED", "cancelled"), (False, "FAILED", "crash")]
)
async def test_a_crash_after_the_request_carries_it_out(
    tmp_path: Path, interrupt: bool, status: str, kind: str
) -> None:
    first = new_scheduler(tmp_path)
    await first.start()
    job = await first.submit("stubborn")
    await first.cancel(job.job_id, reason="no more", interrupt=interrupt)
    await testing.crash(first)

    async with new_scheduler(tmp_path, seed=1) as second:
        ended = await second.wait(job.job_id)
        await asyncio.sleep(1000)

        assert ended.run is not None
        assert (ended.status, ended.run.status, ended.run.failure_kind) == (status, "FAILED", kind)
        assert (ended.job.cancel_reason, ended.job.permanently_failed) == ("no more", False)
        assert len(await second.chain(job.job_id)) == 1
    assert_counters(tmp_path)


# Refusals.


@pytest.mark.parametrize(
    ("job_type", "status"), [("work", "COMPLETED"), ("fail", "FAILED"), ("skip", "SKIPPED"), ("cancelled", "CANCELLED")]
)
async def test_an_ended_job_is_not_cancelled_and_the_answer_says_what_it_is(
    tmp_path: Path, job_type: str, status: str
) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        is_cancelled = job_type == "cancelled"
        job = await scheduler.submit("work" if is_cancelled else job_type, retry_policy={"max_attempts": 0})
        if is_cancelled:
            await scheduler.cancel(job.job_id)
        await scheduler.resume()
        ended = (await scheduler.wait(job.job_id)).job

        with pytest.raises(AlreadyFinished, match=f"{job.job_id} is {status} since 2026-"):
            await scheduler.cancel(job.job_id, reason="too late")
        assert await scheduler.job(job.job_id) == ended


async def test_an_unknown_job_or_group_is_not_found(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        with pytest.raises(NotFound, match="no job 'nobody'"):
            await scheduler.cancel("nobody")
        with pytest.raises(NotFound, match="no group 'nothing'"):
            await scheduler.cancel_group("nothing")


# A whole group.


@pytest.mark.parametrize(
    ("interrupt", "first", "status"), [(False, "COMPLETED", "PARTIAL"), (True, "CANCELLED", "CANCELLED")]
)
async def test_a_group_is_cancelled_as_a_whole(tmp_path: Path, interrupt: bool, first: str, status: str) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        wanted = [NewJob(job_type="work", params={"seconds": 60}) for _ in range(3)]
        group, members = await scheduler.submit_group(wanted)

        done = await scheduler.cancel_group(group.group_id, reason="all of it", interrupt=interrupt)
        await asyncio.sleep(100)

        assert [one.cancellation for one in done] == ["stopping" if interrupt else "finishing", *["cancelled"] * 2]
        assert await states(scheduler, *members) == [first, "CANCELLED", "CANCELLED"]
        assert {job.cancel_reason for job in await scheduler.members(group.group_id)} == {"all of it"}
        assert (await scheduler.group(group.group_id)).status == status


async def test_cancelling_a_group_leaves_its_ended_members_alone_and_takes_its_retries(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=0)
        wanted = [NewJob(job_type=kind, params={}) for kind in ("work", "fail", "skip")]
        group, (done, failing, skipped) = await scheduler.submit_group(wanted, mode="parallel")
        await asyncio.sleep(5)

        cancelled = await scheduler.cancel_group(group.group_id)
        await asyncio.sleep(100)

        retry = (await scheduler.chain(failing.job_id))[1]
        assert [one.job.job_id for one in cancelled] == [retry.job_id]
        assert await states(scheduler, done, failing, retry, skipped) == ["COMPLETED", "FAILED", "CANCELLED", "SKIPPED"]
        assert await scheduler.cancel_group(group.group_id) == []


@pytest.mark.parametrize("mode", ["parallel", "sequential"])
async def test_a_large_group_is_cancelled_as_a_whole_too(tmp_path: Path, mode: str) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        wanted = [NewJob(job_type="work", params={"seconds": 60}) for _ in range(SLICE * 2 + 50)]
        group, _ = await scheduler.submit_group(wanted, mode=mode)

        done = await scheduler.cancel_group(group.group_id, reason="all of it", interrupt=True)
        await asyncio.sleep(100)

        assert len(done) == len(wanted)
        members = await scheduler.members(group.group_id)
        assert {(job.status, job.cancel_reason) for job in members} == {("CANCELLED", "all of it")}
        assert (await scheduler.group(group.group_id)).status == "CANCELLED"


async def test_others_write_while_a_large_group_is_cancelled(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        group, members = await scheduler.submit_group([NewJob(job_type="work")] * (SLICE * 3), mode="parallel")

        cancel = asyncio.ensure_future(scheduler.cancel_group(group.group_id))
        ended_then: list[int] = []
        while not cancel.done() and len(ended_then) < 20:
            await scheduler.submit("work")
            ended_then.append((await scheduler.group(group.group_id)).ended)
        await cancel

        assert len({ended for ended in ended_then if 0 < ended < len(members)}) > 0


@pytest.mark.one_thread  # The crash comes after a certain transaction.
def test_the_next_start_goes_on_with_a_cancel_that_a_crash_interrupted(tmp_path: Path) -> None:
    async def crash_halfway() -> str:
        scheduler = new_scheduler(tmp_path)
        await scheduler.start()
        await scheduler.pause()
        group, members = await scheduler.submit_group([NewJob(job_type="work")] * (SLICE * 3), mode="sequential")
        cancel = asyncio.ensure_future(scheduler.cancel_group(group.group_id, reason="all of it"))
        while not (await scheduler.group(group.group_id)).ended:
            await scheduler.submit("work")
        assert (await scheduler.group(group.group_id)).ended < len(members)
        await testing.crash(scheduler)
        cancel.cancel()
        return str(group.group_id)

    async def next_start(group_id: str) -> None:
        async with new_scheduler(tmp_path) as scheduler:
            members = await scheduler.members(group_id)

            assert {(job.status, job.cancel_reason) for job in members} == {("CANCELLED", "all of it")}
            assert (await scheduler.group(group_id)).status == "CANCELLED"

    testing.run(next_start(testing.run(crash_halfway())))
    assert_counters(tmp_path)


@pytest.mark.sqlite_only("counts the steps of its machine")
async def test_cancelling_a_large_group_costs_in_proportion(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        costs = []
        for size in (200, 2000):
            group, _ = await scheduler.submit_group([NewJob(job_type="work")] * size)
            steps = steps_of(scheduler)
            await scheduler.cancel_group(group.group_id)
            costs.append(steps.taken / size)

        assert costs[1] < 2 * costs[0]


# Arrangement.


def seconds(run: Run | None) -> float:
    assert run is not None
    assert run.finished_at is not None
    return (run.finished_at - run.started_at) / 1_000_000


async def cancel_requests(scheduler: Scheduler) -> list[object]:
    return [event.details["mode"] for event in await history(scheduler) if event.type == "job_cancel_requested"]
