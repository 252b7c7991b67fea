"""Executor: runs the handler of a claim and returns its outcome as a value. It does not know the database.

It decides no retry, changes no job and sends nothing.
"""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from nextslot.domain import FailureKind, Json, Outcome, Run
from nextslot.engine.effects import Claim
from nextslot.errors import Unavailable
from nextslot.executors.inputs import inputs_of
from nextslot.executors.job_types import JobType, JobTypes
from nextslot.executors.run_context import Listener, RunContext, raised, returned
from nextslot.executors.run_files import RunFiles
from nextslot.executors.threads import Threads
from nextslot.system.clock import Clock

_STOP_ERRORS = {
    FailureKind.TIMEOUT: "timed out",
    FailureKind.CANCELLED: "cancelled",
    FailureKind.INTERRUPTED: "interrupted by the scheduler's shutdown",
}

# The seconds of silence of a run after which an alarm is reported.
STALL_ALARM_SECONDS = 600.0
Keep = Callable[[str], "asyncio.Future[None]"]
SetSession = Callable[[str], Coroutine[Any, Any, None]]
# A shorter wait could end before the clock moves, and would be repeated at once.
SHORTEST_WAIT = 0.001
# If a wait ends this many seconds late, the process was held up. The run was held up too and could not report.
HELD_UP = 1.0
NOT_ISOLATED = (
    "it must run in a separate process, because the scheduler died several times in a row while it ran inside, but a "
    "reload has replaced its job type by one that cannot; name an importable function as the handler, then retry it"
)
ISOLATED = "runs in a separate process: the scheduler died several times in a row while this job ran inside it"


class Given(NamedTuple):
    """What is stored for a run before it begins: its inputs, the last checkpoint of its chain, the answers to signals
    by name.
    """

    inputs: Mapping[str, Run] = {}
    checkpoint: Json = None
    signals: Mapping[str, Json] = {}
    # The session of the previous attempt, and the kind of its failure.
    earlier_session: tuple[str, FailureKind] | None = None


NOTHING_GIVEN = Given()


@dataclass(slots=True)
class _Active:
    claim: Claim
    run: RunContext
    job_type: JobType
    # The task to cancel; None for a handler in a thread, which must check by itself whether to stop.
    task: asyncio.Task[Any] | None
    timeout_seconds: float | None
    stopped_by: FailureKind | None = None
    error: str | None = None


class Executor:
    def __init__(
        self,
        clock: Clock,
        job_types: JobTypes,
        threads: Threads,
        files: RunFiles,
        stall_alarm_seconds: float | None = None,
    ) -> None:
        self._clock = clock
        # The silence after which `StallAlarm` reports the run; None or 0: never.
        self.stall_alarm_seconds = stall_alarm_seconds
        self._job_types = job_types
        self._threads = threads
        self._files = files
        self._active: dict[str, _Active] = {}
        # Runs that are launched but have not begun, each with the reason to stop, if there is one already.
        self._expected: dict[str, FailureKind | None] = {}

    def expect(self, run_id: str) -> None:
        """Allows a run to be stopped from now on, even before it begins."""
        self._expected[run_id] = None

    def forget(self, run_id: str) -> None:
        self._expected.pop(run_id, None)

    async def run(
        self,
        claim: Claim,
        listen: Listener | None = None,
        given: Given = NOTHING_GIVEN,
        keep: Keep | None = None,
        set_session: SetSession | None = None,
    ) -> Outcome:
        """Runs the handler and returns its outcome. Raises only if something other than `stop` cancels the task.

        `keep` stores a checkpoint of the run, `set_session` the id of its session.
        """
        if claim.run_id in self._active:
            raise ValueError(f"run {claim.run_id} is running already: each run needs an id of its own")
        kind = self._expected.pop(claim.run_id, None)
        if kind is not None:
            return Outcome.failed(kind, _STOP_ERRORS[kind])
        job_type = self._job_types.of_claim(claim.job_type)
        if claim.is_isolated:
            isolated = self._job_types.isolated(claim.job_type)
            if isolated is None and self._job_types.runs_inside(claim.job_type):
                return Outcome.failed(FailureKind.ERROR, NOT_ISOLATED)
            if isolated is not None:
                job_type = replace(job_type, handler=isolated, is_async=True, called_as=None)
        run = RunContext(
            claim.run_id, claim.job_id, claim.office_id, claim.job_type, claim.params, claim.attempt, self._files
        )
        run.devices, run.environment = claim.devices, claim.environment
        if given.inputs:
            await self._fetch(given.inputs)
            run.inputs = inputs_of(given.inputs, self._files)
        run.last_checkpoint, run.signals = given.checkpoint, given.signals
        run.earlier_session, run.set_session = given.earlier_session, set_session
        run.keep_by(keep)
        run.title, run.role, run.task_id, run.session_id = claim.title, claim.role, claim.task_id, claim.session_id
        task = asyncio.current_task() if job_type.is_async else None
        active = self._active[claim.run_id] = _Active(claim, run, job_type, task, claim.timeout_seconds)
        run.now, run.last_active = self._clock.monotonic, self._clock.monotonic()
        run.wall_time = self._clock.now
        if claim.is_isolated:
            run.log.warning(ISOLATED)
        if listen is not None:
            run.listen = _on_loop(listen)
        watch = self._watch(claim, active)
        try:
            if job_type.is_async:
                outcome = await self._await(job_type, run)
                if active.stopped_by is not None and task is not None:
                    task.uncancel()  # The handler has caught the cancellation and returned an outcome.
            else:
                context = contextvars.copy_context()
                outcome = await self._threads.run(lambda: context.run(_call, job_type, run))
        except asyncio.CancelledError:
            if active.stopped_by is None or task is None:
                raise
            task.uncancel()
            outcome = Outcome.completed()
        finally:
            if self._active.get(claim.run_id) is active:
                del self._active[claim.run_id]
            if watch is not None:
                watch.cancel()
        outcome = self._as_stopped(active, outcome)
        if run.used_tokens:
            outcome = replace(outcome, used_tokens=run.used_tokens)
        if active.stopped_by is None and outcome.session_id is None and run.session_id is not None:
            outcome = replace(outcome, session_id=run.session_id)
        return await self._with_files(run, outcome)

    async def _fetch(self, inputs: Mapping[str, Run]) -> None:
        """Gets the artifacts of inputs that other nodes have stored. Raises Unavailable if that is not possible now."""
        for run in inputs.values() if self._files.shared is not None else ():
            problem = await self._threads.run(lambda run=run: self._files.fetch(run.run_id, run.artifacts))  # type: ignore[misc]
            if problem is not None:
                raise Unavailable(problem)

    def stop(self, run_id: str, kind: FailureKind) -> None:
        """Asks a run to stop. The first kind that is given becomes the failure kind of its outcome."""
        active = self._active.get(run_id)
        if active is not None:
            self._stop(active, kind)
        elif run_id in self._expected:
            self._expected[run_id] = self._expected[run_id] or kind

    def _stop(self, active: _Active, kind: FailureKind) -> None:
        if active.stopped_by is not None:
            return
        active.stopped_by = kind
        active.run.request_stop()
        if active.task is not None:
            active.task.cancel()

    def _watch(self, claim: Claim, active: _Active) -> asyncio.Task[None] | None:
        """Starts the task that stops the run when it stalls."""
        if claim.stall_timeout_seconds is None:
            return None
        work = self._stop_if_stalled(active, claim.stall_timeout_seconds)
        return asyncio.get_running_loop().create_task(work)

    async def _stop_if_stalled(self, active: _Active, seconds: float) -> None:
        await wait_for_stall(active.run, seconds, self._clock)
        if active.stopped_by is None:
            active.error = f"no output and no progress for {seconds:g} seconds"
        self._stop(active, FailureKind.TIMEOUT)

    def longest_grace(self) -> float:
        """Returns the longest time that a running handler may take to stop: a command has its `grace_seconds`."""
        handlers = (active.job_type.handler for active in self._active.values())
        return max((getattr(handler, "grace_seconds", 0.0) for handler in handlers), default=0.0)

    def stop_all(self, kind: FailureKind) -> None:
        for run_id in [*self._active, *self._expected]:
            self.stop(run_id, kind)

    @property
    def active_runs(self) -> Iterator[tuple[Claim, RunContext]]:
        return ((active.claim, active.run) for active in self._active.values())

    def progress(self, run_id: str) -> tuple[float | None, str] | None:
        """Returns the fraction and the text that a run has reported last; None if it does not run on this node."""
        active = self._active.get(run_id)
        return None if active is None else (active.run.fraction, active.run.text)

    async def _await(self, job_type: JobType, run: RunContext) -> Outcome:
        try:
            return returned(run, await job_type.call(run))
        except GeneratorExit:
            raise
        except BaseException as error:  # Whatever a handler raises is a failure of its job, not of the scheduler.
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # `stop` or the shutdown cancelled the task, not the handler itself.
            return raised(run, error)

    def _as_stopped(self, active: _Active, outcome: Outcome) -> Outcome:
        """Makes the outcome of a stopped run a failure of that kind, whatever the handler returned (spec 5.10)."""
        if active.stopped_by is None:
            return outcome
        error = active.error or _STOP_ERRORS[active.stopped_by]
        if active.stopped_by is FailureKind.TIMEOUT and active.error is None and active.timeout_seconds is not None:
            error = f"timed out after {active.timeout_seconds:g} seconds"
        return replace(Outcome.failed(active.stopped_by, error, outcome.exit_code), session_id=outcome.session_id)

    async def _with_files(self, run: RunContext, outcome: Outcome) -> Outcome:
        """Adds the log and the artifacts of the run."""
        if not run.has_log and not run.has_artifacts:
            return outcome
        if run.is_slow_to_close:
            await self._threads.run(run.close)
        else:
            run.close()
        return replace(
            outcome,
            log_path=self._files.log_path(run.run_id) if run.has_log else None,
            artifacts=self._files.collect_artifacts(run.run_id) if run.has_artifacts else (),
        )


def _on_loop(listen: Listener) -> Listener:
    """Makes a listener that can be called from the thread of a handler.

    On the loop itself it is called at once: a later turn could come after the commit that ends the run, and the caller
    would read the result before the last piece.
    """
    loop = asyncio.get_running_loop()

    def pass_on(kind: str, data: Mapping[str, Any]) -> None:
        try:
            is_here = asyncio.get_running_loop() is loop
        except RuntimeError:  # A thread without an event loop.
            is_here = False
        if is_here:
            listen(kind, data)
        else:
            loop.call_soon_threadsafe(listen, kind, data)

    return pass_on


def _call(job_type: JobType, run: RunContext) -> Outcome:
    try:
        return returned(run, job_type.call(run))
    except BaseException as error:  # The thread is used again for the next handler.
        return raised(run, error)


async def wait_for_stall(run: RunContext, seconds: float, clock: Clock) -> None:
    """Returns once the run has been silent (no output, no progress) for this many seconds.

    After a pause of this process (a suspended machine, a blocked event loop) the count begins again.
    """
    held_until = run.last_active
    while (left := seconds - (clock.monotonic() - max(held_until, run.last_active))) > 0:
        wait, began = max(left, SHORTEST_WAIT), clock.monotonic()
        await clock.sleep(wait)
        if clock.monotonic() - began - wait > HELD_UP:
            held_until = clock.monotonic()
