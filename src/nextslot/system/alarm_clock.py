"""AlarmClock: a timer made of APScheduler with one job (DEC-003). `clock.SchedulerAlarm` sets it.

It has one job for the earliest of all due times, not one for each schedule: of 40,000 jobs that were due together
APScheduler dropped 34,181, each with a log line. The due work is in the store; the timer only says when to check it.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from apscheduler.executors.base import BaseExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.date import DateTrigger

# Hides what APScheduler logs each minute about adding and running its one job.
_log = logging.getLogger(__name__)
_log.setLevel(logging.WARNING)

_JOB = "look at the clock"
# How much later than APScheduler the event loop checks whether the alarm has fired.
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
        """Fires once after this many seconds, and replaces an earlier request.

        APScheduler compares with the wall clock: after that is set back by an hour, it would wait for another hour. So
        the event loop, which counts monotonic time, runs the job if it has not run by then.
        """
        self._stop_backstop()
        at = datetime.now(UTC) + timedelta(seconds=seconds)
        self._scheduler.add_job(
            self._fire, DateTrigger(at), id=_JOB, replace_existing=True, misfire_grace_time=None, coalesce=True
        )
        loop = asyncio.get_running_loop()
        self._backstop = loop.call_later(seconds + BACKSTOP_SECONDS, self._bring_forward)

    def close(self) -> None:
        self._stop_backstop()
        self._scheduler.shutdown(wait=False)

    def _fire(self) -> None:
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
    """Calls the job on the event loop itself; APScheduler's own executor would use a thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop

    def _do_submit_job(self, job: Any, run_times: Any) -> None:
        self._run_job_success(job.id, [])
        # Deferred: APScheduler is about to remove the finished job from its list, and would remove a new job of the
        # same name.
        self._loop.call_soon(job.func)
