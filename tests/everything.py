"""A database that has some of everything, made by a real scheduler that crashes in the middle of its work.

For what must hold of whatever is stored: moves between databases, upgrades, backups.
"""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from nextslot import (
    Fail,
    Limits,
    NewJob,
    Scheduler,
    testing,
)
from nextslot.domain.limits import Rate, RateUnit
from nextslot.engine.webhooks.delivery_worker import EndpointResponse
from nextslot.store.tables import aliases
from nextslot.testing import Mailbox
from tests import databases
from tests.support import named, new_scheduler

HOOK = "http://example.com/hook"
DEAD = "http://example.com/dead"


def make(directory: Path) -> None:
    """Makes everything in the directory's database (`tests.databases`)."""

    async def body() -> None:
        box = Mailbox()
        box.answers[DEAD] = EndpointResponse(500, text="out of order")
        scheduler = new_scheduler(directory, sender=box, limits=Limits(affinity_waits={"gpu": 60}, rates=RATES))
        _handlers(scheduler)
        await scheduler.start()
        for stage in (_settings, _history, _directs, _present):
            await stage(scheduler)
        await testing.crash(scheduler)

    testing.run(body())
    with contextlib.closing(databases.plain(directory)) as connection:
        connection.execute(
            "insert into inbox values ('01890000-0000-7000-8000-000000000000', 'work', '{}', '{}', 'a', 1)"
        )


def _handlers(scheduler: Scheduler) -> None:
    @scheduler.job_type("write")
    async def write(run: Any, text: str) -> Any:
        (run.artifacts / "ünïcode.txt").write_text(text)
        run.log.info(text)
        await run.checkpoint({"wrote": text})
        return {"text": text, "number": 0.1, "large": 2**53 + 1}

    @scheduler.job_type("ask", resources=["server"], retry_policy={"max_attempts": 1, "base_delay_seconds": 1})
    async def ask(run: Any) -> None:
        raise Fail("no answer", "unavailable")


RATES = {"resource:gpu": {RateUnit.STARTS: Rate(6000, 100)}}


async def _settings(scheduler: Scheduler) -> None:
    """Makes offices, keys (each with an audit entry), templates, schedules and subscriptions."""
    ops = named(scheduler, "ops")
    await ops.offices.create("b", name='Büro "B"\n\u2028\t', max_concurrent_jobs=2, timeout_seconds=0.1 + 0.2)
    await ops.offices.create("a", webhook={"url": HOOK})
    await ops.offices.grant("a", streams=7, job_types=["work", "ask"])
    await ops.offices.change("default", max_concurrent_jobs=3)
    for scopes in (["admin"], ["submit"], ["read"]):
        await ops.keys.create(f"key to {scopes[0]}", scopes)
    await ops.webhooks.create(HOOK)
    await ops.webhooks.create(DEAD, ["job.run.completed"], office_id="b")
    nightly = await scheduler.templates.create(name="nightly", job_type="work", params={"seconds": 1}, priority=-5)
    old = await scheduler.templates.create(name="old", job_type="work")
    graph: Any = [{"key": "first", "job_type": "work"}, {"job_type": "work", "depends_on": ["first"]}]
    pipeline = await scheduler.templates.create(name="pipeline", jobs=graph, webhook={"url": HOOK})
    plans = (("* * * * *", nightly), ("0 3 * * *", nightly), ("*/5 * * * *", old), ("*/4 * * * *", pipeline))
    for cron, template in plans:
        await scheduler.schedules.create(name=cron, template_id=template.template_id, cron_expression=cron)
    await asyncio.sleep(600)
    await scheduler.templates.archive(old.template_id)


async def _history(scheduler: Scheduler) -> None:
    """Makes jobs that ended in every way, chains, groups, dependencies, deliveries with their attempts, and an
    outage.
    """
    written = await scheduler.submit("write", {"text": "a\\b\t\"c\" – 'd' 🎬"}, webhook={"url": HOOK}, title="t")
    await scheduler.submit("work", office_id="b", webhook={"url": DEAD}, idempotency_key="once")
    await scheduler._access.write(lambda tx: tx.execute("rollups.set_bound", name="history_from", at=1))
    await scheduler._access.write(lambda tx: aliases.insert(tx, "job", "20240101_120000", written.job_id, "jobs/1"))
    await scheduler.submit("skip", resources=["gpu"], affinity="a model")
    asked = await scheduler.submit("work", await_signal={"name": "go", "question": "May it?"})
    await scheduler.signal(asked.job_id, "go", {"why": "ü"})
    failing = await scheduler.submit("fail", {"times": 2}, retry_policy={"max_attempts": 3})
    permanent = await scheduler.submit("fail", retry_policy={"max_attempts": 0})
    await scheduler.submit("work", depends_on=[written.job_id, permanent.job_id])
    members = [NewJob(job_type=name, params={}) for name in ("work", "fail", "work")]
    await scheduler.submit_group(members, name="story", on_failure="continue")
    await scheduler.submit_group(members[:1] * 2, "parallel", "stop")
    cancelled = await scheduler.submit("work", priority=-9)
    await scheduler.cancel(cancelled.job_id, "not needed")
    for _ in range(8):
        await scheduler.submit("ask", office_id="a")
    await scheduler.wait(failing.job_id)
    await asyncio.sleep(900)


async def _directs(scheduler: Scheduler) -> None:
    await scheduler.run_direct("work", {"seconds": 1}, created_by="me")
    await scheduler.run_direct("fail")
    await scheduler.run_direct("skip")


async def _present(scheduler: Scheduler) -> None:
    """Makes running, waiting and held work for the moment of the power cut, so that recovery has something to do."""
    running = [await scheduler.submit("work", {"seconds": 5000}, timeout_seconds=9000) for _ in range(5)]
    await scheduler.submit("work", depends_on=[running[0].job_id], unique_key="last")
    later = [await scheduler.submit("work", {"n": number}, priority=number % 3) for number in range(6)]
    await scheduler.move(later[5].job_id, before=later[2].job_id)
    callers = [
        asyncio.ensure_future(scheduler.run_direct("work", {"seconds": 50}, office_id=office, created_by=office))
        for office in ("b", "default", "default")
    ]
    await scheduler.pause(job_type="skip")
    await scheduler.pause(office_id="a")
    await scheduler.submit("work", office_id="b", webhook={"url": DEAD})
    await asyncio.sleep(3)
    assert not any(caller.done() for caller in callers)
    for caller in callers:
        caller.add_done_callback(_forgotten)


def _forgotten(caller: "asyncio.Future[Any]") -> None:
    """Ignores the error of a caller whose connection ended with the scheduler."""
    with contextlib.suppress(asyncio.CancelledError, Exception):
        caller.result()
