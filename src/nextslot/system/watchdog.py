"""Watchdog: notices when the event loop does not answer, and says who blocks it and where.

The loop leaves a beat in the node's pulse four times a second; a thread looks whether it did. A handler that sleeps or
computes without awaiting is seen while it does. One that holds the interpreter's lock stops this thread too, and is
seen when it lets go; the sidecar answers for the node meanwhile.
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
# Of the stack, the innermost so many: where the loop stands, and how it came there.
LINES = 6


class Watchdog:
    """Watches one event loop while somebody needs it; with the sidecar that goes by the same pulse."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._holders = 0
        self._pulse: SharedHeartbeat | None = None
        self._sidecar: Sidecar | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def pulse(self) -> SharedHeartbeat:
        assert self._pulse is not None
        return self._pulse

    @property
    def sidecar(self) -> Sidecar:
        assert self._sidecar is not None
        return self._sidecar

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watches the running loop until the last of those who asked has enough."""
        self._holders += 1
        if self._holders == 1:
            self._start(asyncio.get_running_loop())
        try:
            yield
        finally:
            self._holders -= 1
            if self._holders == 0:
                self._stop()

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._pulse = SharedHeartbeat()
        self._sidecar = Sidecar(self._pulse)
        self._is_over = threading.Event()
        self._beat(loop, self._pulse)
        watch = _Watch(loop, self._pulse, self._sidecar, self._is_over, self._meters.blocked)
        self._thread = threading.Thread(target=watch.run, name="nextslot-watchdog", daemon=True)
        self._thread.start()

    def _beat(self, loop: asyncio.AbstractEventLoop, pulse: SharedHeartbeat) -> None:
        pulse.beat()
        self._timer = loop.call_later(BEAT_SECONDS, self._beat, loop, pulse)

    def _stop(self) -> None:
        self._is_over.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            self._thread.join()
        self.sidecar.close()
        self.pulse.close()
        self._pulse = self._sidecar = self._thread = self._timer = None


class _Watch:
    """The thread's side."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pulse: SharedHeartbeat,
        sidecar: Sidecar,
        is_over: threading.Event,
        blocked: Callable[[float], None],
    ) -> None:
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._pulse = pulse
        self._sidecar = sidecar
        self._is_over = is_over
        self._blocked = blocked
        # The last beat before the loop fell silent, while it is.
        self._silent_since: float | None = None

    def run(self) -> None:
        looked_at = now()
        while not self._is_over.wait(BEAT_SECONDS):
            self._look(now() - looked_at - BEAT_SECONDS)
            looked_at = now()
            self._sidecar.look()

    def _look(self, own_delay: float) -> None:
        beat_at = self._pulse.beat_at
        if self._silent_since is not None and beat_at > self._silent_since:
            self._end(beat_at)
        elif self._silent_since is None and now() - beat_at >= BLOCKED_SECONDS + BEAT_SECONDS:
            self._silent_since = beat_at
            self._tell(now() - beat_at, own_delay)
        elif self._silent_since is None and own_delay >= BLOCKED_SECONDS:
            log.error("nothing of this process ran for %.1f s: %s", own_delay, _HELD)
            self._note(own_delay)

    def _tell(self, seconds: float, own_delay: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        ids = {} if frame is None else _ids(frame)
        why = f" ({_HELD})" if own_delay >= BLOCKED_SECONDS else ""
        with bound(**ids):
            log.error(
                "the event loop has not answered for %.1f s%s: %s blocks it at %s%s",
                seconds,
                why,
                _who(ids),
                _where(frame),
                _REMEDY if "job_type" in ids else "",
            )

    def _end(self, beat_at: float) -> None:
        seconds = beat_at - (self._silent_since or beat_at)
        self._silent_since = None
        log.warning("the event loop answers again, after %.1f s", seconds)
        self._note(seconds)

    def _note(self, seconds: float) -> None:
        with contextlib.suppress(RuntimeError):  # The loop has ended.
            self._loop.call_soon_threadsafe(self._blocked, seconds)


_REMEDY = "; make its handler a plain function, which gets a thread, or isolate it"
_HELD = "a handler held the interpreter's lock, or the process or its machine stood still"


def _ids(frame: FrameType) -> Mapping[str, str]:
    """Finds what the callback that the loop is in was made for: job, run, request."""
    at: FrameType | None = frame
    while at is not None:
        if at.f_code is Handle._run.__code__:
            return bound_in(at.f_locals["self"]._context)
        at = at.f_back
    return {}


def _who(ids: Mapping[str, str]) -> str:
    if "job_type" in ids:
        kind = "job" if "job_id" in ids else "direct execution"
        return f"{kind} {ids.get('job_id') or ids.get('direct_id')} of type {ids['job_type']}"
    return f"request {ids['request_id']}" if "request_id" in ids else "the scheduler itself"


def _where(frame: FrameType | None) -> str:
    if frame is None:
        return "an unknown place"
    lines = traceback.extract_stack(frame)[-LINES:]
    return " < ".join(f"{line.filename}:{line.lineno} in {line.name}" for line in reversed(lines))
