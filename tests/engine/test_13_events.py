"""Spec 13: events."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nextslot import (
    Event,
    Fail,
    NewJob,
    Scheduler,
    testing,
)
from nextslot.errors import Invalid
from nextslot.testing import BEGINNING
from tests import databases
from tests.support import counted_scheduler, database, history, new_scheduler

NO_RETRY = {"max_attempts": 0}


# Lives.


@pytest.mark.parametrize(
    ("job_type", "params", "options", "life"),
    [
        ("work", {}, {}, "queued started completed"),
        ("skip", {}, {}, "queued started skipped"),
        ("fail", {}, {"retry_policy": NO_RETRY}, "queued started failed failed_permanently"),
        ("fail", {"times": 1}, {}, "queued started failed retrying"),
        ("fail", {"kind": "permission"}, {}, "queued started failed failed_permanently"),
        ("work", {"seconds": 9}, {"timeout_seconds": 5}, "queued started timeout retrying"),
        (
            "work",
            {"seconds": 9},
            {"timeout_seconds": 5, "retry_policy": NO_RETRY},
            "queued started timeout failed_permanently",
        ),
        ("work", {}, {"scheduled_for": BEGINNING.after(5)}, "queued ready started completed"),
    ],
)
async def test_the_life_of_a_job_in_events(
    tmp_path: Path, job_type: str, params: dict[str, Any], options: dict[str, Any], life: str
) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit(job_type, params, **options)
        await scheduler.wait(job.job_id)

        assert life_of(await history(scheduler), job.job_id) == life


@pytest.mark.parametrize(
    ("interrupt", "first", "second"),
    [
        (False, "queued started cancel_requested completed", "queued cancelled"),
        (True, "queued started cancel_requested cancelled", "queued cancelled"),
    ],
)
async def test_the_life_of_a_cancelled_job_in_events(tmp_path: Path, interrupt: bool, first: str, second: str) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        running = await scheduler.submit("work", {"seconds": 9})
        queued = await scheduler.submit("work")
        for job in (running, queued):
            await scheduler.cancel(job.job_id, interrupt=interrupt)
        await asyncio.sleep(100)

        events = await history(scheduler)
        assert [life_of(events, job.job_id) for job in (running, queued)] == [first, second]


async def test_the_life_of_a_dependent_and_of_a_retry_in_events(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        first = await scheduler.submit("fail", {"times": 1})
        then = await scheduler.submit("work", depends_on=[first.job_id])
        await scheduler.wait(then.job_id)

        events = await history(scheduler)
        retry = (await scheduler.chain(first.job_id))[1]
        assert life_of(events, retry.job_id) == "queued ready started completed"
        assert life_of(events, then.job_id) == "queued ready started completed"
        told = next(event for event in events if event.type == "job_retrying")
        assert told.details == {
            "retry": retry.job_id, "number": 1, "delay_seconds": 10, "scheduled_for": str(retry.scheduled_for)
        }  # fmt: skip


async def test_what_happens_to_queues_and_groups_is_told_once(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.pause()
        await scheduler.pause()
        _, (first, second) = await scheduler.submit_group([NewJob(job_type="work")] * 2, mode="parallel")
        await scheduler.move(second.job_id, to="front")
        await scheduler.resume()
        await scheduler.resume()
        for job in (first, second):
            await scheduler.wait(job.job_id)

        assert [event.type for event in await history(scheduler)] == [
            "queue_paused", "job_queued", "job_queued", "job_moved", "queue_resumed",
            "job_started", "job_completed", "job_started", "job_completed", "group_finished",
        ]  # fmt: skip


# What an event says.


async def test_that_something_was_paused_is_told_to_an_office_only_if_it_is_that_office(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        for scope in ({"office_id": "default"}, {"job_type": "work"}, {"resource": "gpu"}):
            await scheduler.pause(**scope)
            await scheduler.resume(**scope)

        told = [(event.type, event.office_id, event.details) for event in await history(scheduler)]
        assert told == [
            (kind, office_id, details)
            for office_id, details in (
                ("default", {"office": "default"}),
                (None, {"type": "work"}),
                (None, {"resource": "gpu"}),
            )
            for kind in ("queue_paused", "queue_resumed")
        ]


async def test_an_event_says_which_job_and_run_where_and_when(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.create("a")
        job = await scheduler.submit("fail", {"kind": "invalid"}, office_id="a")
        ended = await scheduler.wait(job.job_id)
        assert ended.run is not None

        queued, started, failed, permanent = await history(scheduler)

        assert {(event.office_id, event.job_id) for event in (queued, started, failed, permanent)} == {
            ("a", job.job_id)
        }
        assert (queued.run_id, started.run_id, failed.run_id) == (None, ended.run.run_id, ended.run.run_id)
        assert [queued.timestamp, started.timestamp] == [job.created_at, ended.run.started_at]
        assert failed.timestamp == permanent.timestamp == ended.run.finished_at
        assert failed.details == {"failure_kind": "invalid", "error": "failed as asked, invalid"}
        assert started.details == {"worker_id": ended.job.worker_id}


async def test_the_details_of_an_event_are_short(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:

        @scheduler.job_type("loud")
        async def loud(run: Any) -> None:
            raise Fail("x" * 9000, "invalid")

        await scheduler.wait((await scheduler.submit("loud")).job_id)

        assert max(len(str(event.details)) for event in await history(scheduler)) < 600


async def test_what_was_refused_is_not_told(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        with pytest.raises(Invalid):
            await scheduler.submit_many([NewJob(job_type="work"), NewJob(job_type="work", priority=10**9)])

        assert await history(scheduler) == []


# One event for every change, in its transaction.


async def test_every_change_of_state_has_exactly_one_event_in_its_transaction(tmp_path: Path) -> None:
    async with new_scheduler(tmp_path) as scheduler:
        database(tmp_path).execute(WATCH[databases.kind()])
        await much_happens(scheduler)
        await asyncio.sleep(3)
        await testing.crash(scheduler)
    async with new_scheduler(tmp_path, seed=1) as scheduler:
        await asyncio.sleep(3000)
        assert told_by_transaction(await history(scheduler), changes(tmp_path)) == []
    became = Counter(change[2] for change in changes(tmp_path))
    assert became.keys() == set(EVENT_OF)  # The test has seen every status there is.


async def much_happens(scheduler: Scheduler) -> None:
    await scheduler.offices.change("default", max_concurrent_jobs=3)
    for mode in ("sequential", "parallel"):
        for on_failure in ("stop", "skip", "continue"):
            wanted = [work(), NewJob(job_type="fail", retry_policy=NO_RETRY), work(), NewJob(job_type="skip"), work()]
            await scheduler.submit_group(wanted, mode, on_failure)
    root = await scheduler.submit("fail", retry_policy={"max_attempts": 1})
    for policy in ("wait", "cancel"):
        middle = await scheduler.submit("work", depends_on=[root.job_id], on_dependency_failure=policy)
        await scheduler.submit("work", depends_on=[middle.job_id], on_dependency_failure=policy)
    await scheduler.submit("work", {"seconds": 50}, timeout_seconds=2, priority=8)
    await scheduler.submit("work", scheduled_for=BEGINNING.after(500))
    await scheduler.submit("work", expires_at=BEGINNING.after(2))
    for interrupt in (True, False):
        job = await scheduler.submit("work", {"seconds": 5}, priority=9)
        await scheduler.cancel(job.job_id, interrupt=interrupt)
    await scheduler.cancel((await scheduler.submit("work")).job_id)


STATUS = """case when {0}.stage = 'CANCELLED' then 'CANCELLED'
    when {0}.stage = 'QUEUED' and {0}.unmet = 0 and {0}.is_due = 1 and {0}.is_turn = 1 then 'QUEUED'
    when {0}.stage = 'QUEUED' then 'WAITING' when {0}.outcome is null then 'RUNNING' else {0}.outcome end"""
# Events are numbered last in their transaction: changes of one transaction have the same number before them.
NOTED = "insert into changes_seen (after_seq, job_id, status, is_skipped) select coalesce(max(seq), 0), new.job_id"
BIRTH = f"{NOTED}, 'BORN', 0 from events;"
HAS_CHANGED = f"{STATUS.format('old')} <> {STATUS.format('new')}"
IS_SKIPPED = "new.stage = 'RUNNING' and new.worker_id is null and new.outcome is null"
CHANGE = f"{NOTED}, {STATUS.format('new')}, case when {IS_SKIPPED} then 1 else 0 end from events;"
WATCH = {
    "sqlite": f"""
        create table changes_seen (number integer primary key, after_seq, job_id, status, is_skipped);
        create trigger see_birth after insert on jobs begin {BIRTH} end;
        create trigger see_change after update on jobs when {HAS_CHANGED} begin {CHANGE} end;
    """,
    "postgres": f"""
        create table changes_seen (
            number bigint generated always as identity, after_seq bigint, job_id text, status text,
            is_skipped bigint);
        create function see_birth() returns trigger language plpgsql as $$ begin {BIRTH} return new; end $$;
        create trigger see_birth after insert on jobs for each row execute function see_birth();
        create function see_change() returns trigger language plpgsql as $$ begin {CHANGE} return new; end $$;
        create trigger see_change after update on jobs for each row when ({HAS_CHANGED}) execute function see_change();
    """,
}
EVENT_OF = {
    "BORN": "job_queued", "QUEUED": "job_ready", "RUNNING": "job_started", "COMPLETED": "job_completed",
    "FAILED": "job_failed", "SKIPPED": "job_skipped", "CANCELLED": "job_cancelled",
}  # fmt: skip


def changes(directory: Path) -> list[tuple[int, str, str]]:
    """Returns (number of the last event before, job, status) of each change. The start of a run that a group skips is
    not a change of its own.
    """
    connection = database(directory)
    rows: list[tuple[int, str, str]] = connection.execute(
        "select after_seq, job_id, status from changes_seen where is_skipped = 0 order by number"
    ).fetchall()
    connection.close()
    return rows


def told_by_transaction(events: list[Event], changes: list[tuple[int, str, str]]) -> list[tuple[int, Any, Any]]:
    """Finds transactions whose events do not match their changes."""
    begins = sorted({seq for seq, _, _ in changes})
    wrong = []
    for begin, end in zip(begins, [*begins[1:], 1 << 60], strict=True):
        expected = Counter[Any]((job_id, EVENT_OF[status]) for seq, job_id, status in changes if seq == begin)
        told = Counter[Any](
            (event.job_id, event.type.replace("timeout", "failed"))
            for event in events
            if begin < event.seq <= end and event.type in {*EVENT_OF.values(), "job_timeout"}
        )
        if told != expected:
            wrong.append((begin, told - expected, expected - told))
    return wrong


# Reading them.


async def test_numbers_only_grow_and_are_never_reused(tmp_path: Path) -> None:
    async with new_scheduler(tmp_path) as scheduler:
        await scheduler.wait((await scheduler.submit("work")).job_id)
        before = [event.seq for event in await history(scheduler)]
    connection = database(tmp_path)
    with connection:
        connection.execute("insert into maintenance values ('retention', 1)")
        connection.execute("delete from events where seq < (select max(seq) from events)")
        connection.execute("delete from maintenance")
    connection.close()
    async with new_scheduler(tmp_path, seed=1) as scheduler:
        await scheduler.wait((await scheduler.submit("work")).job_id)
        after = [event.seq for event in await history(scheduler)]

    assert before == sorted(set(before))
    assert (after[0], after) == (before[-1], sorted(set(after)))


async def test_a_follower_misses_nothing_while_jobs_run(tmp_path: Path) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=3)
        early = asyncio.ensure_future(followed(scheduler, 0, jobs=40))
        jobs = [await scheduler.submit("work", {"seconds": n % 5}) for n in range(30)]
        await scheduler.wait(jobs[9].job_id)
        late = asyncio.ensure_future(followed(scheduler, 0, jobs=40))
        middle = asyncio.ensure_future(followed(scheduler, 50, jobs=40))
        await scheduler.submit_many([work()] * 10)

        seen = [await early, await late, await middle]

        events = await history(scheduler)
        assert seen == [events, events, events[50:]]


async def test_a_follower_that_comes_back_in_another_life_misses_nothing(tmp_path: Path) -> None:
    first = new_scheduler(tmp_path)
    await first.start()
    await first.submit("work", {"seconds": 50})
    seen = await followed_until(first, 0, lambda event: event.type == "job_started")
    await first.submit("work")
    await testing.crash(first)

    async with new_scheduler(tmp_path, seed=1) as second:
        seen += await followed_until(second, seen[-1].seq, lambda event: event.type == "job_completed")

        assert seen == (await history(second))[: len(seen)]
        assert "recovered" in {event.type for event in seen}


# Arrangement.


def work() -> NewJob:
    return NewJob(job_type="work", params={"seconds": 1})


def life_of(events: list[Event], job_id: str) -> str:
    return " ".join(event.type.removeprefix("job_") for event in events if event.job_id == job_id)


async def followed(scheduler: Scheduler, after: int, jobs: int) -> list[Event]:
    """Reads events from a number on, until this many jobs have completed."""
    done = Counter[str]()

    def is_last(event: Event) -> bool:
        done[event.type] += event.type == "job_completed"
        return done["job_completed"] == jobs - before

    before = sum(event.type == "job_completed" for event in (await history(scheduler))[:after])
    return await followed_until(scheduler, after, is_last)


async def followed_until(scheduler: Scheduler, after: int, is_last: Callable[[Event], bool]) -> list[Event]:
    seen = []
    async for event in scheduler.events(after):
        seen.append(event)
        if is_last(event):
            break
    return seen
