"""VirtualTime: lets a plain test function drive a scheduler on virtual time. `nextslot.pytest_plugin` is its fixture.

def test_the_charge_is_retried(virtual_time):
    virtual_time.use(shop.scheduler)                      # the application's own scheduler, with its handles
    job = virtual_time.run(shop.charge.submit(order=order))
    assert virtual_time.run_all()[job.job_id] == "COMPLETED"
"""

import asyncio
from collections.abc import Coroutine
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from nextslot.domain import JobStatus
from nextslot.domain.filters import JobFilter
from nextslot.errors import Invalid
from nextslot.scheduler import Scheduler
from nextslot.system.instant import Instant

from .virtual_time import VirtualClock, VirtualLoop
from .virtual_time import scheduler as virtual_scheduler

T = TypeVar("T")

# How much virtual time the work of a test may take. A test that waits for longer waits for what never comes.
DAYS = 30
_OPEN = (JobStatus.WAITING, JobStatus.QUEUED, JobStatus.RUNNING)


class VirtualTime:
    """Runs coroutines on a virtual loop, and moves schedulers of applications to virtual time for a while."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.clock = VirtualClock()
        # Each with what it was before.
        self._used: list[tuple[Scheduler, dict[str, Any]]] = []

    @property
    def now(self) -> datetime:
        """The time of the virtual clock."""
        return self.run(self._now()).as_datetime()

    async def _now(self) -> Instant:
        return self.clock.wall()

    def use(self, application: Scheduler | None = None, **options: Any) -> Scheduler:
        """Starts a scheduler on virtual time, on a new SQLite file, and stops it after the test.

        `application` is the scheduler that an application has made and not started: until the end of the test it has
        the same job types, handles and declared schedules, but another database and clock. Without it, a new scheduler
        is made. `options` are those of `Scheduler`.
        """
        if any(application is one for one, _ in self._used):
            raise Invalid("this scheduler is on virtual time already", field="application")
        directory = self._directory / str(len(self._used))
        directory.mkdir()
        given = {} if application is None else {"concurrency": application.__dict__["_concurrency"]}
        made = virtual_scheduler(directory, clock=self.clock, **{**given, **options})
        if application is not None:
            made.job_types.replace(
                (), {name: application.job_types.get(name) for name in application.job_types.names()}
            )
            made.declare = application.declare
        used = made if application is None else application
        self._used.append((used, dict(used.__dict__)))
        # Handles of the application hold the application's scheduler, so this one becomes that.
        used.__dict__.update(made.__dict__)
        self.run(used.start())
        return used

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine to its end; time passes only while everything waits."""
        return self._runner.run(work)

    def run_all(self) -> dict[str, str]:
        """Lets time pass until no job waits or runs, and returns how each chain ended, by the id of its first job.

        Raises AssertionError if some do not end in 30 days, with the reason that `why` gives.
        """
        return self.run(self._run_all())

    def pass_time(self, **given: float) -> None:
        """Lets time pass: `pass_time(hours=1)`; what is due meanwhile happens."""
        self.run(asyncio.sleep(timedelta(**given).total_seconds()))

    def freeze(self, at: datetime) -> None:
        """Sets the clock. It stands still there until jobs wait, or `pass_time`."""
        if at.tzinfo is None:
            raise Invalid("has no time zone; give datetime(…, tzinfo=UTC)", field="at")
        self.clock.jump((at - self.now).total_seconds())
        for one, _ in self._used:
            self.run(one.process())  # A transaction notices that the clock was set.

    def close(self) -> None:
        try:
            for used, before in reversed(self._used):
                self.run(used.stop(grace_seconds=0))
                used.__dict__.clear()
                used.__dict__.update(before)
        finally:
            self._used.clear()
            self._runner.close()

    async def _run_all(self) -> dict[str, str]:
        end = asyncio.get_running_loop().time() + DAYS * 86400
        ended: dict[str, str] = {}
        for one, _ in self._used:
            while found := (await one.lists.jobs(JobFilter(status=_OPEN), None, 500)).items:
                for chain_id in dict.fromkeys(listed.job.chain_id for listed in found):
                    ended[chain_id] = await _end_of(one, chain_id, end)
        return ended


async def _end_of(scheduler: Scheduler, chain_id: str, end: float) -> str:
    try:
        async with asyncio.timeout_at(end):
            return str((await scheduler.wait(chain_id)).status)
    except TimeoutError:
        last = (await scheduler.chain(chain_id))[-1]
        why = await scheduler.forecast.why(last.job_id)
        reasons = "; ".join(one.text for one in why.reasons) or f"it is {last.status}"
        raise AssertionError(f"the job {chain_id} of type {last.job_type} does not end: {reasons}") from None
