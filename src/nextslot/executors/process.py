"""Process trees: starts a command under a guardian, follows its output, and ends the whole of it when told.

`Guardians` is the scheduler's side of `guardian.py`, where the protocol is written down.
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
    """What to start: exactly these arguments and this environment, nothing inherited."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None = None
    stdin: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a command ended, when nothing of its tree is left; or why it could not be started.

    `lost`: why its guardian could not say how it ended. If the fork server was killed too, something may be left.
    """

    exit_code: int = 0
    signal: str | None = None
    refused: tuple[str, int] | None = None
    broken: str | None = None
    lost: str | None = None


class Process:
    """A command under its guardian, which answers a ping at each beat; one that does not is continued, then killed.

    What a killed guardian leaves is killed by the fork server, which then closes the socket, and that is the end.
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
        self._words = b""
        self._orders: list[str] = []
        self._refused: tuple[str, int] | None = None
        self._broken: str | None = None
        self._lost = WAS_KILLED
        self._end: asyncio.Future[End] = self._loop.create_future()
        self._loop.add_reader(control, self._hear)
        self._loop.add_reader(output, self._read)
        self._heartbeat = Heartbeat(time.monotonic(), beat_seconds)
        self._next_beat = self._loop.call_later(beat_seconds, self._beat)

    async def ended(self) -> End:
        """Waits; who is cancelled while waiting may wait again."""
        return await asyncio.shield(self._end)

    def when_ended(self, call: Callable[[], None]) -> None:
        self._end.add_done_callback(lambda _: call())

    def stop(self, grace_seconds: float) -> None:
        """TERM for the whole tree, and KILL for what is left of it after that time."""
        self._order(f"stop {grace_seconds}")

    def kill(self) -> None:
        self._order("kill")

    def renew(self, deadline: float) -> None:
        """From this instant of CLOCK_BOOTTIME on the guardian kills without being told, unless renewed."""
        self._say(f"lease {deadline}")

    def _order(self, words: str) -> None:
        """Sends what must not be lost: if the socket is full of what the guardian has not read, at a later beat."""
        self._orders.append(words)
        self._send_orders()
        if not self._end.done() and self._heartbeat.hurry(time.monotonic()):
            self._next_beat.cancel()
            self._ping()

    def _send_orders(self) -> None:
        while self._orders and self._say(self._orders[0]):
            del self._orders[0]

    def _say(self, words: str) -> bool:
        """Returns whether there was room for it."""
        try:
            self._control.send(words.encode() + b"\n")
        except BlockingIOError:
            return False
        except OSError:  # It is gone, or about to say so.
            pass
        return True

    def _hear(self) -> None:
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
        *lines, self._words = (self._words + words).split(b"\n")
        for line in lines:
            verb, _, rest = line.decode(errors="replace").partition(" ")
            self._heard(verb, rest)

    def _heard(self, verb: str, rest: str) -> None:
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
        self._send_orders()
        self._say("ping")
        self._next_beat = self._loop.call_later(self._heartbeat.interval, self._beat)

    def _beat(self) -> None:
        """What has arrived in time was heard before: of one turn, the loop calls readers first, then timers."""
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
        """Who should have answered: the guardian while it lives, else the server that makes it or ends its tree."""
        for one in (self.guardian, self._server):
            found = None if one is None else status(one[0])
            if one is not None and found is not None and found[1] == one[1] and found[2] not in ENDED:
                return Watched(*one, found[2], is_server=one == self._server)
        return None

    def _read(self) -> bool:
        """Whether there may be more."""
        if self._output is None:
            return False
        try:
            data = os.read(self._output, CHUNK)
        except BlockingIOError:
            return False
        if data:
            self._on_output(data)
            return True
        self._close_output()  # Closed early; the command may go on for long.
        return False

    def _close_output(self) -> None:
        if self._output is not None:
            self._loop.remove_reader(self._output)
            os.close(self._output)
            self._output = None

    def _close(self, end: End) -> None:
        # What is in the pipe, and no more: somebody outside the tree may hold its other end.
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
    except ValueError:  # A real-time signal.
        name = f"signal {-code}"
    return End(exit_code=128 - code, signal=name, refused=refused)


class Guardians:
    """Makes a guardian for each command: by a small fork server, started with the first, which ends with us.

    Each is in a cgroup of its own, below the given one; by default ours, where we may make some.
    """

    def __init__(self, beat_seconds: float = BEAT_SECONDS, cgroup: str | None = None) -> None:
        self._beat_seconds = beat_seconds
        self._cgroup = own_cgroup() if cgroup is None else cgroup
        self._server: _ForkServer | None = None
        self._lease: float | None = None
        # The node's pulse, where a process beside this one may have put the deadline off.
        self.pulse: int | None = None
        self._processes: set[Process] = set()
        self._lock = threading.Lock()

    def renew(self, deadline: float) -> None:
        """Every guardian kills at this instant of CLOCK_BOOTTIME, unless renewed; may be called on any thread."""
        with self._lock:
            self._lease = deadline
            for process in self._processes:
                process.renew(deadline)

    async def start(self, start: Start, on_output: Callable[[bytes], None]) -> Process:
        """Returns when it is on its way; whether it could be started is told by its end."""
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
            # With it, and not after it: a scheduler that is stopped in between must not leave a command without end.
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
            pulse = [] if self.pulse is None else [self.pulse]
            server = await self._send(os.fsencode(cgroup), [guardians.fileno(), stdin, written, file, *pulse])
            ours.pop_all()
        return self._watched(Process(control, output, on_output, server, self._beat_seconds))

    def _watched(self, process: Process) -> Process:
        with self._lock:
            self._processes.add(process)
            if self._lease is not None:  # It may have been renewed since the request was written.
                process.renew(self._lease)
        process.when_ended(lambda: self._forget(process))
        return process

    def _forget(self, process: Process) -> None:
        with self._lock:
            self._processes.discard(process)

    def close(self) -> None:
        """No command is started any more; guardians that are there go on to the end of theirs."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _send(self, words: bytes, fds: list[int]) -> tuple[int, int]:
        """Returns pid and start time of the server that has it."""
        while True:
            if self._server is None:
                if self._cgroup:
                    remove_cgroups(self._cgroup)
                self._server = _ForkServer()
            try:
                self._server.send(words, fds)
            except BlockingIOError:  # It has hundreds waiting already.
                await asyncio.sleep(0.001)
            except (BrokenPipeError, ConnectionResetError):  # Somebody killed it: its guardians live on, without it.
                self._server.close()
                self._server = None
            else:
                return self._server.process


class _ForkServer:
    """The fork server's process."""

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
        # Also when it is forgotten: the server ends when this socket does.
        self.close = weakref.finalize(self, _leave, control, self._pid)
        self.close.atexit = False

    def send(self, words: bytes, fds: list[int]) -> None:
        socket.send_fds(self._control, [words], fds)

    def _spawn(self, control: int) -> int:
        with contextlib.ExitStack() as stack:
            null = os.open(os.devnull, os.O_RDWR)
            stack.callback(os.close, null)
            # High numbers first: so no descriptor is overwritten before it has been copied.
            low = [control, null]
            try:
                low.insert(1, os.pidfd_open(os.getpid()))
                stack.callback(os.close, low[1])
            except OSError:  # A kernel before 5.3: then the socket's end alone tells that we are gone.
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
    """The server ends with its last guardian, however long that takes; somebody must take leave of it then."""
    control.close()
    threading.Thread(target=_reap, args=(pid,), name="nextslot-guardians", daemon=True).start()


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):  # Somebody else of this process has.
        os.waitpid(pid, 0)


def _full_of(data: bytes) -> int:
    """A pipe with all of it inside, so that nobody has to write and a command need not read; else a file."""
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
    """A file in memory, without a name."""
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
