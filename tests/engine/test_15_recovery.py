"""Spec 15: what start-up repairs (DEC-008, spec 6.6)."""

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from nextslot import (
    Job,
    NewJob,
    Scheduler,
    testing,
)
from nextslot.domain.webhook_delivery import JOB_EVENTS
from nextslot.engine.cluster import recovery
from nextslot.engine.cluster.recovery import Recovered
from nextslot.errors import AlreadyOpen
from nextslot.store.sqlite import integrity_check
from tests import databases
from tests.support import Steps, assert_counters, database, history, new_scheduler

NO_RETRY = {"max_attempts": 0}


# The decision matrix (spec 15.2), row by row.


def test_spec_15_2_queued_jobs_are_not_touched(tmp_path: Path) -> None:
    async def arrange(scheduler: Scheduler) -> None:
        running = await start(scheduler)
        for options in (
            {},
            {"priority": 5},
            {"depends_on": [running.job_id]},
            {"scheduled_for": running.created_at.after(9e5)},
        ):
            await scheduler.submit("work", **options)
        await scheduler.submit_group([NewJob(job_type="work")] * 2)
        await scheduler.pause()

    before = after_crash(tmp_path, arrange, lambda: rows(tmp_path, "select * from jobs where stage = 'QUEUED'"))

    async def check(scheduler: Scheduler) -> None:
        ids = {row[0] for row in before}
        assert [row for row in rows(tmp_path, "select * from jobs where stage = 'QUEUED'") if row[0] in ids] == before
        assert {event.type for event in await history(scheduler) if event.job_id in ids} == {"job_queued"}

    recovered(tmp_path, check)
    assert len(before) == 6


def test_spec_15_2_running_with_an_unfinished_run_is_failed_and_retried_at_once(tmp_path: Path) -> None:
    job = after_crash(tmp_path, start)

    async def check(scheduler: Scheduler) -> None:
        lost, retry = await scheduler.chain(job.job_id)
        run = await scheduler.run_of(job.job_id)
        assert run is not None
        assert (run.status, run.failure_kind, run.error) == ("FAILED", "crash", "Scheduler crash recovery")
        assert (lost.status, lost.decision, lost.finished_at) == ("FAILED", "retry", run.finished_at)
        assert (retry.status, retry.scheduled_for) == ("RUNNING", lost.finished_at)
        assert scheduler.recovered == Recovered(lost=1)

    recovered(tmp_path, check)


def test_spec_15_2_running_without_a_run_gets_a_failed_run_and_is_retried(tmp_path: Path) -> None:
    job = after_crash(tmp_path, start)
    by_hand(tmp_path, "delete from runs")

    async def check(scheduler: Scheduler) -> None:
        lost, retry = await scheduler.chain(job.job_id)
        run = await scheduler.run_of(job.job_id)
        assert run is not None
        assert (run.status, run.failure_kind, run.error) == ("FAILED", "crash", "Scheduler crash recovery")
        assert (run.started_at, run.params_snapshot) == (lost.started_at, lost.params)
        assert (lost.status, retry.status) == ("FAILED", "RUNNING")
        assert scheduler.recovered == Recovered(lost=1)

    recovered(tmp_path, check)


@pytest.mark.parametrize("status", ["COMPLETED", "SKIPPED"])
def test_spec_15_2_a_finished_run_closes_its_job_and_nothing_is_repeated(tmp_path: Path, status: str) -> None:
    async def arrange(scheduler: Scheduler) -> list[Job]:
        _, (job, after) = await scheduler.submit_group([NewJob(job_type="stubborn"), NewJob(job_type="work")])
        return [job, after, await scheduler.submit("work", depends_on=[job.job_id])]

    job, after, dependent = after_crash(tmp_path, arrange)
    by_hand(tmp_path, f"update runs set status = '{status}', finished_at = started_at + 7")

    async def check(scheduler: Scheduler) -> None:
        closed = await scheduler.job(job.job_id)
        assert (closed.status, closed.finished_at, closed.decision) == (status, (closed.started_at or 0) + 7, None)
        assert len(await scheduler.chain(job.job_id)) == 1
        assert scheduler.recovered == Recovered(closed=1)
        for follower in (after, dependent):
            assert (await scheduler.wait(follower.job_id)).status == "COMPLETED"
        assert (await scheduler.group(str(job.group_id))).status == "COMPLETED"

    recovered(tmp_path, check)


@pytest.mark.parametrize(("kind", "event"), [("error", "job_failed"), ("timeout", "job_timeout")])
def test_spec_15_2_a_failed_run_closes_its_job_and_is_then_decided(tmp_path: Path, kind: str, event: str) -> None:
    job = after_crash(tmp_path, start)
    finish = f"status = 'FAILED', failure_kind = '{kind}', error = 'x', finished_at = started_at + 7"
    by_hand(tmp_path, f"update runs set {finish}")

    async def check(scheduler: Scheduler) -> None:
        closed, retry = await scheduler.chain(job.job_id)
        assert (closed.status, closed.decision, closed.finished_at) == ("FAILED", "retry", (closed.started_at or 0) + 7)
        assert retry.scheduled_for == scheduler._clock.now().after(10)
        assert scheduler.recovered == Recovered(closed=1, decided=1)
        assert await types(scheduler, job) == ["job_queued", "job_started", event, "job_retrying"]

    recovered(tmp_path, check)


def test_spec_15_2_a_run_that_had_ended_as_cancelled_closes_its_job_and_is_not_retried(tmp_path: Path) -> None:
    async def arrange(scheduler: Scheduler) -> Job:
        job = await start(scheduler)
        await scheduler.cancel(job.job_id, interrupt=True)
        return job

    job = after_crash(tmp_path, arrange)
    by_hand(tmp_path, "update runs set status = 'FAILED', failure_kind = 'cancelled', finished_at = started_at + 7")

    async def check(scheduler: Scheduler) -> None:
        closed = (await scheduler.wait(job.job_id)).job
        assert (closed.decision, len(await scheduler.chain(job.job_id))) == ("cancelled", 1)

    recovered(tmp_path, check)


@pytest.mark.parametrize(
    ("finish", "heard"),
    [
        ("status = 'COMPLETED'", ["job.run.completed"]),
        ("status = 'FAILED', failure_kind = 'error'", ["job.run.failed"]),
        ("status = 'FAILED', failure_kind = 'invalid'", ["job.failed_permanently", "job.run.failed"]),
    ],
)
def test_spec_15_2_what_the_last_life_did_not_tell_is_told_by_the_next(
    tmp_path: Path, finish: str, heard: list[str]
) -> None:
    webhook = {"url": "http://example.com/hook", "events": list(JOB_EVENTS)}
    after_crash(tmp_path, lambda scheduler: scheduler.submit("stubborn", webhook=webhook))
    by_hand(tmp_path, f"update runs set {finish}, finished_at = started_at + 7")
    box = testing.Mailbox()

    async def body() -> None:
        async with new_scheduler(tmp_path, seed=1, sender=box):
            await asyncio.sleep(1)

    testing.run(body())
    told = sorted(message.content["event"] for message in box.messages)
    assert told == heard


async def test_a_run_whose_time_had_passed_too_is_a_crash(tmp_path: Path) -> None:
    async def arrange(scheduler: Scheduler) -> Job:
        return await scheduler.submit("stubborn", timeout_seconds=20)

    first = new_scheduler(tmp_path)
    await first.start()
    job = await arrange(first)
    await testing.crash(first)
    await asyncio.sleep(1000)
    async with new_scheduler(tmp_path, seed=1) as second:
        run, retry = await second.run_of(job.job_id), (await second.chain(job.job_id))[1]
        new_run = await second.run_of(retry.job_id)

        assert run is not None
        assert new_run is not None
        assert (run.failure_kind, new_run.timeout_at) == ("crash", new_run.started_at.after(20))


# Missing decisions (spec 6.6).


@pytest.mark.parametrize(
    ("options", "cancel", "decision", "links"),
    [({}, False, "retry", 2), ({"retry_policy": NO_RETRY}, False, "permanent", 1), ({}, True, "cancelled", 1)],
)
def test_spec_6_6_a_failure_without_a_decision_gets_it_once(
    tmp_path: Path, options: dict[str, Any], cancel: bool, decision: str, links: int
) -> None:
    async def arrange(scheduler: Scheduler) -> Job:
        job = await scheduler.submit("stubborn", **options)
        if cancel:
            await scheduler.cancel(job.job_id)
        return job

    job = after_crash(tmp_path, arrange)
    by_hand(tmp_path, UNDECIDED)

    async def check(scheduler: Scheduler) -> None:
        chain = await scheduler.chain(job.job_id)
        assert (chain[0].decision, len(chain), scheduler.recovered) == (decision, links, Recovered(decided=1))
        told = [event.type for event in await history(scheduler)].count("job_failed_permanently")
        assert told == (decision == "permanent")

    recovered(tmp_path, check)
    recovered(tmp_path, none_left, seed=2)


@pytest.mark.parametrize(("kind", "decision"), [("error", "retry"), ("invalid", "permanent"), (None, "retry")])
def test_spec_6_6_a_missing_decision_goes_by_the_kind_of_the_failure(
    tmp_path: Path, kind: str | None, decision: str
) -> None:
    job = after_crash(tmp_path, start)
    by_hand(tmp_path, UNDECIDED.replace("'error'", f"nullif('{kind}', 'None')"))

    async def check(scheduler: Scheduler) -> None:
        assert (await scheduler.job(job.job_id)).decision == decision
        told = [event.details for event in await history(scheduler) if event.type == "job_failed_permanently"]
        assert told == ([{"failure_kind": kind, "error": "x"}] if decision == "permanent" else [])

    recovered(tmp_path, check)


def test_spec_6_6_however_many_decisions_are_missing_all_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_crash(tmp_path, lambda scheduler: start_many(scheduler, 5))
    by_hand(tmp_path, UNDECIDED)
    monkeypatch.setattr(recovery, "BATCH", 2)

    async def check(scheduler: Scheduler) -> None:
        assert scheduler.recovered == Recovered(decided=5)

    recovered(tmp_path, check)


def test_spec_6_6_a_retry_that_exists_already_is_not_made_again(tmp_path: Path) -> None:
    job = after_crash(tmp_path, start)
    by_hand(tmp_path, UNDECIDED)
    columns = databases.columns(database(tmp_path), "jobs")
    own = {"job_id": "'the-retry'", "retry_of": "job_id", "scheduled_for": "created_at + 99000000", "is_due": "0",
           "stage": "'QUEUED'"}  # fmt: skip
    own |= dict.fromkeys(("started_at", "finished_at", "outcome", "decision", "worker_id"), "null")
    values = ", ".join(own.get(name, name) for name in columns)
    by_hand(tmp_path, f"insert into jobs ({', '.join(columns)}) select {values} from jobs")

    async def check(scheduler: Scheduler) -> None:
        failed, retry = await scheduler.chain(job.job_id)
        assert (failed.decision, retry.job_id) == ("retry", "the-retry")

    recovered(tmp_path, check)


# Once, whatever happens.


def test_recovery_twice_is_recovery_once(tmp_path: Path) -> None:
    async def arrange(scheduler: Scheduler) -> None:
        await start_many(scheduler, 5)
        await scheduler.pause()

    after_crash(tmp_path, arrange)

    recovered(tmp_path, crash, seed=1)
    once = rows(tmp_path, "select * from jobs order by job_id"), rows(tmp_path, "select * from runs order by run_id")
    recovered(tmp_path, none_left, seed=2)

    again = rows(tmp_path, "select * from jobs order by job_id"), rows(tmp_path, "select * from runs order by run_id")
    assert again == once
    assert_lost_once(tmp_path, 5)


@pytest.mark.parametrize("at", range(1, 8))
def test_recovery_may_fail_in_the_middle_and_is_then_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    after_crash(tmp_path, lambda scheduler: start_many(scheduler, 5))
    monkeypatch.setattr(recovery, "BATCH", 1)

    async def body() -> None:
        failing = new_scheduler(tmp_path, seed=1)
        break_at(failing, at)
        with pytest.raises(RuntimeError, match="in the middle"):
            await failing.start()
        async with new_scheduler(tmp_path, seed=2) as scheduler:
            assert scheduler.recovered.lost == max(0, 6 - at)

    testing.run(body())
    assert_lost_once(tmp_path, 5)


@pytest.mark.one_thread("counts the turns of the loop")
def test_recovery_may_be_killed_at_any_point_and_is_then_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "BATCH", 2)
    left = []
    for steps in range(0, 40, 2):
        directory = tmp_path / str(steps)
        directory.mkdir()
        after_crash(directory, lambda scheduler: start_many(scheduler, 5))

        left.append(testing.run(killed_after(directory, steps)))

        assert_lost_once(directory, 5)
    assert {5, 3, 1, 0} <= set(left)  # It was killed before, between and after its steps.


async def test_a_start_that_failed_lets_the_database_go(tmp_path: Path) -> None:
    scheduler = new_scheduler(tmp_path)
    break_at(scheduler, 1)
    with pytest.raises(RuntimeError, match="in the middle"):
        await scheduler.start()

    async with scheduler:
        assert (await scheduler.wait((await scheduler.submit("work")).job_id)).status == "COMPLETED"


async def test_a_job_that_always_takes_the_scheduler_with_it_is_given_up(tmp_path: Path) -> None:
    first = new_scheduler(tmp_path)
    await first.start()
    job = await first.submit("stubborn")
    await testing.crash(first)
    second = new_scheduler(tmp_path, seed=1)
    await second.start()
    assert len(await second.chain(job.job_id)) == 2
    await testing.crash(second)

    async with new_scheduler(tmp_path, seed=9) as scheduler:
        chain = await scheduler.chain(job.job_id)
        assert [link.status for link in chain] == ["FAILED"] * 2
        assert chain[-1].permanently_failed
    assert_counters(tmp_path)


@pytest.mark.parametrize("finished", [False, True])
async def test_the_same_scheduler_can_be_started_again_with_all_its_slots(tmp_path: Path, finished: bool) -> None:
    scheduler = new_scheduler(tmp_path)
    await scheduler.start()
    await scheduler.submit("stubborn", retry_policy=NO_RETRY)
    await testing.crash(scheduler)
    if finished:
        by_hand(tmp_path, "update runs set status = 'COMPLETED', finished_at = started_at + 7")

    async with scheduler:
        ended = await scheduler.wait((await scheduler.submit("work")).job_id)

        assert (ended.status, ended.job.worker_id) == ("COMPLETED", "local/slot-1")


# What waits for its time.


async def test_a_job_for_later_starts_at_its_time_in_the_next_life_or_at_once_if_that_has_passed(
    tmp_path: Path,
) -> None:
    first = new_scheduler(tmp_path)
    await first.start()
    await first.offices.change("default", max_concurrent_jobs=0)
    now = first._clock.now()
    jobs = [await first.submit("work", scheduled_for=now.after(seconds)) for seconds in (50, 200)]
    await testing.crash(first)
    await asyncio.sleep(100)
    async with new_scheduler(tmp_path, seed=1) as second:
        began = second._clock.now()
        await asyncio.sleep(500)
        started = [(await second.job(job.job_id)).started_at for job in jobs]

    assert started == [began, pytest.approx(now.after(200), abs=1000)]


# What it says, and what it costs.


def test_recovered_says_what_was_done_and_nothing_is_started_before(tmp_path: Path) -> None:
    after_crash(tmp_path, lambda scheduler: start_many(scheduler, 3))

    async def check(scheduler: Scheduler) -> None:
        new = [event for event in await history(scheduler) if event.seq > 6]
        told = [event for event in new if event.type == "recovered"]
        counts = {"lost": 3, "closed": 0, "decided": 0, "direct": 0, "occurrences": 0}
        assert [event.details for event in told] == [counts]
        assert min(event.seq for event in new if event.type == "job_started") > told[0].seq

    recovered(tmp_path, check)


def test_a_clean_start_recovers_nothing_and_says_nothing(tmp_path: Path) -> None:
    recovered(tmp_path, none_left)
    recovered(tmp_path, none_left, seed=1)

    assert rows(tmp_path, "select * from events") == []


@pytest.mark.sqlite_only("counts the steps of its machine")
def test_recovery_costs_nothing_for_what_is_queued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The check of the file reads all of it, up to a size; recovery is what comes after it.
    monkeypatch.setattr(integrity_check, "CHECKED_AT_ONCE_BYTES", 0)
    costs = []
    for queued in (10, 20_000):
        directory = tmp_path / str(queued)
        directory.mkdir()
        after_crash(directory, lambda scheduler, queued=queued: start_and_queue(scheduler, queued))
        costs.append(steps_to_start(directory))

    assert costs[1] < 1.2 * costs[0]


def test_CON_001_a_second_scheduler_on_the_same_database_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    async def check(scheduler: Scheduler) -> None:
        with pytest.raises(AlreadyOpen, match=f"process {os.getpid()} "):
            await new_scheduler(tmp_path, seed=3).start()
        assert (await scheduler.wait((await scheduler.submit("work")).job_id)).status == "COMPLETED"

    recovered(tmp_path, check)


# Arrangement.

# A failure between its end and its decision; the slot had been given back with the end.
UNDECIDED = """
    update runs set status = 'FAILED', failure_kind = 'error', error = 'x', finished_at = started_at + 7;
    update jobs set outcome = 'FAILED', decision = 'undecided', finished_at = started_at + 7;
    update limits set used = 0;
    update lanes set running = 0;
"""


def after_crash(directory: Path, *arrange: Callable[..., Any]) -> Any:
    """Calls these functions and returns the last result. Functions that take a scheduler get one, which then
    crashes.
    """
    found: list[Any] = []

    async def body() -> None:
        scheduler = new_scheduler(directory)
        await scheduler.start()
        found.append(await arrange[0](scheduler))
        await testing.crash(scheduler)

    testing.run(body())
    return arrange[1]() if len(arrange) > 1 else found[0]


def recovered(directory: Path, check: Callable[[Scheduler], Awaitable[None]], seed: int = 1) -> None:
    """Starts the next life and checks it; at the end the counters must be right."""

    async def body() -> None:
        async with new_scheduler(directory, seed=seed) as scheduler:
            await check(scheduler)

    testing.run(body())
    assert_counters(directory)


async def start(scheduler: Scheduler) -> Job:
    return await scheduler.submit("stubborn")


async def start_many(scheduler: Scheduler, count: int) -> None:
    await scheduler.offices.change("default", max_concurrent_jobs=0)
    await scheduler.submit_many([NewJob(job_type="stubborn")] * count)


async def start_and_queue(scheduler: Scheduler, count: int) -> None:
    """Starts three jobs; the others wait for their turn."""
    await scheduler.offices.change("default", max_concurrent_jobs=3)
    await scheduler.submit_many([NewJob(job_type="stubborn")] * (3 + count))


def steps_to_start(directory: Path) -> int:
    steps = Steps()
    taken = []

    async def look(scheduler: Scheduler) -> None:
        taken.append(steps.taken)

    apsw.connection_hooks.append(steps.watch)
    try:
        recovered(directory, look)
    finally:
        apsw.connection_hooks.remove(steps.watch)
    return taken[0]


async def crash(scheduler: Scheduler) -> None:
    await testing.crash(scheduler)


async def none_left(scheduler: Scheduler) -> None:
    assert scheduler.recovered == Recovered()


def break_at(scheduler: Scheduler, number: int) -> None:
    """Makes recovery's n-th transaction do all its work and then fail before its commit, once."""
    left = [number]

    def breaking(work: Callable[..., Any]) -> Callable[..., Any]:
        def broken(*arguments: Any) -> Any:
            done = work(*arguments)
            left[0] -= 1
            if left[0] == 0:
                raise RuntimeError("in the middle")
            return done

        return broken

    repair = scheduler._runtime.recovery
    repair._lose_running = breaking(repair._lose_running)  # type: ignore[method-assign]
    repair._decide = breaking(repair._decide)  # type: ignore[method-assign]


async def killed_after(directory: Path, steps: int) -> int:
    """Kills a start after so many steps of the loop; how many jobs the next start still found lost."""
    victim = new_scheduler(directory, seed=1)
    starting = asyncio.ensure_future(victim.start())
    for _ in range(steps):
        await asyncio.sleep(0)
    await testing.crash(victim)
    starting.cancel()
    await asyncio.wait([starting])
    async with new_scheduler(directory, seed=2) as scheduler:
        return scheduler.recovered.lost


def assert_lost_once(directory: Path, count: int) -> None:
    """Checks that each of the first jobs was lost once and has one retry, and that no job was lost twice or
    forgotten.
    """
    first = rows(directory, "select job_id from jobs where retry_of is null and outcome = 'FAILED'")
    retries = rows(
        directory, "select retry_of from jobs where retry_of in (select job_id from jobs where retry_of is null)"
    )
    assert len(first) == count
    assert sorted(retries) == sorted(first)
    assert_counters(directory)


def by_hand(directory: Path, sql: str) -> None:
    """Makes what cannot happen, with the rules set aside."""
    connection = database(directory)
    with connection:
        connection.execute("insert into maintenance values ('a test', 1)")
        connection.execute(sql)
        connection.execute("delete from maintenance")
    connection.close()


def rows(directory: Path, sql: str) -> list[Any]:
    connection = database(directory)
    found: list[Any] = connection.execute(sql).fetchall()
    connection.close()
    return found


async def types(scheduler: Scheduler, job: Job) -> list[str]:
    return [event.type for event in await history(scheduler) if event.job_id == job.job_id]


# A chain that takes its scheduler down.


def test_a_chain_that_was_alone_in_two_schedulers_that_died_is_not_retried(tmp_path: Path) -> None:
    job = life(tmp_path, start)
    life(tmp_path, nothing)

    async def check(scheduler: Scheduler) -> None:
        first, second = await scheduler.chain(job.job_id)
        assert (first.decision, second.decision) == ("retry", "permanent")
        assert await crash_of(scheduler, first) == "Scheduler crash recovery"
        assert "died twice" in await crash_of(scheduler, second)
        assert [event.job_id for event in await history(scheduler) if event.type == "job_failed_permanently"] == [
            second.job_id
        ]
        # A person may always try again, and sees at the first crash what comes of it.
        await scheduler.retry(await run_id_of(scheduler, second))

    life(tmp_path, check)
    assert_counters(tmp_path)


def test_a_neighbour_is_not_condemned_by_two_crashes(tmp_path: Path) -> None:
    life(tmp_path, lambda scheduler: start_many(scheduler, 2))
    life(tmp_path, nothing)

    async def check(scheduler: Scheduler) -> None:
        assert [one.status for one in await scheduler.running()] == ["RUNNING"] * 2

    life(tmp_path, check)
    assert rows(tmp_path, "select distinct beside from runs where failure_kind = 'crash'") == [(1,)]


def test_a_crash_with_company_does_not_count_and_does_not_absolve(tmp_path: Path) -> None:
    job = life(tmp_path, start)

    async def with_company(scheduler: Scheduler) -> None:
        await scheduler.offices.change("default", max_concurrent_jobs=2)
        await scheduler.submit("stubborn", retry_policy={"max_attempts": 0})

    life(tmp_path, with_company)
    life(tmp_path, nothing)

    async def check(scheduler: Scheduler) -> None:
        assert [one.decision for one in await scheduler.chain(job.job_id)] == ["retry", "retry", "permanent"]

    life(tmp_path, check)


def test_a_direct_caller_is_company_too(tmp_path: Path) -> None:
    async def with_caller(scheduler: Scheduler) -> Job:
        await scheduler.offices.change("default", max_concurrent_jobs=2)
        job = await scheduler.submit("stubborn")
        calls.append(asyncio.ensure_future(scheduler.run_direct("stubborn")))
        await asyncio.sleep(1)
        return job

    calls: list[asyncio.Future[Any]] = []
    job = life(tmp_path, with_caller)
    life(tmp_path, nothing)

    async def check(scheduler: Scheduler) -> None:
        assert [one.decision for one in await scheduler.chain(job.job_id)][:2] == ["retry", "retry"]

    life(tmp_path, check)


def test_another_failure_in_between_ends_the_row(tmp_path: Path) -> None:
    job = life(tmp_path, lambda scheduler: scheduler.submit("work", {"seconds": 100}))

    async def interrupted(scheduler: Scheduler) -> None:
        assert await scheduler.stop(grace_seconds=0)

    life(tmp_path, interrupted, is_killed=False)
    life(tmp_path, nothing)

    async def check(scheduler: Scheduler) -> None:
        assert [one.decision for one in await scheduler.chain(job.job_id)] == ["retry", "retry", "retry", None]

    life(tmp_path, check)


def test_work_in_a_process_of_its_own_is_retried_after_every_crash(tmp_path: Path) -> None:
    job = life(tmp_path, lambda scheduler: scheduler.submit("apart", retry_policy={"max_attempts": 9}))
    for _ in range(3):
        life(tmp_path, nothing)

    async def check(scheduler: Scheduler) -> None:
        assert [one.decision for one in await scheduler.chain(job.job_id)] == ["retry"] * 4 + [None]

    life(tmp_path, check)


def test_what_recovery_has_stored_about_company_stays_when_it_is_killed(tmp_path: Path) -> None:
    """It ends the runs in more than one transaction: who is counted later finds fewer there."""
    life(tmp_path, lambda scheduler: start_many(scheduler, 5))

    async def main() -> None:
        for steps in range(1, 12):
            await killed_after(tmp_path, steps)

    testing.run(main())
    assert rows(tmp_path, "select distinct beside from runs where failure_kind = 'crash'") == [(4,)]


def test_a_handler_that_calls_its_failure_a_crash_is_retried_as_its_policy_says(tmp_path: Path) -> None:
    async def check(scheduler: Scheduler) -> None:
        policy = {"max_attempts": 4, "base_delay_seconds": 0}
        job = await scheduler.submit("fail", {"kind": "crash", "times": 4}, retry_policy=policy)
        assert (await scheduler.wait(job.job_id)).status == "COMPLETED"

    life(tmp_path, check)


async def nothing(scheduler: Scheduler) -> None:
    await asyncio.sleep(1)


class Apart:
    """A handler as those of commands are: with a process of its own, and a time of grace for it."""

    grace_seconds = 1.0

    async def __call__(self, run: Any) -> None:
        await asyncio.sleep(100)


_seeds = itertools.count(100)


def life(directory: Path, work: Callable[[Scheduler], Awaitable[Any]], *, is_killed: bool = True) -> Any:
    """Runs a function in one life of a scheduler, which then dies. Returns its result."""
    found: list[Any] = []

    async def body() -> None:
        scheduler = new_scheduler(directory, seed=next(_seeds))
        scheduler.job_types.register("apart", Apart())
        await scheduler.start()
        found.append(await work(scheduler))
        if is_killed:
            await testing.crash(scheduler)

    testing.run(body())
    return found[0]


async def run_id_of(scheduler: Scheduler, job: Job) -> str:
    run = await scheduler.run_of(job.job_id)
    assert run is not None
    return run.run_id


async def crash_of(scheduler: Scheduler, job: Job) -> str:
    run = await scheduler.run_of(job.job_id)
    assert run is not None
    assert run.failure_kind == "crash"
    return run.error or ""
