"""Spec 13: one reader reads new events for all followers; none loses one, gets one twice or out of order."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any

import pytest

from nextslot.engine.effects import EventsAppended
from nextslot.engine.events import event_feed
from nextslot.engine.events.event_feed import EventPage
from nextslot.engine.events.event_log import EventLog
from nextslot.errors import Unavailable
from nextslot.store.contract import Tx
from nextslot.system.instant import Instant

from .bench import Bench, NewBench

LIMIT = 60.0


@pytest.mark.parametrize("seed", range(4))
async def test_followers_that_come_go_and_dawdle_get_every_event_in_order(
    timely_bench: NewBench, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    # Small, so that followers fall behind what is kept, and are woken in several portions.
    for name, value in {"PAGE": 5, "KEPT": 12, "TOGETHER": 3, "FEW": 4, "REST": 0.00001}.items():
        monkeypatch.setattr(event_feed, name, value)
    chance = random.Random(seed)
    total = 150

    async with timely_bench() as bench:
        events = log_of(bench)

        async def commit() -> None:
            made = 0
            while made < total:
                count = min(chance.choice([1, 1, 2, 13]), total - made)
                await say(bench, events, count)
                made += count
                await turns(chance.randrange(4))

        async def follow() -> list[int]:
            """Reads to the end in several visits, at its own pace."""
            seen: list[int] = []
            after = begin = chance.randrange(total)
            while after < total:
                visit = chance.choice([1, 10, total])
                async with aclosing(events.follow_pages(bench.store, after)) as pages:
                    async for page in pages:
                        seen += [one.seq for one in page.events]
                        after, visit = page.last, visit - 1
                        await turns(chance.choice([0, 0, 1, 30]))
                        if after >= total or not visit:
                            break
            assert seen == list(range(begin + 1, total + 1))
            return seen

        await asyncio.gather(commit(), *(follow() for _ in range(12)))


@pytest.mark.parametrize("overtaken", range(6))
async def test_a_commit_between_a_read_and_the_wait_is_heard_of(timely_bench: NewBench, overtaken: int) -> None:
    """No other commit follows that could wake anybody. It fails if the feed clears its news after it has read, or if a
    follower takes the feed's turn after it has looked."""
    async with timely_bench() as bench:
        events = log_of(bench)
        await say(bench, events, 1)
        store: Any = Overtaken(bench.store, overtaken, lambda: say(bench, events, 1))

        seen = []
        async with aclosing(events.follow_pages(store, 0)) as pages:
            async for page in pages:
                seen += [one.seq for one in page.events]
                if store.has_overtaken and len(seen) == 2:
                    break
                if overtaken >= store.reads and len(seen) == 1:
                    # So many reads are made only if there is something to read.
                    store.overtake_next()
                    asyncio.get_running_loop().call_soon(events.wake)

        assert seen == [1, 2]


async def test_new_events_are_read_once_and_shared_by_all_who_are_up_to_date(timely_bench: NewBench) -> None:
    async with timely_bench() as bench:
        events, followers, commits = log_of(bench), 40, 15
        store: Any = Counting(bench.store)
        await say(bench, events, 1)
        received: list[list[EventPage]] = [[] for _ in range(followers)]

        async def follow(number: int) -> None:
            async with aclosing(events.follow_pages(store, 1)) as pages:
                async for page in pages:
                    received[number].append(page)
                    if page.last == 1 + commits:
                        return

        tasks = [asyncio.create_task(follow(number)) for number in range(followers)]
        await until(lambda: not store.is_reading)
        before = store.reads
        for number in range(commits):
            await say(bench, events, 1)
            await until(partial(have_all, received, 2 + number))
        await asyncio.gather(*tasks)

        # A read that finds the event, and one that finds no more, for each commit.
        assert store.reads - before <= 2 * commits + 2
        assert all(pages[-1] is received[0][-1] for pages in received)


def test_what_is_made_of_a_page_is_made_once_for_each_form() -> None:
    made: list[str] = []
    page = EventPage(0, [])

    def make(name: str) -> Callable[[Any], str]:
        return lambda events: made.append(name) or name  # type: ignore[func-returns-value]

    assert [page.form(key, make(key)) for key in "abab"] == ["a", "b", "a", "b"]
    assert made == ["a", "b"]
    for number in range(3 * event_feed.MOST_FORMS):
        page.form(number, make("more"))
    assert len(page._forms) == event_feed.MOST_FORMS


async def test_a_follower_that_does_not_read_holds_up_nobody_and_costs_no_memory(
    timely_bench: NewBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "KEPT", 20)
    monkeypatch.setattr(event_feed, "PAGE", 10)
    total = 200

    async with timely_bench() as bench:
        events = log_of(bench)
        slow = events.follow_pages(bench.store, 0)
        await say(bench, events, 1)
        seen = [one.seq for one in (await anext(slow)).events]
        quick = asyncio.create_task(read_until(events, bench, total))
        for _ in range(1, total):
            await say(bench, events, 1)

        assert await quick == list(range(1, total + 1))
        assert events._feed is not None
        assert sum(len(page.events) for page in events._feed._pages) <= 20
        async for page in slow:
            seen += [one.seq for one in page.events]
            if page.last == total:
                break
        await slow.aclose()
        assert seen == list(range(1, total + 1))


async def test_a_reader_that_fails_ends_all_streams_with_an_error_and_the_next_follower_gets_another(
    timely_bench: NewBench,
) -> None:
    async with timely_bench() as bench:
        events, store = log_of(bench), Counting(bench.store)
        await say(bench, events, 1)
        waiting = [asyncio.create_task(read_until(events, bench, 3, store)) for _ in range(3)]
        await until(lambda: not store.is_reading)
        store.is_broken = True
        await say(bench, events, 1)
        found = await asyncio.gather(*waiting, return_exceptions=True)

        assert [type(one) for one in found] == [Unavailable] * 3
        store.is_broken = False
        assert await read_until(events, bench, 2, store) == [1, 2]


async def test_at_the_end_followers_get_what_is_left_and_the_reader_goes_with_the_last(timely_bench: NewBench) -> None:
    async with timely_bench() as bench:
        events = log_of(bench)
        waiting = [asyncio.create_task(read_until(events, bench, 10**9)) for _ in range(3)]
        await turns(50)
        await say(bench, events, 5)
        events.close()

        assert await asyncio.gather(*waiting) == [[1, 2, 3, 4, 5]] * 3
        assert [task for task in asyncio.all_tasks() if task.get_name() == "nextslot-events"] == []


# Arrangement.


class Counting:
    """The real store, whose reads are counted, and can fail."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.reads = self.is_reading = 0
        self.is_broken = False

    async def read(self, work: Callable[[Tx], Any]) -> Any:
        if self.is_broken:
            raise Unavailable("the database did not answer")
        self.reads += 1
        self.is_reading += 1
        try:
            return await self._store.read(work)
        finally:
            self.is_reading -= 1


class Overtaken:
    """The real store, but after one of its reads it commits something before the reader gets its result."""

    def __init__(self, store: Any, which: int, commit: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._which = which
        self._commit = commit
        self.reads = 0
        self.has_overtaken = False

    def overtake_next(self) -> None:
        self._which = self.reads

    async def read(self, work: Callable[[Tx], Any]) -> Any:
        is_overtaken, self.reads = self.reads == self._which, self.reads + 1
        found = await self._store.read(work)
        if is_overtaken:
            self.has_overtaken = True
            await self._commit()
        return found


def log_of(bench: Bench) -> EventLog:
    """Makes an event log whose events the bench's transactions append."""
    events = EventLog()
    bench.at_closing = events.append
    bench.actions[EventsAppended] = events.appended
    return events


async def say(bench: Bench, events: EventLog, count: int) -> None:
    def work(tx: Tx) -> None:
        for _ in range(count):
            events.note(tx, "job_queued", Instant(1), None)

    await bench.store.write(work)


async def read_until(events: EventLog, bench: Bench, last: int, store: Any = None) -> list[int]:
    seen: list[int] = []
    async with aclosing(events.follow_pages(store or bench.store, 0)) as pages:
        async for page in pages:
            seen += [one.seq for one in page.events]
            if page.last >= last:
                break
    return seen


def have_all(received: list[list[EventPage]], last: int) -> bool:
    return all(pages and pages[-1].last >= last for pages in received)


async def until(is_so: Callable[[], bool]) -> None:
    """Waits some turns of the event loop, and then until it is so."""
    await turns(50)
    while not is_so():  # noqa: ASYNC110 - what is waited for happens in turns of the loop
        await asyncio.sleep(0)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
def timely_bench(new_bench: NewBench) -> NewBench:
    """Makes a bench with a time limit: a follower that is not woken must fail the test, not hang it."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Bench]:
        async with new_bench() as bench, asyncio.timeout(LIMIT):
            yield bench

    return opened
