"""RetryController: creates the job that retries a failed one (DEC-007). It runs nothing and changes no ended job."""

from collections.abc import Mapping
from dataclasses import dataclass

from nextslot.domain import (
    ChainEnd,
    Job,
    Json,
    RunStatus,
    Signal,
    Stage,
)
from nextslot.domain.retry import Retry
from nextslot.engine.engine_context import EngineContext
from nextslot.engine.submit.queue_order import QueueManager, refuse_priority
from nextslot.errors import Conflict, NotFound
from nextslot.store.contract import Tx
from nextslot.store.tables import jobs, runs, signals
from nextslot.system.instant import Instant

from .group_progress import GroupProgress


@dataclass(frozen=True, slots=True)
class Retried:
    """The next job of the chain, and whether it is new or an existing retry that now starts earlier."""

    job: Job
    is_new: bool


class RetryController:
    def __init__(self, engine: EngineContext, queue: QueueManager, groups: GroupProgress) -> None:
        self._engine = engine
        self._chance = engine.chance
        self._queue = queue
        self._groups = groups
        self._lanes = engine.lanes
        self._events = engine.events

    def retry(self, tx: Tx, failed: Job, retry: Retry, now: Instant, wait: Mapping[str, Json] | None = None) -> Job:
        """Creates the automatic retry, or returns the one that exists already (spec 6.6). `wait` is the signal that it
        waits for.
        """
        existing = jobs.successor(tx, failed.job_id)
        if existing is not None:
            found = jobs.get(tx, existing)
            assert found is not None
            return found
        follower = self._follow(tx, failed, failed.priority, now.after(retry.delay_seconds), now, wait)
        details = {
            "retry": follower.job_id,
            "number": retry.number,
            "delay_seconds": retry.delay_seconds,
            "scheduled_for": str(follower.scheduled_for),
        }
        self._events.note(tx, "job_retrying", now, failed.office_id, failed.job_id, details=details)
        return follower

    def retry_by_hand(self, tx: Tx, run_id: str, priority: int | None, now: Instant) -> Retried:
        """Retries a FAILED run, even beyond its retry limit; a retry that waits is made due instead (spec 6.8)."""
        if priority is not None:
            refuse_priority(priority)
        run = runs.get(tx, run_id)
        if run is None:
            raise NotFound("run", run_id)
        if run.status is not RunStatus.FAILED:
            raise Conflict(f"run {run_id} is {run.status or 'still running'}: only a FAILED run can be retried")
        job = jobs.get(tx, run.job_id)
        assert job is not None
        last = jobs.chain(tx, job.chain_id)[-1]
        if last.stage is Stage.QUEUED:
            return Retried(self._bring_forward(tx, last, priority, now), is_new=False)
        if last.is_running:
            raise Conflict(f"the chain of run {run_id} is running now, as job {last.job_id}: wait until that ends")
        if last.outcome in (RunStatus.COMPLETED, RunStatus.SKIPPED):
            raise Conflict(
                f"the chain of run {run_id} has succeeded since, with job {last.job_id}: there is nothing to retry"
            )
        return Retried(self._reopen(tx, last, last.priority if priority is None else priority, now), is_new=True)

    def _reopen(self, tx: Tx, last: Job, priority: int, now: Instant) -> Job:
        # What ended before its answer came, or by a no, asks again: a retry must not go around a person.
        wait = last.await_signal if last.is_awaiting else None
        follower = self._follow(tx, last, priority, now, now, wait)
        tally = self._lanes.counters(tx).tally(last.lane_id)
        if last.stage is Stage.CANCELLED:
            tally.cancelled -= 1
        else:
            tally.failed -= 1
        if last.group_id is not None:
            end = ChainEnd.CANCELLED if last.stage is Stage.CANCELLED else ChainEnd.FAILED
            self._groups.member_reopened(tx, last.group_id, end, was_requested(last), now)
        details = {"retry": follower.job_id, "manual": True}
        self._events.note(tx, "job_retrying", now, last.office_id, last.job_id, details=details)
        return follower

    def _bring_forward(self, tx: Tx, job: Job, priority: int | None, now: Instant) -> Job:
        if not job.is_due:
            jobs.reschedule(tx, job.job_id, now, is_due=True)
            job = job._replace(scheduled_for=now, is_due=True)
            self._engine.note_freed(tx, job, now)
        return job if priority is None else self._queue.change_priority(tx, job.job_id, priority, now)

    def _follow(
        self,
        tx: Tx,
        job: Job,
        priority: int,
        scheduled_for: Instant,
        now: Instant,
        wait: Mapping[str, Json] | None = None,
    ) -> Job:
        """Enqueues a copy of the request, with new ids and times, at the back of the queue. With `wait`, the copy waits
        for a signal, unless the answer was already kept.
        """
        kept = None if wait is None else _kept(tx, job.chain_id, wait)
        is_awaiting = wait is not None and kept is None
        follower = job._replace(
            job_id=self._chance.new_id(),
            retry_of=job.job_id,
            stage=Stage.QUEUED,
            priority=priority,
            position=self._queue.back(tx, job.office_id, priority),
            created_at=now,
            queued_at=now,
            scheduled_for=scheduled_for,
            # The chain has started in time, so the deadline no longer applies; and a unique key belongs to the request
            # that named it.
            expires_at=None,
            unique_key=None,
            webhook_status="none",
            started_at=None,
            finished_at=None,
            outcome=None,
            decision=None,
            cancel_requested_at=None,
            cancel_mode=None,
            cancelled_at=None,
            cancel_reason=None,
            worker_id=None,
            await_signal=job.await_signal if wait is None else wait,
            is_awaiting=is_awaiting,
            asked_at=None,
            answer_by=None,
            unmet=int(is_awaiting),
            is_due=scheduled_for <= now,
            is_turn=True,
            passed_over_since=None,
        )
        self._queue.enqueue(tx, [follower], now)
        if kept is not None:
            signals.use(tx, kept, follower.job_id)
        return follower


def _kept(tx: Tx, chain_id: str, wait: Mapping[str, Json]) -> Signal | None:
    """Returns the answer that came before this wait, if its sender may answer it."""
    sent = signals.last(tx, chain_id, wait["name"])
    if sent is None or sent.job_id is not None:
        return None
    allowed = wait["answered_by"]
    return sent if not allowed or sent.sent_by in allowed else None


def was_requested(job: Job) -> bool:
    """Returns whether a caller cancelled the job, rather than a rule of the scheduler."""
    return job.stage is Stage.CANCELLED and job.cancel_requested_at is not None
