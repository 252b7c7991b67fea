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


class AlarmClock:
    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._scheduler = AsyncIOScheduler(
            event_loop=asyncio.get_running_loop(),
            timezone=UTC,
            logger=_log,
            executors={"default": _OnTheLoop(asyncio.get_running_loop())},
        )
        self._scheduler.start()

    def ring_after(self, seconds: float) -> None:
        """Once, so many seconds from now, and not when it was told before. Late is better than never."""
        at = datetime.now(UTC) + timedelta(seconds=seconds)
        self._scheduler.add_job(
            self._ring, DateTrigger(at), id=_JOB, replace_existing=True, misfire_grace_time=None, coalesce=True
        )

    def close(self) -> None:
        self._scheduler.shutdown(wait=False)


class _OnTheLoop(BaseExecutor):  # type: ignore[misc]
    """Calls the job on the event loop itself; APScheduler's own executor would take a thread for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop

    def _do_submit_job(self, job: Any, run_times: Any) -> None:
        self._run_job_success(job.id, [])
        # Not now: APScheduler is about to take the job that has run out of its list, and with it one of the same name.
        self._loop.call_soon(job.func)
