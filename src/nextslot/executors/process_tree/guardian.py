"""The guardian of a command: starts it, and kills its tree on request, at a deadline, or when the scheduler dies.

`fork_server_main` forks a guardian for each command, and documents the protocol.
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import struct
import time
from collections.abc import Iterator

from .cgroups import enter_cgroup
from .kill_tree import LEFTOVER_GRACE, KillSequence, start_time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CHANNEL_FD = 3  # The command's descriptor; `executors/checkpoints.py` has the same number.
HEARTBEAT_UNTIL = 8  # The offset of the deadline in the heartbeat file.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.001, 0.1
LONGEST_WAIT = 86400.0  # poll accepts only bounded timeouts.
# Guardians take orders only from their sockets. The scheduler handles Ctrl-C in a terminal and TERM for a whole
# service.
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE)

_libc = ctypes.CDLL(None, use_errno=True)


class Guardian:
    """Starts one command, and ends with the last process of its tree."""

    def __init__(
        self,
        control: socket.socket,
        scheduler: int | None,
        stdin: int,
        output: int,
        request: int,
        *more: int,
    ) -> None:
        self._control = control
        self._stdin, self._output = stdin, output
        with open(request, encoding="utf-8") as file:
            self._request = json.load(file)
        rest = list(more)
        self._channel = rest.pop(0) if self._request["channel"] else None
        self._heartbeat_file = rest[0] if rest else None
        self._command = 0
        self._status = int(signal.SIGKILL)
        self._has_leftovers = False
        self._deadline = float("inf")
        self._lease = self._request["lease"] or float("inf")
        self._pause = SHORTEST_PAUSE
        self._killing = KillSequence()
        self._buffer = b""
        self._wakeup = Wakeup()
        self._poll = select.poll()
        for fd in (control.fileno(), self._wakeup.fd, *([] if scheduler is None else [scheduler])):
            self._poll.register(fd, select.POLLIN)
        self._scheduler = scheduler
        adopt_orphans()

    def guard(self, cgroup: str) -> None:
        self._send_line(f"guardian {os.getpid()} {start_time(os.getpid()) or 0}")
        self._mark(cgroup)
        self._listen(0)
        if not self._is_stopping and self._start():
            while self._reap():
                self._listen(self._act())
        self._send_line(f"ended {self._status}")

    # Starting the command.

    def _mark(self, cgroup: str) -> None:
        """Marks this process, and thereby all that it starts, as part of the run. Skips marks that the system refuses,
        but no limit."""
        with contextlib.suppress(OSError, ValueError):
            _, most = resource.getrlimit(resource.RLIMIT_RTTIME)
            resource.setrlimit(resource.RLIMIT_RTTIME, (self._request["tag"], most))
        enter_cgroup(cgroup, self._request["limits"])

    def _start(self) -> bool:
        """Starts the program. Returns whether that worked, and reports the error to the scheduler if not.

        Uses posix_spawn, since a second fork of Python would double the cost of a start. It resets the signals that
        this process ignores, creates a session, and passes only the command's input, its output and its channel.
        """
        argv, env, stage = self._request["argv"], self._request["env"], "cwd"
        files = [(os.POSIX_SPAWN_DUP2, self._stdin, 0), *((os.POSIX_SPAWN_DUP2, self._output, n) for n in (1, 2))]
        if self._channel is not None:
            files.append((os.POSIX_SPAWN_DUP2, self._channel, CHANNEL_FD))
        try:
            if self._request["cwd"] is not None:
                os.chdir(self._request["cwd"])
            stage, os.environ["PATH"] = "program", env.get("PATH", os.defpath)  # posix_spawnp searches this PATH.
            reset = [*IGNORED, signal.SIGXFSZ]  # Python ignores SIGXFSZ.
            self._command = os.posix_spawnp(argv[0], argv, env, file_actions=files, setsid=True, setsigdef=reset)
        except OSError as error:
            self._send_line(f"refused {stage} {error.errno}")
            return False
        finally:
            for fd in (self._stdin, self._output, *(() if self._channel is None else (self._channel,))):
                os.close(fd)
        self._send_line(f"started {self._command} {start_time(self._command) or 0}")
        return True

    # Watching the command.

    @property
    def _is_stopping(self) -> bool:
        return self._deadline < float("inf")

    def _listen(self, seconds: float | None) -> None:
        """Handles the messages that arrive within this time."""
        ready = dict(self._poll.poll(None if seconds is None else 1000 * seconds))
        if self._wakeup.fd in ready:
            self._wakeup.drain()
        if self._control.fileno() in ready:
            self._receive()
        if self._scheduler is not None and self._scheduler in ready:
            self._scheduler_died(self._scheduler)

    def _receive(self) -> None:
        try:
            words = self._control.recv(4096)
        except OSError:
            words = b""
        if not words:
            self._scheduler_died(self._control.fileno())
        *lines, self._buffer = (self._buffer + words).split(b"\n")
        for line in lines:
            verb, _, number = line.partition(b" ")
            if verb == b"stop":
                self._deadline = min(self._deadline, now() + float(number))
                self._terminate()
            elif verb == b"kill":
                self._deadline = 0
            elif verb == b"lease":
                self._lease = float(number)
            elif verb == b"ping":
                with contextlib.suppress(OSError):  # A scheduler that does not read will ping again; do not block here.
                    self._control.send(b"pong\n", socket.MSG_DONTWAIT)

    def _terminate(self) -> None:
        """Sends TERM to the tree, but not to a sandbox: that ends when the command has ended."""
        self._killing.terminate(spared=self._command if self._request["wrapped"] else None)

    def _scheduler_died(self, fd: int) -> None:
        """Kills the tree without grace once the scheduler has died: another scheduler may soon retry the job."""
        self._poll.unregister(fd)
        self._deadline = 0

    def _reap(self) -> bool:
        """Reaps ended children. Returns whether a process of the tree is left: each becomes a child of this process."""
        for pid, status in ended_children():
            self._pause = SHORTEST_PAUSE
            if pid == self._command:
                self._status, self._has_leftovers = status, has_children()
        if self._has_leftovers:
            self._has_leftovers = False
            if not self._is_stopping:
                self._deadline = now() + LEFTOVER_GRACE
            self._terminate()
        return has_children()

    def _act(self) -> float | None:
        """Kills the tree if its deadline has passed. Returns how long to wait then; None to wait for messages only."""
        if 0 < self._lease <= now() and self._heartbeat_file is not None:
            (until,) = struct.unpack("d", os.pread(self._heartbeat_file, 8, HEARTBEAT_UNTIL))
            self._lease = max(self._lease, until)
        end = min(self._deadline, self._lease)
        if end > now():
            return None if end == float("inf") else min(end - now(), LONGEST_WAIT)
        self._killing.kill_round()
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return self._pause

    def _send_line(self, words: str) -> None:
        with contextlib.suppress(OSError):
            self._control.sendall(words.encode() + b"\n")


class Wakeup:
    """Makes `fd` readable when a child has ended."""

    def __init__(self) -> None:
        self.fd, write_end = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(write_end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 65536)


def adopt_orphans() -> None:
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


def wake_when_parent_dies() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0)


def now() -> float:
    """Returns the time of CLOCK_BOOTTIME, which advances while the machine sleeps, as leases do."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def ended_children() -> Iterator[tuple[int, int]]:
    """Reaps children that have ended, and yields (pid, wait status) of each."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, status


def has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
