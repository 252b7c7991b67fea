"""Threads for blocking calls (handlers, name resolution): created on demand, reused, and never keeping the process
alive.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Threads(Protocol):
    async def run(self, call: Callable[[], T]) -> T:
        """Runs `call`, which must not raise, in a thread and returns its result."""


class DaemonThreads:
    """Runs each blocking call in its own daemon thread. The scheduler's limits bound how many run at once.

    The standard pool is not used because it waits for its threads at exit: a handler that ignores its stop request
    would then keep a stopped scheduler's process alive.
    """

    def __init__(self) -> None:
        self._idle: list[queue.SimpleQueue[Any]] = []

    async def run(self, call: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        inbox = self._idle.pop() if self._idle else self._new_thread()
        inbox.put((call, loop, done, inbox))
        return await done

    def _new_thread(self) -> "queue.SimpleQueue[Any]":
        inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._serve, args=(inbox,), name="nextslot-handler", daemon=True).start()
        return inbox

    def _serve(self, inbox: "queue.SimpleQueue[Any]") -> None:
        while True:
            call, loop, done, own = inbox.get()
            answer = call()
            with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits for the result any more.
                loop.call_soon_threadsafe(self._finish, done, answer, own)

    def _finish(self, done: "asyncio.Future[T]", answer: T, inbox: "queue.SimpleQueue[Any]") -> None:
        self._idle.append(inbox)
        if not done.done():
            done.set_result(answer)


class InlineThreads:
    """Runs blocking calls in the calling thread, for tests with virtual time."""

    async def run(self, call: Callable[[], T]) -> T:
        return call()
