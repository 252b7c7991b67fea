"""AlarmClock: APScheduler with one job, as the clock that wakes us (DEC-003). `clock.SchedulerAlarm` winds it.

One job for the earliest instant of all, not one for each schedule: of 40,000 that were due together APScheduler dropped
34,181, each with a line in a log. What is due is in the store; this only says when to look.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from apscheduler.executors.base import BaseExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.date import DateTrigger

# What APScheduler says of adding and running its one job, each minute, is of no interest to anybody.
_log = logging.getLogger(__name__)
_log.setLevel(logging.WARNING)

_JOB = "look at the clock"
# How much later than APScheduler the loop looks whether it rang.
BACKSTOP_SECONDS = 0.5


class AlarmClock:
    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._backstop: asyncio.TimerHandle | None = None
        self._scheduler = AsyncIOScheduler(
            event_loop=asyncio.get_running_loop(),
            timezone=UTC,
            logger=_log,
            executors={"default": _OnTheLoop(asyncio.get_running_loop())},
        )
        self._scheduler.start()

    def ring_after(self, seconds: float) -> None:
        """Rings once, so many seconds from now, in place of any earlier request. Late is better than never.

        APScheduler compares the time with the wall clock, and would wait for another hour after a clock that was set
        back by one. So the loop, which counts monotonic time, brings the job forward if it has not run by then.
        """
        self._stop_backstop()
        at = datetime.now(UTC) + timedelta(seconds=seconds)
        self._scheduler.add_job(
            self._rung, DateTrigger(at), id=_JOB, replace_existing=True, misfire_grace_time=None, coalesce=True
        )
        loop = asyncio.get_running_loop()
        self._backstop = loop.call_later(seconds + BACKSTOP_SECONDS, self._bring_forward)

    def close(self) -> None:
        self._stop_backstop()
        self._scheduler.shutdown(wait=False)

    def _rung(self) -> None:
        self._stop_backstop()
        self._ring()

    def _bring_forward(self) -> None:
        self._backstop = None
        if self._scheduler.get_job(_JOB) is not None:
            self._scheduler.modify_job(_JOB, next_run_time=datetime.now(UTC))

    def _stop_backstop(self) -> None:
        if self._backstop is not None:
            self._backstop.cancel()
            self._backstop = None


class _OnTheLoop(BaseExecutor):  # type: ignore[misc]
    """Calls the job on the event loop itself; APScheduler's own executor would take a thread for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop

    def _do_submit_job(self, job: Any, run_times: Any) -> None:
        self._run_job_success(job.id, [])
        # Not now: APScheduler is about to take the job that has run out of its list, and with it one of the same name.
        self._loop.call_soon(job.func)
