"""Threads for what blocks (handlers, names to resolve): as many as needed, reused; none keeps the process alive."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Threads(Protocol):
    async def run(self, call: Callable[[], T]) -> T:
        """What `call` returns; it does not raise."""


class DaemonThreads:
    """Limits decide how much runs at once, so there is no other bound here.

    The standard pool is not used because it waits for its threads at exit: a handler that ignores its signal would
    then keep a stopped scheduler's process for ever.
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
            with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits for this any more.
                loop.call_soon_threadsafe(self._finish, done, answer, own)

    def _finish(self, done: "asyncio.Future[T]", answer: T, inbox: "queue.SimpleQueue[Any]") -> None:
        self._idle.append(inbox)
        if not done.done():
            done.set_result(answer)


class InlineThreads:
    """Runs blocking handlers where they are called: for tests on virtual time."""

    async def run(self, call: Callable[[], T]) -> T:
        return call()
