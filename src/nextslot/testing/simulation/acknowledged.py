"""Compares the answers that callers got with the stored data: now, after a crash, and at the end.

Clients note each change before they send it: until the answer comes, either value may be stored. A change whose answer
never came, or that met another change of the same thing, leaves the value unknown.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from nextslot.store.contract import Tx

from . import check_reads
from .broken import Broken

LAW = "what was acknowledged stays so"
# The kind of thing, its id, and its changed property.
Fact = tuple[str, str, str]


class Acknowledged:
    def __init__(self) -> None:
        self._known: dict[Fact, object] = {}
        self._asking: Counter[Fact] = Counter()
        self._times: Counter[Fact] = Counter()

    @contextmanager
    def asking(self, *facts: Fact) -> Iterator[Callable[[object], None]]:
        """Wraps a request that changes something. The function that it yields takes the acknowledged value."""
        alone = [fact for fact in facts if not self._asking[fact]]
        for fact in facts:
            self._known.pop(fact, None)
            self._asking[fact] += 1
            self._times[fact] += 1
        at = {fact: self._times[fact] for fact in alone}

        def acknowledge(value: object) -> None:
            for fact in alone:
                if self._times[fact] == at[fact]:
                    self._known[fact] = value

        try:
            yield acknowledge
        finally:
            for fact in facts:
                self._asking[fact] -= 1

    def known(self, fact: Fact) -> object:
        """Returns the last acknowledged value; None if it is unknown."""
        return self._known.get(fact)

    def is_so(self, fact: Fact, value: object) -> None:
        """Notes a permanent fact: nothing can change it any more."""
        self._known[fact] = value

    def missing(self, tx: Tx, has_purged: bool) -> list[Broken]:
        stored = _stored(tx)
        return [
            Broken(LAW, f"{kind} {name}: {what} is {stored.get((kind, name, what))}, and {value} was acknowledged")
            for (kind, name, what), value in self._known.items()
            if stored.get((kind, name, what)) != value
            and not (has_purged and kind in ("job", "signal") and (kind, name, what) not in stored)
        ]


def _stored(tx: Tx) -> dict[Fact, object]:
    found: dict[Fact, object] = {}
    for office in check_reads.offices(tx).values():
        found["office", office.office_id, "status"] = office.status
        found["office", office.office_id, "max_concurrent_jobs"] = office.max_concurrent_jobs
        found["office", office.office_id, "role_limits"] = dict(office.role_limits)
        found["office", office.office_id, "webhook"] = office.webhook
        found["office", office.office_id, "priority_aging_seconds"] = office.priority_aging_seconds
    for plan in check_reads.cron_settings(tx).values():
        name = plan.schedule_id
        found["schedule", name, "is_deleted"] = bool(plan.is_deleted)
        if not plan.is_deleted:
            found["schedule", name, "enabled"] = bool(plan.enabled)
            found["schedule", name, "catch_up"] = plan.catch_up
            found["schedule", name, "overlap"] = plan.overlap
            found["schedule", name, "plan"] = (plan.cron_expression, plan.timezone, plan.office_id, plan.window_seconds)
    for job in check_reads.jobs(tx).values():
        found["job", job.job_id, "is_cancelled"] = job.stage == "CANCELLED"
        found["job", job.job_id, "is_retried"] = job.decision == "retry"
        found["job", job.job_id, "cancel_mode"] = job.cancel_mode
        found["job", job.job_id, "is_parked"] = job.park is not None
    for signal in check_reads.signals(tx):
        found["signal", f"{signal.chain_id} {signal.name} {signal.number}", "answer"] = signal.answer
    return found


class Orders:
    """The order of each queue after every commit that moved a job, so that a client can check its own move.

    Leaves out offices that age their jobs: other jobs may get steps in the same commit, and no event reports that.
    """

    def __init__(self) -> None:
        # By job: the number of the event, the order afterwards, and whether nothing else changed the queue in that
        # commit.
        self._moves: dict[str, list[tuple[int, list[str], bool]]] = {}
        # The last known order of each queue.
        self._before: dict[str, list[str]] = {}

    def committed(self, tx: Tx, new: Sequence[check_reads.Told]) -> Iterator[Broken]:
        """Notes the new orders. A move must not change the order of the other jobs (spec 3)."""
        moved = [event for event in new if event.type == "job_moved"]
        if not moved:
            return
        queues, offices = check_reads.queues(tx), check_reads.offices(tx)
        others_moved = {event.job_id for event in moved}
        for office_id in {event.office_id or "" for event in moved}:
            if offices[office_id].priority_aging_seconds is not None:
                continue
            now = [job_id for job_id in queues.get(office_id, ()) if job_id not in others_moved]
            before = [job_id for job_id in self._before.get(office_id, ()) if job_id in now]
            if before != [job_id for job_id in now if job_id in before]:
                yield Broken(
                    "a move leaves the order of the others", f"{sorted(map(str, others_moved))} in {office_id}"
                )
        self._before.update(queues)
        for event in moved:
            if offices[event.office_id or ""].priority_aging_seconds is not None:
                continue
            others = [one for one in new if one.office_id == event.office_id and one.type not in ("job_moved",)]
            is_alone = len(moved) == 1 and not others
            order = queues.get(event.office_id or "", [])
            self._moves.setdefault(event.job_id or "", []).append((event.seq, order, is_alone))

    def after(self, job_id: str, since: int, is_alone: bool = True) -> list[str] | None:
        """Returns the order after the only move of a job since an event, if nothing else changed the queue in that
        commit.
        """
        found = [(order, alone) for seq, order, alone in self._moves.get(job_id, ()) if seq > since]
        return found[0][0] if len(found) == 1 and (found[0][1] or not is_alone) else None


def misplaced(order: list[str], job_id: str, how: dict[str, Any]) -> str | None:
    """Returns what is wrong with the place of a job that was moved."""
    if job_id not in order:
        return None
    at = order.index(job_id)
    if how.get("to") == "front" or how.get("place") == 1:
        return None if at == 0 else f"it is at {at}, and should be first"
    if how.get("to") == "back":
        return None if at == len(order) - 1 else f"it is at {at} of {len(order)}, and should be last"
    if "place" in how:
        wanted = min(how["place"], len(order)) - 1
        return None if at == wanted else f"it is at {at}, and should be at {wanted}"
    for name, step in (("before", 1), ("after", -1)):
        if name in how and how[name] in order and order.index(how[name]) != at + step:
            return f"it is at {at}, and should be {name} {order.index(how[name])}"
    return None
