"""Work that was inside a scheduler's process that died runs alone, until a run of it survives (spec 15)."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from nextslot import Job, Scheduler, testing
from tests.support import assert_counters, database, new_scheduler, states

ONE_RETRY = {"max_attempts": 1, "base_delay_seconds": 0}
PATIENCE = 600


def test_suspects_run_one_at_a_time_and_nothing_else_inside_the_process(tmp_path: Path) -> None:
    jobs = life(tmp_path, lambda scheduler: start(scheduler, 3))

    async def check(scheduler: Scheduler) -> None:
        other = await scheduler.submit("work", office_id="other")
        for number in range(3):
            running = [one.chain_id for one in await scheduler.running()]
            assert running == [jobs[number].job_id]
            assert await states(scheduler, other) == ["QUEUED"]
            await asyncio.sleep(10.1)

        assert (await scheduler.wait(other.job_id)).status == "COMPLETED"
        assert await ends(scheduler, *jobs) == ["COMPLETED"] * 3

    life(tmp_path, check, is_killed=False)
    assert_counters(tmp_path)


def test_the_culprit_is_found_and_its_neighbours_have_all_their_attempts(tmp_path: Path) -> None:
    async def begin(scheduler: Scheduler) -> list[Job]:
        await widen(scheduler)
        return [
            await scheduler.submit(job_type, retry_policy=ONE_RETRY if job_type == "work" else {"max_attempts": 9})
            for job_type in ("work", "culprit", "work")
        ]

    first, culprit, last = life(tmp_path, begin, is_killed=False, dies=True)
    deaths = 1
    while life(tmp_path, rest, is_killed=False, dies=True) is None:
        deaths += 1
        assert deaths <= 3

    async def check(scheduler: Scheduler) -> None:
        chain = await scheduler.chain(culprit.job_id)
        assert [one.decision for one in chain] == ["retry", "retry", "permanent"]
        for neighbour in (first, last):
            assert [one.status for one in await scheduler.chain(neighbour.job_id)] == ["FAILED", "COMPLETED"]

    life(tmp_path, check, is_killed=False)
    assert deaths == 3
    assert_counters(tmp_path)


def test_a_neighbour_that_fails_by_itself_after_a_crash_still_has_its_retry(tmp_path: Path) -> None:
    async def begin(scheduler: Scheduler) -> Job:
        await widen(scheduler)
        await scheduler.submit("stubborn", retry_policy={"max_attempts": 0})
        return await scheduler.submit("late_failure", {"times": 2}, retry_policy=ONE_RETRY)

    job = life(tmp_path, begin)

    async def check(scheduler: Scheduler) -> None:
        await asyncio.sleep(100)
        chain = await scheduler.chain(job.job_id)
        assert [one.status for one in chain] == ["FAILED", "FAILED", "COMPLETED"]

    life(tmp_path, check, is_killed=False)


def test_a_run_that_survives_clears_its_chain_also_when_it_fails(tmp_path: Path) -> None:
    async def begin(scheduler: Scheduler) -> Job:
        await widen(scheduler)
        return await scheduler.submit(
            "late_failure", {"times": 2}, retry_policy={"max_attempts": 3, "base_delay_seconds": 0}
        )

    job = life(tmp_path, begin)

    async def check(scheduler: Scheduler) -> None:
        other = await scheduler.submit("stubborn")
        assert await states(scheduler, other) == ["QUEUED"]
        await asyncio.sleep(15)

        last = (await scheduler.chain(job.job_id))[-1]
        assert await states(scheduler, other) == ["RUNNING"]
        assert (last.status, is_alone(tmp_path, last)) == ("RUNNING", False)

    life(tmp_path, check)


def test_what_has_a_process_of_its_own_goes_on_beside_a_suspect(tmp_path: Path) -> None:
    life(tmp_path, lambda scheduler: start(scheduler, 1))

    async def check(scheduler: Scheduler) -> None:
        apart, inside = await scheduler.submit("apart"), await scheduler.submit("work")
        call = asyncio.ensure_future(scheduler.run_direct("apart", office_id="other", direct_id="call"))
        await asyncio.sleep(1)

        assert await states(scheduler, apart, inside) == ["RUNNING", "QUEUED"]
        assert (await scheduler.direct("call")).status == "RUNNING"
        call.cancel()

    life(tmp_path, check)


def test_a_direct_caller_waits_until_the_suspect_has_ended(tmp_path: Path) -> None:
    life(tmp_path, lambda scheduler: start(scheduler, 1))

    async def check(scheduler: Scheduler) -> None:
        ended = await scheduler.run_direct("work", office_id="other")

        assert ended.status == "COMPLETED"
        assert ended.waited_seconds == pytest.approx(10, abs=0.1)

    life(tmp_path, check)


def test_a_caller_and_a_suspect_that_need_the_same_unit_do_not_wait_for_each_other(tmp_path: Path) -> None:
    async def begin(scheduler: Scheduler) -> Job:
        await widen(scheduler)
        return await scheduler.submit("unique")

    job = life(tmp_path, begin)

    async def check(scheduler: Scheduler) -> None:
        await scheduler.pause()
        await asyncio.sleep(20)
        ended = await asyncio.wait_for(scheduler.run_direct("unique", office_id="other"), 100)
        await scheduler.resume()

        assert ended.status == "COMPLETED"
        assert (await scheduler.wait(job.job_id)).status == "COMPLETED"

    life(tmp_path, check, is_killed=False)


def test_a_suspect_that_comes_late_waits_until_the_process_is_empty_and_gets_it_next(tmp_path: Path) -> None:
    job = life(tmp_path, pausing(lambda scheduler: start(scheduler, 1)))[0]

    async def check(scheduler: Scheduler) -> None:
        before = await scheduler.submit("work", {"seconds": 50}, office_id="other")
        await scheduler.resume(office_id="default")
        after = await scheduler.submit("work", {"seconds": 5}, office_id="other")
        retry = (await scheduler.chain(job.job_id))[-1]
        assert await states(scheduler, before, retry, after) == ["RUNNING", "QUEUED", "QUEUED"]
        reasons = [(await scheduler.forecast.why(one.job_id)).reasons[0] for one in (retry, after)]
        assert [reason.code for reason in reasons] == ["runs_alone", "runs_alone"]
        assert [reason.data["id"] for reason in reasons] == [before.job_id, retry.job_id]
        assert [reason.data["is_suspect"] for reason in reasons] == [True, False]

        await scheduler.wait(before.job_id)
        assert await states(scheduler, retry, after) == ["RUNNING", "QUEUED"]
        why = await scheduler.forecast.why(after.job_id)
        assert (why.reasons[0].code, why.reasons[0].data["id"]) == ("runs_alone", retry.job_id)
        await scheduler.wait(job.job_id)
        assert await states(scheduler, after) == ["RUNNING"]

    life(tmp_path, check)


def test_a_suspect_that_is_cancelled_while_it_waits_lets_the_others_go(tmp_path: Path) -> None:
    job = life(tmp_path, pausing(lambda scheduler: start(scheduler, 1)))[0]

    async def check(scheduler: Scheduler) -> None:
        await scheduler.submit("work", {"seconds": 50}, office_id="other")
        await scheduler.resume(office_id="default")
        after = await scheduler.submit("work", {"seconds": 5}, office_id="other")
        assert await states(scheduler, after) == ["QUEUED"]

        await scheduler.cancel((await scheduler.chain(job.job_id))[-1].job_id)

        assert await states(scheduler, after) == ["RUNNING"]

    life(tmp_path, check)
    assert_counters(tmp_path)


def test_nobody_waits_longer_than_the_starvation_time_for_a_suspect_that_goes_on(tmp_path: Path) -> None:
    """It may never end, or wait for the very work that is held back."""
    life(tmp_path, lambda scheduler: start(scheduler, 1, seconds=1e6))

    async def check(scheduler: Scheduler) -> None:
        other = await scheduler.submit("work", {"seconds": 1e6}, office_id="other")
        await asyncio.sleep(PATIENCE - 1)
        assert await states(scheduler, other) == ["QUEUED"]
        await asyncio.sleep(2)
        assert await states(scheduler, other) == ["RUNNING"]

    life(tmp_path, check)


def test_a_suspect_stays_one_over_restarts_interruptions_and_changes(tmp_path: Path) -> None:
    first, second = life(tmp_path, lambda scheduler: start(scheduler, 2, seconds=100))

    async def interrupt(scheduler: Scheduler) -> None:
        await asyncio.sleep(1)
        waiting = (await scheduler.chain(second.job_id))[-1]
        await scheduler.change(waiting.job_id, params={"seconds": 20})
        assert await scheduler.stop(grace_seconds=0)

    life(tmp_path, interrupt, is_killed=False)

    async def check(scheduler: Scheduler) -> None:
        last = [(await scheduler.chain(job.job_id))[-1] for job in (first, second)]
        assert [is_alone(tmp_path, job) for job in last] == [True, True]
        assert sorted(await states(scheduler, *last)) == ["QUEUED", "RUNNING"]

    life(tmp_path, check)


def test_a_chain_that_was_given_up_runs_alone_when_it_is_retried_by_hand(tmp_path: Path) -> None:
    (job,) = life(tmp_path, lambda scheduler: start(scheduler, 1))
    life(tmp_path, rest_a_second)

    async def check(scheduler: Scheduler) -> None:
        last = (await scheduler.chain(job.job_id))[-1]
        assert last.permanently_failed
        run = await scheduler.run_of(last.job_id)
        assert run is not None
        retried = await scheduler.retry(run.run_id)
        assert is_alone(tmp_path, retried.job)

    life(tmp_path, check)


def test_a_type_that_is_isolated_since_is_no_suspect_any_more(tmp_path: Path) -> None:
    life(tmp_path, lambda scheduler: start(scheduler, 2))

    async def check(scheduler: Scheduler) -> None:
        assert [one.status for one in await scheduler.running()] == ["RUNNING"] * 2

    life(tmp_path, check, isolated=("work",))


def test_recovery_names_suspects_and_whom_it_gives_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (job,) = life(tmp_path, lambda scheduler: start(scheduler, 1))
    with caplog.at_level(logging.WARNING, "nextslot.engine.cluster.recovery"):
        retry = life(tmp_path, lambda scheduler: scheduler.chain(job.job_id))[-1]
        assert f"job {job.job_id} (work) was inside the process that died: its retry runs alone" in caplog.messages
        caplog.clear()
        life(tmp_path, rest_a_second)

    assert [message.partition(": ")[0] for message in caplog.messages] == [f"job {retry.job_id} (work) is not retried"]


def test_the_run_of_a_crash_says_where_its_log_is(tmp_path: Path) -> None:
    async def begin(scheduler: Scheduler) -> list[Job]:
        await widen(scheduler)
        return [await scheduler.submit("chatty"), await scheduler.submit("stubborn")]

    jobs = life(tmp_path, begin)

    async def check(scheduler: Scheduler) -> None:
        chatty, silent = [await scheduler.run_of(job.job_id) for job in jobs]
        assert chatty is not None
        assert silent is not None
        assert (chatty.log_path, silent.log_path) == (f"logs/{chatty.run_id[-2:]}/{chatty.run_id}.log", None)

    life(tmp_path, check)


# Arrangement.

_seeds = itertools.count(100)


class Apart:
    """A handler as those of commands are: with a process of its own, and a time of grace for it."""

    grace_seconds = 1.0

    async def __call__(self, run: Any, **anything: Any) -> None:
        await asyncio.sleep(100)


def life(
    directory: Path,
    work: Callable[[Scheduler], Awaitable[Any]],
    *,
    is_killed: bool = True,
    dies: bool = False,
    isolated: tuple[str, ...] = (),
) -> Any:
    """What a life of the scheduler returned, at the end of which it is killed; with `dies` a `culprit` kills it."""
    found: list[Any] = []

    async def body() -> None:
        scheduler = new_scheduler(directory, seed=next(_seeds), starvation_after_seconds=PATIENCE)
        death = asyncio.Event()
        register(scheduler, death, isolated)
        await scheduler.start()
        working = asyncio.ensure_future(work(scheduler))
        dying = asyncio.ensure_future(death.wait())
        await asyncio.wait([working, *([dying] if dies else [])], return_when=asyncio.FIRST_COMPLETED)
        dying.cancel()
        found.append(working.result() if working.done() else None)
        working.cancel()
        if is_killed or death.is_set():
            await testing.crash(scheduler)
        else:
            await scheduler.stop()

    testing.run(body())
    return found[0]


def register(scheduler: Scheduler, death: asyncio.Event, isolated: tuple[str, ...]) -> None:
    scheduler.job_types.register("apart", Apart())
    for name in isolated:
        old = scheduler.job_types.get(name)
        scheduler.job_types.replace([name], {})
        scheduler.job_types.register(name, Apart(), params_schema=old.params_schema)

    @scheduler.job_type("culprit")
    async def culprit(run: Any) -> None:
        death.set()
        await asyncio.sleep(100)

    @scheduler.job_type("late_failure")
    async def late_failure(run: Any, times: int) -> None:
        await asyncio.sleep(10)
        if run.attempt <= times:
            raise RuntimeError("as asked")

    @scheduler.job_type("unique", resources=["lathe"])
    async def unique(run: Any) -> None:
        await asyncio.sleep(10)

    @scheduler.job_type("chatty")
    async def chatty(run: Any) -> None:
        run.log.info("as far as it came")
        await asyncio.sleep(100)


async def widen(scheduler: Scheduler) -> None:
    await scheduler.offices.change("default", max_concurrent_jobs=0)
    await scheduler.offices.create("other", max_concurrent_jobs=0)


async def start(scheduler: Scheduler, count: int, seconds: float = 10) -> list[Job]:
    await widen(scheduler)
    return [await scheduler.submit("work", {"seconds": seconds}) for _ in range(count)]


def pausing(work: Callable[[Scheduler], Awaitable[Any]]) -> Callable[[Scheduler], Awaitable[Any]]:
    async def both(scheduler: Scheduler) -> Any:
        done = await work(scheduler)
        await scheduler.pause(office_id="default")
        return done

    return both


async def rest(scheduler: Scheduler) -> str:
    """Until nothing is left to do."""
    await asyncio.sleep(3000)
    return "at rest"


async def rest_a_second(scheduler: Scheduler) -> None:
    await asyncio.sleep(1)


async def ends(scheduler: Scheduler, *jobs: Job) -> list[str]:
    return [(await scheduler.chain(job.job_id))[-1].status.value for job in jobs]


def is_alone(directory: Path, job: Job) -> bool:
    connection = database(directory)
    rows = connection.execute(f"select is_alone from lanes where lane_id = {job.lane_id}").fetchall()
    connection.close()
    return bool(rows == [(1,)])
