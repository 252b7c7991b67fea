"""Changes a job that is still queued (INV-001), in one transaction. `Services.change` calls this module."""

from collections.abc import Mapping
from typing import Any

from nextslot.domain import URGENT, Job, request_checks
from nextslot.engine.submit.intake import Intake
from nextslot.engine.submit.queue_order import QueueManager
from nextslot.errors import Invalid
from nextslot.services import arguments
from nextslot.store.contract import Tx
from nextslot.system.instant import Instant

CHANGEABLE = frozenset({"params", "priority", "urgent", "scheduled_for", "title"})


def refuse_wrong(changes: Mapping[str, Any]) -> None:
    possible = "change params, priority, urgent, scheduled_for or title"
    if not changes:
        raise Invalid(f"no change is given; {possible}")
    if unknown := sorted(changes.keys() - CHANGEABLE):
        raise Invalid(f"cannot be changed; {possible}", unknown[0])
    if problems := list(request_checks.urgency_problems(changes.get("urgent"), changes.get("priority"))):
        raise Invalid(problems)


def change_job(
    tx: Tx, queue: QueueManager, intake: Intake, job_id: str, changes: Mapping[str, Any], now: Instant
) -> Job:
    job = queue.queued(tx, job_id)
    if "params" in changes:
        job = intake.change_params(tx, job_id, changes["params"], now)
    if "scheduled_for" in changes:
        job = queue.reschedule(tx, job_id, arguments.instant(changes["scheduled_for"], "scheduled_for"), now)
    if "title" in changes:
        job = queue.rename(tx, job_id, changes["title"])
    if "urgent" in changes:
        usual = 0 if job.priority == URGENT else job.priority
        wanted = URGENT if changes["urgent"] else changes.get("priority", usual)
        job = queue.change_priority(tx, job_id, wanted, now)
    elif "priority" in changes:
        job = queue.change_priority(tx, job_id, changes["priority"], now)
    return job
