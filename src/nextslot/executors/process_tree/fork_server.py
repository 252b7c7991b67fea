"""Starts commands: sends each one to the fork server (`fork_server_main`), which forks a guardian for it."""

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

from .cgroups import enable_controllers, own_cgroup
from .guardian_heartbeat import BEAT_SECONDS
from .kill_tree import start_time
from .process import CHUNK, Channel, Process, Start
from .run_marks import RUN_ID, cgroup_of, remove_cgroups, tag_of

_F_SETPIPE_SZ = 1031
# Imports this directory as a package of its own, so that the program loads nothing else of `nextslot`.
_PROGRAM = "import sys; sys.path.append(sys.argv[2]); from process_tree.fork_server_main import main; main()"


class Guardians:
    """Creates a guardian for each command, through a small fork server that starts with the first command and ends with
    this process.

    Each command gets its own cgroup below the given one. The default parent is the cgroup of this process, if the
    process may create others there.
    """

    def __init__(self, beat_seconds: float = BEAT_SECONDS, cgroup: str | None = None) -> None:
        self._beat_seconds = beat_seconds
        self._cgroup = own_cgroup() if cgroup is None else cgroup
        self._server: _ForkServer | None = None
        self._lease: float | None = None
        self._heartbeat_file: int | None = None
        self._processes: set[Process] = set()
        self._lock = threading.Lock()
        # What a sandbox hides from its command: the files of other runs; those of the database, the configuration and
        # the key for TLS.
        self.private_directories: Sequence[Path] = ()
        self.private_files: tuple[Path, ...] = ()

    def renew(self, deadline: float) -> None:
        """Sets the instant of CLOCK_BOOTTIME at which every guardian kills its command, unless postponed. Any thread
        may call it."""
        with self._lock:
            self._lease = deadline
            for process in self._processes:
                process.renew(deadline)

    def missing_controllers(self, wanted: set[str]) -> set[str]:
        """Returns which of these cgroup controllers are not available to the commands."""
        return enable_controllers(self._cgroup, wanted) if self._cgroup and wanted else wanted

    def use_heartbeat_file(self, heartbeat_file: int | None) -> None:
        """Sets the node's heartbeat file. Guardians that start from now on read there whether the sidecar has
        postponed the deadline.
        """
        self._heartbeat_file = heartbeat_file

    async def start(self, start: Start, on_output: Callable[[bytes], None], channel: Channel | None = None) -> Process:
        """Requests the start of a command from the fork server. The returned Process reports later whether the command
        started.

        `channel` gets what the command writes to its descriptor 3, which is a socket; `channel.answer` sends an answer
        back.
        """
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
            # The request contains the lease: if the scheduler died before it sent a separate message, the command would
            # run without a deadline.
            run_id = start.env.get(RUN_ID, "")
            request = {
                "argv": start.argv,
                "env": dict(start.env),
                "cwd": start.cwd,
                "lease": self._lease,
                "tag": tag_of(run_id),
                "wrapped": start.is_wrapped,
                "limits": dict(start.cgroup_limits),
                "channel": channel is not None,
            }
            file = _file_of(json.dumps(request).encode())
            theirs.callback(os.close, file)
            cgroup = f"{self._cgroup}/{cgroup_of(run_id)}" if self._cgroup and run_id else "-"
            heartbeat_file = [] if self._heartbeat_file is None else [self._heartbeat_file]
            own, theirs_too = None, []
            if channel is not None:
                own, other = socket.socketpair()
                ours.callback(own.close)
                theirs.callback(other.close)
                own.setblocking(False)
                theirs_too = [other.fileno()]
            fds = [guardians.fileno(), stdin, written, file, *theirs_too, *heartbeat_file]
            server = await self._send(os.fsencode(cgroup), fds)
            ours.pop_all()
        process = Process(control, output, on_output, server, self._beat_seconds)
        if channel is not None and own is not None:
            process.connect(own, channel)
        return self._watched(process)

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
    """Starts the process of the fork server, sends it requests, and ends it."""

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
            directory = str(Path(__file__).parents[1])
            words = [sys.executable, "-I", "-S", "-X", "utf8", "-c", _PROGRAM, mode, directory]
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
    """Returns a pipe that already holds all data, so that no writer is needed and the command need not read; if the
    data does not fit into a pipe, returns a file."""
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
