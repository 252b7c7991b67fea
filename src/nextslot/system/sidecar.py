"""The sidecar, seen from its node: a small process that renews the lease and answers probes when the node cannot.

Its program is `sidecar_main.py`. The node renews its lease by itself as long as it can (`postgres_lease.py`); a handler
that holds the interpreter's lock for a minute stops every thread of the node, but not this process.
"""

import contextlib
import json
import logging
import mmap
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from .sidecar_main import (
    BEAT,
    READY,
    UNTIL,
    now,
    read,
    write,
)

log = logging.getLogger(__name__)

# One that cannot live is not started again and again.
RESTART_SECONDS = 5.0
_PROGRAM = Path(__file__).with_name("sidecar_main.py")


class SharedHeartbeat:
    """A page of memory that a node shares with its sidecar and with the guardians of its commands: when its event loop
    last answered, until when its work may go on, and whether it is ready. Instants are of CLOCK_BOOTTIME."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("nextslot-pulse")
        os.ftruncate(self.fd, mmap.PAGESIZE)
        self._page = mmap.mmap(self.fd, mmap.PAGESIZE)
        self.beat()

    def beat(self) -> None:
        write(self._page, BEAT, now())

    @property
    def beat_at(self) -> float:
        return read(self._page, BEAT)

    @property
    def silent_seconds(self) -> float:
        return max(0.0, now() - self.beat_at)

    @property
    def until(self) -> float:
        return read(self._page, UNTIL)

    @until.setter
    def until(self, instant: float) -> None:
        write(self._page, UNTIL, instant)

    @property
    def is_ready(self) -> bool:
        return read(self._page, READY) == 1.0

    @is_ready.setter
    def is_ready(self, is_ready: bool) -> None:
        write(self._page, READY, float(is_ready))

    def close(self) -> None:
        """Lets the file go; the memory goes with the last who looks at it."""
        os.close(self.fd)


class NodeVitals(Protocol):
    """What a node that is watched has for its lease."""

    @property
    def pulse(self) -> SharedHeartbeat: ...

    @property
    def sidecar(self) -> "Sidecar": ...


class Sidecar:
    """Starts the process with the first thing it has to do, and again if it ends; may be used on any thread."""

    def __init__(self, pulse: SharedHeartbeat) -> None:
        self._pulse = pulse
        self._lease: Mapping[str, object] | None = None
        self._listener: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def listen(self, listener: socket.socket) -> None:
        """Answers probes on this socket from now on."""
        with self._lock:
            self._listener = listener
            self._start()

    def keep(self, lease: Mapping[str, object] | None) -> None:
        """Looks after this lease, in place of the last one, or after none."""
        with self._lock:
            self._lease = lease
            if self._process is None and lease is not None:
                self._start()
            else:
                self._say()

    def look(self) -> None:
        """Starts the process again if somebody ended it; the watchdog calls this now and then."""
        with self._lock:
            process = self._process
            is_over = process is not None and process.poll() is not None
            if process is not None and is_over and now() - self._started_at > RESTART_SECONDS:
                log.error("the sidecar ended with %d and is started again", process.returncode)
                self._start()

    def close(self) -> None:
        with self._lock:
            process, self._process = self._process, None
            if self._listener is not None:
                self._listener.close()
                self._listener = None
        if process is not None:
            _end(process)

    def _start(self) -> None:
        if self._process is not None:
            _end(self._process)
        listener = -1 if self._listener is None else self._listener.fileno()
        self._started_at = now()
        shared = [fd for fd in (self._pulse.fd, listener) if fd >= 0]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(_PROGRAM), str(self._pulse.fd), str(listener)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=shared,
                start_new_session=True,
            )
        except OSError as error:
            log.error("the sidecar cannot be started: %s; the node renews its lease alone", error)
            return
        self._say()

    def _say(self) -> None:
        """The pipe holds far more than one line, and its reader is quick: this does not block."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):  # It has ended; the next look starts it again, and says this then.
                self._process.stdin.write(json.dumps({"lease": self._lease}).encode() + b"\n")
                self._process.stdin.flush()


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        process.kill()
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    process.wait()
