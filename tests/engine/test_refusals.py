"""A refused request changes nobody else's answer and nobody else's work, whatever refuses it, in one group commit.

Each refusal below meets polite requests in the same group commit: on one thread and on virtual time, and on the
threads of a real server. `tests/server/test_impolite_clients.py` does the same over HTTP.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nextslot import NewJob, Scheduler
from nextslot.errors import NextslotError
from nextslot.store.contract import Tx
from nextslot.store.group_commit import GroupCommit
from nextslot.store.sqlite.sqlite_store import SqliteStore
from nextslot.store.tables import jobs
from tests import databases
from tests.support import assert_counters, counted_scheduler, register_handlers

NOBODY = "0199a000-0000-7000-8000-000000000000"


class Facts:
    """What the refused requests are about."""

    def __init__(self, ended: str, ended_run: str, running: str, queued: str) -> None:
        self.ended, self.ended_run, self.running, self.queued = ended, ended_run, running, queued


def work(**more: Any) -> NewJob:
    return NewJob(job_type="work", params={"seconds": 0.01}, **more)


def cycle(scheduler: Scheduler, facts: Facts) -> Awaitable[Any]:
    return scheduler.submit_many([work(), work(key="a", depends_on=["b"]), work(key="b", depends_on=["a"])])


async def defect(scheduler: Scheduler, facts: Facts) -> None:
    """A work that changes something and then raises an error that is no refusal."""

    def touch_and_break(tx: Tx) -> None:
        scheduler._runtime.queue.rename(tx, facts.queued, "another title")
        raise ValueError("a defect")

    await scheduler._access.write(touch_and_break)


async def broken_rule(scheduler: Scheduler, facts: Facts) -> None:
    """A work whose change only the rules of the database refuse: a job that starts without a run (spec 2.10)."""
    now = scheduler._clock.now()
    await scheduler._access.write(lambda tx: jobs.start(tx, facts.queued, "nowhere/slot-1", now))


async def broken_reference(scheduler: Scheduler, facts: Facts) -> None:
    """A work whose error only the commit finds."""
    await scheduler._access.write(lambda tx: tx.execute("maintenance.begin", reason="forgotten"))


async def idempotency(scheduler: Scheduler, facts: Facts) -> None:
    await scheduler.submit_many([work(title="other")], "taken")


async def two_of_one_key(scheduler: Scheduler, facts: Facts) -> None:
    await scheduler.submit_many([work(key="a"), work(key="a")])


REFUSALS: dict[str, Callable[[Scheduler, Facts], Awaitable[Any]]] = {
    "a cycle": cycle,
    "a defect of ours": defect,
    "a rule of the database": broken_rule,
    "a rule of the database, at the commit": broken_reference,
    "an unknown prerequisite": lambda s, f: s.submit_many([work(), work(depends_on=[NOBODY])]),
    "an unknown office": lambda s, f: s.submit_many([work(), work(office_id="nowhere")]),
    "an unknown job type": lambda s, f: s.submit_many([work(), NewJob(job_type="nothing")]),
    "an unknown template": lambda s, f: s.submit_many([work(), NewJob(template_id=NOBODY)]),
    "two jobs of one key": two_of_one_key,
    "a used idempotency key": idempotency,
    "a group of two offices": lambda s, f: s.submit_group([work(), work(office_id="web")]),
    "a group with a cycle": lambda s, f: s.submit_group([work(key="a", depends_on=["b"]), work(key="b")]),
    "the move of an unknown job": lambda s, f: s.move(NOBODY, to="front"),
    "the move of a dispatched job": lambda s, f: s.move(f.running, to="front"),
    "a move before an unknown job": lambda s, f: s.move(f.queued, before=NOBODY),
    "an order with a dispatched job": lambda s, f: s.reorder([f.queued, f.running]),
    "a change after dispatch": lambda s, f: s.change(f.running, priority=3),
    "a change of which one part is wrong": lambda s, f: s.change(f.queued, title="x", priority=10**9),
    "the cancel of an ended job": lambda s, f: s.cancel(f.ended),
    "the cancel of an unknown group": lambda s, f: s.cancel_group(NOBODY),
    "the retry of a run that did not fail": lambda s, f: s.retry(f.ended_run),
    "another run of an open job": lambda s, f: s.bulk.rerun(f.queued),
    "a direct request to an unknown office": lambda s, f: s.run_direct("work", office_id="nowhere"),
    "a direct request that does not wait": lambda s, f: s.run_direct("work", wait_timeout_seconds=0),
    "the cancel of an unknown direct request": lambda s, f: s.cancel_direct(NOBODY),
    "a template whose name is taken": lambda s, f: s.templates.create(name="nightly", job_type="work"),
    "the change of an unknown template": lambda s, f: s.templates.change(NOBODY, priority=1),
    "a schedule of an unknown template": lambda s, f: s.schedules.create(
        name="s", template_id=NOBODY, cron_expression="@daily"
    ),
    "the trigger of an unknown schedule": lambda s, f: s.schedules.trigger(NOBODY),
    "a subscription of an unknown office": lambda s, f: s.webhooks.create("http://127.0.0.1:9/", office_id="nowhere"),
    "the secret of an unknown subscription": lambda s, f: s.webhooks.rotate_secret(NOBODY),
    "a first key that is no admin's": lambda s, f: s.keys.create("web", ["submit"]),
    "an office that exists": lambda s, f: s.offices.create("web"),
    "the change of an unknown office": lambda s, f: s.offices.change("nowhere", max_concurrent_jobs=1),
    "the drain of an unknown node": lambda s, f: s.nodes.drain("nowhere"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_refused_request_changes_nobody_elses_answer_and_nobody_elses_work(
    tmp_path: Path, refusal: str
) -> None:
    async with counted_scheduler(tmp_path) as scheduler:
        await meet(scheduler, [refusal] * 3)


@pytest.mark.real_time
async def test_the_same_of_all_of_them_together_on_the_threads_of_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group runs on the writer's thread, as it does once commits are slow; reads are on threads of their own."""
    monkeypatch.setattr(SqliteStore, "is_inline", lambda self, rows: False)

    scheduler = Scheduler(databases.url(tmp_path), data=tmp_path)
    register_handlers(scheduler)
    async with scheduler:
        try:
            await meet(scheduler, list(REFUSALS))
        finally:
            await scheduler.stop(grace_seconds=0)
    assert_counters(tmp_path)


async def meet(scheduler: Scheduler, refusals: Sequence[str]) -> None:
    """Sends valid and refused requests in turn, all at once."""
    facts = await prepared(scheduler)
    alone = [await answer(REFUSALS[one](scheduler, facts)) for one in refusals]

    with Groups() as groups:
        asked = [REFUSALS[one](scheduler, facts) for one in refusals]
        answers = await asyncio.gather(*(answer(one) for refused in asked for one in (*polite(scheduler), refused)))

    assert max(groups.sizes) > 4, "they meet in one group commit"
    refused = answers[3::4]
    assert [said(one) for one in refused] == [said(one) for one in alone]
    assert all(isinstance(one, (NextslotError, ValueError)) for one in refused)
    accepted = [one for number, one in enumerate(answers) if number % 4 != 3]
    made = [job.job_id for one in accepted for job in (one if isinstance(one, list) else [one])]
    assert len(made) == len(refusals) * 7
    await scheduler.cancel(facts.running, interrupt=True)
    for job_id in [*made, facts.queued]:
        ended = await scheduler.wait(job_id)
        assert (ended.status, ended.job.retry_of) == ("COMPLETED", None)
    assert (await scheduler.job(facts.queued)).title is None


def polite(scheduler: Scheduler) -> list[Awaitable[Any]]:
    """Submits single jobs, and a batch whose first job has dependents."""
    batch = [work(key="first"), *(work(depends_on=["first"]) for _ in range(3))]
    wide = work(office_id="web")
    return [
        scheduler.submit("work", {"seconds": 0.01}),
        scheduler.submit_many([wide, wide]),
        scheduler.submit_many(batch),
    ]


async def prepared(scheduler: Scheduler) -> Facts:
    """Makes two offices, one of them with room for many jobs, and jobs in every status."""
    await scheduler.offices.create("web", max_concurrent_jobs=0)
    await scheduler.templates.create(name="nightly", job_type="work")
    await scheduler.submit_many([work()], "taken")
    ended = await scheduler.wait((await scheduler.submit("work", {"seconds": 0})).job_id)
    assert ended.run is not None
    running = await scheduler.submit("work", {"seconds": 1000}, priority=9)
    queued = await scheduler.submit("work", {"seconds": 0}, priority=-9)
    async for event in scheduler.events():
        if (event.type, event.job_id) == ("job_started", running.job_id):
            break
    return Facts(ended.job.job_id, ended.run.run_id, running.job_id, queued.job_id)


async def answer(request: Awaitable[Any]) -> Any:
    try:
        return await request
    except Exception as error:
        return error


def said(error: object) -> tuple[type, str]:
    """Returns the message without the duration in it."""
    return type(error), re.sub(r"[\d.]+ seconds", "a while", str(error))


class Groups:
    """The sizes of the groups that are committed together meanwhile."""

    def __init__(self) -> None:
        self.sizes: list[int] = [0]
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> "Groups":
        take, sizes = GroupCommit._take_group, self.sizes

        def taken(commits: GroupCommit) -> list[Any]:
            group = take(commits)
            sizes.append(len(group))
            return group

        self._patch.setattr(GroupCommit, "_take_group", taken)
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()
