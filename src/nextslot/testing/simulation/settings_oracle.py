"""Checks that the scheduler obeys the stored settings: limits, archived offices, subscriptions, dependents.

`oracles.Watch` calls the checks of each commit; `world` those after a purge and those of the end.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from nextslot.domain.limits import ONLY_RATED, Limits
from nextslot.store.contract import Tx

from . import check_reads, rates_oracle
from .broken import Broken
from .check_reads import JobFacts, LaneNeeds, OfficeFacts, Subscription, Told

# The webhook events of subscriptions, by the type of the log entry.
MESSAGES = {
    "job_failed_permanently": "job.failed_permanently",
    "group_finished": "group.finished",
    "job_completed": "job.run.completed",
}
SUCCEEDED = ("COMPLETED", "SKIPPED")
# Those of them that the webhook of an office gets.
OFFICE_EVENTS = ("job.failed_permanently", "job.run.completed")


class Settings(NamedTuple):
    """The settings before a commit."""

    offices: dict[str, OfficeFacts]
    subscriptions: Sequence[Subscription]


def read(tx: Tx) -> Settings:
    return Settings(check_reads.offices(tx), check_reads.subscriptions(tx))


def wrong_limits(
    offices: Mapping[str, OfficeFacts], capacities: Mapping[str, int], configured: Sequence[Limits]
) -> Iterator[Broken]:
    """Finds limits that differ from the settings of their office, or of the scheduler.

    `configured` are the limits that may apply: two sets during a change.
    """
    found = [list(_wrong_limits(offices, capacities, limits)) for limits in configured]
    if all(found):
        yield from found[-1]


def _wrong_limits(
    offices: Mapping[str, OfficeFacts], capacities: Mapping[str, int], limits: Limits
) -> Iterator[Broken]:
    for key, capacity in capacities.items():
        scope, _, name = key.partition(":")
        office_id, _, role = name.partition("/")
        wanted = capacity
        if scope == "office":
            wanted = offices[office_id].max_concurrent_jobs
        elif scope == "role":
            wanted = offices[office_id].role_limits.get(role, 0)
        elif scope == "type":
            wanted = limits.job_types.get(name, 0)
        elif scope == "resource":
            wanted = limits.resources.get(name, capacity)
        elif scope == "scheduler":
            wanted = limits.running
        elif scope == "key":
            wanted = _most_of_key(limits.limit_keys, role)
        if capacity == ONLY_RATED and key in limits.rates:
            capacity = 0
        if capacity != wanted:
            yield Broken("limits are those of the settings", f"{key} is {capacity} and should be {wanted}")


def _most_of_key(patterns: Mapping[str, int], name: str) -> int:
    """Returns the number of the longest pattern that fits; the patterns of the simulation have a `*` at their end."""
    fitting = [pattern for pattern in patterns if name.startswith(pattern.removesuffix("*"))]
    return patterns[max(fitting, key=len)] if fitting else 0


def in_archived_offices(before: Settings, after: Settings, new: Sequence[Told], roots: set[str]) -> Iterator[Broken]:
    """Finds new chains in an office that was archived before and after the commit."""
    closed = {
        office_id
        for office_id, office in after.offices.items()
        if office.status == "archived" and before.offices.get(office_id, office).status == "archived"
    }
    for event in new:
        if event.type == "job_queued" and event.office_id in closed and event.job_id in roots:
            yield Broken("an archived office takes no jobs", f"{event.job_id} in {event.office_id}")


def unannounced(tx: Tx, before: Settings, after: Settings, new: Sequence[Told]) -> Iterator[Broken]:
    """Finds events without a message to a subscription that existed before and after the commit; and messages about
    other offices.
    """
    lasting = [one for one in before.subscriptions if one in after.subscriptions]
    lasting += [
        Subscription(office_id, office.webhook["url"], OFFICE_EVENTS, office_id)
        for office_id, office in after.offices.items()
        if office.webhook and office_id in before.offices and before.offices[office_id].webhook == office.webhook
    ]
    if not new or not lasting:
        return
    sent = check_reads.sent(tx, new[0].seq - 1)
    made = {(event, url, office_id) for event, url, office_id, _ in sent}
    for one in lasting:
        for event, url, office_id, _ in sent:
            is_alone = one.webhook_id not in after.offices  # Other webhooks may have this URL too.
            if is_alone and url == one.url and one.office_id not in (None, office_id):
                yield Broken("a subscription gets the events of its office", f"{event} of {office_id} to {one}")
        for told in new:
            event = MESSAGES.get(told.type)
            is_wanted = event in one.events and one.office_id in (None, told.office_id)
            if is_wanted and (event, one.url, told.office_id) not in made:
                yield Broken("every event is sent to its subscriptions", f"{told} was not sent to {one.url}")


def forsaken(tx: Tx, facts: Mapping[str, JobFacts]) -> Iterator[Broken]:
    """Finds jobs that should have been cancelled because they wait for a failed chain."""
    policies = check_reads.dependents(tx)
    followed = {job.retry_of for job in facts.values()}
    failed = {
        job.chain_id
        for job in facts.values()
        if job.job_id not in followed and job.finished_at is not None and job.outcome not in SUCCEEDED
    }
    for job_id, chain_id in check_reads.waits(tx):
        if chain_id in failed and policies.get(job_id) == "cancel":
            yield Broken("a job whose prerequisite fails is cancelled", f"{job_id} waits for {chain_id}")


def purgeable(tx: Tx, before: int) -> set[str]:
    """Returns the jobs of chains and groups that ended before a time and to which nothing refers that has not ended."""
    facts = check_reads.jobs(tx)
    kept = check_reads.needed(tx)
    kept |= {one.job_id for one in check_reads.messages(tx) if one.status == "PENDING" and one.job_id is not None}
    units: dict[str, list[JobFacts]] = {}
    for job in facts.values():
        units.setdefault(job.group_id or job.chain_id, []).append(job)
    old: set[str] = set()
    for jobs in units.values():
        is_over = all(_is_old(job, before) and job.job_id not in kept for job in jobs)
        old.update(job.job_id for job in jobs if is_over)
    return old


def _is_old(job: JobFacts, before: int) -> bool:
    is_over = job.finished_at is not None and job.finished_at < before and job.decision != "undecided"
    return is_over and job.created_at < before


def late(facts: Mapping[str, JobFacts], now: int, interruptible: set[str]) -> Iterator[Broken]:
    """Finds what should have happened more than a second ago. Only for histories without faults."""
    limit = now - 1_000_000
    for job in facts.values():
        if job.stage == "QUEUED" and not job.is_due and (job.scheduled_for or now) < limit:
            yield Broken("what is due happens in time", f"{job.job_id} was due at {job.scheduled_for}, it is {now}")
        if job.stage == "QUEUED" and (job.expires_at or now) < limit:
            yield Broken("what expires ends in time", f"{job.job_id} expired at {job.expires_at}, it is {now}")
        is_running = job.stage == "RUNNING" and job.finished_at is None
        if is_running and (job.timeout_at or now) < limit and job.run_id in interruptible:
            yield Broken("a run ends at its timeout", f"{job.run_id} had time until {job.timeout_at}, it is {now}")


def late_elsewhere(
    tx: Tx, now: int, interruptible: set[str], interrupted_at: Mapping[str, int], endpoints: Mapping[str, float]
) -> Iterator[Broken]:
    """Finds late callers, cancels, schedules and messages; `endpoints` have been idle for so many seconds."""
    limit = now - 1_000_000
    for one in check_reads.caller_times(tx):
        if one.status == "WAITING" and one.wait_until < limit:
            yield Broken("a caller waits no longer than it wants", f"{one.run_id} until {one.wait_until}, it is {now}")
        if one.status == "RUNNING" and one.run_id in interruptible:
            if (one.timeout_at or now) < limit:
                yield Broken("a run ends at its timeout", f"{one.run_id} had time until {one.timeout_at}, it is {now}")
            if (one.cancel_requested_at or now) < limit:
                yield Broken("a cancelled run stops in time", f"{one.run_id} since {one.cancel_requested_at}")
    for job in check_reads.jobs(tx).values():
        at = interrupted_at.get(job.run_id or "", now)
        if job.finished_at is None and at < limit and job.run_id in interruptible:
            yield Broken("a cancelled run stops in time", f"{job.run_id} since {at}, it is {now}")
    for plan in check_reads.schedules(tx):
        if plan.enabled and (plan.next_trigger_at or now) < limit:
            yield Broken("a schedule fires in time", f"{plan.schedule_id} at {plan.next_trigger_at}, it is {now}")
    yield from rates_oracle.late(tx, now)
    for delivery_id, origin, at in check_reads.pending(tx):
        if at < limit and endpoints.get(origin, 0.0) > 5.0:
            yield Broken("a message is sent in time", f"{delivery_id} was due at {at}, it is {now}")


def wrong_devices(tx: Tx, resources: Iterable[str], needs: Mapping[int, LaneNeeds]) -> Iterator[Broken]:
    """Finds work that holds another number of named devices than it needs, and devices that nothing holds any more."""
    held, wanted = check_reads.device_holds(tx), {}
    for worker_id, lane_id in check_reads.workers(tx):
        for resource in needs[lane_id].resources & set(resources):
            wanted[worker_id, resource] = needs[lane_id].units[f"resource:{resource}"]
    if held != wanted:
        yield Broken("running work holds its devices, and nothing else does", f"{held}, and should be {wanted}")


def in_wrong_lanes(
    tx: Tx, affinity_waits: Mapping[str, float], caller_keys: Mapping[tuple[str, str], list[str]]
) -> Iterator[Broken]:
    """Finds jobs and callers whose lane does not count them in all limits that they fall under."""
    needs, lane_of = check_reads.needs(tx), check_reads.caller_lanes(tx)
    for (office_id, direct_id), names in caller_keys.items():
        lane_id = lane_of.get((office_id, direct_id))
        if lane_id is not None and not {f"key:{office_id}/{name}" for name in names} <= needs[lane_id].units.keys():
            yield Broken("a caller counts in all its limits", f"{direct_id} with {names} in {needs[lane_id].units}")
    for one in check_reads.kinds(tx):
        wanted = {"scheduler": 1, f"office:{one.office_id}": 1, f"type:{one.job_type}": 1}
        wanted |= {f"resource:{name}": units for name, units in one.resources.items()}
        if one.role is not None:
            wanted[f"role:{one.office_id}/{one.role}"] = 1
        wanted |= {f"key:{one.office_id}/{key}": 1 for key in one.limit_keys}
        if one.affinity is not None and not affinity_waits.keys().isdisjoint(one.resources):
            wanted[f"affinity:{one.office_id}/{one.affinity}"] = 1
        if dict(needs[one.lane_id].units) != wanted:
            how = f"{one.job_id} counts in {needs[one.lane_id].units}, and should in {wanted}"
            yield Broken("a job counts in all its limits", how)


def expired_and_started(facts: Mapping[str, JobFacts]) -> Iterator[Broken]:
    """Finds jobs that started after their deadline. A member that its group skips gets a run, but never starts; so
    does a job that fails because of another job or of a signal.
    """
    for job in facts.values():
        is_late = job.expires_at is not None and job.started_at is not None and job.started_at >= job.expires_at
        never_starts = job.outcome == "SKIPPED" or job.failure_kind == "dependency"
        if is_late and not (never_starts and job.started_at == job.finished_at):
            yield Broken("an expired job does not start", f"{job.job_id} started after {job.expires_at}")


def cut_short(tx: Tx) -> Iterator[Broken]:
    """Finds direct work that was ended although nobody cancelled it and its time was not over."""
    for one in check_reads.direct(tx):
        if one.status != "FAILED" or one.is_cancelled or one.params.get("do") != "ok" or one.started_at is None:
            continue
        seconds = float(one.params.get("seconds", 1.0))
        is_ours = one.failure_kind == "timeout" or (one.failure_kind == "cancelled" and one.is_detached)
        if is_ours and seconds < one.timeout_seconds:
            yield Broken("direct work goes on until it ends", f"{one.direct_id}: {one.failure_kind} after {seconds}")
