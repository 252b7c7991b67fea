"""Several machines on one virtual time, in one thread: each has its own event loop, and can be stopped or killed.

A machine that is stopped runs nothing until it goes on, as after SIGSTOP; one that is killed never does, and none of
its code notices that. Of several machines that have something to do at one instant, a seeded choice goes first.
"""

import asyncio
import selectors
import sys
import threading
from asyncio import events
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from nextslot.testing.virtual_time import ExactLoop

NEVER = float("inf")
# In how many turns the tasks of a machine end that is not needed any more.
ENDING_TURNS = 12


class Machines:
    """Virtual time, and the machines that it passes for."""

    def __init__(self, chance: Random) -> None:
        self.seconds = 0.0
        self._chance = chance
        self._machines: list[Machine] = []

    def new(self, lag: Callable[[], float]) -> "Machine":
        """Makes a machine; `lag` is how long a request to the database, or its answer, is on the way."""
        machine = Machine(self, lag)
        self._machines.append(machine)
        return machine

    def pass_time(self, seconds: float) -> None:
        end = self.seconds + seconds
        while True:
            at = {machine: machine.next_at for machine in self._machines}
            first = min(at.values(), default=NEVER)
            if first > end:
                self.seconds = end
                return
            self.seconds = max(self.seconds, first)
            self._chance.choice([machine for machine in self._machines if at[machine] <= self.seconds]).turn()

    def close(self) -> None:
        for machine in self._machines:
            machine.set_exception_handler(lambda loop, context: None)
            machine.clear()


class _Still(selectors.SelectSelector):
    """Waits for nothing: time passes elsewhere."""

    def select(self, timeout: float | None = None) -> list[Any]:
        return super().select(0)


class Machine(ExactLoop):
    def __init__(self, machines: Machines, lag: Callable[[], float]) -> None:
        self._machines = machines
        self.lag = lag
        self.is_dead = False
        # Until when it is stopped, and when it last went on.
        self.stopped_until = 0.0
        super().__init__(_Still())

    def time(self) -> float:
        return self._machines.seconds

    @property
    def is_stopped(self) -> bool:
        return self._machines.seconds < self.stopped_until

    def stop_for(self, seconds: float) -> None:
        self.stopped_until = self._machines.seconds + seconds

    def kill(self) -> None:
        self.is_dead = True

    @property
    def next_at(self) -> float:
        """When it has something to do."""
        if self.is_dead:
            return NEVER
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        at = self.time() if self._ready else timers[0]._when if timers else NEVER  # type: ignore[attr-defined]
        return max(at, self.stopped_until)

    def turn(self) -> None:
        """Runs what is ready and due now, as one turn of its event loop."""
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(self._asyncgen_firstiter_hook, self._asyncgen_finalizer_hook)  # type: ignore[attr-defined]
        self._thread_id = threading.get_ident()
        events._set_running_loop(self)
        try:
            self._run_once()  # type: ignore[attr-defined]
        finally:
            events._set_running_loop(None)
            self._thread_id = None  # type: ignore[assignment]
            sys.set_asyncgen_hooks(*hooks)

    def begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self.create_task(work)

    # The base's signature is generic in the arguments, which are only handed on here.
    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """Calls a function as a thread would: what it needs is on the way for a while, and so is its answer."""
        return self.create_task(self._call(func, *args))

    async def _call(self, func: Any, *args: Any) -> Any:
        await asyncio.sleep(self.lag())
        answer = func(*args)
        await asyncio.sleep(self.lag())
        return answer

    def clear(self) -> None:
        """Ends every task, so that nothing of it is left to the garbage collector; nobody looks at what it does now."""
        self.is_dead = True
        for _ in range(ENDING_TURNS):
            for task in asyncio.all_tasks(self):
                task.cancel()
            self.turn()
            self._machines.seconds += 1e6  # What ignores its cancellation waits for a time that has come then.
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.close()
