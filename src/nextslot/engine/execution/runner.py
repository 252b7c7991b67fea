"""Runner: one task for each run. A task runs the handler, then stores the outcome, and retries until it is stored."""

import asyncio
import contextvars
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from nextslot.domain import FailureKind, Json, Outcome, RunStatus
from nextslot.engine.direct.connected_callers import ConnectedCallers
from nextslot.engine.effects import Claim, RunEnded, WorkKind
from nextslot.engine.forecast.run_durations import Durations
from nextslot.errors import Damaged, Fenced, Unavailable
from nextslot.executors.run_context import Listener
from nextslot.store.contract import PrefetchedWork, Store, Tx
from nextslot.store.tables import checkpoints, dependencies, jobs, runs, signals
from nextslot.system.clock import Clock
from nextslot.system.instant import Instant
from nextslot.telemetry.logs import bound
from nextslot.telemetry.meters import Meters
from nextslot.telemetry.tracing import Tracer

from .checkpoints import CheckpointWriter
from .executor import NOTHING_GIVEN, SHORTEST_WAIT, Given, Keep, SetSession
from .shipping import Shipping
from .stall_alarm import StallAlarm

log = logging.getLogger(__name__)

# The longest time between two checks for silent runs, while something runs.
LOOK_SECONDS = 60.0
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
# How often, within 15 seconds, the store may refuse an outcome before a failure is stored in its place.
MOST_REFUSALS = 6
# The beginning of the error text of such a failure. The doctor finds it by these words.
OUTCOME_NOT_STORED = "its outcome could not be stored"


class WorkFinisher(Protocol):
    """Stores the end of one kind of work: `JobFinisher` for jobs, `DirectExecutionHandler` for direct requests."""

    def finish(
        self, tx: Tx, run_id: str, job_id: str, outcome: Outcome, now: Instant, waited_us: int = 0, /
    ) -> object | None:
        """Stores an outcome that has waited for `waited_us`, and all consequences. Returns None if the run had already
        ended."""


class RunsClaims(Protocol):
    """Runs claims and returns their outcomes: `Executor`, or `PlacedExecutor` for runs that engines have."""

    stall_alarm_seconds: float | None

    def expect(self, run_id: str) -> None: ...

    def forget(self, run_id: str) -> None: ...

    async def run(
        self,
        claim: Claim,
        listen: Listener | None = None,
        given: Given = NOTHING_GIVEN,
        keep: Keep | None = None,
        set_session: SetSession | None = None,
    ) -> Outcome: ...


class Runner:
    def __init__(
        self,
        clock: Clock,
        executor: RunsClaims,
        finishers: Mapping[WorkKind, WorkFinisher],
        callers: ConnectedCallers,
        durations: Durations,
        meters: Meters | None = None,
        tracer: Tracer | None = None,
        stalls: StallAlarm | None = None,
        shipping: Shipping | None = None,
    ) -> None:
        self._clock = clock
        self._shipping = shipping
        self._stalls = stalls
        # When silent runs are checked next, while something runs; and whether there was a check yet.
        self._next_look: asyncio.TimerHandle | None = None
        self._has_looked = False
        self._store: Store | None = None
        self._executor = executor
        self._checkpoints = CheckpointWriter(clock)
        self._finishers = finishers
        self._callers = callers
        self._durations = durations
        self._meters = meters or Meters()
        self._tracer = tracer or Tracer()
        # When the run ended whose end is being committed. The runs that this commit launches get its slot.
        self._freed_at: float | None = None
        self._tasks: dict[asyncio.Task[None], Claim] = {}
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_abandoned = False
        self._has_lost = False

    def open(self, store: Store) -> None:
        self._store = store

    @property
    def running(self) -> list[Claim]:
        return list(self._tasks.values())

    @property
    def has_stored_all(self) -> bool:
        """Returns whether the outcome of every launched run is stored."""
        return not self._tasks and not self._has_lost

    def launch(self, claim: Claim) -> None:
        """Starts the task of a claim that was committed."""
        self._executor.expect(claim.run_id)
        # An empty context: the job must not inherit the context of the caller whose commit started it.
        context = contextvars.Context()
        task = asyncio.get_running_loop().create_task(self._run(claim, self._freed_at), context=context)
        self._tasks[task] = claim
        self._is_idle.clear()
        if self._next_look is None:
            self._look_after(self._executor.stall_alarm_seconds or LOOK_SECONDS)
        task.add_done_callback(self._left)

    def ended(self, job_type: str, seconds: float | None, ended_at: float, params: Mapping[str, Json]) -> None:
        """Notes the end of a run after its commit and before the launches of that commit. If there are several, the
        first one counts."""
        if seconds is not None and self._durations.is_filled:
            self._durations.note(job_type, seconds, params)
        if self._freed_at is None:
            self._freed_at = ended_at

    def _look_after(self, seconds: float) -> None:
        """Schedules a check for silent runs after this time or earlier: a reloaded configuration may have a shorter
        one."""
        wait = max(min(seconds, LOOK_SECONDS), SHORTEST_WAIT)
        due = self._clock.monotonic() + wait
        self._next_look = asyncio.get_running_loop().call_later(wait, self._look, due)

    def _look(self, due: float) -> None:
        self._has_looked = True
        if self._stalls is not None and self._store is not None:
            self._look_after(self._stalls.look(self._store, due))

    def _stop_looking(self) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
        if self._has_looked and self._stalls is not None:
            self._stalls.rest()

    async def idle(self) -> None:
        await self._is_idle.wait()

    async def abandon(self) -> None:
        """Cancels the tasks that did not stop. Their jobs stay RUNNING in the store, and the next start recovers
        them."""
        self._is_abandoned = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)

    async def _run(self, claim: Claim, freed_at: float | None) -> None:
        ids = {f"{claim.kind}_id": claim.job_id, "run_id": claim.run_id, "office_id": claim.office_id}
        with bound(**ids, job_type=claim.job_type):
            if freed_at is not None:
                self._meters.handed_over(self._meters.seconds() - freed_at)
            await self._run_and_record(claim)

    async def _run_and_record(self, claim: Claim) -> None:
        began = self._clock.monotonic()
        if self._shipping is not None:
            self._shipping.follow(claim.run_id)
        outcome = await self._execute(claim)
        ended = self._clock.monotonic()
        seconds = ended - began if outcome.worked_seconds is None else outcome.worked_seconds
        if claim.run_id in self._checkpoints.writers:
            await self._checkpoints.settled(claim.run_id)
        self._meters.ran(claim.job_type, claim.kind, outcome.status, outcome.failure_kind, seconds)
        if self._shipping is not None:
            await self._shipping.finish(claim.run_id)
        await self._record(claim, outcome, seconds, ended)

    async def _execute(self, claim: Claim) -> Outcome:
        with self._tracer.run(claim) as span:
            outcome = await self._outcome(claim)
            span.note({"nextslot.outcome": outcome.status, "nextslot.failure_kind": outcome.failure_kind})
            if outcome.status is RunStatus.FAILED:
                span.fail((outcome.error or "")[:500])
            return outcome

    async def _outcome(self, claim: Claim) -> Outcome:
        try:
            listen = self._callers.listener(claim.run_id) if claim.run_id in self._callers else None
            given = await self._given(claim)
            keep = None if claim.kind is not WorkKind.JOB else lambda text: self._keep(claim.run_id, text)
            session = None if keep is None else lambda session_id: self._set_session(claim.run_id, session_id)
            return await self._executor.run(claim, listen, given, keep, session)
        except Unavailable as error:
            self._executor.forget(claim.run_id)
            return Outcome.failed(FailureKind.UNAVAILABLE, f"what is stored for it could not be read: {error}")
        except Exception as error:  # A defect of the executor must not leave the job RUNNING for ever.
            log.exception("run %s: the executor failed", claim.run_id)
            return Outcome.failed(FailureKind.ERROR, f"the executor failed: {type(error).__name__}: {error}"[:500])

    def _keep(self, run_id: str, text: str) -> "asyncio.Future[None]":
        assert self._store is not None
        return self._checkpoints.keep(self._store, run_id, text)

    async def _set_session(self, run_id: str, session_id: str) -> None:
        assert self._store is not None
        await self._store.write(lambda tx: runs.set_session(tx, run_id, session_id))

    async def _given(self, claim: Claim) -> Given:
        """Reads what is stored for a run. After the commit of its start this no longer changes."""
        if claim.waited is None and claim.continues is None:
            return NOTHING_GIVEN
        assert self._store is not None

        def read(tx: Tx) -> Given:
            kept = None if claim.continues is None else checkpoints.of_chain(tx, claim.continues)
            inputs = {} if claim.waited is None else dependencies.inputs(tx, claim.waited)
            answers = [] if claim.continues is None else signals.of_chain(tx, claim.continues)
            # Of several answers to one name the last wait's: by its number, because a wall clock may step back.
            answers.sort(key=lambda one: one.number)
            by_name = {one.name: one.to_dict() for one in answers if one.job_id is not None}
            return Given(inputs, None if kept is None else kept.value, by_name, _earlier_session(tx, claim))

        return await self._store.read(read)

    async def _record(self, claim: Claim, outcome: Outcome, seconds: float, since: float) -> bool:
        """Tries until the store has the outcome. If the store refuses it too often, stores a failure in its place.

        Returns whether this call has ended the run.
        """
        assert self._store is not None
        pause, refusals, ended_at = FIRST_PAUSE, 0, self._meters.seconds()
        while True:
            work = lambda tx, outcome=outcome: self._finish(tx, claim, outcome, seconds, ended_at, since)  # noqa: E731
            try:
                office_id = claim.office_id if claim.kind is WorkKind.JOB else None
                stored = await self._store.write(PrefetchedWork(work, claim.reads_at_end, office_id))
            except Fenced:
                log.warning(
                    "run %s: this node was lost, and another node has recovered the run",
                    claim.run_id,
                )
                return False
            except Exception as error:  # No error of the store may lose an outcome.
                if self._is_abandoned:
                    self._has_lost = True
                    log.error("run %s ended too late to be stored", claim.run_id)
                    return False
                if not isinstance(error, (Unavailable, Damaged)):
                    refusals += 1
                    outcome = self._refused(claim, outcome, error, refusals)
                else:
                    log.error("run %s ended, but cannot be stored yet: %s", claim.run_id, error)
                await self._clock.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                # The effects of this commit are carried out, but those of later commits are not.
                self._freed_at = None
                if stored is None:
                    log.warning(
                        "run %s had already ended by other means; its outcome is dropped",
                        claim.run_id,
                    )
                return stored is not None

    def _refused(self, claim: Claim, outcome: Outcome, error: Exception, refusals: int) -> Outcome:
        """Returns the outcome to try next, after the store has refused one."""
        is_given_up = refusals == MOST_REFUSALS
        self._meters.outcome_refused(is_given_up)
        log.error("run %s: the store refused its outcome (%d times): %s", claim.run_id, refusals, error, exc_info=error)
        return _unstorable(outcome, refusals, error) if is_given_up else outcome

    def _finish(
        self, tx: Tx, claim: Claim, outcome: Outcome, seconds: float, ended_at: float, since: float
    ) -> object | None:
        """Stores an outcome that has waited since this monotonic time."""
        now, waited_us = self._clock.now(), round((self._clock.monotonic() - since) * 1_000_000)
        finisher = self._finishers[claim.kind]
        stored = finisher.finish(tx, claim.run_id, claim.job_id, outcome, now, waited_us)
        if stored is not None:
            took = seconds if outcome.status is RunStatus.COMPLETED else None
            tx.cause(RunEnded(claim.job_type, took, ended_at, claim.params))
        return stored

    def _left(self, task: asyncio.Task[None]) -> None:
        claim = self._tasks.pop(task)
        self._executor.forget(claim.run_id)
        if not self._tasks:
            self._is_idle.set()
            self._stop_looking()
        if task.cancelled():
            self._has_lost = True
        elif task.exception() is not None:
            self._has_lost = True
            ids = {"job_id": claim.job_id, "run_id": claim.run_id, "office_id": claim.office_id}
            log.critical("run %s could not be stored", claim.run_id, exc_info=task.exception(), extra=ids)


def _earlier_session(tx: Tx, claim: Claim) -> tuple[str, FailureKind] | None:
    """Returns the last session of a chain, if the work is one, and why its run failed."""
    if claim.session_id is None or claim.continues is None:
        return None
    chain = jobs.chain(tx, claim.continues)
    for job in reversed(chain[: [one.job_id for one in chain].index(claim.job_id)]):
        run = runs.of_job(tx, job.job_id)
        # A run that died before it began its session has none, nor has a job that ended without having run.
        if run is not None and run.session_id is not None:
            return None if run.failure_kind is None else (run.session_id, run.failure_kind)
    return None


def _unstorable(outcome: Outcome, refusals: int, error: Exception) -> Outcome:
    """Returns a failure that the store accepts, so that the slot is freed and the chain continues by its retry
    policy."""
    kind = outcome.failure_kind or FailureKind.ERROR
    said = (
        f"{OUTCOME_NOT_STORED}: the work ended {outcome.status}, and the database refused to store that "
        f"{refusals} times ({type(error).__name__}: {error})"
    )
    return replace(Outcome.failed(kind, said[:1000]), log_path=outcome.log_path)
