"""Watchdog: detects that the event loop does not answer, and logs which code blocks it.

The event loop writes a beat into the node's heartbeat four times a second, and a thread checks it. The thread sees a
handler that sleeps or computes without awaiting while it does so. A handler that holds the interpreter's lock stops
this thread too, so it is seen when it releases the lock; meanwhile the sidecar acts for the node.
"""

import asyncio
import contextlib
import logging
import sys
import threading
import traceback
from asyncio.events import Handle
from collections.abc import Callable, Iterator, Mapping
from types import FrameType

from nextslot.telemetry.logs import bound, bound_in
from nextslot.telemetry.meters import Meters

from .sidecar import SharedHeartbeat, Sidecar
from .sidecar_main import now

log = logging.getLogger(__name__)

BEAT_SECONDS = 0.25
BLOCKED_SECONDS = 1.0
# How many of the innermost stack frames are logged.
LINES = 6


class Watchdog:
    """Watches one event loop while at least one caller needs it, and owns the sidecar and the heartbeat."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._holders = 0
        self._heartbeat: SharedHeartbeat | None = None
        self._sidecar: Sidecar | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def heartbeat(self) -> SharedHeartbeat:
        assert self._heartbeat is not None
        return self._heartbeat

    @property
    def sidecar(self) -> Sidecar:
        assert self._sidecar is not None
        return self._sidecar

    @contextlib.contextmanager
    def watching(self, *, with_sidecar: bool = True) -> Iterator[None]:
        """Watches the running loop until the last caller has left this context. The first caller decides whether there
        is a sidecar: a scheduler inside another program, with a database of its own, needs only the reports."""
        self._holders += 1
        if self._holders == 1:
            self._start(asyncio.get_running_loop(), with_sidecar)
        try:
            yield
        finally:
            self._holders -= 1
            if self._holders == 0:
                self._stop()

    def _start(self, loop: asyncio.AbstractEventLoop, with_sidecar: bool) -> None:
        self._heartbeat = SharedHeartbeat()
        self._sidecar = Sidecar(self._heartbeat) if with_sidecar else None
        self._is_over = threading.Event()
        self._beat(loop, self._heartbeat)
        watch = _Watch(loop, self._heartbeat, self._sidecar, self._is_over, self._meters.blocked)
        self._thread = threading.Thread(target=watch.run, name="nextslot-watchdog", daemon=True)
        self._thread.start()

    def _beat(self, loop: asyncio.AbstractEventLoop, heartbeat: SharedHeartbeat) -> None:
        heartbeat.beat()
        self._timer = loop.call_later(BEAT_SECONDS, self._beat, loop, heartbeat)

    def _stop(self) -> None:
        self._is_over.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            self._thread.join()
        if self._sidecar is not None:
            self._sidecar.close()
        self.heartbeat.close()
        self._heartbeat = self._sidecar = self._thread = self._timer = None


class _Watch:
    """The watching thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        heartbeat: SharedHeartbeat,
        sidecar: Sidecar | None,
        is_over: threading.Event,
        blocked: Callable[[float], None],
    ) -> None:
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._heartbeat = heartbeat
        self._sidecar = sidecar
        self._is_over = is_over
        self._blocked = blocked
        # The last beat before the loop stopped answering; None while it answers.
        self._silent_since: float | None = None

    def run(self) -> None:
        checked_at = now()
        while not self._is_over.wait(BEAT_SECONDS):
            self._check(now() - checked_at - BEAT_SECONDS)
            checked_at = now()
            if self._sidecar is not None:
                self._sidecar.check()

    def _check(self, own_delay: float) -> None:
        beat_at = self._heartbeat.beat_at
        if self._silent_since is not None and beat_at > self._silent_since:
            self._end(beat_at)
        elif self._silent_since is None and now() - beat_at >= BLOCKED_SECONDS + BEAT_SECONDS:
            self._silent_since = beat_at
            self._report(now() - beat_at, own_delay)
        elif self._silent_since is None and own_delay >= BLOCKED_SECONDS:
            log.error("no code of this process ran for %.1f s: %s", own_delay, _HELD)
            self._note(own_delay)

    def _report(self, seconds: float, own_delay: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        ids = {} if frame is None else _ids(frame)
        why = f" ({_HELD})" if own_delay >= BLOCKED_SECONDS else ""
        with bound(**ids):
            log.error(
                "the event loop has not answered for %.1f s%s: %s blocks it at %s%s",
                seconds,
                why,
                _blocker(ids),
                _stack(frame),
                _REMEDY if "job_type" in ids else "",
            )

    def _end(self, beat_at: float) -> None:
        seconds = beat_at - (self._silent_since or beat_at)
        self._silent_since = None
        log.warning("the event loop answers again, after %.1f s", seconds)
        self._note(seconds)

    def _note(self, seconds: float) -> None:
        with contextlib.suppress(RuntimeError):  # The event loop has ended.
            self._loop.call_soon_threadsafe(self._blocked, seconds)


_REMEDY = "; make its handler a plain function, which gets a thread, or isolate it"
_HELD = "a handler held the interpreter's lock, or the process or its machine was suspended"


def _ids(frame: FrameType) -> Mapping[str, str]:
    """Returns the ids of the callback that the loop is running: job, run, request."""
    at: FrameType | None = frame
    while at is not None:
        if at.f_code is Handle._run.__code__:
            return bound_in(at.f_locals["self"]._context)
        at = at.f_back
    return {}


def _blocker(ids: Mapping[str, str]) -> str:
    if "job_type" in ids:
        kind = "job" if "job_id" in ids else "direct execution"
        return f"{kind} {ids.get('job_id') or ids.get('direct_id')} of type {ids['job_type']}"
    return f"request {ids['request_id']}" if "request_id" in ids else "the scheduler itself"


def _stack(frame: FrameType | None) -> str:
    if frame is None:
        return "an unknown location"
    lines = traceback.extract_stack(frame)[-LINES:]
    return " < ".join(f"{line.filename}:{line.lineno} in {line.name}" for line in reversed(lines))
