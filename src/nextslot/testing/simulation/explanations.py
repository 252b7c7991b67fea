"""Compares answers about the stored data with independent statements: why a job waits, lists, the status.

Each comparison is one read transaction, or is valid only if nothing was stored meanwhile.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from nextslot.domain import Reason
from nextslot.scheduler import Scheduler
from nextslot.store.contract import Tx

from . import check_reads
from .broken import Broken
from .check_reads import JobFacts

# The reasons that this module finds independently.
COMPARED = frozenset(
    {"paused", "signal", "dependencies", "group_turn", "not_before", "direct_waiting", "limit_full", "ahead"}
)


def explained_wrongly(scheduler: Scheduler, tx: Tx, job_id: str) -> Iterator[Broken]:
    """Compares the answer of `why` about a queued job with the rows."""
    found = scheduler._runtime.forecasts._explainer.explain(tx, job_id)
    said = {_form(reason) for reason in found.reasons if reason.code in COMPARED}
    job = check_reads.jobs(tx)[job_id]
    own = set(_reasons(tx, job))
    if said != own:
        how = f"{job_id}: only said {sorted(said - own)}, not said {sorted(own - said)}"
        yield Broken("why names every reason, and no other", how)


def _form(reason: Reason) -> tuple[str, str]:
    data: Mapping[str, Any] = reason.data
    if reason.code == "paused":
        return "paused", f"{data['scope']} {data.get('name', '')}"
    if reason.code == "limit_full":
        holders = sorted(one["id"] for one in data["held_by"])
        return "limit_full", f"{data['limit']} {data['used']} of {data['capacity']}: {' '.join(holders)}"
    if reason.code == "direct_waiting":
        return reason.code, str(data["count"])
    if reason.code == "dependencies":
        return reason.code, str(data["count"])
    return reason.code, str(data["ahead"]) if reason.code == "ahead" else ""


def _reasons(tx: Tx, job: JobFacts) -> Iterator[tuple[str, str]]:
    needs = check_reads.needs(tx)
    lane, pauses = needs[job.lane_id], check_reads.pauses(tx)
    for scope, name in pauses:
        if (
            scope == "scheduler"
            or (scope, name) in (("office", job.office_id), ("type", lane.job_type))
            or (scope == "resource" and name in lane.resources)
        ):
            yield "paused", f"{scope} {name}"
    if job.is_awaiting:
        yield "signal", ""
    if job.unmet > job.is_awaiting:
        yield "dependencies", str(job.unmet - job.is_awaiting)
    if not job.is_turn:
        yield "group_turn", ""
    if not job.is_due:
        yield "not_before", ""
    queue = check_reads.queues(tx)[job.office_id]
    if queue.index(job.job_id):
        yield "ahead", str(queue.index(job.job_id))
    if job.unmet or not job.is_turn or not job.is_due:
        return
    callers = [one for one in check_reads.callers(tx) if one.office_id == job.office_id and one.status == "WAITING"]
    if callers:
        yield "direct_waiting", str(len(callers))
    capacities = check_reads.capacities(tx)
    for key, units in lane.units.items():
        holders = [
            (name, needs[lane_id].units[key])
            for name, lane_id in check_reads.holders(tx)
            if key in needs[lane_id].units
        ]
        used = sum(count for _, count in holders)
        if capacities[key] and units <= capacities[key] < used + units:
            yield "limit_full", f"{key} {used} of {capacities[key]}: {' '.join(sorted(name for name, _ in holders))}"


def counted_wrongly(tx: Tx, status: Any) -> Iterator[Broken]:
    """Compares the status of every office with the rows."""
    jobs = check_reads.jobs(tx).values()
    callers = check_reads.callers(tx)
    pauses = check_reads.pauses(tx)
    own: dict[str, Counter[str]] = {}
    for job in jobs:
        counts = own.setdefault(job.office_id, Counter())
        if job.stage == "RUNNING" and job.finished_at is None:
            counts["running"] += 1
        elif job.stage == "QUEUED":
            counts["waiting" if job.unmet or not job.is_due or not job.is_turn else "queued"] += 1
    for caller in callers:
        own.setdefault(caller.office_id, Counter())[f"direct_{caller.status.lower()}"] += 1
    for office in status.offices:
        counts = own.get(office.office_id, Counter())
        names = ("queued", "waiting", "running", "direct_waiting", "direct_running")
        said = {name: getattr(office, name) for name in names}
        if said != {name: counts[name] for name in names} or office.paused != (("office", office.office_id) in pauses):
            yield Broken("the status counts what is there", f"{office.office_id}: {said}, and there are {dict(counts)}")


def listed_wrongly(before: set[str], after: set[str], listed: list[tuple[int, str]]) -> Iterator[Broken]:
    """Checks the pages of a list, newest first: each item that existed throughout must occur once, in order."""
    law = "a list has everything once, in order"
    ids = [name for _, name in listed]
    if len(set(ids)) != len(ids):
        yield Broken(law, f"{min(name for name, times in Counter(ids).items() if times > 1)} is there twice")
    if missing := (before & after) - set(ids):
        yield Broken(law, f"{min(missing)} is missing")
    if strange := set(ids) - before - after:
        yield Broken(law, f"{min(strange)} does not belong there")
    if listed != sorted(listed, reverse=True):
        yield Broken(law, "they are not in order")
