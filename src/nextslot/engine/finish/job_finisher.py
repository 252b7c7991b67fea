"""JobFinisher: ends jobs in every way (finish, cancel, expire, skip), with all that follows, in one transaction.

The run, the job, its retry, its dependents, its group and the events are stored together, so a crash comes before or
after all of it. Each ending is fenced: a job that has ended already is not changed, and the caller learns that.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from nextslot.domain import (
    CancelMode,
    ChainEnd,
    Decision,
    FailureKind,
    Job,
    JobStatus,
    Outcome,
    Run,
    RunStatus,
    Stage,
)
from nextslot.domain.fingerprints import Fingerprint, fingerprint
from nextslot.domain.group_failure import Action
from nextslot.domain.job_lifecycle import (
    Cancellation,
    Settlement,
    cancel,
    event_of,
    settle,
)
from nextslot.domain.retry import ChainRun, lone_crashes
from nextslot.domain.rollups import JOB, RollupKey
from nextslot.domain.runs import OutcomeFields
from nextslot.domain.signals import MOST_PARKS
from nextslot.domain.webhook_delivery import run_events
from nextslot.engine.dispatch.resource_outages import Outages
from nextslot.engine.effects import ChainEnded, Stop
from nextslot.engine.engine_context import EngineContext
from nextslot.errors import AlreadyFinished, NotFound
from nextslot.store.contract import ALL, Tx
from nextslot.store.tables import (
    groups,
    jobs,
    offices,
    placements,
    runs,
    search,
)
from nextslot.store.tables.jobs import EndingFacts
from nextslot.store.tables.lanes import LaneTally
from nextslot.system.instant import Instant

from .dependents import DependencyResolver
from .group_progress import GroupProgress
from .retries import RetryController

# The cancel of a larger group is split into transactions with this many members: each takes some 20 ms.
SLICE = 100

EXPIRED = "expired"
PREDECESSOR_FAILED = "predecessor failed"
DEPENDENCY_FAILED = "dependency failed"

# The webhook events beside those of the ends of runs. The last one is for the formats of extensions only.
FAILED_PERMANENTLY = ("job.failed_permanently",)
CANCELLED_UNSTARTED = ("job.cancelled",)
LAST_FAILED = ("chain.failed",)


class _Ended(NamedTuple):
    """A chain that has ended, before its dependents and its group are updated."""

    chain_id: str
    lane_id: int
    group_id: str | None
    sequence: int | None
    end: ChainEnd
    by_request: bool = False
    # Microseconds from its first start to its completion; None if it was skipped or did not succeed.
    completion_us: int | None = None
    # The name under which the statistics count the end, if it is not that of `end`.
    counts_as: ChainEnd | None = None
    # Whether another job may depend on it.
    has_dependents: bool = True


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The job after a cancel request, and what the request did."""

    job: Job
    cancellation: Cancellation

    @staticmethod
    def of(job: Job) -> "Cancelled":
        """Returns what the cancel did, given the job afterwards."""
        if job.stage is Stage.CANCELLED:
            return Cancelled(job, Cancellation.CANCELLED)
        is_stop = job.cancel_mode is CancelMode.INTERRUPT
        return Cancelled(job, Cancellation.STOPPING if is_stop else Cancellation.FINISHING)


class JobFinisher:
    def __init__(
        self,
        engine: EngineContext,
        retries: RetryController,
        dependencies: DependencyResolver,
        groups_: GroupProgress,
        outages: Outages,
    ) -> None:
        self._chance = engine.chance
        self._lanes = engine.lanes
        self._rollups = engine.rollups
        self._workers = engine.workers
        self._retries = retries
        self._dependencies = dependencies
        self._groups = groups_
        self._outages = outages
        self._events = engine.events
        self._timer = engine.timer
        self._webhooks = engine.webhooks

    # A run ends.

    def finish(
        self, tx: Tx, run_id: str, job_id: str, outcome: Outcome, now: Instant, waited_us: int = 0
    ) -> Settlement | None:
        """Stores an outcome that has waited `waited_us`, and what follows. Returns None if the run had ended."""
        facts = jobs.ending_facts(tx, run_id, job_id)
        if facts is None:
            return None
        outcome = self._as_parked(tx, run_id, job_id, facts, outcome)
        has_history = outcome.status is RunStatus.FAILED and facts.retry_of is not None
        lane = self._lanes.lane(tx, facts.lane_id)
        says_something = lane.resources or outcome.failure_kind is FailureKind.QUOTA
        quota_until = self._outages.after_run(tx, lane, outcome, now) if says_something else None
        settlement = settle(
            facts.retry_policy,
            facts.cancel_mode,
            outcome,
            jobs.failures_before(tx, facts.chain_id, job_id) if has_history else (),
            self._chance.fraction() if outcome.status is RunStatus.FAILED else 0.0,
            _lone_crashes(tx, facts.chain_id, job_id, outcome),
            None if quota_until is None else (quota_until - now) / 1_000_000,
        )
        is_cancelled = settlement.stage is Stage.CANCELLED
        # A cancelled job ends now, because the cancel request may be newer than the end of the work.
        finished_at = now if is_cancelled else _before(now, waited_us, facts.started_at)
        began_at = facts.began_at
        if outcome.worked_seconds is not None:
            began_at = max(facts.started_at, finished_at.after(-outcome.worked_seconds))
            placements.worked(tx, run_id, began_at)
        runs.finish(tx, run_id, job_id, settlement.outcome, finished_at)
        self._end_job(tx, job_id, facts.office_id, lane.job_type, settlement, finished_at)
        self._workers.free(tx, facts.worker_id, lane)
        self._lanes.counters(tx).give_back(lane)
        self._lanes.counters(tx).use_tokens(lane, outcome)
        self._lanes.counters(tx).tally(facts.lane_id).running -= 1
        began = None if facts.worker_id is None else began_at
        status = JobStatus.CANCELLED if is_cancelled else settlement.outcome.status
        key = RollupKey(facts.office_id, lane.job_type, JOB, status.value)
        self._rollups.note(tx, key, facts.free_at, began, finished_at)
        self._events.note(tx, settlement.event_type, now, facts.office_id, job_id, run_id, _details(settlement.outcome))
        is_parked = settlement.decision is Decision.RETRY and settlement.outcome.failure_kind is FailureKind.PARKED
        is_last = settlement.retry is None
        told = () if is_parked else run_events(settlement.outcome.status, is_cancelled, is_last)
        self._webhooks.job_changed(tx, job_id, facts.office_id, facts.has_webhook, told, now)
        ended = _Ended(
            facts.chain_id,
            facts.lane_id,
            facts.group_id,
            facts.sequence,
            settlement.chain_end or ChainEnd.FAILED,
            by_request=is_cancelled,
            completion_us=self._completion_us(tx, facts, settlement.outcome.status, finished_at),
            has_dependents=facts.has_dependents,
        )
        self._follow_up(tx, job_id, facts.office_id, facts.has_webhook, settlement, ended, now)
        return settlement

    def _as_parked(self, tx: Tx, run_id: str, job_id: str, facts: EndingFacts, outcome: Outcome) -> Outcome:
        """Parks a run that has asked for a signal, however it ended, unless it was cancelled. Stores what it waits
        for.
        """
        wait = outcome.park or facts.park
        if wait is None or facts.cancel_mode is not None or outcome.failure_kind is FailureKind.CANCELLED:
            return outcome if outcome.failure_kind is not FailureKind.PARKED or wait is not None else _unparked(outcome)
        if facts.retry_of is not None and _parks(tx, facts.chain_id, job_id) >= MOST_PARKS:
            return Outcome.failed(FailureKind.INVALID, f"its chain has parked {MOST_PARKS:,} times; submit a new job")
        if facts.park != wait:
            runs.park(tx, run_id, wait)
        if outcome.failure_kind is FailureKind.PARKED:
            return outcome
        parked = Outcome.parked(wait)
        ended = f"; it ended with {outcome.failure_kind}: {outcome.error}" if outcome.error else ""
        return replace(
            outcome, status=parked.status, failure_kind=parked.failure_kind, error=f"{parked.error}{ended}", park=wait
        )

    def close(self, tx: Tx, job: Job, run: Run, status: RunStatus, now: Instant) -> None:
        """Ends a RUNNING job whose run has ended already (spec 15.2). `decide` then decides about a failure."""
        is_failed = status is RunStatus.FAILED
        error = self._note_failure(tx, job.job_id, job.office_id, job.job_type, run, now) if is_failed else None
        jobs.close_with_run(tx, job.job_id, status, error, now)
        lane = self._lanes.lane(tx, job.lane_id)
        self._workers.free(tx, job.worker_id, lane)
        self._lanes.counters(tx).give_back(lane)
        self._lanes.counters(tx).tally(job.lane_id).running -= 1
        self._note_end(tx, job, status, None if job.worker_id is None else run.began_at or job.started_at, now)
        self._events.note(tx, event_of(status, run.failure_kind), now, job.office_id, job.job_id, run.run_id)
        self._tell(tx, job, run_events(status, False, is_last=status is not RunStatus.FAILED), now)
        if status is not RunStatus.FAILED:
            completion_us = self._completion_us(tx, job, status, now)
            self._conclude(tx, [_ended(job, ChainEnd.SUCCEEDED)._replace(completion_us=completion_us)], now)

    def _completion_us(self, tx: Tx, ended: EndingFacts | Job, status: RunStatus, now: Instant) -> int | None:
        """Returns the duration of a chain that completes now, including the waits between its attempts."""
        if status is not RunStatus.COMPLETED:
            return None
        began = ended.started_at if ended.retry_of is None else jobs.first_start(tx, ended.chain_id)
        return 0 if began is None else max(now - began, 0)

    def decide(self, tx: Tx, job: Job, now: Instant) -> None:
        """Makes the missing retry decision after a failure (spec 6.6). Safe to repeat."""
        run = runs.of_job(tx, job.job_id)
        assert run is not None
        outcome = replace(Outcome.failed(run.failure_kind or FailureKind.ERROR, run.error or ""), park=run.park)
        settlement = settle(
            job.retry_policy,
            job.cancel_mode,
            outcome,
            jobs.failures_before(tx, job.chain_id, job.job_id),
            self._chance.fraction(),
            _lone_crashes(tx, job.chain_id, job.job_id, outcome),
        )
        if settlement.decision is not None and jobs.decide(tx, job.job_id, settlement.decision):
            ended = _ended(job, settlement.chain_end or ChainEnd.FAILED)._replace(counts_as=ChainEnd.FAILED)
            self._follow_up(tx, job.job_id, job.office_id, job.webhook is not None, settlement, ended, now)
            if settlement.retry is None:
                self._tell(tx, job, LAST_FAILED, now)

    def _end_job(
        self, tx: Tx, job_id: str, office_id: str, job_type: str, settlement: Settlement, now: Instant
    ) -> None:
        if settlement.stage is Stage.CANCELLED:
            jobs.stop(tx, job_id, now)
        elif settlement.decision is not None:
            error = self._note_failure(tx, job_id, office_id, job_type, settlement.outcome, now)
            jobs.fail(tx, job_id, settlement.decision, error, now)
        else:
            jobs.succeed(tx, job_id, settlement.outcome.status, now)

    def _note_failure(
        self, tx: Tx, job_id: str, office_id: str, job_type: str, outcome: OutcomeFields, now: Instant
    ) -> Fingerprint:
        """Counts a failure by its fingerprint, and makes its error known to the search."""
        kind = outcome.failure_kind or FailureKind.ERROR
        found = fingerprint(office_id, job_type, kind, outcome.error)
        # A session that waits for a signal goes on; it did not fail.
        if kind is not FailureKind.PARKED:
            self._rollups.note_failure(tx, office_id, job_type, kind, found, now)
        if found.line:
            search.add_error(tx, job_id, found.line)
        return found

    def _follow_up(
        self,
        tx: Tx,
        job_id: str,
        office_id: str,
        has_webhook: bool,
        settlement: Settlement,
        ended: _Ended,
        now: Instant,
    ) -> None:
        if settlement.retry is not None:
            failed = jobs.get(tx, job_id)
            assert failed is not None
            is_parked = settlement.outcome.failure_kind is FailureKind.PARKED
            self._retries.retry(tx, failed, settlement.retry, now, settlement.outcome.park if is_parked else None)
            return
        if settlement.decision is Decision.PERMANENT:
            self._events.note(
                tx, "job_failed_permanently", now, office_id, job_id, details=_details(settlement.outcome)
            )
            self._webhooks.job_changed(tx, job_id, office_id, has_webhook, FAILED_PERMANENTLY, now)
        self._conclude(tx, [ended], now)

    # A job ends without having run.

    def cancel(self, tx: Tx, job_id: str, reason: str | None, interrupt: bool | None, now: Instant) -> Cancelled:
        """Cancels a queued job at once; asks a running one to stop, or lets it finish without a retry (spec 7)."""
        job = jobs.get(tx, job_id)
        if job is None:
            raise NotFound("job", job_id)
        if job.has_ended:
            raise AlreadyFinished(f"job {job_id} is {job.status} since {job.finished_at}: there is nothing to cancel")
        return self.cancel_many(tx, [job], reason, interrupt, now)[0]

    def cancel_group(
        self, tx: Tx, group_id: str, reason: str | None, interrupt: bool | None, now: Instant
    ) -> list[Cancelled] | None:
        """Cancels every member that has not ended. Returns None if there are too many for one transaction;
        `cancel_some` then cancels them.
        """
        if groups.get(tx, group_id) is None:
            raise NotFound("group", group_id)
        live = jobs.live_members(tx, group_id, SLICE + 1)
        if len(live) <= SLICE:
            return self.cancel_many(tx, live, reason, interrupt, now)
        groups.request_cancel(tx, group_id, {"reason": reason, "interrupt": interrupt})
        self._timer.note(tx, now)
        return None

    def cancel_some(self, tx: Tx, now: Instant) -> bool:
        """Continues the cancel of a large group. Returns False if there is more to do.

        Cancels running members last, because otherwise other members would start in their place.
        """
        group = groups.to_cancel(tx)
        if group is None:
            return True
        assert group.cancel_request is not None
        some = jobs.queued_members(tx, group.group_id, SLICE)
        is_last = len(some) < SLICE
        if is_last:
            some = jobs.live_members(tx, group.group_id, ALL)
        self.cancel_many(tx, some, group.cancel_request["reason"], group.cancel_request["interrupt"], now)
        if is_last:
            groups.request_cancel(tx, group.group_id, None)
        return False

    def cancel_many(
        self, tx: Tx, live: Iterable[Job], reason: str | None, interrupt: bool | None, now: Instant
    ) -> list[Cancelled]:
        """Cancels jobs that have not ended, all with this reason: consequences follow only after the last one."""
        done: list[tuple[str, Cancellation]] = []
        ended: list[_Ended] = []
        modes: dict[str, CancelMode] = {}
        for job in live:
            if job.office_id not in modes:
                office = offices.get(tx, job.office_id)
                assert office is not None
                modes[job.office_id] = office.cancel_mode
            cancellation = cancel(job, interrupt, modes[job.office_id])
            if cancellation is Cancellation.CANCELLED:
                ended.append(self._cancel_queued(tx, job, reason, now, requested_at=now))
            else:
                self._request(tx, job, cancellation, reason, now)
            done.append((job.job_id, cancellation))
        self._conclude(tx, ended, now)
        changed = jobs.get_many(tx, [job_id for job_id, _ in done])
        return [Cancelled(changed[job_id], cancellation) for job_id, cancellation in done]

    def cancel_doomed(self, tx: Tx, job_ids: Iterable[str], now: Instant) -> None:
        """Cancels new jobs whose prerequisite has already failed."""
        doomed = jobs.get_many(tx, job_ids).values()
        self._conclude(tx, [self._cancel_queued(tx, job, DEPENDENCY_FAILED, now) for job in doomed], now)

    def reject(self, tx: Tx, job: Job, reason: str, now: Instant) -> None:
        """Cancels a queued job whose signal was answered with no."""
        self._conclude(tx, [self._cancel_queued(tx, job, reason, now, requested_at=now)], now)

    def fail_queued(self, tx: Tx, job: Job, error: str, now: Instant) -> None:
        """Ends a queued job as FAILED without a retry, with a run that starts and ends here, on no worker and under no
        limit.
        """
        run_id, outcome = self._chance.new_id(), Outcome.failed(FailureKind.DEPENDENCY, error)
        runs.begin(tx, run_id, job.job_id, now)
        jobs.start(tx, job.job_id, None, now)
        runs.finish(tx, run_id, job.job_id, outcome, now)
        failure = self._note_failure(tx, job.job_id, job.office_id, job.job_type, outcome, now)
        jobs.fail(tx, job.job_id, Decision.PERMANENT, failure, now)
        self._leaves_queue(tx, job)
        self._note_end(tx, job, RunStatus.FAILED, None, now)
        self._events.note(tx, "job_failed", now, job.office_id, job.job_id, run_id, _details(outcome))
        # Told before the next event: a message has the number of the event that it is about.
        self._tell(tx, job, run_events(RunStatus.FAILED, False, is_last=True), now)
        self._events.note(tx, "job_failed_permanently", now, job.office_id, job.job_id, details=_details(outcome))
        self._tell(tx, job, FAILED_PERMANENTLY, now)
        self._conclude(tx, [_ended(job, ChainEnd.FAILED)], now)

    def expire(self, tx: Tx, now: Instant, limit: int) -> int:
        """Cancels queued jobs whose start deadline has passed. Returns how many."""
        expired = jobs.expired(tx, now, limit)
        for job in expired:
            # Read each again: the end of one may have cancelled another of this list.
            current = jobs.get(tx, job.job_id)
            if current is not None and current.stage is Stage.QUEUED:
                self._conclude(tx, [self._cancel_queued(tx, current, EXPIRED, now)], now)
        return len(expired)

    def _request(self, tx: Tx, job: Job, cancellation: Cancellation, reason: str | None, now: Instant) -> None:
        is_stop = cancellation is Cancellation.STOPPING
        mode = CancelMode.INTERRUPT if is_stop else CancelMode.FINISH
        run = runs.of_job(tx, job.job_id)
        assert run is not None
        if job.cancel_mode is not mode:
            jobs.request_cancel(tx, job.job_id, mode, reason, now)
            details = {"mode": mode, "reason": reason}
            self._events.note(tx, "job_cancel_requested", now, job.office_id, job.job_id, run.run_id, details)
        if is_stop:
            tx.announce("stop")
            tx.cause(Stop(run.run_id, FailureKind.CANCELLED))

    def _cancel_queued(
        self, tx: Tx, job: Job, reason: str | None, now: Instant, requested_at: Instant | None = None
    ) -> _Ended:
        jobs.cancel(tx, job.job_id, reason, requested_at, now)
        self._leaves_queue(tx, job)
        self._note_end(tx, job, JobStatus.CANCELLED, None, now)
        self._events.note(tx, "job_cancelled", now, job.office_id, job.job_id, details={"reason": reason})
        self._tell(tx, job, CANCELLED_UNSTARTED, now)
        return _ended(job, ChainEnd.CANCELLED, by_request=requested_at is not None)

    def _skip_queued(self, tx: Tx, job: Job, reason: str, now: Instant) -> _Ended:
        """Ends a queued job as SKIPPED, with a run that starts and ends here, on no worker and under no limit."""
        run_id = self._chance.new_id()
        runs.begin(tx, run_id, job.job_id, now)
        jobs.start(tx, job.job_id, None, now)
        runs.finish(tx, run_id, job.job_id, Outcome.skipped(reason), now)
        jobs.succeed(tx, job.job_id, RunStatus.SKIPPED, now)
        self._leaves_queue(tx, job)
        self._note_end(tx, job, RunStatus.SKIPPED, None, now)
        self._events.note(tx, "job_skipped", now, job.office_id, job.job_id, run_id, {"reason": reason})
        self._tell(tx, job, run_events(RunStatus.SKIPPED, False, is_last=True), now)
        return _ended(job, ChainEnd.SUCCEEDED)

    def _note_end(
        self, tx: Tx, job: Job, status: JobStatus | RunStatus, started_at: Instant | None, now: Instant
    ) -> None:
        """Counts the end in the rollups; `started_at` is None for a job that never got a worker."""
        free_at = max(job.queued_at, job.scheduled_for or job.queued_at)
        key = RollupKey(job.office_id, job.job_type, JOB, status.value)
        self._rollups.note(tx, key, free_at, started_at, now)

    def _leaves_queue(self, tx: Tx, job: Job) -> None:
        """Counts a job that ends without having run. The units that were kept free for it are available to all offices
        again.
        """
        counters = self._lanes.counters(tx)
        if job.is_ready:
            counters.remove_ready(job.lane_id)
        if job.passed_over_since is not None:
            counters.is_freed = True

    def _tell(self, tx: Tx, job: Job, events: Sequence[str], now: Instant) -> None:
        self._webhooks.job_changed(tx, job.job_id, job.office_id, job.webhook is not None, events, now)

    # The consequences of the end of a chain.

    def _conclude(self, tx: Tx, ended: Iterable[_Ended], now: Instant) -> None:
        """Ends dependents and group members as well, and the jobs that depend on those. Uses a queue, so any depth is
        safe.
        """
        open_ = deque(ended)
        while open_:
            chain = open_.popleft()
            _count(self._lanes.counters(tx).tally(chain.lane_id), chain)
            if chain.has_dependents:
                cancelled = self._dependencies.after_chain(tx, chain.chain_id, chain.end, now)
                open_ += self._end_all(tx, cancelled, Action.CANCEL_REST, DEPENDENCY_FAILED, now)
            if chain.group_id is not None and chain.sequence is not None:
                rest = self._groups.member_ended(tx, chain.group_id, chain.sequence, chain.end, chain.by_request, now)
                open_ += self._end_all(tx, rest.job_ids, rest.action, PREDECESSOR_FAILED, now)
            tx.cause(ChainEnded(chain.chain_id))

    def _end_all(self, tx: Tx, job_ids: Iterable[str], action: Action, reason: str, now: Instant) -> list[_Ended]:
        """Cancels or skips those jobs that are still queued."""
        ended = []
        for job_id in job_ids:
            job = jobs.get(tx, job_id)
            if job is not None and job.stage is Stage.QUEUED:
                end = self._cancel_queued if action is Action.CANCEL_REST else self._skip_queued
                ended.append(end(tx, job, reason, now))
        return ended


def _parks(tx: Tx, chain_id: str, job_id: str) -> int:
    return sum(kind is FailureKind.PARKED for kind in jobs.failures_before(tx, chain_id, job_id))


def _unparked(outcome: Outcome) -> Outcome:
    """Turns an outcome of kind `parked` without a signal into a failure, because nothing could ever end that wait."""
    error = f"it names the kind 'parked', but no signal: {outcome.error or 'no reason given'}; use run.park"
    return replace(outcome, failure_kind=FailureKind.INVALID, error=error)


def _ended(job: Job, end: ChainEnd, by_request: bool = False) -> _Ended:
    return _Ended(job.chain_id, job.lane_id, job.group_id, job.sequence, end, by_request)


def _before(now: Instant, waited_us: int, started_at: Instant | None) -> Instant:
    """Returns when the work ended, by the time that the outcome has waited. If the clock was set back meanwhile, this
    may be before the start.
    """
    return max(Instant(now - waited_us), min(now, started_at or now))


def _lone_crashes(tx: Tx, chain_id: str, job_id: str, outcome: Outcome) -> int:
    """Counts how often in a row a scheduler died while only this chain ran in it, this time included."""
    if outcome.failure_kind is not FailureKind.CRASH:
        return 0
    *before, (_, beside) = jobs.attempts(tx, chain_id, job_id)
    return lone_crashes([*before, ChainRun(FailureKind.CRASH, beside)])


def _count(tally: LaneTally, chain: _Ended) -> None:
    """Adds the end of a chain to the totals for statistics."""
    end = chain.counts_as or chain.end
    if end is ChainEnd.CANCELLED:
        tally.cancelled += 1
    elif end is ChainEnd.FAILED:
        tally.failed += 1
    elif chain.completion_us is None:
        tally.skipped += 1
    else:
        tally.completed += 1
        tally.completion_us += chain.completion_us


def _details(outcome: Outcome) -> Mapping[str, object] | None:
    """Returns the part of an outcome that an event stores: at most a few hundred characters."""
    if outcome.status is RunStatus.SKIPPED:
        return {"reason": outcome.reason}
    if outcome.status is RunStatus.FAILED:
        return {"failure_kind": outcome.failure_kind, "error": (outcome.error or "")[:500]}
    return None
