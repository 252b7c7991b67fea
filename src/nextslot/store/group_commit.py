"""Group commit: works that wait together are committed together, and each caller gets its own answer.

Both stores hand their works in here; how a transaction is run, and on which thread, is theirs. After each commit, and
before the next transaction begins, the committing thread applies what that commit causes in memory.
"""

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from nextslot.errors import (
    CommitUnknown,
    NextslotError,
    StoreError,
    Unavailable,
)
from nextslot.telemetry.meters import Meters, Unmeasured

from .contract import (
    Effect,
    Effects,
    Local,
    Tx,
    Work,
)

T = TypeVar("T")
log = logging.getLogger(__name__)

# A group is committed when it has this many rows; a work that is larger runs alone.
GROUP_ROWS = 1000
# A group is tried again without a work that failed in it; after so many of them each work runs alone, which costs a
# commit each, but no longer the work of the whole group for each that fails.
MOST_SET_ASIDE = 4


@dataclass(slots=True)
class WorkResult:
    """What became of one work."""

    value: Any = None
    error: BaseException | None = None


class GroupFailed(Exception):
    """Raised by a store when trying the works of a group one by one is of no use, or not safe; `error` is for each."""

    def __init__(self, error: NextslotError) -> None:
        self.error = error
        super().__init__(str(error))


class WorkFailed(Exception):
    """Raised inside a transaction by the work at `index` of its group; the cause is that work's own error."""

    def __init__(self, index: int) -> None:
        self.index = index
        super().__init__(f"work {index} of its group failed")


class TxMemory:
    """What a transaction keeps beside the database: what its commit causes, and its own instances."""

    def __init__(self) -> None:
        self._locals: dict[Callable[[Tx], Any], Any] = {}
        self.effects: list[Effect] = []
        self.topics: set[str] = set()
        # How often a work may have changed what lives with the transaction in memory.
        self.touches = 0

    def cause(self, effect: Effect, /) -> None:
        self.touches += 1
        self.effects.append(effect)

    def announce(self, topic: str, /) -> None:
        self.touches += 1
        self.topics.add(topic)

    def local(self: Any, kind: Callable[[Tx], Local], /) -> Local:
        self.touches += 1
        made: Local = self._locals.get(kind) or self._locals.setdefault(kind, kind(self))
        return made


class OpenTx(Tx, Protocol):
    """A transaction as its store sees it."""

    def footprint(self) -> object:
        """Differs from what it was before as soon as anything may have been changed."""


def attempt_all(tx: OpenTx, works: Sequence[Work[Any]]) -> list[WorkResult]:
    """Runs the works of a group one after the other in one transaction."""
    return [_attempt(tx, index, work) for index, work in enumerate(works)]


def _attempt(tx: OpenTx, index: int, work: Work[Any]) -> WorkResult:
    """A refusal by one of our own rules, before the work changed anything, is its answer and not the group's problem.

    A work that fails after it has changed something ends the transaction: memory of the transaction cannot be undone
    for one work alone.
    """
    before = tx.footprint()
    try:
        return WorkResult(value=work(tx))
    except NextslotError as error:
        if tx.footprint() == before:
            return WorkResult(error=error)
        raise WorkFailed(index) from error
    except Exception as error:
        raise WorkFailed(index) from error


class Transactions(Protocol):
    """How a store runs works."""

    def settle(self) -> list[Effect]:
        """Finds out whether a commit whose answer was lost had been stored: what that commit causes, if it was."""

    def transaction(self, works: list[Work[Any]], /) -> tuple[list[WorkResult], list[Effect]]:
        """Runs all of them in one transaction, or none: what became of each, and what the commit causes."""

    def translated(self, error: BaseException, /) -> BaseException:
        """A driver's error as ours."""

    def is_inline(self, rows: int, /) -> bool:
        """Whether a group that begins with a work of this size runs on the event loop itself."""


@dataclass(slots=True)
class _Waiting:
    work: Work[Any]
    rows: int
    done: asyncio.Future[Any]
    since: float


class GroupCommit:
    def __init__(self, store: Transactions, thread: Executor, effects: Effects, meters: Meters | None = None) -> None:
        self._store = store
        self._thread = thread
        self._effects = effects
        self._meters = meters or Unmeasured()
        self._queue: deque[_Waiting] = deque()
        self._is_flushing = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.is_closed = False

    async def write(self, work: Work[T], rows: int) -> T:
        self.refuse_if_closed()
        loop = asyncio.get_running_loop()
        waiting = _Waiting(work, rows, loop.create_future(), self._meters.seconds())
        self._queue.append(waiting)
        if not self._is_flushing:
            self._is_flushing = True
            self._idle.clear()
            self._flush_soon(loop)
        done: T = await waiting.done
        return done

    def refuse_if_closed(self) -> None:
        if self.is_closed:
            raise Unavailable("the store is closed")

    async def close(self) -> None:
        """Takes no more; returns when everything that was handed in before is stored."""
        self.is_closed = True
        await self._idle.wait()

    def abandon(self) -> None:
        """What waits is dropped, as in a crash."""
        self.is_closed = True
        for waiting in self._queue:
            waiting.done.cancel()
        self._queue.clear()
        self._idle.set()

    def _flush_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a context of its own: works of several callers share a transaction, which is done for none of them."""
        loop.call_soon(self._flush, context=contextvars.Context())

    def _flush(self) -> None:
        if not self._queue:
            return  # Abandoned.
        group = self._take_group()
        if self._store.is_inline(group[0].rows):
            self._release(group, *self._commit(group))
        else:
            committed = asyncio.get_running_loop().run_in_executor(self._thread, self._commit, group)
            committed.add_done_callback(lambda done: self._release(group, *done.result()))

    def _take_group(self) -> list[_Waiting]:
        group = [self._queue.popleft()]
        rows = group[0].rows
        while self._queue and rows + self._queue[0].rows <= GROUP_ROWS:
            rows += self._queue[0].rows
            group.append(self._queue.popleft())
        return group

    def _release(self, group: list[_Waiting], answers: list[WorkResult], effects: list[Effect]) -> None:
        """On the event loop, after the commit: what it causes there, then the callers, then the next group."""
        self._measure(group, answers)
        self._effects.carry_out(effects)
        for waiting, answer in zip(group, answers, strict=True):
            if waiting.done.done():
                continue  # The caller was cancelled; what it asked for is stored all the same.
            if answer.error is not None:
                waiting.done.set_exception(answer.error)
            else:
                waiting.done.set_result(answer.value)
        if self._queue:
            self._flush_soon(asyncio.get_running_loop())
        else:
            self._is_flushing = False
            self._idle.set()

    def _measure(self, group: list[_Waiting], answers: list[WorkResult]) -> None:
        failures = sum(is_failure(one.error) for one in answers if one.error is not None)
        self._meters.committed(len(group), self._meters.seconds() - group[0].since, failures)

    # On the thread that commits.

    def _commit(self, group: list[_Waiting]) -> tuple[list[WorkResult], list[Effect]]:
        """Optimistic: all works in one transaction. A work that fails there runs alone, after the others."""
        batch = _Batch([waiting.work for waiting in group])
        together, alone = list(range(len(group))), list[int]()
        while len(together) > 1 and len(alone) < MOST_SET_ASIDE:
            try:
                self._transact(batch, together)
                together = []
            except WorkFailed as failed:
                alone.append(together.pop(failed.index))
            except Exception:
                log.debug("a group failed at its end: each of its works runs alone", exc_info=True)
                break
        for index in sorted(together + alone):
            try:
                self._transact(batch, [index])
            except Exception as error:
                batch.answers[index] = WorkResult(error=self._store.translated(_own(error)))
        return batch.answers, batch.effects

    def _transact(self, batch: "_Batch", indices: list[int]) -> None:
        """One transaction. Memory follows each commit before the next transaction begins."""
        try:
            self._apply(batch, self._store.settle())
            answers, effects = self._store.transaction([batch.works[index] for index in indices])
        except GroupFailed as failed:
            answers, effects = [WorkResult(error=failed.error) for _ in indices], []
        self._apply(batch, effects)
        for index, answer in zip(indices, answers, strict=True):
            batch.answers[index] = answer

    def _apply(self, batch: "_Batch", effects: list[Effect]) -> None:
        self._effects.apply(effects)
        batch.effects += effects


class _Batch:
    """Works that wait together, what became of each, and what their commits cause, in the order of the commits."""

    def __init__(self, works: list[Work[Any]]) -> None:
        self.works = works
        self.answers = [WorkResult()] * len(works)
        self.effects: list[Effect] = []


def _own(error: Exception) -> BaseException:
    """A work's own error."""
    return error.__cause__ or error if isinstance(error, WorkFailed) else error


def is_failure(error: BaseException) -> bool:
    """Whether it was the store that did not do it, and not a rule of ours that refused it."""
    return isinstance(error, (StoreError, CommitUnknown)) or type(error) is Unavailable
