"""Process trees: starts a command under a guardian, reads its output, and stops the whole tree on request.

`Guardians` is the scheduler's side of `process_guardian.py`, which documents the protocol.
"""

import asyncio
import contextlib
import errno
import fcntl
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .cgroup import own_cgroup
from .heartbeat import (
    BEAT_SECONDS,
    Heartbeat,
    Verdict,
    Watched,
)
from .process_guardian import (
    ENDED,
    STOPPED,
    start_time,
    status,
)
from .process_marks import (
    RUN_ID,
    cgroup_of,
    remove_cgroups,
    tag_of,
)
from .survivors import send_signal

log = logging.getLogger(__name__)

CHUNK = 64 * 1024
_F_SETPIPE_SZ = 1031
_PROGRAM = Path(__file__).with_name("process_guardian.py")

WAS_KILLED = "the command's guardian was killed, and so was the command"
WAS_STOPPED = (
    "the command's guardian was stopped (SIGSTOP) again after the scheduler had continued it; "
    "the scheduler killed the guardian and every process of the command"
)
WAS_SILENT = (
    "the command's guardian did not answer the scheduler any more; "
    "the scheduler killed the guardian and every process of the command"
)
SERVER_WAS_STOPPED = (
    "the process that makes the guardians was stopped (SIGSTOP) again after the scheduler had continued it; "
    "the scheduler killed that process and every process of the command"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A command to start: exactly these arguments and this environment; nothing is inherited."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None = None
    stdin: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a command ended once no process of its tree was left, or why it could not be started.

    `lost` says why the guardian could not report the end. If the fork server was killed too, processes may be left.
    """

    exit_code: int = 0
    signal: str | None = None
    refused: tuple[str, int] | None = None
    broken: str | None = None
    lost: str | None = None


class Process:
    """A command under its guardian, which must answer a ping at each beat.

    A guardian that does not answer is continued (SIGCONT), then killed. The fork server kills the processes that a
    killed guardian leaves, then closes the socket: that ends this Process.
    """

    def __init__(
        self,
        control: socket.socket,
        output: int,
        on_output: Callable[[bytes], None],
        server: tuple[int, int],
        beat_seconds: float = BEAT_SECONDS,
    ) -> None:
        self.pid: int | None = None
        self.start_time: int | None = None
        self._server = server
        self.guardian: tuple[int, int] | None = None
        self._loop = asyncio.get_running_loop()
        self._control = control
        self._output: int | None = output
        self._on_output = on_output
        self._buffer = b""
        self._unsent: list[str] = []
        self._refused: tuple[str, int] | None = None
        self._broken: str | None = None
        self._lost = WAS_KILLED
        self._end: asyncio.Future[End] = self._loop.create_future()
        self._loop.add_reader(control, self._receive)
        self._loop.add_reader(output, self._read)
        self._heartbeat = Heartbeat(time.monotonic(), beat_seconds)
        self._next_beat = self._loop.call_later(beat_seconds, self._beat)

    async def ended(self) -> End:
        """Waits for the end. A caller whose wait is cancelled may wait again."""
        return await asyncio.shield(self._end)

    def when_ended(self, call: Callable[[], None]) -> None:
        self._end.add_done_callback(lambda _: call())

    def stop(self, grace_seconds: float) -> None:
        """Sends TERM to the whole tree, and after the grace period KILL to the processes that are left."""
        self._send_reliably(f"stop {grace_seconds}")

    def kill(self) -> None:
        self._send_reliably("kill")

    def renew(self, deadline: float) -> None:
        """Lets the guardian kill the tree at this instant of CLOCK_BOOTTIME, unless a later call postpones it."""
        self._send_line(f"lease {deadline}")

    def _send_reliably(self, words: str) -> None:
        """Sends a message that must not be lost: if the socket's buffer is full, a later beat sends it."""
        self._unsent.append(words)
        self._send_unsent()
        if not self._end.done() and self._heartbeat.hurry(time.monotonic()):
            self._next_beat.cancel()
            self._ping()

    def _send_unsent(self) -> None:
        while self._unsent and self._send_line(self._unsent[0]):
            del self._unsent[0]

    def _send_line(self, words: str) -> bool:
        """Returns whether the socket's buffer had room for the message."""
        try:
            self._control.send(words.encode() + b"\n")
        except BlockingIOError:
            return False
        except OSError:  # The guardian has ended, or is about to report its end.
            pass
        return True

    def _receive(self) -> None:
        try:
            words = self._control.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            words = b""
        if not words:
            self._close(End(lost=self._lost if self._broken is None else None, broken=self._broken))
            return
        self._heartbeat.answered()
        *lines, self._buffer = (self._buffer + words).split(b"\n")
        for line in lines:
            verb, _, rest = line.decode(errors="replace").partition(" ")
            self._handle(verb, rest)

    def _handle(self, verb: str, rest: str) -> None:
        if verb == "guardian":
            pid, start = map(int, rest.split())
            self.guardian = pid, start
        elif verb == "started":
            self.pid, self.start_time = map(int, rest.split())
        elif verb == "refused":
            stage, number = rest.split()
            self._refused = stage, int(number)
        elif verb == "broken":
            self._broken = rest
        elif verb == "ended":
            self._close(_end_of(int(rest), self._refused))

    def _ping(self) -> None:
        self._send_unsent()
        self._send_line("ping")
        self._next_beat = self._loop.call_later(self._heartbeat.interval, self._beat)

    def _beat(self) -> None:
        """Judges whether the guardian answered in time. Answers count: the event loop calls readers before timers."""
        if self._heartbeat.beat(time.monotonic()) and (watched := self._watched()) is not None:
            verdict = self._heartbeat.judge(watched)
            if verdict is Verdict.CONTINUE:
                log.warning("process %d was stopped: the scheduler continues it", watched.pid)
                send_signal(watched.pid, watched.start_time, signal.SIGCONT)
            elif verdict is Verdict.KILL:
                self._lost = _lost(watched)
                log.error("process %d: %s", watched.pid, self._lost)
                send_signal(watched.pid, watched.start_time, signal.SIGKILL)
        self._ping()

    def _watched(self) -> Watched | None:
        """Returns the process that should have answered: the live guardian, else the fork server, which creates the
        guardian or ends its tree.
        """
        for one in (self.guardian, self._server):
            found = None if one is None else status(one[0])
            if one is not None and found is not None and found[1] == one[1] and found[2] not in ENDED:
                return Watched(*one, found[2], is_server=one == self._server)
        return None

    def _read(self) -> bool:
        """Reads a chunk of output. Returns whether there may be more."""
        if self._output is None:
            return False
        try:
            data = os.read(self._output, CHUNK)
        except BlockingIOError:
            return False
        if data:
            self._on_output(data)
            return True
        self._close_output()  # The command closed its output but may still run for long.
        return False

    def _close_output(self) -> None:
        if self._output is not None:
            self._loop.remove_reader(self._output)
            os.close(self._output)
            self._output = None

    def _close(self, end: End) -> None:
        # Read only what is in the pipe now: a process outside the tree may keep the other end open.
        for _ in range(64):
            if not self._read():
                break
        self._close_output()
        self._next_beat.cancel()
        self._loop.remove_reader(self._control)
        self._control.close()
        if not self._end.done():
            self._end.set_result(end)


def _lost(watched: Watched) -> str:
    if watched.is_server:
        return SERVER_WAS_STOPPED
    return WAS_STOPPED if watched.state in STOPPED else WAS_SILENT


def _end_of(status: int, refused: tuple[str, int] | None) -> End:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return End(exit_code=code, refused=refused)
    try:
        name = signal.Signals(-code).name
    except ValueError:  # A real-time signal has no name.
        name = f"signal {-code}"
    return End(exit_code=128 - code, signal=name, refused=refused)


class Guardians:
    """Creates a guardian for each command, through a small fork server that starts with the first command and ends with
    us.

    Each command gets its own cgroup below the given one. The default parent is our own cgroup, if we may create others
    there.
    """

    def __init__(self, beat_seconds: float = BEAT_SECONDS, cgroup: str | None = None) -> None:
        self._beat_seconds = beat_seconds
        self._cgroup = own_cgroup() if cgroup is None else cgroup
        self._server: _ForkServer | None = None
        self._lease: float | None = None
        # The node's heartbeat file, in which the sidecar may have postponed the deadline.
        self.heartbeat_file: int | None = None
        self._processes: set[Process] = set()
        self._lock = threading.Lock()

    def renew(self, deadline: float) -> None:
        """Lets every guardian kill its command at this instant of CLOCK_BOOTTIME, unless postponed. Any thread may call
        this.
        """
        with self._lock:
            self._lease = deadline
            for process in self._processes:
                process.renew(deadline)

    async def start(self, start: Start, on_output: Callable[[bytes], None]) -> Process:
        """Requests a command from the fork server. The Process reports later whether the command could be started."""
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            control, guardians = socket.socketpair()
            ours.callback(control.close)
            theirs.callback(guardians.close)
            control.setblocking(False)
            output, written = os.pipe()
            ours.callback(os.close, output)
            theirs.callback(os.close, written)
            os.set_blocking(output, False)
            stdin = _full_of(start.stdin)
            theirs.callback(os.close, stdin)
            # The lease is part of the request: if the scheduler stops before a separate message, the command would run
            # for ever.
            run_id = start.env.get(RUN_ID, "")
            request = {
                "argv": start.argv,
                "env": dict(start.env),
                "cwd": start.cwd,
                "lease": self._lease,
                "tag": tag_of(run_id),
            }
            file = _file_of(json.dumps(request).encode())
            theirs.callback(os.close, file)
            cgroup = f"{self._cgroup}/{cgroup_of(run_id)}" if self._cgroup and run_id else "-"
            heartbeat_file = [] if self.heartbeat_file is None else [self.heartbeat_file]
            server = await self._send(os.fsencode(cgroup), [guardians.fileno(), stdin, written, file, *heartbeat_file])
            ours.pop_all()
        return self._watched(Process(control, output, on_output, server, self._beat_seconds))

    def _watched(self, process: Process) -> Process:
        with self._lock:
            self._processes.add(process)
            if self._lease is not None:  # The lease may have been renewed since the request was written.
                process.renew(self._lease)
        process.when_ended(lambda: self._forget(process))
        return process

    def _forget(self, process: Process) -> None:
        with self._lock:
            self._processes.discard(process)

    def close(self) -> None:
        """Starts no more commands. Existing guardians stay until their commands have ended."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _send(self, words: bytes, fds: list[int]) -> tuple[int, int]:
        """Sends a request. Returns the pid and start time of the fork server that received it."""
        while True:
            if self._server is None:
                if self._cgroup:
                    remove_cgroups(self._cgroup)
                self._server = _ForkServer()
            try:
                self._server.send(words, fds)
            except BlockingIOError:  # The fork server's queue is full.
                await asyncio.sleep(0.001)
            except (BrokenPipeError, ConnectionResetError):  # The fork server was killed; its guardians live on.
                self._server.close()
                self._server = None
            else:
                return self._server.process


class _ForkServer:
    """The process of the fork server."""

    def __init__(self) -> None:
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.setblocking(False)
        self._control = control
        try:
            self._pid = self._spawn(theirs.fileno())
        except BaseException:
            control.close()
            raise
        finally:
            theirs.close()
        self.process = self._pid, start_time(self._pid) or 0
        # Also runs when this object is garbage-collected: the server ends when this socket closes.
        self.close = weakref.finalize(self, _leave, control, self._pid)
        self.close.atexit = False

    def send(self, words: bytes, fds: list[int]) -> None:
        socket.send_fds(self._control, [words], fds)

    def _spawn(self, control: int) -> int:
        with contextlib.ExitStack() as stack:
            null = os.open(os.devnull, os.O_RDWR)
            stack.callback(os.close, null)
            # Copy to high numbers first, so that no descriptor is overwritten before it has been copied.
            low = [control, null]
            try:
                low.insert(1, os.pidfd_open(os.getpid()))
                stack.callback(os.close, low[1])
            except OSError:  # A kernel before 5.3: then only the end of the socket shows that the scheduler has died.
                pass
            high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in low]
            for fd in high:
                stack.callback(os.close, fd)
            copies = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(high[:-1], start=3)]
            copies += [(os.POSIX_SPAWN_DUP2, high[-1], number) for number in (0, 1, 2)]
            mode = "watch" if len(low) == 3 else "alone"
            words = [sys.executable, "-I", "-S", "-X", "utf8", str(_PROGRAM), mode]
            env = {name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"}
            return os.posix_spawn(sys.executable, words, env, file_actions=copies, setsigmask=())


def _leave(control: socket.socket, pid: int) -> None:
    """Closes the server's socket. A thread reaps the server, which ends only after its last guardian."""
    control.close()
    threading.Thread(target=_reap, args=(pid,), name="nextslot-guardians", daemon=True).start()


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):  # Another part of this process has reaped it already.
        os.waitpid(pid, 0)


def _full_of(data: bytes) -> int:
    """Returns a pipe that already holds all data, so that no writer is needed and the command need not read; else a
    file.
    """
    read, write = os.pipe()
    try:
        os.set_blocking(write, False)
        if len(data) > CHUNK:
            fcntl.fcntl(write, _F_SETPIPE_SZ, len(data))
        if not data or os.write(write, data) == len(data):
            return read
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EAGAIN, errno.EBUSY, errno.EINVAL):
            os.close(read)
            raise
    finally:
        os.close(write)
    os.close(read)
    return _file_of(data)


def _file_of(data: bytes) -> int:
    """Returns an anonymous file in memory that holds the data."""
    file = os.memfd_create("nextslot")
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
        os.lseek(file, 0, os.SEEK_SET)
    except BaseException:
        os.close(file)
        raise
    return file
