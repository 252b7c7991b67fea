"""Runs several machines on one virtual time, in one thread: each has its own event loop, and can be stopped or killed.

A stopped machine runs nothing until it continues, as after SIGSTOP. A killed machine never continues, and none of its
code notices that. If several machines have something to do at the same instant, a seeded choice decides which one goes
first.
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
# How many turns the tasks of a machine get to end, when it is no longer needed.
ENDING_TURNS = 12


class Machines:
    """Virtual time, and the machines that share it."""

    def __init__(self, chance: Random) -> None:
        self.seconds = 0.0
        self._chance = chance
        self._machines: list[Machine] = []

    def new(self, lag: Callable[[], float]) -> "Machine":
        """Makes a machine; `lag` returns how long a request to the database, or its answer, takes on the network."""
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
    """A selector that never waits: the simulation advances the time."""

    def select(self, timeout: float | None = None) -> list[Any]:
        return super().select(0)


class Machine(ExactLoop):
    def __init__(self, machines: Machines, lag: Callable[[], float]) -> None:
        self._machines = machines
        self.lag = lag
        self.is_dead = False
        # Until when the machine is stopped, and when it last continued.
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
        """Returns when the machine next has something to do."""
        if self.is_dead:
            return NEVER
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        at = self.time() if self._ready else timers[0]._when if timers else NEVER  # type: ignore[attr-defined]
        return max(at, self.stopped_until)

    def turn(self) -> None:
        """Runs the callbacks that are ready or due, as one turn of its event loop."""
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
        """Calls a function as a thread would, with delays for a request to the database and for its answer."""
        return self.create_task(self._call(func, *args))

    async def _call(self, func: Any, *args: Any) -> Any:
        await asyncio.sleep(self.lag())
        answer = func(*args)
        await asyncio.sleep(self.lag())
        return answer

    def clear(self) -> None:
        """Ends every task, so that none is left to the garbage collector. Nothing checks what the machine does now."""
        self.is_dead = True
        for _ in range(ENDING_TURNS):
            for task in asyncio.all_tasks(self):
                task.cancel()
            self.turn()
            self._machines.seconds += 1e6  # Ends waits of tasks that ignore their cancellation.
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.close()
