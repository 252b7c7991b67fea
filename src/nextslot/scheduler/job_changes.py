"""What can be changed of a job that is still queued (INV-001), all of it in one transaction. Called by `Scheduler`."""

from collections.abc import Mapping
from typing import Any

from nextslot.domain import URGENT, Job
from nextslot.engine.submit.intake import Intake
from nextslot.engine.submit.queue_order import QueueManager
from nextslot.errors import Invalid
from nextslot.services import arguments
from nextslot.store.contract import Tx
from nextslot.system.instant import Instant

CHANGEABLE = frozenset({"params", "priority", "urgent", "scheduled_for", "title"})


class JobChanges:
    def __init__(self, queue: QueueManager, intake: Intake) -> None:
        self._queue = queue
        self._intake = intake

    def apply(self, tx: Tx, job_id: str, changes: Mapping[str, Any], now: Instant) -> Job:
        job = self._queue.queued(tx, job_id)
        if "params" in changes:
            job = self._intake.change_params(tx, job_id, changes["params"], now)
        if "scheduled_for" in changes:
            job = self._queue.reschedule(tx, job_id, arguments.instant(changes["scheduled_for"], "scheduled_for"), now)
        if "title" in changes:
            job = self._queue.rename(tx, job_id, changes["title"])
        if "urgent" in changes:
            usual = 0 if job.priority == URGENT else job.priority
            wanted = URGENT if changes["urgent"] else changes.get("priority", usual)
            job = self._queue.change_priority(tx, job_id, wanted, now)
        elif "priority" in changes:
            job = self._queue.change_priority(tx, job_id, changes["priority"], now)
        return job


def checked(changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Refuses a name that can never be changed, before the store is asked for anything."""
    unknown = sorted(changes.keys() - CHANGEABLE)
    if unknown or not changes:
        raise Invalid("params, priority, urgent, scheduled_for and title can be changed", *unknown[:1])
    return changes
