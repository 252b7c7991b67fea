"""Measures by the loop's own time how long waits last: delays of retries, waits of callers, and time limits of runs.

The wall clock of a simulated scheduler steps, and the stored due times are moved with it. A check of the stored times
alone could not notice that they were moved wrongly. `world` calls this after each commit and after each step.
"""

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nextslot.store.contract import Tx

from . import check_reads
from .broken import Broken
from .check_reads import Told

# Clocks do not treat a smaller difference as a step (clock.py), so a wait may be wrong by this much.
TOLERANCE = 1.01
SECOND = 1_000_000


class _Wait(NamedTuple):
    """When a wait began, and how many seconds it should last."""

    since: float
    seconds: float

    @property
    def until(self) -> float:
        return self.since + self.seconds


class ElapsedTimes:
    """The waits in one life of a scheduler. In the next life only the stored times count, whatever the clock did."""

    def __init__(self) -> None:
        # Retries by job; callers and running work by run.
        self._retries: dict[str, _Wait] = {}
        self._callers: dict[str, _Wait] = {}
        self._running: dict[str, _Wait] = {}
        # Whether no commit was slow, so that each commit is seen when it is made.
        self.is_exact = True

    def restarted(self) -> None:
        self._retries.clear()
        self._callers.clear()
        self._running.clear()

    def forget_retries(self) -> None:
        """Forgets the expected times of retries, because somebody has moved retries to an earlier or later time."""
        self._retries.clear()

    def committed(self, tx: Tx, new: Iterable[Told], now: int, at: float) -> Iterator[Broken]:
        for event in new:
            details = json.loads(event.details) if event.type == "job_retrying" else {}
            if "delay_seconds" in details:
                self._retries[details["retry"]] = _Wait(at, details["delay_seconds"])
            elif event.type == "job_started":
                yield from self._early(event.job_id or "", at)
        self._callers = {
            one.run_id: self._callers.get(one.run_id) or _Wait(at, (one.wait_until - now) / SECOND)
            for one in check_reads.caller_times(tx)
            if one.status == "WAITING"
        }
        self._running = {
            run_id: self._running.get(run_id) or _Wait(at, seconds) for run_id, seconds in check_reads.time_limits(tx)
        }

    def _early(self, job_id: str, at: float) -> Iterator[Broken]:
        wait = self._retries.pop(job_id, None)
        if wait is not None and self.is_exact and at < wait.until - TOLERANCE:
            yield Broken(
                "a retry waits for its delay", f"{job_id} after {at - wait.since:.3f} of {wait.seconds} seconds"
            )

    def late(self, tx: Tx, at: float, interruptible: set[str]) -> Iterator[Broken]:
        """Finds waits that last too long. Only for times in which no fault may delay anything."""
        waiting = {job.job_id for job in check_reads.jobs(tx).values() if job.stage == "QUEUED" and not job.is_due}
        for law, waits in (
            ("a retry waits no longer than its delay", {i: w for i, w in self._retries.items() if i in waiting}),
            ("a caller waits no longer than it wants", self._callers),
            ("a run ends at its timeout", {i: w for i, w in self._running.items() if i in interruptible}),
        ):
            for name, wait in waits.items():
                if at > wait.until + TOLERANCE:
                    yield Broken(law, f"{name} after {at - wait.since:.3f} of {wait.seconds} seconds")
