"""Group commit: commits works that wait at the same time together, and gives each caller its own result.

Both stores use this class; each store decides how a transaction runs, and on which thread. After each commit, and
before the next transaction begins, the committing thread applies the commit's effects in memory.
"""

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from nextslot.errors import CommitUnknown, NextslotError, StoreError, Unavailable
from nextslot.telemetry.meters import Meters

from .contract import Effect, Effects, Local, Tx, Work

T = TypeVar("T")
log = logging.getLogger(__name__)

# A group is committed when it has this many rows. A larger work runs alone.
GROUP_ROWS = 1000
# A group is repeated without a work that failed in it. After this many failures each work runs alone: that costs a
# commit for each work, but no longer a repetition of the whole group for each failure.
MOST_SET_ASIDE = 4


@dataclass(slots=True)
class WorkResult:
    """The result or the error of one work."""

    value: Any = None
    error: BaseException | None = None


class GroupFailed(Exception):
    """Raised by a store if running the works of a group one by one is useless or unsafe. Each work gets `error`."""

    def __init__(self, error: NextslotError) -> None:
        self.error = error
        super().__init__(str(error))


class WorkFailed(Exception):
    """Raised inside a transaction because the work at `index` of its group failed; the cause is that work's own
    error."""

    def __init__(self, index: int) -> None:
        self.index = index
        super().__init__(f"work {index} of its group failed")


class TxMemory:
    """The memory of a transaction: the effects of its commit, and the instances that `local` creates."""

    is_alone = True

    def __init__(self) -> None:
        self._locals: dict[Callable[[Tx], Any], Any] = {}
        self.effects: list[Effect] = []
        self.topics: set[str] = set()
        # How often a work may have changed the memory of the transaction.
        self.touches = 0

    def cause(self, effect: Effect, /) -> None:
        self.touches += 1
        self.effects.append(effect)

    def announce(self, topic: str, /) -> None:
        self.touches += 1
        self.topics.add(topic)

    def enter(self, office_id: str | None, /) -> None: ...

    def has_entered(self, office_id: str, /) -> bool:
        return True

    def try_enter(self, office_id: str, /) -> bool:
        return True

    def local(self: Any, kind: Callable[[Tx], Local], /) -> Local:
        self.touches += 1
        made: Local = self._locals.get(kind) or self._locals.setdefault(kind, kind(self))
        return made


class OpenTx(Tx, Protocol):
    """A transaction as its store uses it."""

    def footprint(self) -> object:
        """Returns a value that changes whenever a work may have changed anything."""


def attempt_all(tx: OpenTx, works: Sequence[Work[Any]]) -> list[WorkResult]:
    """Runs the works of a group one after the other in one transaction."""
    return [_attempt(tx, index, work) for index, work in enumerate(works)]


def _attempt(tx: OpenTx, index: int, work: Work[Any]) -> WorkResult:
    """Runs one work. If it refuses before it changed anything, only this work fails and the group goes on.

    A work that fails after a change ends the transaction, because the transaction's memory cannot be undone for one
    work.
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
    """Runs the transactions of a store."""

    def settle(self) -> list[Effect]:
        """Finds out whether a commit whose response was lost was stored; returns its effects if so."""

    def wait_for_turn(self, works: list[Work[Any]], /) -> Callable[[Work[Any]], bool]:
        """Waits until other nodes let this node write. Returns a function that tells whether a work that arrived
        meanwhile may join these.
        """

    def transaction(self, works: list[Work[Any]], /) -> tuple[list[WorkResult], list[Effect]]:
        """Runs all works in one transaction. Returns the result of each, and the effects of the commit."""

    def translated(self, error: BaseException, /) -> BaseException:
        """Translates a driver's error into ours."""

    def is_inline(self, rows: int, /) -> bool:
        """Returns whether a group that begins with a work of this size runs on the event loop itself."""


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
        self._meters = meters or Meters()
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
            raise Unavailable("the store is closed; start the scheduler again")

    async def close(self) -> None:
        """Accepts no more works; returns when everything submitted before is stored."""
        self.is_closed = True
        await self._idle.wait()

    def abandon(self) -> None:
        """Drops the waiting works, as a crash would."""
        self.is_closed = True
        for waiting in self._queue:
            waiting.done.cancel()
        self._queue.clear()
        self._idle.set()

    def _flush_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Schedules a flush. Do not inherit the context of the caller whose work starts it: a group has several
        callers.
        """
        loop.call_soon(self._flush, context=contextvars.Context())

    def _flush(self) -> None:
        if not self._queue:
            return  # The store was abandoned before the flush.
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
        """Runs on the event loop after the commit: carries out effects, then answers the callers, then starts the next
        group.
        """
        self._measure(group, answers)
        self._effects.carry_out(effects)
        for waiting, answer in zip(group, answers, strict=True):
            if waiting.done.done():
                continue  # The caller was cancelled; its work is stored anyway.
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

    # On the committing thread.

    def _commit(self, group: list[_Waiting]) -> tuple[list[WorkResult], list[Effect]]:
        """Tries all works in one transaction. A work that fails runs again alone, after the others."""
        self._add_late(group)
        batch = _Batch([waiting.work for waiting in group])
        together, alone = list(range(len(group))), list[int]()
        while len(together) > 1 and len(alone) < MOST_SET_ASIDE:
            try:
                self._transact(batch, together)
                together = []
            except WorkFailed as failed:
                alone.append(together.pop(failed.index))
            except Exception:
                log.debug("the end of a group's transaction failed; each of its works runs alone now", exc_info=True)
                break
        for index in sorted(together + alone):
            try:
                self._transact(batch, [index])
            except Exception as error:
                batch.answers[index] = WorkResult(error=self._store.translated(_own(error)))
        return batch.answers, batch.effects

    def _add_late(self, group: list[_Waiting]) -> None:
        """Adds the works that arrived while the store waited for other nodes: fewer commits, and fewer waits."""
        may_join = self._store.wait_for_turn([waiting.work for waiting in group])
        rows = sum(waiting.rows for waiting in group)
        # Nobody else takes from the queue while a group is being committed.
        while self._queue and rows + self._queue[0].rows <= GROUP_ROWS and may_join(self._queue[0].work):
            rows += self._queue[0].rows
            group.append(self._queue.popleft())

    def _transact(self, batch: "_Batch", indices: list[int]) -> None:
        """Runs one transaction. Its effects are applied in memory before the next transaction begins."""
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
    """Works that run together, the result of each, and the effects of their commits in the order of the commits."""

    def __init__(self, works: list[Work[Any]]) -> None:
        self.works = works
        self.answers = [WorkResult()] * len(works)
        self.effects: list[Effect] = []


def _own(error: Exception) -> BaseException:
    """Returns the error that the work itself raised."""
    return error.__cause__ or error if isinstance(error, WorkFailed) else error


def is_failure(error: BaseException) -> bool:
    """Returns whether the store failed, as opposed to a refusal by one of our rules."""
    return isinstance(error, (StoreError, CommitUnknown)) or type(error) is Unavailable
