"""Explains why a job is not running: every reason that applies, as a code, a sentence and data, in one transaction.

The dispatcher decides which jobs may start; this module reads that decision from the round of `Dispatcher.look` and
puts it into words. `services.forecast` calls it. All lists are bounded, so the cost does not grow with the queue.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nextslot.domain import (
    Decision,
    Group,
    Job,
    Json,
    Lane,
    Limit,
    Reason,
    RunStatus,
    Stage,
)
from nextslot.domain.limits import SCHEDULER
from nextslot.engine.cluster.node_registry import NodeRegistry
from nextslot.engine.dispatch.affinity import waits_for
from nextslot.engine.dispatch.dispatch_round import CapacityHold, DispatchRound
from nextslot.engine.dispatch.dispatcher import Dispatcher
from nextslot.engine.dispatch.node_eligibility import Usage, has_handler, no_node
from nextslot.engine.dispatch.rates import UsedUp
from nextslot.engine.effects import WorkKind
from nextslot.engine.engine_context import EngineContext
from nextslot.errors import NotFound
from nextslot.store.contract import Tx
from nextslot.store.tables import (
    direct,
    forecast_reads,
    groups,
    jobs,
    lanes,
    outages,
    runs,
)
from nextslot.store.tables.forecast_reads import Holding

# Returns how far a run of this node is, by its id: the fraction and the text.
Progress = Callable[[str], tuple[float | None, str] | None]

# The count of jobs ahead stops here: a larger number is not worth its cost.
MOST_AHEAD = 10_000
# How many holders of a limit, or prerequisites of a job, a reason names.
MOST_NAMED = 20
MOST_HOLDERS = 10_000


@dataclass(frozen=True, slots=True)
class Explained:
    """A job with the reasons why it is not running, the most important first."""

    job: Job
    reasons: tuple[Reason, ...]
    ahead: int
    # Whether the job can start only after a person or an outside system acts, so that no forecast is possible.
    is_blocked: bool


# Reasons that do not end as time passes.
BLOCKING = {"signal", "stopping", "paused", "no_handler", "resource_held", "never_fits", "device_busy"}


def _is_blocking(reason: Reason) -> bool:
    return reason.code in BLOCKING or (reason.code == "no_node" and not reason.data["is_possible"])


class Explainer:
    def __init__(
        self, engine: EngineContext, dispatcher: Dispatcher, registry: NodeRegistry, progress: Progress
    ) -> None:
        self._progress = progress
        self._lanes = engine.lanes
        self._job_types = engine.job_types
        self._dispatcher = dispatcher
        self._registry = registry

    def explain(self, tx: Tx, job_id: str, is_stopping: bool = False, seen_by: str | None = None) -> Explained:
        """Explains a job to everybody; with `seen_by`, to callers of that office, without facts about other offices."""
        job = jobs.get(tx, job_id)
        if job is None:
            raise NotFound("job", job_id)
        if job.stage is not Stage.QUEUED:
            return Explained(job, (_past(tx, job, self._progress), *_silent(tx, job)), 0, False)
        ahead = forecast_reads.ahead(tx, job.office_id, jobs.place_of(job), MOST_AHEAD + 1)
        reasons = [*([_stopping()] if is_stopping else []), *self._reasons(tx, job, seen_by)]
        if ahead:
            reasons.append(_ahead(ahead))
        if not reasons:
            reasons.append(Reason(code="next", text="Nothing holds it back: it is about to start."))
        if job.aged_steps:
            reasons.append(_aged(job))
        return Explained(job, tuple(reasons), ahead, any(map(_is_blocking, reasons)))

    def _reasons(self, tx: Tx, job: Job, seen_by: str | None) -> Iterator[Reason]:
        view, lane = self._dispatcher.look(tx), self._lanes.lane(tx, job.lane_id)
        yield from self._not_allowed(tx, job, lane, view)
        if job.is_awaiting:
            yield _signal(job)
        if job.unmet > job.is_awaiting:
            yield _dependencies(tx, job)
        if not job.is_turn:
            yield _turn(tx, job)
        if not job.is_due:
            yield _not_before(job)
        if job.is_ready:
            yield from self._no_room(tx, job, lane, view, seen_by)

    def _not_allowed(self, tx: Tx, job: Job, lane: Lane, view: DispatchRound) -> Iterator[Reason]:
        if view.is_scheduler_paused:
            yield Reason(code="paused", text="The whole scheduler is paused.", data={"scope": "scheduler"})
        if view.counters.office(job.office_id).is_paused:
            yield _paused("office", job.office_id)
        if ("type", lane.job_type) in view.paused:
            yield _paused("type", lane.job_type)
        for resource in lane.resources:
            if ("resource", resource) in view.paused:
                yield _paused("resource", resource)
        if not has_handler(self._registry.everybody(tx), lane.job_type):
            text = f"There is no handler for the job type {lane.job_type!r} on any live node."
            yield Reason(code="no_handler", text=text, data={"job_type": lane.job_type})
        held = [resource for resource in lane.resources if view.unavailable.get(resource) is False]
        if held:
            yield from _held(tx, held)

    def _no_room(self, tx: Tx, job: Job, lane: Lane, view: DispatchRound, seen_by: str | None) -> Iterator[Reason]:
        """Yields a reason for each full limit, and for each limit whose free units are held for others."""
        holders = forecast_reads.holders(tx, MOST_HOLDERS)
        is_full = False
        for key, limit in lanes.limits(tx, lane.needs).items():
            units = lane.needs[key]
            if not view.counters.could_ever_fit({key: units}):
                is_full = True
                yield _never_fits(limit, units)
            elif view.counters.room({key: units}) < 1:
                is_full = True
                yield _full(limit, units, list(self._holders_of(tx, key, holders, seen_by)))
        for used_up in view.buckets.used_up(lane.needs) if view.buckets is not None else ():
            yield _rate_full(used_up)
        nowhere = self._nowhere(tx, lane, holders)
        # If a limit is full as well, the nodes are not reported: running work that ends makes room in both.
        if nowhere is not None and not (is_full and nowhere.data["is_possible"]):
            yield nowhere
        if missing := view.engine.workers.missing_devices(tx, lane):
            yield _busy_devices(view.engine.workers.node, missing, is_seen=seen_by is None)
        for resource, affinity in waits_for(view, lane):
            yield _other_affinity(view, resource, affinity)
        waiting = direct.waiting_ids(tx, job.office_id) if view.counters.is_behind_caller(lane) else []
        if waiting:
            yield _callers_wait(direct.waiting_direct_ids(tx, job.office_id))
        for hold in view.holds:
            kept = self._kept(job, lane, view, hold)
            if kept and hold.id not in waiting:
                yield _kept_back(tx, hold, kept, seen_by)

    def _holders_of(self, tx: Tx, key: str, holders: list[Holding], seen_by: str | None) -> Iterator[dict[str, Json]]:
        """Yields who holds units of a limit. Shows a caller of one office only since when other offices hold units."""
        for one in holders:
            lane = self._lanes.lane(tx, one.lane_id)
            if key in lane.needs:
                yield _holder(one, is_seen=seen_by in (None, lane.office_id))

    def _nowhere(self, tx: Tx, lane: Lane, holders: list[Holding]) -> Reason | None:
        running = ((one.node_id, self._lanes.lane(tx, one.lane_id).resources) for one in holders)
        is_placed = self._job_types.is_placed(lane.job_type)
        return no_node(self._registry.everybody(tx), lane, Usage(running), is_placed)

    def _kept(self, job: Job, lane: Lane, view: DispatchRound, hold: CapacityHold) -> list[str]:
        """Returns the limits that have room for the job, but too little beside the units that this hold keeps free."""
        if hold.id == job.job_id:
            return []
        return [
            key
            for key, units in hold.needs.items()
            if key in lane.needs
            and view.counters.room({key: lane.needs[key]}) >= 1
            and view.counters.room({key: lane.needs[key]}, {key: units}) < 1
        ]


# Jobs that have started.


def _past(tx: Tx, job: Job, progress: Progress) -> Reason:
    if job.is_running:
        data: dict[str, Json] = {"started_at": str(job.started_at), "worker_id": job.worker_id}
        run = runs.of_job(tx, job.job_id)
        if run is not None and run.placement is not None:
            # While it waits there, its progress is what the engine says of it, such as why it has not started it.
            _, words = progress(run.run_id) or (None, "")
            text = _placed(job, run.placement, f" {words}." if words else "")
            return Reason(code="running", text=text, data={**data, "placement": run.placement})
        return Reason(code="running", text=f"It has been running since {job.started_at}.", data=data)
    run = runs.of_job(tx, job.job_id)
    because = job.cancel_reason or (run and (run.error or run.reason)) or None
    text = f"It ended {job.status} at {job.finished_at}" + (f": {_short(because)}" if because else ".")
    data = {"status": job.status, "finished_at": str(job.finished_at), "because": because}
    follower = jobs.successor(tx, job.job_id)
    if follower is not None:
        text = f"{text.rstrip('.')}. It is retried as job {follower}."
        data["retry"] = follower
    return Reason(code="ended", text=text, data=data)


def _placed(job: Job, placement: Mapping[str, Json], words: str) -> str:
    engine, since = placement["engine"], job.started_at
    return {
        "submitting": f"It is being handed to the engine {engine!r} since {since}.",
        "queued": f"It is queued there: the engine {engine!r} has it since {since} and has not started it.{words}",
        "running": f"It has been running on the engine {engine!r}, which it was handed to at {since}.",
        "unknown": f"The engine {engine!r} has it, and it gives no sign of life: its lease decides, or `job lost`.",
    }[str(placement["state"])]


def _silent(tx: Tx, job: Job) -> Iterator[Reason]:
    run = runs.of_job(tx, job.job_id) if job.is_running else None
    if run is not None and run.silent_since is not None:
        text = f"It has written no output and reported no progress since {run.silent_since}."
        yield Reason(code="silent", text=text, data={"silent_since": str(run.silent_since)})


# Jobs that have not started.


def _stopping() -> Reason:
    return Reason(code="stopping", text="The scheduler is stopping: it starts no more jobs until it is started again.")


def _paused(scope: str, name: str) -> Reason:
    words = {"office": "office", "type": "job type", "resource": "resource"}
    return Reason(code="paused", text=f"The {words[scope]} {name!r} is paused.", data={"scope": scope, "name": name})


def _held(tx: Tx, resources: list[str]) -> Iterator[Reason]:
    for outage in outages.all_of_them(tx):
        if outage.resource in resources and outage.quota_until is not None:
            yield Reason(
                code="quota_used_up",
                text=f"The quota of the resource {outage.resource!r} is used up until {outage.quota_until}.",
                data={
                    "resource": outage.resource,
                    "since": str(outage.held_since),
                    "quota_until": str(outage.quota_until),
                },
            )
        elif outage.resource in resources and outage.held_since is not None:
            probe = "it is being tried now" if outage.is_probed else f"it is tried again at {outage.probe_at}"
            yield Reason(
                code="resource_held",
                text=f"The resource {outage.resource!r} has not answered since {outage.held_since}; {probe}.",
                data={
                    "resource": outage.resource,
                    "since": str(outage.held_since),
                    "failures": outage.failures,
                    "next_probe": str(outage.probe_at),
                },
            )


def _signal(job: Job) -> Reason:
    """Returns the reason that names who must answer, and what happens if nobody answers."""
    wait = job.await_signal or {}
    who = ", ".join(wait["answered_by"]) or f"anyone with the scope operate in the office {job.office_id!r}"
    asked = f" ({wait['question']})" if wait["question"] else ""
    if job.answer_by is not None:
        deadline = f" Without an answer by {job.answer_by} the answer is {wait['on_deadline']!r}."
    elif job.asked_at is None:
        deadline = " It asks when nothing else holds it back."
    else:
        deadline = ""
    text = f"It waits for the signal {wait['name']!r}{asked} from {who}.{deadline}"
    return Reason(code="signal", text=text, data=job.awaiting or {})


def _other_affinity(view: DispatchRound, resource: str, affinity: str) -> Reason:
    since = view.loaded[resource][1]
    wait = view.engine.lanes.affinity_waits[resource]
    end = f"for at most {wait:g} seconds" if since is None else f"until {since.after(wait)} at the latest"
    return Reason(
        code="other_affinity",
        text=f"The resource {resource!r} has {affinity!r} loaded: jobs that need it go first, {end}.",
        data={"resource": resource, "affinity": affinity, "until": None if since is None else str(since.after(wait))},
    )


def _dependencies(tx: Tx, job: Job) -> Reason:
    """Returns the reason that names the prerequisites, each with the state of its whole chain."""
    found = [_prerequisite(tx, *edge) for edge in forecast_reads.unmet(tx, job.job_id, MOST_NAMED)]
    parts = [f"{_named(one)} {one['text']}" for one in found]
    unmet = job.unmet - job.is_awaiting
    more = f" and {unmet - len(found):,} more" if unmet > len(found) else ""
    lost = [one for one in found if one["became"] in ("failed", "cancelled")]
    hint = " It does not start until that succeeds: retry that job, or cancel this one." if lost else ""
    count = "a job" if unmet == 1 else f"{unmet:,} jobs"
    return Reason(
        code="dependencies",
        text=f"It waits for {count}: {'; '.join(parts)}{more}.{hint}",
        data={"count": unmet, "jobs": found, "is_lost": bool(lost)},
    )


def _prerequisite(tx: Tx, depends_on: str, chain_id: str) -> dict[str, Json]:
    last = jobs.chain(tx, chain_id)[-1]
    became, text = _became(last)
    return {
        "job_id": depends_on,
        "last_job_id": last.job_id,
        "title": last.title,
        "job_type": last.job_type,
        "status": last.status,
        "became": became,
        "text": text,
        "scheduled_for": None if last.is_due or last.scheduled_for is None else str(last.scheduled_for),
    }


def _became(last: Job) -> tuple[str, str]:
    """Returns the state of a chain, known from its last job: a word, and the rest of a sentence."""
    if last.is_running:
        return "running", f"has been running since {last.started_at}"
    if last.stage is Stage.CANCELLED:
        return "cancelled", f"was cancelled at {last.finished_at}"
    if last.outcome is RunStatus.FAILED:
        retried = last.decision in (Decision.RETRY, Decision.UNDECIDED)
        return ("retrying", "failed and is about to be retried") if retried else ("failed", "has failed permanently")
    if last.retry_of is not None:
        when = "is queued again" if last.is_due else f"is tried again at {last.scheduled_for}"
        return "retrying", f"failed and {when}"
    return ("queued", "is queued") if last.is_ready else ("waiting", "is waiting itself")


def _turn(tx: Tx, job: Job) -> Reason:
    assert job.group_id is not None
    assert job.sequence is not None
    group = groups.get(tx, job.group_id)
    assert group is not None
    before = jobs.live_members(tx, job.group_id, 1)
    data: dict[str, Json] = {"group_id": group.group_id, "sequence": job.sequence}
    text = f"It is number {job.sequence + 1} of {_group(group)}, whose jobs run one after the other"
    if before and before[0].sequence is not None:
        data["turn_of"] = {"job_id": before[0].job_id, "sequence": before[0].sequence, "status": before[0].status}
        text += f"; it is the turn of number {before[0].sequence + 1}, which {_became(before[0])[1]}"
    return Reason(code="group_turn", text=f"{text}.", data=data)


def _not_before(job: Job) -> Reason:
    is_retry = job.retry_of is not None
    what = "It is a retry, and waits" if is_retry else "It may not start"
    text = f"{what} {'until' if is_retry else 'before'} {job.scheduled_for}."
    return Reason(code="not_before", text=text, data={"scheduled_for": str(job.scheduled_for), "is_retry": is_retry})


def _holder(one: Holding, is_seen: bool) -> dict[str, Json]:
    return {
        "kind": "direct" if one.is_direct else "job",
        "id": one.id if is_seen else None,
        "title": one.title if is_seen else None,
        "job_type": one.job_type if is_seen else None,
        "since": str(one.since),
    }


def _full(limit: Limit, units: int, holders: list[dict[str, Json]]) -> Reason:
    held_by = holders[:MOST_NAMED]
    parts = ", ".join(f"{_named(one)} since {one['since']}" for one in held_by[:3])
    more = f" and {len(holders) - 3:,} more" if len(holders) > 3 else ""
    wants = f", and it needs {units}" if units > 1 else ""
    return Reason(
        code="limit_full",
        text=f"{_limit(limit)} is full ({limit.used} of {limit.capacity}{wants}): held by {parts or 'nobody'}{more}.",
        data={**_limit_data(limit, units), "held_by": held_by, "holders": len(holders)},
    )


def _rate_full(used_up: UsedUp) -> Reason:
    limit_key, unit, rate, until = used_up
    scope, _, name = limit_key.partition(":")
    words = {"office": "office", "type": "job type", "resource": "resource"}
    what = f"the {words[scope]} {name!r}" if scope in words else "the whole scheduler"
    return Reason(
        code="rate_full",
        text=f"The rate of {what}, {rate.per_minute:,g} {unit} a minute, is used up until {until}.",
        data={
            "limit": limit_key,
            "unit": unit,
            "per_minute": rate.per_minute,
            "burst": rate.burst,
            "until": str(until),
        },
    )


def _never_fits(limit: Limit, units: int) -> Reason:
    return Reason(
        code="never_fits",
        text=f"It needs {units} of {_limit(limit, first=False)}, which has only {limit.capacity}: it can never start.",
        data=_limit_data(limit, units),
    )


def _busy_devices(node_id: str, busy: Mapping[tuple[str, str], str], is_seen: bool) -> Reason:
    """Returns the reason that names the devices that other programs use; names their processes only if `is_seen`."""
    named = "; ".join(
        f"{resource} {name!r}" + (f" by {words}" if is_seen else "") for (resource, name), words in sorted(busy.items())
    )
    return Reason(
        code="device_busy",
        text=f"Processes that this scheduler did not start use devices of the node {node_id!r}: {named}.",
        data={"node_id": node_id, "devices": [{"resource": one[0], "device": one[1]} for one in sorted(busy)]},
    )


def _callers_wait(waiting: list[str]) -> Reason:
    who = "A direct caller waits" if len(waiting) == 1 else f"{len(waiting)} direct callers wait"
    return Reason(
        code="direct_waiting",
        text=f"{who} in its office, and gets the next slot: {', '.join(waiting[:3])}.",
        data={"direct_ids": waiting[:MOST_NAMED], "count": len(waiting)},
    )


def _kept_back(tx: Tx, hold: CapacityHold, keys: list[str], seen_by: str | None) -> Reason:
    limits = list(lanes.limits(tx, keys).values())
    what = " and ".join(_limit(limit, first=False) for limit in limits)
    data = {"id": hold.id, "limits": [limit.limit_key for limit in limits]}
    if hold.kind is WorkKind.DIRECT:
        found = direct.get(tx, hold.id)
        office = found.office_id if found else ""
        if seen_by not in (None, office):
            text = f"The free units of {what} are kept for a direct caller of another office."
            return Reason(code="reserved", text=text, data={**data, "id": None, "office_id": None})
        text = f"The free units of {what} are kept for a direct caller of the office {office!r}: {hold.id}."
        return Reason(code="reserved", text=text, data={**data, "office_id": office})
    job = jobs.get(tx, hold.id)
    since = str(job.passed_over_since) if job and job.passed_over_since else None
    if seen_by is not None and (job is None or job.office_id != seen_by):
        text = (
            f"The free units of {what} are kept for a job of another office, which has been passed over since {since}."
        )
        return Reason(code="starving", text=text, data={**data, "id": None, "since": since})
    text = f"The free units of {what} are kept for job {hold.id}, which has been passed over since {since}."
    return Reason(code="starving", text=text, data={**data, "since": since})


def _ahead(ahead: int) -> Reason:
    is_more = ahead > MOST_AHEAD
    count = f"More than {MOST_AHEAD:,}" if is_more else f"{ahead:,}"
    text = f"{count} {'job is' if ahead == 1 else 'jobs are'} ahead of it in its office's queue."
    return Reason(code="ahead", text=text, data={"ahead": min(ahead, MOST_AHEAD), "is_more": is_more})


def _aged(job: Job) -> Reason:
    steps = "1 step" if job.aged_steps == 1 else f"{job.aged_steps:,} steps"
    text = (
        f"It was ready for long, and has aged by {steps}: it is ordered as if its priority were {job.order_priority:,}"
    )
    data = {"aged_steps": job.aged_steps, "priority": job.priority, "order_priority": job.order_priority}
    return Reason(code="aged", text=f"{text}, not {job.priority:,}.", data=data)


# Helpers for sentences.


def _limit_data(limit: Limit, units: int) -> dict[str, Json]:
    return {"limit": limit.limit_key, "capacity": limit.capacity, "used": limit.used, "needs": units}


def _limit(limit: Limit, first: bool = True) -> str:
    """Returns the name of a limit for a sentence."""
    scope, _, name = limit.limit_key.partition(":")
    the = "The" if first else "the"
    if limit.limit_key == SCHEDULER:
        return f"{the} limit of the whole scheduler"
    if scope == "role":
        office_id, _, role = name.partition("/")
        return f"{the} limit of the role {role!r} in the office {office_id!r}"
    if scope == "key":
        office_id, _, key = name.partition("/")
        return f"{the} limit of the key {key!r} in the office {office_id!r}"
    words = {"office": "limit of the office", "type": "limit of the job type", "resource": "resource"}
    return f"{the} {words[scope]} {name!r}" if scope in words else f"{the} limit {limit.limit_key!r}"


def _named(one: Mapping[str, Any]) -> str:
    kind = "direct execution" if one.get("kind") == "direct" else "job"
    id_ = one.get("job_id") or one.get("id")
    if id_ is None:
        return f"a {kind} of another office"
    title = one.get("title")
    return f"{kind} {id_}" + (f" ({_short(title)})" if title else "")


def _group(group: Group) -> str:
    return f"the group {_short(group.name)!r}" if group.name else f"the group {group.group_id}"


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:199]}…"
