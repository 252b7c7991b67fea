"""Group commit: works that wait together are committed together, and each caller gets its own answer.

Both stores hand their works in here; how a transaction is run, and on which thread, is theirs.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ..errors import CommitUnknown, NextslotError, StoreError, Unavailable
from ..meters import Meters, Unmeasured
from .store import Local, Tx, Work

T = TypeVar("T")
log = logging.getLogger(__name__)

# A group is committed when it has this many rows; a work that is larger runs alone.
GROUP_ROWS = 1000

Call = Callable[[], None]


@dataclass(slots=True)
class Answer:
    """What became of one work."""

    value: Any = None
    error: BaseException | None = None


class GroupFailed(Exception):
    """Raised by a store when trying the works of a group one by one is of no use, or not safe; `error` is for each."""

    def __init__(self, error: NextslotError) -> None:
        self.error = error
        super().__init__(str(error))


class TxMemory:
    """What a transaction keeps beside the database: what is to happen once it is committed, and its own instances."""

    def __init__(self) -> None:
        self._locals: dict[Callable[[Tx], Any], Any] = {}
        self.committed: list[Call] = []
        self.topics: set[str] = set()
        # How often a work may have changed what lives with the transaction in memory.
        self.touches = 0

    def after_commit(self, call: Call, /) -> None:
        self.touches += 1
        self.committed.append(call)

    def announce(self, topic: str, /) -> None:
        self.topics.add(topic)

    def local(self: Any, kind: Callable[[Tx], Local], /) -> Local:
        self.touches += 1
        made: Local = self._locals.get(kind) or self._locals.setdefault(kind, kind(self))
        return made


class OpenTx(Tx, Protocol):
    """A transaction as its store sees it."""

    def footprint(self) -> object:
        """Differs from what it was before as soon as anything may have been changed."""


def attempt(tx: OpenTx, work: Work[Any]) -> Answer:
    """A refusal by one of our own rules, before anything was changed, is an answer and not the group's problem."""
    before = tx.footprint()
    try:
        return Answer(value=work(tx))
    except NextslotError as error:
        if tx.footprint() != before:
            raise
        return Answer(error=error)


class Transactions(Protocol):
    """How a store runs works."""

    def transaction(self, works: list[Work[Any]], /) -> tuple[list[Answer], list[Call]]:
        """All of them in one transaction, or none; what became of each, and what is to follow the commit."""

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
    def __init__(self, store: Transactions, thread: Executor, meters: Meters | None = None) -> None:
        self._store = store
        self._thread = thread
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
            loop.call_soon(self._flush)
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

    def _release(self, group: list[_Waiting], answers: list[Answer], committed: list[Call]) -> None:
        """On the event loop, after the commit: what was to follow it, then the callers, then the next group."""
        self._measure(group, answers)
        follow(committed)
        for waiting, answer in zip(group, answers, strict=True):
            if waiting.done.done():
                continue  # The caller was cancelled; what it asked for is stored all the same.
            if answer.error is not None:
                waiting.done.set_exception(answer.error)
            else:
                waiting.done.set_result(answer.value)
        if self._queue:
            asyncio.get_running_loop().call_soon(self._flush)
        else:
            self._is_flushing = False
            self._idle.set()

    def _measure(self, group: list[_Waiting], answers: list[Answer]) -> None:
        failures = sum(is_failure(one.error) for one in answers if one.error is not None)
        self._meters.committed(len(group), self._meters.seconds() - group[0].since, failures)

    def _commit(self, group: list[_Waiting]) -> tuple[list[Answer], list[Call]]:
        """Optimistic: all in one transaction; if anything fails, each in its own: one takes no other with it."""
        works = [waiting.work for waiting in group]
        if len(works) > 1:
            try:
                return self._store.transaction(works)
            except GroupFailed as failed:
                return [Answer(error=failed.error) for _ in works], []
            except Exception:
                log.debug("a group failed: its works are tried one by one, each for its own caller", exc_info=True)
        answers: list[Answer] = []
        committed: list[Call] = []
        for work in works:
            try:
                answer, calls = self._store.transaction([work])
            except GroupFailed as failed:
                answers.append(Answer(error=failed.error))
            except Exception as error:
                answers.append(Answer(error=self._store.translated(error)))
            else:
                answers += answer
                committed += calls
        return answers, committed


def is_failure(error: BaseException) -> bool:
    """Whether it was the store that did not do it, and not a rule of ours that refused it."""
    return isinstance(error, (StoreError, CommitUnknown)) or type(error) is Unavailable


def follow(committed: list[Call]) -> None:
    for call in committed:
        try:
            call()
        except Exception:  # The callers must get their answers all the same.
            log.exception("what was to follow a commit failed")
