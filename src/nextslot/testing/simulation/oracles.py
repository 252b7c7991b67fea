"""The laws, as questions to what is stored: after every commit, after every step, and when all has come to rest.

They read by statements of their own (`store/tables/check_reads.py`) and know nothing of how the engine decides. What
can be asked of a live database, without having watched it, is in `store/maintenance/doctor.py`, and is asked here too.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from nextslot.store.contract import Tx
from nextslot.store.maintenance import doctor
from nextslot.store.tables import check_reads
from nextslot.store.tables.check_reads import (
    Insider,
    JobFacts,
    LaneNeeds,
    Told,
    Waiting,
    WaitingCaller,
)

SECOND = 1_000_000
MINUTE = 60 * SECOND
NOT_RETRIED = {"cancelled", "git_conflict", "permission", "dependency", "invalid"}
AT_ONCE = {"crash", "interrupted"}
ENDS = {"job_completed", "job_failed", "job_timeout", "job_skipped", "job_cancelled"}
# No policy of the clients allows more, and few of them retry by hand as well.
LONGEST_CHAIN = 30
# A smaller difference of two clocks is no step (clock.py), so a timeout may be wrong by as much.
NO_STEP_SECONDS = 1.01
SUCCEEDED = ("COMPLETED", "SKIPPED")


class Broken(NamedTuple):
    law: str
    how: str

    def __str__(self) -> str:
        return f"{self.law}: {self.how}"


class Watch:
    """Sees every commit, and remembers what it has seen: nothing of that may vanish or change."""

    def __init__(self, starvation_after_seconds: float) -> None:
        self._starvation_us = int(starvation_after_seconds * SECOND)
        self.events: list[Told] = []
        self._needs: dict[int, LaneNeeds] = {}
        self._running_callers: set[str] = set()
        self._last_served: dict[str, int] = {}
        # How long the chain is that a retry ends.
        self._lengths: dict[str, int] = {}

    @property
    def last_seq(self) -> int:
        return self.events[-1].seq if self.events else 0

    @property
    def ended(self) -> set[str]:
        """Jobs that have ended, by what was told."""
        return {event.job_id for event in self.events if event.type in ENDS and event.job_id is not None}

    def reopened(self, tx: Tx, has_purged: bool) -> list[Broken]:
        """After a crash: all that was committed is there, as it was; perhaps more, of which nobody was told.

        Of what retention may have taken, the oldest may be gone.
        """
        stored = check_reads.events(tx, 0)
        first = stored[0].seq if has_purged and stored else 1
        known = [event for event in self.events if event.seq >= first]
        broken = []
        if stored[: len(known)] != known:
            broken.append(Broken("nothing committed is ever lost", f"of {len(known)} events some are gone or changed"))
        self.events = self.events[: len(self.events) - len(known)] + stored
        self._serve_order(stored)
        self._running_callers = set()
        return broken

    def committed(self, tx: Tx, now: int, is_dispatching: bool) -> list[Broken]:
        """One transaction more: what it started was right, and nothing that could start was left."""
        new = check_reads.events(tx, self.last_seq)
        started = check_reads.started(tx, self.last_seq)
        self.events += new
        broken = [*numbered(new, self.events), *self._endless(new)]
        look = self._look(tx, now)
        broken += self._judge_starts(look, started)
        if is_dispatching:
            broken += idle(look)
        return broken

    def _endless(self, new: list[Told]) -> Iterator[Broken]:
        """A chain that goes on and on is seen before it has filled the history."""
        for event in new:
            if event.type == "job_retrying" and event.job_id is not None:
                length = self._lengths[json.loads(event.details)["retry"]] = self._lengths.get(event.job_id, 1) + 1
                if length > LONGEST_CHAIN:
                    yield Broken("retries are as many as agreed (DEC-007)", f"a chain of {length} with {event.job_id}")

    def _look(self, tx: Tx, now: int) -> "Look":
        running = check_reads.running_lanes(tx)
        callers = check_reads.callers(tx)
        ready = check_reads.ready(tx)
        lanes = {*running, *(one.lane_id for one in callers), *(one.lane_id for one in ready)}
        if not lanes <= self._needs.keys():
            self._needs = check_reads.needs(tx)
        used: Counter[str] = Counter()
        for lane_id in [*running, *(one.lane_id for one in callers if one.status == "RUNNING")]:
            used.update(self._needs[lane_id].units)
        return Look(
            now,
            used,
            check_reads.capacities(tx),
            check_reads.pauses(tx),
            check_reads.held(tx),
            callers,
            ready,
            self._needs,
            self._starvation_us,
            [one for one in check_reads.insiders(tx) if one.since > now - self._starvation_us],
        )

    def _judge_starts(self, look: "Look", started: list[Waiting]) -> Iterator[Broken]:
        """Plays the starts of a transaction again, each at its moment."""
        used = Counter(look.used)
        for one in started:
            used.subtract(look.needs[one.lane_id].units)
        new_callers = [
            one for one in look.callers if one.status == "RUNNING" and one.direct_id not in self._running_callers
        ]
        self._running_callers = {one.direct_id for one in look.callers if one.status == "RUNNING"}
        for caller in new_callers:
            used.subtract(look.needs[caller.lane_id].units)
        for caller in new_callers:
            yield from _over_limit(look, used, look.needs[caller.lane_id].units, f"direct {caller.direct_id}")
            used.update(look.needs[caller.lane_id].units)
        for number, one in enumerate(started):
            needs = look.needs[one.lane_id]
            yield from _over_limit(look, used, needs.units, f"job {one.job_id}")
            yield from held_back(look, one, needs)
            yield from beside_a_suspect(look, one)
            yield from out_of_order(look, used, one, [*look.ready, *started[number + 1 :]], self._last_served)
            used.update(needs.units)
            self._last_served[one.office_id] = max(self._last_served.values(), default=0) + 1

    def _serve_order(self, events: list[Told]) -> None:
        self._last_served = {
            event.office_id: event.seq
            for event in events
            if event.type == "job_started" and event.office_id is not None
        }


class Look(NamedTuple):
    """What decides about the next start, read plainly."""

    now: int
    used: Counter[str]
    capacities: dict[str, int]
    pauses: set[tuple[str, str]]
    held: set[str]
    callers: list[WaitingCaller]
    ready: list[Waiting]
    needs: Mapping[int, LaneNeeds]
    starvation_us: int
    # What runs, but for what has run for so long that nobody waits for it.
    insiders: list[Insider]

    @property
    def has_suspects(self) -> bool:
        """Whether a job waits or runs that has to run alone: then others may have to wait."""
        return any(one.is_suspect for one in self.insiders) or any(
            self.needs[one.lane_id].is_alone for one in self.ready
        )

    @property
    def has_starving(self) -> bool:
        """Whether units are kept back for a job that was passed over for long: then others may have to wait."""
        return any(_is_starving(self, one) for one in self.ready)

    def kept_back(self) -> Counter[str]:
        """What direct callers who hold a reservation, and wait, keep back in every office."""
        kept: Counter[str] = Counter()
        for one in self.callers:
            if one.status == "WAITING" and one.is_holder and not self.needs[one.lane_id].resources & self.held:
                kept.update(self.needs[one.lane_id].units)
        return kept

    def may_go(self, one: Waiting) -> bool:
        """Nothing but order and limits holds it: no pause, no caller, no outage."""
        needs = self.needs[one.lane_id]
        return not (
            ("scheduler", "") in self.pauses
            or ("office", one.office_id) in self.pauses
            or ("type", needs.job_type) in self.pauses
            or any(("resource", name) in self.pauses or name in self.held for name in needs.resources)
            or any(caller.office_id == one.office_id and caller.status == "WAITING" for caller in self.callers)
        )

    def fits(self, used: Counter[str], units: Mapping[str, int]) -> bool:
        return all(
            self.capacities[key] == 0 or used[key] + count <= self.capacities[key] for key, count in units.items()
        )


def _is_starving(look: Look, one: Waiting) -> bool:
    return one.passed_over_since is not None and one.passed_over_since <= look.now - look.starvation_us


def _over_limit(look: Look, used: Counter[str], units: Mapping[str, int], what: str) -> Iterator[Broken]:
    for key, count in units.items():
        if look.capacities[key] and used[key] + count > look.capacities[key]:
            how = f"{what} was started with {used[key]} of {look.capacities[key]} units of {key} in use"
            yield Broken("limits hold at every instant", how)


def held_back(look: Look, one: Waiting, needs: LaneNeeds) -> Iterator[Broken]:
    """What a pause or a caller on the line holds back does not start."""
    if ("scheduler", "") in look.pauses or ("office", one.office_id) in look.pauses:
        yield Broken("what is paused does not start", f"job {one.job_id} in {one.office_id}")
    if ("type", needs.job_type) in look.pauses or any(("resource", name) in look.pauses for name in needs.resources):
        yield Broken("what is paused does not start", f"job {one.job_id} of type {needs.job_type}")
    if any(caller.office_id == one.office_id and caller.status == "WAITING" for caller in look.callers):
        yield Broken("direct requests come first (DEC-004)", f"job {one.job_id} started while a caller waited")


def beside_a_suspect(look: Look, one: Waiting) -> Iterator[Broken]:
    """All handlers here run inside the process: who is a suspect starts where nobody is, and nobody starts there."""
    law = "a suspect runs alone"
    others = [other for other in look.insiders if other.id != one.job_id]
    if look.needs[one.lane_id].is_alone and others:
        yield Broken(law, f"job {one.job_id} was started beside {others[0].id}")
    elif any(other.is_suspect for other in others):
        yield Broken(law, f"job {one.job_id} was started beside a suspect")


def out_of_order(
    look: Look, used: Counter[str], one: Waiting, others: list[Waiting], last_served: dict[str, int]
) -> Iterator[Broken]:
    """INV-004, and between offices: at its moment, nobody who fitted too was before it."""
    if look.has_starving or _is_starving(look, one):
        return
    taken = used + look.kept_back()
    for other in others:
        if not look.may_go(other) or not look.fits(taken, look.needs[other.lane_id].units):
            continue
        if look.needs[one.lane_id].is_alone or look.has_suspects:
            continue  # A suspect goes first, and then nobody.
        if other.office_id == one.office_id and other.place < one.place:
            yield Broken("jobs start in the queue's order (INV-004)", f"{one.job_id} before {other.job_id}")
        mine, theirs = last_served.get(one.office_id, 0), last_served.get(other.office_id, 0)
        if other.office_id != one.office_id and theirs < mine:
            yield Broken("offices are served in turn", f"{one.office_id} again, and {other.office_id} waits longer")


def idle(look: Look) -> Iterator[Broken]:
    """What can run does run: no commit leaves a job behind that order, limits and pauses would let start."""
    if look.has_starving:
        return
    taken = look.used + look.kept_back()
    for one in look.ready:
        if look.has_suspects and (look.insiders or not look.needs[one.lane_id].is_alone):
            continue
        if look.may_go(one) and look.fits(taken, look.needs[one.lane_id].units):
            yield Broken("what can run does run", f"job {one.job_id} in {one.office_id} is ready, and there is room")


def numbered(new: list[Told], events: list[Told]) -> Iterator[Broken]:
    """Numbers leave nothing out and come once."""
    before = events[-len(new) - 1].seq if len(events) > len(new) else 0
    for event in new:
        if before and event.seq != before + 1:
            yield Broken("events are complete and in order", f"{event.seq} follows {before}")
        before = event.seq


def examined(tx: Tx) -> list[Broken]:
    """What `nextslot doctor` asks."""
    return [Broken(finding.check, finding.problem) for finding in doctor.examine(tx)]


# When all has come to rest.


def timed_out_early(events: list[Told], took: Mapping[str, float]) -> Iterator[Broken]:
    """No run is out of time before its seconds have passed, whatever the wall clock did. `took` is by run."""
    for event in events:
        limit = re.search(r"timed out after ([\d.]+) seconds", event.details) if event.type == "job_timeout" else None
        seconds = took.get(event.run_id or "")
        if limit is not None and seconds is not None and seconds < float(limit[1]) - NO_STEP_SECONDS:
            how = f"run {event.run_id} had {limit[1]} seconds, and was ended after {seconds:.3f}"
            yield Broken("a timeout lasts its seconds", how)


def unfinished(tx: Tx, now: int) -> Iterator[Broken]:
    """Liveness: nothing runs, waits, is reserved or is to be sent any more, but for what can never go on."""
    facts = check_reads.jobs(tx)
    stuck = {job.job_id: job for job in facts.values() if job.stage == "QUEUED"}
    for job in facts.values():
        if job.stage == "RUNNING" and job.finished_at is None:
            yield Broken("nothing runs for ever", f"job {job.job_id} since {job.started_at}")
    for caller in check_reads.callers(tx):
        yield Broken("every direct request gets its answer", f"{caller.direct_id} is {caller.status}")
    for reservation_id, _ in check_reads.reservations(tx):
        yield Broken("no reservation outlives its caller", reservation_id)
    for message in check_reads.messages(tx):
        if message.status == "PENDING":
            yield Broken("every delivery comes to an end", message.delivery_id)
    yield from _stuck_without_reason(tx, facts, stuck, now)


def _stuck_without_reason(tx: Tx, facts: dict[str, JobFacts], stuck: dict[str, JobFacts], now: int) -> Iterator[Broken]:
    law = "what can run does run"
    needs, capacities = check_reads.needs(tx), check_reads.capacities(tx)
    waits = [(job_id, chain_id) for job_id, chain_id in check_reads.waits(tx) if job_id in stuck]
    ends = _ends(facts)
    in_group = {(job.group_id, job.sequence) for job in stuck.values() if job.group_id is not None}
    for job in stuck.values():
        if not job.is_due or (job.expires_at is not None and job.expires_at < now):
            yield Broken(law, f"job {job.job_id} was due at {job.scheduled_for}, or expired at {job.expires_at}")
        elif job.unmet:
            open_ = [chain_id for job_id, chain_id in waits if job_id == job.job_id]
            if not any(ends[chain_id].job_id in stuck or ends[chain_id].outcome not in SUCCEEDED for chain_id in open_):
                yield Broken(law, f"job {job.job_id} waits for what has succeeded")
        elif not job.is_turn:
            if not any(group_id == job.group_id and (place or 0) < (job.sequence or 0) for group_id, place in in_group):
                yield Broken(law, f"job {job.job_id} waits for its turn, and nobody has it")
        else:
            units = needs[job.lane_id].units
            if all(capacities[key] == 0 or count <= capacities[key] for key, count in units.items()):
                yield Broken(law, f"job {job.job_id} is ready, nothing runs, and it does not start")


def _ends(facts: dict[str, JobFacts]) -> dict[str, JobFacts]:
    """The last job of each chain."""
    followed = {job.retry_of for job in facts.values()}
    return {job.chain_id: job for job in facts.values() if job.job_id not in followed}


def misretried(tx: Tx, events: list[Told]) -> Iterator[Broken]:
    """DEC-007 from the failures alone: how many retries there were, and what delay each had."""
    facts = check_reads.jobs(tx)
    told = {event.job_id: json.loads(event.details) for event in events if event.type == "job_retrying"}
    for job in facts.values():
        if job.outcome != "FAILED" or job.stage == "CANCELLED":
            continue
        kinds = _failures(facts, job)
        policy = json.loads(job.retry_policy)
        number, most = _counted(_crowds(facts, job)), policy["max_attempts"]
        kind = kinds[-1]
        may = kind not in NOT_RETRIED and (policy["retry_on"] is None or kind in policy["retry_on"])
        is_culprit = kind == "crash" and _lone_crashes(facts, job) >= 2
        should = may and most > 0 and number <= most and job.cancel_mode is None and not is_culprit
        if should != (job.decision == "retry"):
            yield Broken("retries are as many as agreed (DEC-007)", f"{job.job_id}: {kinds}, {job.decision}, {most}")
        delay = told.get(job.job_id, {}).get("delay_seconds")
        if job.decision == "retry" and delay is not None and delay != _delay(policy, number, kind):
            yield Broken("retries come after the delay agreed", f"{job.job_id}: {delay}")


def _failures(facts: dict[str, JobFacts], job: JobFacts) -> list[str]:
    """What the links of a chain follow, up to this job."""
    kinds = []
    at: JobFacts | None = job
    while at is not None:
        # One that was cancelled before it ran, and retried by hand, is a link like any other.
        kinds.append(at.failure_kind or "error")
        at = facts.get(at.retry_of) if at.retry_of is not None else None
    return kinds[::-1]


def _crowds(facts: dict[str, JobFacts], job: JobFacts) -> list[tuple[str, bool]]:
    """The same, each with whether others were inside the process that died with it."""
    found = []
    at: JobFacts | None = job
    while at is not None:
        found.append((at.failure_kind or "error", bool(at.beside)))
        at = facts.get(at.retry_of) if at.retry_of is not None else None
    return found[::-1]


def _lone_crashes(facts: dict[str, JobFacts], job: JobFacts) -> int:
    """How often in a row the scheduler died while it ran this chain, and nothing else inside its process."""
    count, at = 0, facts.get(job.job_id)
    while at is not None and at.failure_kind == "crash":
        count += at.beside == 0
        at = facts.get(at.retry_of) if at.retry_of is not None else None
    return count


def _counted(kinds: list[tuple[str, bool]]) -> int:
    """Links that count: all but those after an interruption, up to the fourth in a row, and after a crash with company
    that does not follow another one."""
    counted = streak = 0
    is_second = False
    for kind, has_company in kinds:
        streak = streak + 1 if kind == "interrupted" else 0
        if streak == 0 or streak > 4:
            is_free = kind == "crash" and has_company and not is_second
            counted, is_second = counted + (not is_free), is_free
    return counted


def _delay(policy: Mapping[str, Any], number: int, kind: str) -> float:
    if kind in AT_ONCE:
        return 0.0
    base = policy["base_delay_seconds"]
    delay = base * number if policy["backoff"] == "linear" else base * 2 ** (number - 1)
    longest = policy["max_delay_seconds"]
    return float(delay if longest is None else min(delay, longest))


def unaccounted(tx: Tx, has_purged: bool) -> Iterator[Broken]:
    """Every instant of a schedule, from its beginning to where its account ends, is in the ledger, once."""
    law = "every occurrence is accounted for, once"
    for plan in check_reads.plans(tx):
        every = _minutes_between(plan.cron_expression)
        if every is None:
            continue
        covered: Counter[int] = Counter()
        for instant, until, count, _ in check_reads.ledger(tx, plan.schedule_id):
            span = range(instant, (until or instant) + 1, every)
            if len(span) != count:
                yield Broken(law, f"{plan.schedule_id} has a span of {count} that covers {len(span)}")
            covered.update(span)
        first = (plan.created_at // every + 1) * every
        end = plan.accounted_until if plan.enabled else max(covered, default=0)
        missing = [at for at in range(first, end + 1, every) if not covered[at] and not has_purged]
        if missing or any(times > 1 for times in covered.values()):
            yield Broken(law, f"{plan.schedule_id}: {missing[:3]} missing, of {len(covered)}")


def fired_twice(events: list[Told]) -> Iterator[Broken]:
    fired = Counter(event.details for event in events if event.type == "schedule_fired")
    for details, times in fired.items():
        if times > 1:
            yield Broken("every occurrence is accounted for, once", f"{details} was told {times} times")


def _minutes_between(cron: str) -> int | None:
    """Of `*/n * * * *` in UTC, in microseconds; other plans are not followed here."""
    fields = cron.split()
    if fields[1:] != ["*"] * 4 or not fields[0].startswith("*/") or 60 % int(fields[0][2:]):
        return None
    return int(fields[0][2:]) * MINUTE


def undelivered(tx: Tx, received: set[str], seen: set[str], has_purged: bool) -> Iterator[Broken]:
    """At least once: what counts as delivered was taken by its endpoint; and none vanishes before it may."""
    messages = {message.delivery_id: message for message in check_reads.messages(tx)}
    for delivery_id, message in messages.items():
        if message.status == "DELIVERED" and delivery_id not in received:
            yield Broken("webhooks are delivered at least once", f"nobody has got {delivery_id}")
    if has_purged:
        return
    for delivery_id in seen - messages.keys():
        yield Broken("no delivery is lost", delivery_id)
    own = Counter(message.job_id for message in messages.values() if message.is_own)
    for job in check_reads.jobs(tx).values():
        if job.has_webhook and job.outcome is not None and job.stage != "CANCELLED" and not own[job.job_id]:
            yield Broken("the end of a run is told to its webhook", job.job_id)
