"""StallAlarm: reports runs that have written no output and reported no progress for long. It stops no run.

`Runner` calls it while something runs. A silence is measured on the monotonic clock of this process, and stored on the
run while it lasts. So each silence is reported once, and a run whose process is dead is never reported.
"""

import asyncio
import logging
import math
from functools import partial

from nextslot.engine.effects import Claim, WorkKind
from nextslot.engine.engine_context import EngineContext
from nextslot.errors import Fenced
from nextslot.executors.run_context import RunContext
from nextslot.store.contract import Store, Tx
from nextslot.store.tables import direct, runs
from nextslot.system.instant import Instant

from .executor import HELD_UP, Executor

log = logging.getLogger(__name__)

# How long it waits after a store error.
RETRY_SECONDS = 1.0


class StallAlarm:
    def __init__(self, engine: EngineContext, executor: Executor) -> None:
        self._engine = engine
        self._clock = engine.clock
        self._executor = executor
        # When the process was last held up, by the monotonic clock. Runs could not report during that time.
        self._held_until = 0.0
        # The start of the silence of each silent run; and the tasks that store it.
        self._silent: dict[str, Instant | None] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def rest(self) -> None:
        """Forgets all silences, because nothing runs."""
        self._silent.clear()

    def look(self, store: Store, due: float) -> float:
        """Reports runs that have become silent. Returns the seconds until the next check. `due` is when this check was
        planned.
        """
        now, most = self._clock.monotonic(), self._executor.stall_alarm_seconds
        if now - due > HELD_UP:
            self._held_until = now
        if self._silent:
            running = {claim.run_id for claim, _ in self._executor.active_runs}
            self._silent = {run_id: since for run_id, since in self._silent.items() if run_id in running}
        left = math.inf
        for claim, run in self._executor.active_runs if most else ():
            silent_for = now - max(run.last_active, self._held_until)
            if self._silent.get(claim.run_id) is not None:
                continue
            if most is not None and silent_for > most - 0.001:
                self._begin_silence(store, claim, run, silent_for)
            elif most is not None:
                left = min(left, most - silent_for)
        return left

    def _begin_silence(self, store: Store, claim: Claim, run: RunContext, silent_for: float) -> None:
        loop, last_active = asyncio.get_running_loop(), run.last_active

        def end() -> None:  # Called on the handler's thread.
            loop.call_soon_threadsafe(self._end_silence, store, claim)

        run.on_activity = end
        if run.last_active == last_active:  # Otherwise the handler's thread has written something just now.
            self._silent[claim.run_id] = self._clock.now().after(-silent_for)
            self._store_silence(store, claim)

    def _end_silence(self, store: Store, claim: Claim) -> None:
        if self._silent.get(claim.run_id) is not None:
            self._silent[claim.run_id] = None
            self._store_silence(store, claim)

    def _store_silence(self, store: Store, claim: Claim) -> None:
        if claim.run_id not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._write(store, claim), name="nextslot-stall-alarm")
            self._tasks[claim.run_id] = task
            task.add_done_callback(lambda _: self._tasks.pop(claim.run_id, None))

    async def _write(self, store: Store, claim: Claim) -> None:
        """Stores the start or the end of a silence until it is stored or the run has ended."""
        while claim.run_id in self._silent:
            since = self._silent[claim.run_id]
            try:
                await store.write(partial(self._note, claim, since))
            except Fenced:
                return
            except Exception as error:  # A store error must not lose the alarm.
                log.warning("run %s: its silence cannot be stored yet: %s", claim.run_id, error)
                await self._clock.sleep(RETRY_SECONDS)
            else:
                if self._silent.get(claim.run_id) == since:
                    return

    def _note(self, claim: Claim, since: Instant | None, tx: Tx) -> None:
        """Stores since when a run is silent; None if it no longer is. Leaves a run that has ended as it is."""
        is_job = claim.kind is WorkKind.JOB
        set_silent = runs.set_silent if is_job else direct.set_silent
        if not set_silent(tx, claim.run_id, since) or since is None:
            return
        now, job_id = self._clock.now(), claim.job_id if is_job else None
        details = {"silent_since": str(since), "job_type": claim.job_type}
        self._engine.events.note(tx, "job_stalled", now, claim.office_id, job_id, claim.run_id, details)
        if is_job:
            self._engine.webhooks.job_changed(tx, claim.job_id, claim.office_id, True, ("job.stalled",), now)
        elif (found := direct.get(tx, claim.run_id)) is not None:
            self._engine.webhooks.direct_stalled(tx, found, now)
