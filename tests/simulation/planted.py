"""Defects on purpose, each the breach of one promise: the simulation has to find every one of them.

They are patched in from outside. Where the database itself would refuse, its rule is dropped first: what is tested here
is whether the laws see it.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from unittest import mock

import apsw

from nextslot.domain import ChainEnd, Limit, retry
from nextslot.domain.limits import Limits
from nextslot.engine.direct.direct_requests import DirectExecutionHandler
from nextslot.engine.dispatch.limits_and_slots import TransactionCounters
from nextslot.engine.effects import Interpreter, Launch
from nextslot.engine.events.event_log import EventLog
from nextslot.engine.execution import runner
from nextslot.engine.execution.runner import Runner
from nextslot.engine.execution.timeouts import TimeoutManager
from nextslot.engine.finish.dependents import DependencyResolver
from nextslot.engine.finish.job_finisher import JobFinisher
from nextslot.engine.finish.retries import RetryController
from nextslot.engine.schedules.schedule_trigger import ScheduleTrigger
from nextslot.engine.signals import signals
from nextslot.engine.signals.signals import Signals
from nextslot.engine.submit.queue_order import QueueManager
from nextslot.engine.webhooks.delivery_worker import DeliveryWorker
from nextslot.errors import Conflict, Refused
from nextslot.store import group_commit
from nextslot.store.sqlite import sqlite_store
from nextslot.store.tables import (
    checkpoints,
    direct,
    events,
    idempotency,
    jobs,
    lanes,
    occurrences,
    rollup_spans,
    runs,
    schedules,
)
from nextslot.store.tables import signals as stored_signals
from nextslot.store.tables.schedules import Progress

Patch = contextlib.AbstractContextManager[object]


class Late(NamedTuple):
    """Events that a planted defect leaves to another transaction."""

    events: Any


def patched(place: Any, name: str, defect: Any) -> Patch:
    return mock.patch.object(place, name, defect)


def without_rules(*names: str, opened: Callable[[], None] = lambda: None) -> Patch:
    """Opens every file without these rules or indexes, and calls `opened` for it."""
    migrate = sqlite_store.migrate

    def migrate_and_drop(connection: apsw.Connection) -> None:
        migrate(connection)
        for name in names:
            kind = connection.execute("select type from sqlite_master where name = ?", (name,)).get
            if kind:
                connection.execute(f"drop {kind} {name}")
        opened()

    return patched(sqlite_store, "migrate", migrate_and_drop)


def finish_without_fence() -> list[Patch]:
    """Plants: a second outcome of a run is stored too."""
    record = Runner._record
    fields = jobs.ending_facts

    async def twice(self: Runner, claim: Any, outcome: Any, seconds: float, since: float) -> None:
        await record(self, claim, outcome, seconds, since)
        await record(self, claim, outcome, seconds, since)

    def facts(tx: Any, run_id: str, job_id: str) -> Any:
        found = fields(tx, run_id, job_id)
        job = jobs.get(tx, job_id) if found is None else None
        if job is None or job.started_at is None:
            return found
        identity = (job.office_id, job.lane_id, job.chain_id, job.group_id, job.sequence, job.retry_of, job.worker_id)
        has_webhook = job.webhook is not None
        rest = (job.started_at, job.retry_policy, job.cancel_mode, True, job.queued_at, None, job.started_at)
        return jobs.EndingFacts(*identity, has_webhook, *rest)

    rules = without_rules("run_written_once", "job_ends_once", "job_moves", "job_decided_once")
    return [
        rules,
        patched(Runner, "_record", twice),
        patched(jobs, "ending_facts", facts),
    ]


def run_in_a_second_transaction() -> list[Patch]:
    """Plants: the job becomes RUNNING first; its run follows."""
    execute = Runner._run_and_record

    async def run(self: Runner, claim: Any) -> None:
        if claim.kind == "job":
            assert self._store is not None
            await self._store.write(lambda tx: runs.repair(tx, claim.run_id, claim.job_id))
        await execute(self, claim)

    rules = without_rules("job_runs_with_run", "run_born_running")
    return [rules, patched(Runner, "_run_and_record", run), patched(runs, "begin", lambda *_: None)]


def retry_created_twice() -> list[Patch]:
    follow = RetryController._follow

    def both(self: RetryController, tx: Any, *values: Any) -> Any:
        follow(self, tx, *values)
        return follow(self, tx, *values)

    return [without_rules("jobs_retry", "job_inserted_once"), patched(RetryController, "_follow", both)]


def limit_counted_in_memory() -> list[Patch]:
    """Plants: a rolled back transaction keeps its units of limits, and a restart begins with none."""
    used: dict[str, int] = {}
    stored, use = lanes.limits, lanes.use

    def limits(tx: Any, keys: Any) -> Any:
        return {
            key: Limit(limit_key=key, capacity=one.capacity, used=used.get(key, 0))
            for key, one in stored(tx, keys).items()
        }

    def count(tx: Any, key: str, units: int) -> None:
        used[key] = used.get(key, 0) + units
        use(tx, key, units)

    return [without_rules(opened=used.clear), patched(lanes, "limits", limits), patched(lanes, "use", count)]


def reservation_not_expired() -> list[Patch]:
    """Plants: after a crash, the reservation of a caller that is gone stays."""
    recover = DirectExecutionHandler.recover

    def recover_callers_only(self: DirectExecutionHandler, tx: Any, *node: Any) -> int:
        keep = patched(direct, "release", lambda *_: None)
        with keep, patched(DirectExecutionHandler, "_expire_orphaned", lambda *_: 0):
            return recover(self, tx, *node)

    return [patched(DirectExecutionHandler, "recover", recover_callers_only)]


def event_outside_the_transaction() -> list[Patch]:
    """Plants: the next transaction after the commit stores the events."""
    late: list[Any] = []
    append, carry_out = events.append, Interpreter.carry_out

    def append_later(tx: Any, noted: Any) -> None:
        if late:
            append(tx, [one for many in late for one in many])
            late.clear()
        tx.cause(Late(noted))

    def appended_late(self: Interpreter, effects: Sequence[Any]) -> None:
        carry_out(self, effects)
        late.extend(one.events for one in effects if isinstance(one, Late))

    return [
        without_rules(opened=late.clear),
        patched(events, "append", append_later),
        patched(Interpreter, "carry_out", appended_late),
    ]


def position_collision() -> list[Patch]:
    return [
        patched(
            QueueManager, "back", lambda self, tx, office, priority: 1 + jobs.last_position(tx, office, priority)[0]
        )
    ]


def dependency_released_early() -> list[Patch]:
    """Plants: a failure releases dependents too."""
    after_chain = DependencyResolver.after_chain

    def release(self: DependencyResolver, tx: Any, chain_id: str, end: ChainEnd, now: Any) -> Any:
        return after_chain(self, tx, chain_id, ChainEnd.SUCCEEDED, now)

    return [patched(DependencyResolver, "after_chain", release)]


def group_finished_early() -> list[Patch]:
    """Plants: a member counts as ended while its retry still waits."""
    retry_it = RetryController.retry

    def count_too(self: RetryController, tx: Any, failed: Any, following: Any, now: Any, *wait: Any) -> Any:
        group_id, sequence = failed.group_id, failed.sequence
        if group_id is not None:
            with contextlib.suppress(Exception):
                self._groups.member_ended(tx, group_id, sequence, ChainEnd.FAILED, False, now)
        return retry_it(self, tx, failed, following, now, *wait)

    return [patched(RetryController, "retry", count_too)]


def occurrence_fired_twice_after_a_crash() -> list[Patch]:
    """Plants: a restart fires occurrences again that have a stored outcome."""
    recover, insert = ScheduleTrigger.recover, occurrences.insert

    def go_back(tx: Any) -> None:
        back = [
            Progress(
                one.schedule_id,
                one.last_triggered_at,
                type(one.accounted_until)(one.accounted_until - 3_600_000_000),
                one.next_trigger_at,
            )
            for one in schedules.enabled(tx, "", 100)
        ]
        schedules.advance(tx, back)

    async def recover_again(self: ScheduleTrigger, store: Any) -> int:
        await store.write(go_back)
        return await recover(self, store)

    def insert_new(tx: Any, made: Any) -> None:
        known = {row[0] for row in tx.select("select schedule_id || instant from occurrences", {})}
        insert(tx, [one for one in made if f"{one.schedule_id}{int(one.instant)}" not in known])

    rules = without_rules("occurrence_inserted_once")
    return [rules, patched(ScheduleTrigger, "recover", recover_again), patched(occurrences, "insert", insert_new)]


def delivery_lost_on_crash() -> list[Patch]:
    """Plants: after a power cut, unsent messages count as sent."""
    start = DeliveryWorker.start
    sent = "status = 'DELIVERED', next_attempt_at = null, finished_at = created_at"

    async def forget(self: DeliveryWorker, store: Any) -> None:
        await store.write(lambda tx: tx.select(f"update deliveries set {sent} where status = 'PENDING'", {}))
        await start(self, store)

    return [patched(DeliveryWorker, "start", forget)]


def idempotency_key_forgotten() -> list[Patch]:
    return [patched(idempotency, "put", lambda *_: None)]


def counter_drift() -> list[Patch]:
    """Plants: a job that is cancelled while it is ready still counts as ready."""
    cancel_queued = JobFinisher._cancel_queued

    def cancel(self: JobFinisher, tx: Any, job: Any, *values: Any, **named: Any) -> Any:
        if job.is_ready:
            self._lanes.counters(tx).add_ready(job.lane_id, jobs.place_of(job).bound)
        return cancel_queued(self, tx, job, *values, **named)

    return [patched(JobFinisher, "_cancel_queued", cancel)]


def statistics_drift() -> list[Patch]:
    """Plants: a chain that is retried by hand still counts as failed."""
    reopen = RetryController._reopen

    def reopen_uncounted(self: RetryController, tx: Any, last: Any, *values: Any) -> Any:
        made = reopen(self, tx, last, *values)
        self._lanes.counters(tx).tally(last.lane_id).failed += 1
        return made

    return [patched(RetryController, "_reopen", reopen_uncounted)]


def pause_ignored_after_a_restart() -> list[Patch]:
    lives: list[int] = []
    stored = lanes.pauses
    return [
        without_rules(opened=lambda: lives.append(1)),
        patched(lanes, "pauses", lambda tx: set() if len(lives) > 1 else stored(tx)),
    ]


def timers_not_armed_after_a_restart() -> list[Patch]:
    """Plants: jobs that wait for their time wait until something else sets the alarm."""
    lives: list[int] = []
    start = TimeoutManager.start

    async def start_quietly(self: TimeoutManager, store: Any) -> None:
        if len(lives) < 2:
            return await start(self, store)
        self._store = store
        with patched(self._timer, "_next", None):
            self._timer.start(self._clock.alarm(lambda: None))
        return None

    return [without_rules(opened=lambda: lives.append(1)), patched(TimeoutManager, "start", start_quietly)]


def timeout_ignored() -> list[Patch]:
    return [patched(runs, "overdue", lambda *_: [])]


def last_come_first_served() -> list[Patch]:
    heads = jobs.heads
    return [patched(jobs, "heads", lambda tx, lane_id, limit: heads(tx, lane_id, limit + 1)[::-1])]


def no_limit() -> list[Patch]:
    return [patched(Limits, "room", lambda *_: 7)]


def offices_out_of_turn() -> list[Patch]:
    """Plants: the office that was served last is served again."""
    stored = lanes.of_office
    return [
        patched(
            lanes,
            "of_office",
            lambda tx, office, limit: (lambda found: (*found[:2], -found[2], *found[3:]))(stored(tx, office, limit)),
        )
    ]


def nobody_looks_when_room_comes_free() -> list[Patch]:
    give_back = TransactionCounters.give_back

    def quietly(self: TransactionCounters, lane: Any) -> None:
        was_freed = self.is_freed
        give_back(self, lane)
        self.is_freed = was_freed

    return [patched(TransactionCounters, "give_back", quietly)]


def interrupted_jobs_not_retried() -> list[Patch]:
    """Plants: recovery does not retry interrupted jobs; other failures are retried."""
    retry_it = RetryController.retry

    def unless_crashed(self: RetryController, tx: Any, failed: Any, following: Any, now: Any, *wait: Any) -> Any:
        run = runs.of_job(tx, failed.job_id)
        if run is not None and run.failure_kind == "crash":
            return None
        return retry_it(self, tx, failed, following, now, *wait)

    return [patched(RetryController, "retry", unless_crashed)]


def retried_for_ever() -> list[Patch]:
    """Plants: a chain has 20 attempts more than its policy says. With more the history would never end."""
    return [patched(retry, "_link_counts", lambda kinds: len(kinds) > 20)]


def failed_commit_reported_as_done() -> list[Patch]:
    """Plants: an error of the disk is ignored, and every caller gets a success."""
    transaction = sqlite_store.SqliteStore.transaction

    def hopeful(self: Any, works: Any) -> Any:
        try:
            return transaction(self, works)
        except (apsw.FullError, apsw.IOError):
            self._writer.execute("begin")
            tx = sqlite_store.SqliteTx(self._writer)
            answers = group_commit.attempt_all(tx, works)
            self._writer.execute("rollback")
            return answers, tx.effects

    return [patched(sqlite_store.SqliteStore, "transaction", hopeful)]


def handler_before_the_commit() -> list[Patch]:
    """Plants: the effects of a transaction happen as soon as it names them."""
    runners: list[Runner] = []
    cause, open_ = group_commit.TxMemory.cause, Runner.open

    def opened(self: Runner, store: Any) -> None:
        runners[:] = [self]
        open_(self, store)

    def cause_now(self: Any, effect: Any) -> None:
        if isinstance(effect, Launch) and runners:
            runners[0].launch(effect.claim)
        else:
            cause(self, effect)

    return [patched(Runner, "open", opened), patched(group_commit.TxMemory, "cause", cause_now)]


def queue_goes_before_callers() -> list[Patch]:
    return [patched(TransactionCounters, "is_behind_caller", lambda self, lane: False)]


def turn_given_early() -> list[Patch]:
    """Plants: the next member of a sequential group gets its turn when the previous one fails, even if it will be
    retried.
    """
    retry_it = RetryController.retry

    def pass_turn(self: RetryController, tx: Any, failed: Any, following: Any, now: Any, *wait: Any) -> Any:
        if failed.group_id is not None:
            self._groups._pass_turn(tx, failed.group_id, failed.sequence, now)
        return retry_it(self, tx, failed, following, now, *wait)

    return [patched(RetryController, "retry", pass_turn)]


def skipped_members_not_told() -> list[Patch]:
    """Plants: a job that a group skips leaves no event."""
    note = EventLog.note

    def unless_skipped(self: EventLog, tx: Any, type: str, *values: Any, **named: Any) -> None:
        if type != "job_skipped":
            note(self, tx, type, *values, **named)

    return [patched(EventLog, "note", unless_skipped)]


def memory_follows_the_whole_group() -> list[Patch]:
    """Plants: the changes of commits in memory wait until every work of a failed group has run again."""
    commit = group_commit.GroupCommit._commit

    def commit_and_apply(self: Any, group: Any) -> Any:
        answers, effects = commit(self, group)
        self._effects.apply(effects)
        return answers, effects

    def collect(self: Any, batch: Any, effects: Any) -> None:
        batch.effects += effects

    return [
        patched(group_commit.GroupCommit, "_commit", commit_and_apply),
        patched(group_commit.GroupCommit, "_apply", collect),
    ]


def refusals_take_the_others_with_them() -> list[Patch]:
    """Plants: if a work is refused after a change, all works of its group fail."""

    def hand_on(self: Any, group: Any) -> Any:
        batch = group_commit._Batch([waiting.work for waiting in group])
        try:
            self._transact(batch, list(range(len(group))))
        except Exception as error:
            batch.answers = [
                group_commit.WorkResult(error=self._store.translated(group_commit._own(error))) for _ in group
            ]
        return batch.answers, batch.effects

    return [patched(group_commit.GroupCommit, "_commit", hand_on)]


def refused_outcome_thrown_away() -> list[Patch]:
    """Plants: if the store refuses an outcome, as it does now and then, the run counts as failed at once."""
    finish, calls = Runner._finish, itertools.count(1)

    def refuse_some(*values: Any) -> Any:
        if next(calls) % 5 == 0:
            raise Refused("planted")
        return finish(*values)

    return [patched(Runner, "_finish", refuse_some), patched(runner, "MOST_REFUSALS", 1)]


def rollups_lost_when_they_are_folded() -> list[Patch]:
    """Plants: every second time, the ends of a minute are removed but not added to the rollups."""
    add, calls = rollup_spans.add, itertools.count(1)

    def forget_some(*values: Any) -> None:
        if next(calls) % 2:
            add(*values)

    return [patched(rollup_spans, "add", forget_some)]


def checkpoint_not_given() -> list[Patch]:
    return [patched(checkpoints, "of_chain", lambda *given: None)]


def session_begins_anew() -> list[Patch]:
    return [patched(runner, "_earlier_session", lambda *given: None)]


def signal_answered_twice() -> list[Patch]:
    """Another answer to a wait that was answered is stored beside the first one instead of being refused."""
    send = Signals.send

    def store(self: Any, tx: Any, job_id: str, name: str, answer: Any, *rest: Any, **more: Any) -> Any:
        try:
            return send(self, tx, job_id, name, answer, *rest, **more)
        except Conflict:
            payload, sent_by, now = rest
            before = stored_signals.last(tx, jobs.chains(tx, [job_id])[job_id][0], name)
            if before is None or before.job_id is None:
                raise
            other = {"answer": answer, "payload": payload, "sent_by": sent_by, "sent_at": now, "signal_id": None}
            signal = replace(before, number=before.number + 1, **other)
            stored_signals.insert(tx, signal)
            return signals.Sent(signal, is_new=True)

    return [patched(Signals, "send", store)]


def answered_by_ignored() -> list[Patch]:
    return [patched(signals, "_refuse_foreign", lambda job, callers: None)]


def parked_run_ends_as_it_likes() -> list[Patch]:
    as_parked = JobFinisher._as_parked

    def forget(self: Any, tx: Any, run_id: str, job_id: str, facts: Any, outcome: Any) -> Any:
        return as_parked(self, tx, run_id, job_id, facts, outcome) if outcome.park is not None else outcome

    return [patched(JobFinisher, "_as_parked", forget)]


DEFECTS: dict[str, Callable[[], list[Patch]]] = {
    defect.__name__: defect
    for defect in (
        finish_without_fence,
        run_in_a_second_transaction,
        retry_created_twice,
        limit_counted_in_memory,
        reservation_not_expired,
        event_outside_the_transaction,
        position_collision,
        dependency_released_early,
        group_finished_early,
        occurrence_fired_twice_after_a_crash,
        delivery_lost_on_crash,
        idempotency_key_forgotten,
        counter_drift,
        statistics_drift,
        rollups_lost_when_they_are_folded,
        pause_ignored_after_a_restart,
        timers_not_armed_after_a_restart,
        timeout_ignored,
        last_come_first_served,
        no_limit,
        offices_out_of_turn,
        nobody_looks_when_room_comes_free,
        interrupted_jobs_not_retried,
        retried_for_ever,
        failed_commit_reported_as_done,
        handler_before_the_commit,
        queue_goes_before_callers,
        turn_given_early,
        skipped_members_not_told,
        memory_follows_the_whole_group,
        refusals_take_the_others_with_them,
        refused_outcome_thrown_away,
        checkpoint_not_given,
        session_begins_anew,
        signal_answered_twice,
        answered_by_ignored,
        parked_run_ends_as_it_likes,
    )
}


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """Makes the defects anew for each history, because a defect's memory belongs to one process."""
    with contextlib.ExitStack() as stack:
        for patch in DEFECTS[name]():
            stack.enter_context(patch)
        yield
