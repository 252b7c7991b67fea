"""Checks the laws on the stored data: after every commit, after every step, and at the end, when all work is done.

The checks have their own statements (`check_reads.py`) and share no code with the engine's decisions. Checks that need
only the current data are in `store/maintenance/doctor.py`; they run here too.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

from nextslot.domain.limits import Limits
from nextslot.engine.dispatch import dispatcher
from nextslot.store.contract import Tx
from nextslot.store.maintenance import doctor

from . import check_reads, rates_oracle, schedule_oracle, settings_oracle
from .acknowledged import Orders
from .affinity_oracle import Loaded
from .broken import Broken
from .check_reads import (
    CronPlan,
    JobFacts,
    LaneNeeds,
    Told,
    Waiting,
    WaitingCaller,
)
from .elapsed_times import ElapsedTimes

SECOND = 1_000_000
MINUTE = 60 * SECOND
NOT_RETRIED = {"cancelled", "git_conflict", "permission", "dependency", "invalid"}
AT_ONCE = {"crash", "interrupted"}
ENDS = {"job_completed", "job_failed", "job_timeout", "job_skipped", "job_cancelled", "job_parked"}
# No retry policy of the clients allows more, and clients rarely retry by hand in addition.
LONGEST_CHAIN = 30
# Clocks do not treat a smaller difference as a step (clock.py), so a timeout may be wrong by this much.
NO_STEP_SECONDS = 1.01
SUCCEEDED = ("COMPLETED", "SKIPPED")
# The simulated engine, whose runs take no slot of the node.
ENGINE = "box"
# The offsets of the clients' time zones behind UTC; none of them has daylight saving time.
SHIFTS = {"UTC": 0, "Asia/Kathmandu": -345 * MINUTE}


class Watch:
    """Checks every commit, and remembers the events it has seen: none of them may vanish or change."""

    def __init__(
        self, starvation_after_seconds: float, limits: Limits, most_running: int = 0, devices: Iterable[str] = ()
    ) -> None:
        # The configured limits; two sets while it is unknown whether the newer one is stored.
        self._limits = [limits]
        self._reloads = 0
        self._most_running = most_running
        # The state after the last commit: the schedules' settings, which schedules have a job, and all other settings.
        self._cron_settings: dict[str, CronPlan] = {}
        self._busy: set[str] = set()
        self._settings = settings_oracle.Settings({}, ())
        self._starvation_us = int(starvation_after_seconds * SECOND)
        self.events: list[Told] = []
        self._needs: dict[int, LaneNeeds] = {}
        self._running_callers: set[str] = set()
        # The jobs that were ready after the last commit.
        self._ready: set[str] = set()
        self._last_served: dict[str, int] = {}
        # The length of the chain that ends with a given retry.
        self._lengths: dict[str, int] = {}
        self.orders = Orders()
        self.elapsed = ElapsedTimes()
        self._buckets = rates_oracle.Buckets(limits.rates)
        self._loaded = Loaded(limits.affinity_waits)
        # The resources of the machine whose units have names.
        self._devices = list(devices)
        # When the interruption of a run was requested.
        self.interrupted_at: dict[str, int] = {}

    def configured(self, limits: Limits, is_acknowledged: bool) -> None:
        """Notes that the limits are being changed, or that the change is acknowledged."""
        self._reloads += -1 if is_acknowledged else 1
        if not is_acknowledged:
            self._limits.append(limits)
        elif self._reloads == 0:
            self._limits = [limits]

    @property
    def last_seq(self) -> int:
        return self.events[-1].seq if self.events else 0

    @property
    def ended(self) -> set[str]:
        """Returns the jobs that have ended, according to the events."""
        return {event.job_id for event in self.events if event.type in ENDS and event.job_id is not None}

    def ended_runs(self) -> set[str | None]:
        """Returns the runs that have ended, according to the events."""
        return {event.run_id for event in self.events if event.type in ENDS}

    def reopened(self, tx: Tx, has_purged: bool) -> list[Broken]:
        """Checks after a crash that all committed events are unchanged. There may be more, of which no follower was
        notified.

        If retention has run, the oldest events may be gone.
        """
        stored = check_reads.events(tx, 0)
        first = stored[0].seq if has_purged and stored else 1
        known = [event for event in self.events if event.seq >= first]
        broken = []
        if stored[: len(known)] != known:
            broken.append(Broken("nothing committed is ever lost", f"some of {len(known)} events are gone or changed"))
        self.events = self.events[: len(self.events) - len(known)] + stored
        self._serve_order(stored)
        self._running_callers = {one.run_id for one in check_reads.callers(tx) if one.status == "RUNNING"}
        # If a crash has swallowed the answer to a change, it may be stored or not. The next start stores the newest
        # settings.
        self._reloads, self._limits = 0, self._limits[-2:]
        self._ready = {one.job_id for one in check_reads.ready(tx)}
        self.elapsed.restarted()
        self._buckets.restarted(tx)
        self._loaded.restarted()
        self._remember(tx)
        return broken

    def _remember(self, tx: Tx) -> None:
        self._cron_settings, self._busy = check_reads.cron_settings(tx), check_reads.busy_schedules(tx)
        self._settings = settings_oracle.read(tx)

    def committed(self, tx: Tx, now: int, is_dispatching: bool) -> list[Broken]:
        """Checks a commit: each start in it was allowed, and no job that could have started was left."""
        new = check_reads.events(tx, self.last_seq)
        started = check_reads.started(tx, self.last_seq)
        self.events += new
        broken = [*numbered(new, self.events), *self._endless(new)]
        at = asyncio.get_running_loop().time()
        broken += self.elapsed.committed(tx, new, now, at)
        facts = self._facts(tx, now)
        # A slow commit comes long after its transaction has read the clock.
        begun = at - (now - max([event.timestamp for event in new], default=now)) / SECOND
        broken += self._judge_starts(tx, facts, started, begun, now / SECOND - at)
        broken += self._loaded.committed(tx, at, now)
        if self._devices and is_dispatching:
            broken += settings_oracle.wrong_devices(tx, self._devices, self._needs)
        broken += self._unheard(facts, started, new)
        # After so many starts, the next commit starts the rest.
        if is_dispatching and len(started) < dispatcher.MOST_STARTS and not self._is_full(facts):
            broken += idle(facts)
        if not new:  # A changed schedule stores no event.
            self._remember(tx)
        else:
            broken += self._judge_settings(tx, facts, new)
            broken += self.orders.committed(tx, new)
            for event in new:
                if event.type == "job_cancel_requested" and json.loads(event.details)["mode"] == "interrupt":
                    self.interrupted_at.setdefault(event.run_id or "", event.timestamp)
        return broken

    def _unheard(self, facts: "DispatchFacts", started: list[Waiting], new: list[Told]) -> Iterator[Broken]:
        """Finds jobs that have become ready without an event that reports it."""
        heard = {event.job_id for event in new if event.type in ("job_queued", "job_ready")}
        ready = {one.job_id for one in facts.ready}
        for job_id in sorted((ready | {one.job_id for one in started}) - self._ready - heard):
            yield Broken("a job that becomes ready is told of", job_id)
        self._ready = ready

    def _is_full(self, facts: "DispatchFacts") -> bool:
        """Returns whether the node has no free slot."""
        return 0 < self._most_running <= facts.running

    def _judge_settings(self, tx: Tx, facts: "DispatchFacts", new: list[Told]) -> Iterator[Broken]:
        before, cron_settings, busy = self._settings, self._cron_settings, self._busy
        self._remember(tx)
        yield from schedule_oracle.misfired(new, cron_settings, busy)
        yield from settings_oracle.wrong_limits(self._settings.offices, facts.capacities, self._limits)
        retries = {json.loads(event.details)["retry"] for event in new if event.type == "job_retrying"}
        roots = {event.job_id for event in new if event.job_id is not None} - retries
        yield from settings_oracle.in_archived_offices(before, self._settings, new, roots)
        yield from settings_oracle.unannounced(tx, before, self._settings, new)
        if 0 < self._most_running < facts.running:
            yield Broken("a node runs no more than it may", f"{facts.running} of {self._most_running}")

    def _endless(self, new: list[Told]) -> Iterator[Broken]:
        """Finds an endless chain of retries before it fills the history."""
        for event in new:
            if event.type == "job_retrying" and event.job_id is not None:
                length = self._lengths[json.loads(event.details)["retry"]] = self._lengths.get(event.job_id, 1) + 1
                if length > LONGEST_CHAIN:
                    yield Broken("retries are as many as agreed (DEC-007)", f"a chain of {length} with {event.job_id}")

    def _facts(self, tx: Tx, now: int) -> "DispatchFacts":
        running = check_reads.running_lanes(tx)
        callers = check_reads.callers(tx)
        ready = check_reads.ready(tx)
        lanes = {*running, *(one.lane_id for one in callers), *(one.lane_id for one in ready)}
        if not lanes <= self._needs.keys():
            self._needs = check_reads.needs(tx)
        used: Counter[str] = Counter()
        for lane_id in [*running, *(one.lane_id for one in callers if one.status == "RUNNING")]:
            used.update(self._needs[lane_id].units)
        return DispatchFacts(
            now,
            used,
            check_reads.capacities(tx),
            check_reads.pauses(tx),
            check_reads.held(tx),
            callers,
            ready,
            self._needs,
            self._starvation_us,
            sum(ENGINE not in self._needs[lane_id].resources for lane_id in running)
            + sum(one.status == "RUNNING" for one in callers),
            check_reads.used_up(tx),
            rates_oracle.used_up(tx, self._limits[-1], now),
        )

    def _judge_starts(
        self, tx: Tx, facts: "DispatchFacts", started: list[Waiting], at: float, offset: float
    ) -> Iterator[Broken]:
        """Replays the starts of a transaction one by one, each with the usage at that moment. The transaction began at
        a time of the loop; the wall clock is ahead of it by the offset.
        """
        used = Counter(facts.used)
        for one in started:
            used.subtract(facts.needs[one.lane_id].units)
        new_callers = [
            one for one in facts.callers if one.status == "RUNNING" and one.run_id not in self._running_callers
        ]
        self._running_callers = {one.run_id for one in facts.callers if one.status == "RUNNING"}
        for caller in new_callers:
            used.subtract(facts.needs[caller.lane_id].units)
        yield from _out_of_turn(facts, new_callers)
        begun = [*((one.run_id, one.lane_id) for one in new_callers), *((one.job_id, one.lane_id) for one in started)]
        yield from self._buckets.committed(tx, facts.needs, begun, at, offset)
        for caller in new_callers:
            yield from _over_limit(facts, used, facts.needs[caller.lane_id].units, f"direct {caller.run_id}")
            if used_up := facts.needs[caller.lane_id].resources & facts.used_up:
                yield Broken("nothing starts before its quota is renewed", f"{caller.run_id} with {sorted(used_up)}")
            used.update(facts.needs[caller.lane_id].units)
            self._loaded.starts(facts.needs[caller.lane_id])
        for number, one in enumerate(started):
            needs = facts.needs[one.lane_id]
            yield from _over_limit(facts, used, needs.units, f"job {one.job_id}")
            yield from held_back(facts, one, needs)
            if used_up := needs.resources & facts.used_up:
                yield Broken("nothing starts before its quota is renewed", f"job {one.job_id} with {sorted(used_up)}")
            yield from ahead_of_starving(facts, used, one, started)
            yield from self._judge_order(facts, used, one, [*facts.ready, *started[number + 1 :]], at)
            used.update(needs.units)
            self._loaded.starts(needs)
            self._last_served[one.office_id] = max(self._last_served.values(), default=0) + 1

    def _judge_order(
        self, facts: "DispatchFacts", used: Counter[str], one: Waiting, others: list[Waiting], at: float
    ) -> Iterator[Broken]:
        """Finds starts out of order, except those of jobs that need what their resource has loaded."""
        if facts.has_starving or _is_starving(facts, one):
            return
        needs, fitting = facts.needs, fitting_beside(facts, used, others)
        yield from self._loaded.left_out(needs[one.lane_id], [(it.job_id, needs[it.lane_id]) for it in fitting], at)
        broken = list(out_of_order(one, fitting, self._last_served))
        if not broken:
            return
        # The last start of a rate, or the probe of a resource: what it passed looks held back afterwards.
        own, none = needs[one.lane_id], frozenset[str]()
        befores = [
            facts._replace(rated=facts.rated - rated, held=facts.held - held)
            for rated in (none, own.units.keys(), facts.rated)
            for held in (none, own.resources)
        ]
        candidates = [
            one for before in befores for one in first_in_turn(fitting_beside(before, used, others), self._last_served)
        ]
        first = [needs[it.lane_id] for it in candidates]
        if not self._loaded.lets_pass(needs[one.lane_id], first, at):
            yield from broken

    def _serve_order(self, events: list[Told]) -> None:
        self._last_served = {
            event.office_id: event.seq
            for event in events
            if event.type == "job_started" and event.office_id is not None
        }


class DispatchFacts(NamedTuple):
    """The facts that decide about the next start, read directly from the tables."""

    now: int
    used: Counter[str]
    capacities: dict[str, int]
    pauses: set[tuple[str, str]]
    held: set[str]
    callers: list[WaitingCaller]
    ready: list[Waiting]
    needs: Mapping[int, LaneNeeds]
    starvation_us: int
    running: int
    # The resources whose quota is used up.
    used_up: Set[str] = frozenset()
    # The limits whose rate is used up.
    rated: Set[str] = frozenset()

    @property
    def has_starving(self) -> bool:
        """Returns whether units are kept free for a job that was passed over for long: then others may have to wait."""
        return any(_is_starving(self, one) for one in self.ready)

    def kept_back(self) -> Counter[str]:
        """Returns, for each office, the units that waiting direct callers with a reservation keep free."""
        kept: Counter[str] = Counter()
        for one in self.callers:
            if one.status != "WAITING" or not one.is_holder or self.needs[one.lane_id].resources & self.held:
                continue
            if self.rated.isdisjoint(self.needs[one.lane_id].units):
                kept.update(self.needs[one.lane_id].units)
        return kept

    def may_go(self, one: Waiting) -> bool:
        """Returns whether only order and limits can hold a job back: there is no pause, direct caller or outage in its
        way.
        """
        needs = self.needs[one.lane_id]
        return not (
            ("scheduler", "") in self.pauses
            or ("office", one.office_id) in self.pauses
            or ("type", needs.job_type) in self.pauses
            or any(("resource", name) in self.pauses or name in self.held for name in needs.resources)
            or not self.rated.isdisjoint(needs.units)
            or self.waits_behind_caller(one)
        )

    def waits_behind_caller(self, one: Waiting) -> bool:
        """Returns whether a direct caller of the job's office waits and shares a limit with the job (DEC-004)."""
        limits = {key for key in self.needs[one.lane_id].units if self.capacities[key]}
        return any(
            not limits.isdisjoint(self.needs[caller.lane_id].units)
            for caller in self.callers
            if caller.office_id == one.office_id and caller.status == "WAITING"
        )

    def fits(self, used: Counter[str], units: Mapping[str, int]) -> bool:
        return all(
            self.capacities[key] == 0 or used[key] + count <= self.capacities[key] for key, count in units.items()
        )


def _is_starving(facts: DispatchFacts, one: Waiting) -> bool:
    return one.passed_over_since is not None and one.passed_over_since <= facts.now - facts.starvation_us


def _over_limit(facts: DispatchFacts, used: Counter[str], units: Mapping[str, int], what: str) -> Iterator[Broken]:
    for key, count in units.items():
        if facts.capacities[key] and used[key] + count > facts.capacities[key]:
            how = f"{what} was started with {used[key]} of {facts.capacities[key]} units of {key} in use"
            yield Broken("limits hold at every instant", how)


def _out_of_turn(facts: DispatchFacts, started: Sequence[WaitingCaller]) -> Iterator[Broken]:
    """Finds callers that started before an earlier caller of the same lane; `facts` lists callers in the order of
    arrival.
    """
    for caller in started:
        earlier = facts.callers[: facts.callers.index(caller)]
        if any(one.lane_id == caller.lane_id and one.status == "WAITING" for one in earlier):
            yield Broken("direct callers of one kind are served as they come (DEC-004)", caller.run_id)


def held_back(facts: DispatchFacts, one: Waiting, needs: LaneNeeds) -> Iterator[Broken]:
    """Finds started jobs that a pause or a waiting direct caller should have held back."""
    if ("scheduler", "") in facts.pauses or ("office", one.office_id) in facts.pauses:
        yield Broken("what is paused does not start", f"job {one.job_id} in {one.office_id}")
    if ("type", needs.job_type) in facts.pauses or any(("resource", name) in facts.pauses for name in needs.resources):
        yield Broken("what is paused does not start", f"job {one.job_id} of type {needs.job_type}")
    if facts.waits_behind_caller(one):
        yield Broken("direct requests come first (DEC-004)", f"job {one.job_id} started while a caller waited")


def fitting_beside(facts: DispatchFacts, used: Counter[str], others: list[Waiting]) -> list[Waiting]:
    """Returns the jobs that could have started instead."""
    taken = used + facts.kept_back()
    return [one for one in others if facts.may_go(one) and facts.fits(taken, facts.needs[one.lane_id].units)]


def first_in_turn(fitting: list[Waiting], last_served: dict[str, int]) -> list[Waiting]:
    """Returns the first fitting job of each of the offices that were served longest ago."""
    first: dict[str, Waiting] = {}
    for one in sorted(fitting, key=lambda one: one.place, reverse=True):
        first[one.office_id] = one
    earliest = min((last_served.get(office_id, 0) for office_id in first), default=0)
    return [one for office_id, one in first.items() if last_served.get(office_id, 0) == earliest]


def out_of_order(one: Waiting, fitting: list[Waiting], last_served: dict[str, int]) -> Iterator[Broken]:
    """Finds violations of the order (INV-004, and turns between offices): another job that also fitted was first in
    order.
    """
    for other in fitting:
        if other.office_id == one.office_id and other.place < one.place:
            yield Broken("jobs start in the queue's order (INV-004)", f"{one.job_id} before {other.job_id}")
        mine, theirs = last_served.get(one.office_id, 0), last_served.get(other.office_id, 0)
        if other.office_id != one.office_id and theirs < mine:
            yield Broken("offices are served in turn", f"{one.office_id} again, and {other.office_id} waits longer")


def ahead_of_starving(
    facts: DispatchFacts, used: Counter[str], one: Waiting, started: list[Waiting]
) -> Iterator[Broken]:
    """Finds starts that took units kept for a job that was passed over."""
    if _is_starving(facts, one):
        return
    served = {other.office_id for other in started if _is_starving(facts, other)}
    first: dict[str, Waiting] = {}
    for other in facts.ready:
        if not _is_starving(facts, other) or not facts.may_go(other) or other.office_id in served:
            continue
        if other.office_id not in first or other.place < first[other.office_id].place:
            first[other.office_id] = other
    for other in first.values():
        units = facts.needs[other.lane_id].units
        if facts.fits(Counter(), units) and not facts.fits(used + Counter(units), facts.needs[one.lane_id].units):
            yield Broken("a job that was passed over for long goes first", f"{one.job_id} before {other.job_id}")


def idle(facts: DispatchFacts) -> Iterator[Broken]:
    """Finds jobs that a commit left waiting although order, limits and pauses allowed their start."""
    if facts.has_starving:
        return
    taken = facts.used + facts.kept_back()
    for one in facts.ready:
        if facts.may_go(one) and facts.fits(taken, facts.needs[one.lane_id].units):
            yield Broken("what can run does run", f"job {one.job_id} in {one.office_id} is ready, and there is room")
    waited_for: dict[str, set[str]] = {}
    for caller in facts.callers:
        units = facts.needs[caller.lane_id].units
        if caller.status != "WAITING" or facts.needs[caller.lane_id].resources & facts.held:
            continue
        if not facts.rated.isdisjoint(units):
            continue
        earlier = waited_for.setdefault(caller.office_id, set())
        others = taken - Counter(units) if caller.is_holder else taken
        full = {key for key, count in units.items() if not facts.fits(others, {key: count})}
        if not full and earlier.isdisjoint(units):
            yield Broken("a caller with room starts at once (spec 11.13)", f"{caller.run_id} waits, and there is room")
        earlier |= full


def numbered(new: list[Told], events: list[Told]) -> Iterator[Broken]:
    """Finds gaps and repetitions in the numbers of events."""
    before = events[-len(new) - 1].seq if len(events) > len(new) else 0
    for event in new:
        if before and event.seq != before + 1:
            yield Broken("events are complete and in order", f"{event.seq} follows {before}")
        before = event.seq


def examined(tx: Tx) -> list[Broken]:
    """Returns the findings of `nextslot doctor`."""
    return [Broken(finding.check, finding.problem) for finding in doctor.examine(tx)]


# When all work is done.


def timed_out_early(events: list[Told], took: Mapping[str, float]) -> Iterator[Broken]:
    """Finds runs that timed out too early, whatever the wall clock did. `took` has the real duration of each run in
    seconds.
    """
    for event in events:
        limit = re.search(r"timed out after ([\d.]+) seconds", event.details) if event.type == "job_timeout" else None
        seconds = took.get(event.run_id or "")
        if limit is not None and seconds is not None and seconds < float(limit[1]) - NO_STEP_SECONDS:
            how = f"run {event.run_id} had {limit[1]} seconds, and was ended after {seconds:.3f}"
            yield Broken("a timeout lasts its seconds", how)


def unfinished(
    tx: Tx,
    now: int,
    affinity_waits: Mapping[str, float] | None = None,
    caller_keys: Mapping[tuple[str, str], list[str]] | None = None,
) -> Iterator[Broken]:
    """Finds what still runs, waits, is reserved or must be sent, except what can never continue."""
    facts = check_reads.jobs(tx)
    yield from settings_oracle.forsaken(tx, facts)
    yield from settings_oracle.expired_and_started(facts)
    yield from settings_oracle.in_wrong_lanes(tx, affinity_waits or {}, caller_keys or {})
    stuck = {job.job_id: job for job in facts.values() if job.stage == "QUEUED"}
    for job in facts.values():
        if job.stage == "RUNNING" and job.finished_at is None:
            yield Broken("nothing runs for ever", f"job {job.job_id} since {job.started_at}")
    for caller in check_reads.callers(tx):
        yield Broken("every direct request gets its answer", f"{caller.run_id} is {caller.status}")
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
        elif job.is_awaiting and job.unmet == 1:
            if job.answer_by is not None or (job.is_turn and job.asked_at is None):
                yield Broken(law, f"job {job.job_id} waits for an answer by {job.answer_by}, asked at {job.asked_at}")
        elif job.unmet:
            open_ = [chain_id for job_id, chain_id in waits if job_id == job.job_id]
            if not any(ends[chain_id].job_id in stuck or ends[chain_id].outcome not in SUCCEEDED for chain_id in open_):
                yield Broken(law, f"job {job.job_id} waits for dependencies that have succeeded")
        elif not job.is_turn:
            if not any(group_id == job.group_id and (place or 0) < (job.sequence or 0) for group_id, place in in_group):
                yield Broken(law, f"job {job.job_id} waits for its turn, but no other member has the turn")
        else:
            units = needs[job.lane_id].units
            if all(capacities[key] == 0 or count <= capacities[key] for key, count in units.items()):
                yield Broken(law, f"job {job.job_id} is ready, nothing runs, and it does not start")


def _ends(facts: dict[str, JobFacts]) -> dict[str, JobFacts]:
    """Returns the last job of each chain."""
    followed = {job.retry_of for job in facts.values()}
    return {job.chain_id: job for job in facts.values() if job.job_id not in followed}


def stopped_in_vain(tx: Tx, stopped: set[str]) -> Iterator[Broken]:
    """Finds runs that were told to stop but did not end as failures, whatever their handlers returned (spec 5.10)."""
    for job in check_reads.jobs(tx).values():
        if job.run_id in stopped and job.outcome != "FAILED":
            yield Broken("a run that was stopped is a failure", f"run {job.run_id} is {job.outcome}")


def stalled_wrongly(events: list[Told], reporting: set[str]) -> Iterator[Broken]:
    for event in events:
        if event.type == "job_timeout" and event.run_id in reporting and "no progress" in event.details:
            yield Broken("a run that reports progress does not stall", str(event.run_id))


def miscounted_failures(tx: Tx, has_purged: bool) -> Iterator[Broken]:
    """Compares the failures that are counted by fingerprint with the jobs, by office, type and kind."""
    counted, failed = check_reads.failures(tx)
    if counted != failed and not has_purged:
        yield Broken("each failure is counted once", f"counted {counted - failed}, and there are {failed - counted}")


def misretried(tx: Tx, events: list[Told]) -> Iterator[Broken]:
    """Checks DEC-007 from the failures alone: the number of retries and the delay of each one."""
    facts = check_reads.jobs(tx)
    retry_details = {event.job_id: json.loads(event.details) for event in events if event.type == "job_retrying"}
    for job in facts.values():
        if job.outcome != "FAILED" or job.stage == "CANCELLED":
            continue
        kinds = _failures(facts, job)
        policy = json.loads(job.retry_policy)
        number, most = _counted(kinds), policy["max_attempts"]
        kind = kinds[-1]
        if kind == "parked":
            if (job.decision == "retry") != (job.cancel_mode is None):
                yield Broken("a parked session goes on", f"{job.job_id}: {job.decision}")
            continue
        is_allowed = kind == "quota" or policy["retry_on"] is None or kind in policy["retry_on"]
        may = kind not in NOT_RETRIED and is_allowed
        is_culprit = kind == "crash" and _lone_crashes(facts, job) >= 2
        should = may and most > 0 and number <= most and job.cancel_mode is None and not is_culprit
        if should != (job.decision == "retry"):
            yield Broken("retries are as many as agreed (DEC-007)", f"{job.job_id}: {kinds}, {job.decision}, {most}")
        delay = retry_details.get(job.job_id, {}).get("delay_seconds")
        if kind == "quota" and delay is not None and delay >= 1:
            continue  # The delay follows the time that the provider named.
        if job.decision == "retry" and delay is not None and delay != _delay(policy, number, kind):
            yield Broken("retries come after the delay agreed", f"{job.job_id}: {delay}")


def _failures(facts: dict[str, JobFacts], job: JobFacts) -> list[str]:
    """Returns the failure kinds of a chain's jobs up to this one."""
    kinds = []
    at: JobFacts | None = job
    while at is not None:
        # A job that was cancelled before it ran, and then retried by hand, counts like any other.
        kinds.append(at.failure_kind or "error")
        at = facts.get(at.retry_of) if at.retry_of is not None else None
    return kinds[::-1]


def _lone_crashes(facts: dict[str, JobFacts], job: JobFacts) -> int:
    """Returns how often in a row the scheduler died while only this chain ran inside its process."""
    count, at = 0, facts.get(job.job_id)
    while at is not None and at.failure_kind == "crash":
        count += at.beside == 0
        at = facts.get(at.retry_of) if at.retry_of is not None else None
    return count


def _counted(kinds: list[str]) -> int:
    """Counts the failures that use up retries. A used-up quota does not, nor a parked session, nor the first four
    interruptions in a row.
    """
    counted = streak = 0
    for kind in kinds:
        streak = streak + 1 if kind == "interrupted" else 0
        counted += kind not in ("quota", "parked") and (streak == 0 or streak > 4)
    return counted


def _delay(policy: Mapping[str, Any], number: int, kind: str) -> float:
    if kind in AT_ONCE:
        return 0.0
    base = policy["base_delay_seconds"]
    delay = base * number if policy["backoff"] == "linear" else base * 2 ** (number - 1)
    longest = policy["max_delay_seconds"]
    return float(delay if longest is None else min(delay, longest))


def unaccounted(tx: Tx, has_purged: bool) -> Iterator[Broken]:
    """Checks that every instant of a schedule up to the accounted time is stored as an occurrence exactly once."""
    law = "every occurrence is accounted for, once"
    zones = {schedule_id: plan.timezone for schedule_id, plan in check_reads.cron_settings(tx).items()}
    for plan in check_reads.schedules(tx):
        every = _minutes_between(plan.cron_expression)
        if every is None:
            continue
        shift = SHIFTS[zones[plan.schedule_id]] % every
        covered: Counter[int] = Counter()
        for instant, until, count, _ in check_reads.ledger(tx, plan.schedule_id):
            span = range(instant, (until or instant) + 1, every)
            if len(span) != count:
                yield Broken(law, f"{plan.schedule_id} has a span of {count} that covers {len(span)}")
            covered.update(span)
        first = ((plan.created_at - shift) // every + 1) * every + shift
        end = plan.accounted_until if plan.enabled else max(covered, default=0)
        missing = [at for at in range(first, end + 1, every) if not covered[at] and not has_purged]
        if missing or any(times > 1 or at % every != shift for at, times in covered.items()):
            yield Broken(law, f"{plan.schedule_id}: {missing[:3]} missing, of {len(covered)}")


def fired_twice(events: list[Told]) -> Iterator[Broken]:
    fired = Counter(event.details for event in events if event.type == "schedule_fired")
    for details, times in fired.items():
        if times > 1:
            yield Broken("every occurrence is accounted for, once", f"{details} has {times} events")


def _minutes_between(cron: str) -> int | None:
    """Returns the microseconds between occurrences of `*/n * * * *` in UTC; None for other expressions, which are not
    checked.
    """
    fields = cron.split()
    if fields[1:] != ["*"] * 4 or not fields[0].startswith("*/") or 60 % int(fields[0][2:]):
        return None
    return int(fields[0][2:]) * MINUTE


def undelivered(tx: Tx, received: set[str], seen: set[str], has_purged: bool) -> Iterator[Broken]:
    """Checks that the endpoint received every message marked as delivered, and that no delivery vanishes too early."""
    messages = {message.delivery_id: message for message in check_reads.messages(tx)}
    for delivery_id, message in messages.items():
        if message.status == "DELIVERED" and delivery_id not in received:
            yield Broken("webhooks are delivered at least once", f"no endpoint has received {delivery_id}")
    if has_purged:
        return
    for delivery_id in seen - messages.keys():
        yield Broken("no delivery is lost", delivery_id)
    own = Counter(message.job_id for message in messages.values() if message.is_own)
    for job in check_reads.jobs(tx).values():
        is_told = job.outcome is not None and job.stage != "CANCELLED" and job.failure_kind != "parked"
        if job.has_webhook and is_told and not own[job.job_id]:
            yield Broken("the end of a run is sent to its webhook", job.job_id)


# The types of log entries to which the messages of each webhook event may belong.
MESSAGES = {
    "job.run.completed": {"job_completed"},
    "job.run.failed": {"job_failed", "job_timeout", "job_cancelled"},
    "job.run.skipped": {"job_skipped"},
    "job.failed_permanently": {"job_failed_permanently"},
    "job.cancelled": {"job_cancelled"},
    "group.finished": {"group_finished"},
    "schedule.skipped": {"schedule_skipped"},
}


def wrong_messages(tx: Tx, events: list[Told], contents: Iterable[Mapping[str, Any]]) -> Iterator[Broken]:
    """Compares each received message with the event that has its number, and with the chain of its job."""
    law = "a message says what has happened"
    by_number, facts = {event.seq: event for event in events}, check_reads.jobs(tx)
    for content in contents:
        event, job = by_number.get(content.get("seq", 0)), content.get("job")
        wanted = MESSAGES.get(content.get("event", ""))
        if wanted is None or event is None or (job is not None and "job_id" not in job):
            continue  # The message has another format, or its event was purged.
        if event.type not in wanted or (job is not None and event.job_id != job["job_id"]):
            yield Broken(law, f"{content['event']} has the number of {event}")
        if job is not None and job["job_id"] in facts and "attempt" in job:
            place = len(_failures(facts, facts[job["job_id"]]))
            if job["attempt"] != place and facts[job["job_id"]].chain_id in facts:
                yield Broken(law, f"attempt {job['attempt']} of {job['job_id']}, which is number {place} of its chain")
