"""No wake-up is lost: a commit between a read and the use of what was read still wakes the reader.

Each test lets something be committed exactly there. On virtual time a reader that sleeps through it is noticed at once:
either nothing is left to wait for, or it is too late.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from nextslot import Scheduler, testing
from tests.support import new_scheduler, running_scheduler

Hook = Callable[[], Awaitable[Any]]


class Between:
    """Runs a hook once, after the store has answered and before the caller continues."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._store: Any = scheduler._access.store
        self._hooks: dict[str, tuple[re.Pattern[str], Hook]] = {}
        self.happened = 0
        for verb in ("read", "write"):
            setattr(self._store, verb, self._watched(verb, getattr(self._store, verb)))

    def after(self, verb: str, asker: str, hook: Hook) -> None:
        """Sets the hook for the next time that a function of this name (a pattern of its qualified name) reads or
        writes.
        """
        self._hooks[verb] = (re.compile(asker), hook)

    def _watched(self, verb: str, call: Any) -> Any:
        async def watched(work: Any, **options: Any) -> Any:
            answer = await call(work, **options)
            pattern, hook = self._hooks.get(verb, (None, None))
            if pattern is not None and hook is not None and pattern.search(_name(work)):
                del self._hooks[verb]
                self.happened += 1
                await hook()
            return answer

        return watched


def _name(work: Any) -> str:
    return str(getattr(getattr(work, "func", work), "__qualname__", ""))


async def test_a_client_who_waits_for_a_job_that_ends_while_it_looks(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", {"seconds": 100})
        between = Between(scheduler)

        async def end() -> None:
            await scheduler.cancel(job.job_id, interrupt=True)
            await testing.settled()

        between.after("read", "Waiters.wait", end)
        ended = await scheduler.wait(job.job_id)

        assert (ended.status, between.happened, asyncio.get_running_loop().time() < 1) == ("CANCELLED", 1, True)


async def test_a_reader_of_events_that_has_just_found_none(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        between = Between(scheduler)
        between.after("read", "read_page", lambda: scheduler.submit("work"))

        async for event in scheduler.events():
            assert (event.type, between.happened) == ("job_queued", 1)
            assert asyncio.get_running_loop().time() < 0.5, "not woken by the next event"
            break


async def test_a_delivery_that_is_stored_while_those_before_it_are_read(tmp_path: Path) -> None:
    mailbox = testing.Mailbox()

    async with running_scheduler(tmp_path, sender=mailbox) as scheduler:
        hook = {"url": "http://127.0.0.1:9/"}
        await scheduler.offices.create("web")
        between = Between(scheduler)

        async def end_another() -> None:
            await scheduler.submit("work", {"seconds": 0}, office_id="web", webhook=hook)
            await testing.settled()

        between.after("read", "DeliveryWorker._fill", end_another)
        await scheduler.submit("work", {"seconds": 1}, webhook=hook)
        await asyncio.sleep(2)

        assert (len(mailbox.messages), between.happened) == (2, 1)


async def test_a_delivery_that_is_stored_while_a_new_leader_reads_what_there_is_to_send(tmp_path: Path) -> None:
    mailbox = testing.Mailbox()

    async with running_scheduler(tmp_path, sender=mailbox) as scheduler:
        between = Between(scheduler)

        async def end_one() -> None:
            await scheduler.submit("work", {"seconds": 0}, webhook={"url": "http://127.0.0.1:9/"})
            await testing.settled()

        between.after("read", "origins", end_one)
        await scheduler._runtime.deliveries.refresh()
        await asyncio.sleep(1)

        assert (len(mailbox.messages), between.happened) == (1, 1)


async def test_a_job_that_is_planned_while_the_timer_looks_at_what_is_due(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        now = scheduler._clock.now
        await scheduler.submit("work", scheduled_for=now().after(10))
        await scheduler.submit("work", scheduled_for=now().after(1000))
        between = Between(scheduler)
        jobs: list[Any] = []

        async def plan() -> None:
            jobs.append(await scheduler.submit("work", {"seconds": 0}, scheduled_for=now().after(5)))

        between.after("write", "TimeoutManager.do_due", plan)
        await asyncio.sleep(10.5)
        ended = await scheduler.wait(jobs[0].job_id)

        assert between.happened == 1
        assert ended.job.started_at is not None
        assert ended.job.started_at - jobs[0].scheduled_for < 2_000_000


async def test_a_schedule_that_is_made_while_the_timer_looks_at_what_is_due(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        template = await scheduler.templates.create(name="t", job_type="work", params={"seconds": 0})
        for seconds in (10, 1000):
            await scheduler.submit("work", scheduled_for=scheduler._clock.now().after(seconds))
        between = Between(scheduler)

        async def make() -> None:
            await scheduler.schedules.create(
                name="each minute", template_id=template.template_id, cron_expression="* * * * *", timezone="UTC"
            )

        between.after("write", "TimeoutManager.do_due", make)
        await asyncio.sleep(130)
        [schedule] = (await scheduler.schedules.page()).items

        assert (len((await scheduler.schedules.occurrences_page(schedule.schedule_id)).items), between.happened) == (
            2,
            1,
        )


async def test_a_caller_whose_turn_comes_while_its_place_is_read(tmp_path: Path) -> None:
    async with running_scheduler(tmp_path) as scheduler:
        job = await scheduler.submit("work", {"seconds": 100})
        between = Between(scheduler)

        async def give_way() -> None:
            await scheduler.cancel(job.job_id, interrupt=True)
            await testing.settled()

        between.after("read", "ConnectedCallers.read_places", give_way)
        heard = [update.kind async for update in scheduler.stream_direct("work", {"seconds": 1})]

        assert (heard, between.happened) == (["started", "result"], 1)
        assert asyncio.get_running_loop().time() < 5


async def test_what_another_node_announces_while_this_one_looks_is_looked_at_too(tmp_path: Path) -> None:
    scheduler = new_scheduler(tmp_path)
    async with scheduler:
        cluster, looks = scheduler.nodes._cluster, list[str]()

        async def look(store: Any) -> None:
            looks.append("look")
            if len(looks) == 1:
                cluster.notified(frozenset({"work"}))

        cluster._on_topic["work"] = look
        cluster.notified(frozenset({"work"}))
        await testing.settled()

        assert looks == ["look", "look"]
