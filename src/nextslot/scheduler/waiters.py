"""Lets callers in this process wait until a chain (a job and its retries) has ended, for `Services.wait`."""

import asyncio
from dataclasses import dataclass

from nextslot.domain import Decision, Job, JobStatus, Json, Run, RunStatus
from nextslot.engine.events.event_log import EventLog
from nextslot.errors import Unavailable
from nextslot.services.unit_of_work import UnitOfWork
from nextslot.store.contract import Tx
from nextslot.store.tables import jobs, runs


@dataclass(frozen=True, slots=True)
class Ended:
    """How a chain ended: its last job, and that job's run if it had one."""

    job: Job
    run: Run | None

    @property
    def status(self) -> JobStatus:
        return self.job.status

    @property
    def result(self) -> Json:
        return self.run.result if self.run else None

    @property
    def error(self) -> str | None:
        return self.run.error if self.run else self.job.cancel_reason

    @property
    def is_success(self) -> bool:
        return self.status in (JobStatus.COMPLETED, JobStatus.SKIPPED)

    def to_dict(self) -> dict[str, Json]:
        """Returns the JSON form: that of the job, with its run."""
        return {**self.job.to_dict(), "run": self.run.to_dict() if self.run else None}


class Waiters:
    def __init__(self, access: UnitOfWork, events: EventLog) -> None:
        self._access = access
        self._events = events
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}

    async def wait(self, chain_id: str) -> Ended:
        """Waits until the chain has ended, here or on another node, and returns the end."""
        with self._events.listening():
            while True:
                ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                waiters = self._waiters.setdefault(chain_id, [])
                waiters.append(ended)
                try:
                    found = await self._access.read(lambda tx: _end_of_chain(tx, chain_id))
                    if found is not None:
                        return found
                    await ended
                finally:
                    waiters.remove(ended)
                    if not waiters:
                        self._waiters.pop(chain_id, None)

    def chain_ended(self, chain_id: str) -> None:
        for waiter in self._waiters.get(chain_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    async def look(self) -> None:
        """Wakes the callers whose chains have ended on another node."""
        if self._waiters and self._access.gate.store is not None:
            chains = list(self._waiters)
            for chain_id in await self._access.read(lambda tx: [one for one in chains if _end_of_chain(tx, one)]):
                self.chain_ended(chain_id)

    def release(self) -> None:
        """Raises Unavailable in every waiting caller: the scheduler has stopped."""
        for waiters in self._waiters.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(Unavailable("the scheduler was stopped before this job ended"))
                    waiter.exception()  # Marks the error as retrieved: a caller may return before it awaits this.


def _end_of_chain(tx: Tx, chain_id: str) -> Ended | None:
    last = jobs.chain(tx, chain_id)[-1]
    is_undecided = last.outcome is RunStatus.FAILED and last.decision in (None, Decision.UNDECIDED)
    return Ended(last, runs.of_job(tx, last.job_id)) if last.has_ended and not is_undecided else None
