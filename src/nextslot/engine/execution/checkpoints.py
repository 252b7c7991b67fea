"""CheckpointWriter: stores what runs leave for the next attempt of their chain, one write at a time for each run.

If several checkpoints arrive during a write, only the last one is stored, and its commit acknowledges all of them. So a
run that makes many costs one write after the other, never a queue of them.
"""

import asyncio
from dataclasses import dataclass, field

from nextslot.errors import Conflict, NextslotError, Unavailable
from nextslot.store.contract import Store
from nextslot.store.tables import checkpoints
from nextslot.system.clock import Clock


@dataclass(slots=True)
class _Waiting:
    """The newest checkpoint of a run whose write has not begun, and the future that its callers await."""

    text: str
    answer: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class CheckpointWriter:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[str, _Waiting] = {}
        # The writing tasks, by run.
        self.writers: dict[str, asyncio.Task[None]] = {}

    def keep(self, store: Store, run_id: str, text: str) -> "asyncio.Future[None]":
        """Returns a future that is done when this checkpoint, or a later one of the same run, is durable; or that has
        the error.
        """
        waiting = self._waiting.get(run_id)
        if waiting is None:
            waiting = self._waiting[run_id] = _Waiting(text)
        else:
            waiting.text = text
        if run_id not in self.writers:
            self.writers[run_id] = asyncio.get_running_loop().create_task(self._write(store, run_id))
        return asyncio.shield(waiting.answer)

    async def settled(self, run_id: str) -> None:
        """Waits until no checkpoint of a run is being written: the end of the run must not be stored before its
        checkpoint.
        """
        while (writer := self.writers.get(run_id)) is not None:
            await asyncio.wait([writer])

    async def _write(self, store: Store, run_id: str) -> None:
        try:
            while (waiting := self._waiting.pop(run_id, None)) is not None:
                error = await self._stored(store, run_id, waiting.text)
                if waiting.answer.done():
                    continue
                if error is None:
                    waiting.answer.set_result(None)
                else:
                    waiting.answer.set_exception(error)
                    waiting.answer.exception()  # Otherwise asyncio logs an error that nobody awaits.
        finally:
            del self.writers[run_id]

    async def _stored(self, store: Store, run_id: str, text: str) -> Exception | None:
        try:
            is_kept = await store.write(lambda tx: checkpoints.keep(tx, run_id, text, self._clock.now()))
        except NextslotError as error:
            return error
        except Exception as error:  # A defect of the store must not end the writer: its callers would wait for ever.
            return Unavailable(f"the checkpoint could not be stored: {type(error).__name__}: {error}")
        return None if is_kept else Conflict(f"run {run_id} has ended: its checkpoint is not stored")
