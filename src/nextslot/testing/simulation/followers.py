"""Simulates followers of events, and callers who wait for the end of a chain. Checks that they receive everything, in
order.

A follower survives the scheduler: after a crash it continues where it stopped, as a browser does with `Last-Event-ID`.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from random import Random

from nextslot.errors import NextslotError
from nextslot.scheduler import Scheduler

from .broken import Broken

PAUSES = (0.0, 0.0, 0.0, 0.3, 20.0)


class Follower:
    """Reads every event from a number on, sometimes slowly."""

    def __init__(self, after: int, seed: int) -> None:
        self.last = after
        self._chance = Random(seed)
        self.broken: list[Broken] = []
        self.is_slow = True

    async def follow(self, scheduler: Scheduler, has_purged: Callable[[], bool]) -> None:
        while True:
            try:
                async with aclosing(scheduler.event_pages(self.last)) as pages:
                    async for page in pages:
                        for event in page.events:
                            if event.seq != self.last + 1 and not has_purged():
                                how = f"{event.seq} came after {self.last}"
                                self.broken.append(Broken("a follower gets every event, once and in order", how))
                            self.last = event.seq
                        if self.is_slow:
                            await asyncio.sleep(self._chance.choice(PAUSES))
            except NextslotError:
                pass  # The store does not answer, or the scheduler is stopping: follow again.
            await asyncio.sleep(1)


class Followers:
    def __init__(self, has_purged: Callable[[], bool]) -> None:
        self._has_purged = has_purged
        self._followers: list[Follower] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._waiting: dict[asyncio.Task[object], str] = {}
        self._scheduler: Scheduler | None = None

    def begin(self, scheduler: Scheduler) -> None:
        """Follows a scheduler that has started."""
        self._scheduler = scheduler
        for one in self._followers:
            self._start(one)

    def end(self) -> None:
        """Breaks every connection, because the scheduler has lost its power or stops."""
        self._scheduler = None
        for task in [*self._tasks, *self._waiting]:
            task.cancel()
        self._tasks.clear()
        self._waiting.clear()

    def add(self, after: int, seed: int) -> None:
        if len(self._followers) < 3 and self._scheduler is not None:
            one = Follower(after, seed)
            self._followers.append(one)
            self._start(one)

    def wait_for(self, job_id: str) -> None:
        """Waits for the end of a chain, until it comes or the connection breaks."""
        if self._scheduler is not None:
            task: asyncio.Task[object] = asyncio.ensure_future(self._scheduler.wait(job_id))
            self._waiting[task] = job_id
            task.add_done_callback(self._answered)

    def hurry(self) -> None:
        for one in self._followers:
            one.is_slow = False

    @property
    def broken(self) -> list[Broken]:
        return [broken for one in self._followers for broken in one.broken]

    def behind(self, last: int) -> list[Broken]:
        """Finds followers that have not received the last event, although they have had enough time."""
        return [
            Broken("a follower gets every event, once and in order", f"it is at {one.last}, and {last} is the last")
            for one in self._followers
            if one.last < last
        ]

    def unanswered(self, has_ended: Callable[[str], bool]) -> list[Broken]:
        return [
            Broken("who waits for a chain hears of its end", job_id)
            for task, job_id in self._waiting.items()
            if not task.done() and has_ended(job_id)
        ]

    def _start(self, one: Follower) -> None:
        assert self._scheduler is not None
        self._tasks.append(asyncio.ensure_future(one.follow(self._scheduler, self._has_purged)))

    def _answered(self, task: asyncio.Task[object]) -> None:
        self._waiting.pop(task, None)
        if not task.cancelled():
            task.exception()  # A stopping scheduler answers with an error, which is correct.
