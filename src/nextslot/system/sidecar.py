"""Starts and controls the sidecar, a small process that renews the lease and answers probes when the node cannot.

Its program is `sidecar_main.py`. The node renews its own lease as long as it can, in
`store/postgres/lease_and_leader.py`. A handler that holds the interpreter's lock for a minute stops every
thread of the node, but not this process.
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

from .sidecar_main import BEAT, READY, UNTIL, now, read, write

log = logging.getLogger(__name__)

# The shortest time between two starts, in case the process ends immediately.
RESTART_SECONDS = 5.0
_PROGRAM = Path(__file__).with_name("sidecar_main.py")


class SharedHeartbeat:
    """A page of memory that a node shares with its sidecar and with the guardians of its commands: when its event loop
    last answered, until when its work may continue, and whether it is ready. Instants are of CLOCK_BOOTTIME."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("nextslot-heartbeat")
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
        """Closes the file. The memory is freed when the last process closes it."""
        os.close(self.fd)


class NodeVitals(Protocol):
    """The heartbeat and the sidecar of a watched node, which its lease uses."""

    @property
    def heartbeat(self) -> SharedHeartbeat: ...

    @property
    def sidecar(self) -> "Sidecar": ...


class Sidecar:
    """Starts the sidecar process when it is first needed, and again if it ends. Safe to use from any thread."""

    def __init__(self, heartbeat: SharedHeartbeat) -> None:
        self._heartbeat = heartbeat
        self._lease: Mapping[str, object] | None = None
        self._listener: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def listen(self, listener: socket.socket) -> None:
        """Lets the sidecar answer probes on this socket from now on."""
        with self._lock:
            self._listener = listener
            self._start()

    def keep(self, lease: Mapping[str, object] | None) -> None:
        """Lets the sidecar renew this lease instead of the previous one; None means no lease."""
        with self._lock:
            self._lease = lease
            if self._process is None and lease is not None:
                self._start()
            else:
                self._send_lease()

    def check(self) -> None:
        """Starts the process again if it has ended; the watchdog calls this regularly."""
        with self._lock:
            process = self._process
            is_over = process is not None and process.poll() is not None
            if process is not None and is_over and now() - self._started_at > RESTART_SECONDS:
                log.error("the sidecar ended with exit code %d; the node starts it again", process.returncode)
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
        shared = [fd for fd in (self._heartbeat.fd, listener) if fd >= 0]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(_PROGRAM), str(self._heartbeat.fd), str(listener)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=shared,
                start_new_session=True,
            )
        except OSError as error:
            log.error("the sidecar cannot be started: %s; only the node itself renews its lease", error)
            return
        self._send_lease()

    def _send_lease(self) -> None:
        """Sends the lease to the process. Does not block: the pipe holds far more than one line, and its reader is
        quick."""
        if self._process is not None and self._process.stdin is not None:
            # The process has ended; `check` starts it again and sends the lease then.
            with contextlib.suppress(OSError):
                self._process.stdin.write(json.dumps({"lease": self._lease}).encode() + b"\n")
                self._process.stdin.flush()


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        process.kill()
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    process.wait()
