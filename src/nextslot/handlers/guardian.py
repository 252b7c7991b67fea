"""The guardians: a program of its own, `python -I -S guardian.py`, that `process.Guardians` starts and talks to.

One fork server a scheduler; it forks a guardian for each command (a fork of this small process costs a tenth of a new
Python). A guardian is the child subreaper of its command: whatever leaves the group or the session, or forks twice and
lets its parent end, becomes the guardian's own child. So "no child is left", which the kernel tells (ECHILD), means
that no process of the tree is left, and killing its own children again and again reaches all of them, in tree order.

To the server, one message a command, with these descriptors: the guardian's socket, the command's input, its output,
a file with the request as JSON (argv, env, cwd, lease), and perhaps the node's pulse (`store/sidecar.py`), in which
the lease may have been put off by a process beside a scheduler that stands still. On the guardian's socket, in lines,
instants of CLOCK_BOOTTIME:

    from the scheduler:  stop SECONDS     TERM for the tree; KILL when the time is over
                         kill             KILL now
                         lease INSTANT    KILL at that instant, unless renewed by a later one
    to the scheduler:    started PID START_TIME | refused STAGE ERRNO | broken WORDS
                         ended STATUS     the wait status; nothing of the tree is left

The scheduler's end is the end of the tree, at once: it shows as the socket's end, and as its pidfd (a child that the
scheduler forked without exec may hold the socket open). Nothing but the standard library, and little of that.
"""

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Container, Iterator

SERVER_FD, SCHEDULER_FD = 3, 4
PR_SET_CHILD_SUBREAPER = 36
PULSE_UNTIL = 8  # Where the deadline is in the pulse.
# What a command left running when it ended by itself has this long between TERM and KILL.
LEFTOVER_GRACE = 2.0
SHORTEST_PAUSE, LONGEST_PAUSE = 0.001, 0.1
LONGEST_WAIT = 86400.0  # What poll takes is bounded.
# Ours are told by their sockets alone: Ctrl-C in a terminal, or TERM for a whole service, is the scheduler's business.
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE)

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    is_watched = sys.argv[1] == "watch"
    own = (SERVER_FD, SCHEDULER_FD) if is_watched else (SERVER_FD,)
    os.closerange(own[-1] + 1, 1 << 20)
    for fd in own:
        os.set_inheritable(fd, False)
    os.setsid()
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    gc.disable()
    gc.freeze()
    Server(socket.socket(fileno=SERVER_FD), SCHEDULER_FD if is_watched else None).serve()
    os._exit(0)


class Server:
    """Forks guardians; and kills what a guardian that was itself killed has left: it comes to us, a subreaper too."""

    def __init__(self, control: socket.socket, scheduler: int | None) -> None:
        self._control = control
        self._scheduler = scheduler
        self._guardians: set[int] = set()
        self._is_open = True
        self._has_orphans = False
        self._bell = Bell()
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._poll.register(self._bell.fd, select.POLLIN)
        if scheduler is not None:
            self._poll.register(scheduler, select.POLLIN)
        adopt_orphans()

    def serve(self) -> None:
        while self._is_open or self._guardians or self._has_orphans:
            ready = dict(self._poll.poll(10 if self._has_orphans else None))
            if self._bell.fd in ready:
                self._bell.drain()
            self._reap()
            if self._is_open and self._scheduler in ready:
                self._close()
            elif self._is_open and self._control.fileno() in ready:
                self._receive()

    def _close(self) -> None:
        self._is_open = False
        self._poll.unregister(self._control)
        if self._scheduler is not None:
            self._poll.unregister(self._scheduler)

    def _receive(self) -> None:
        words, fds, _, _ = socket.recv_fds(self._control, 64, 8)
        for fd in fds:  # Not by MSG_CMSG_CLOEXEC: Python 3.11 ignores the flags.
            os.set_inheritable(fd, False)
        if not words:
            self._close()
            return
        try:
            pid = os.fork()
        except OSError as error:
            os.write(fds[0], f"broken no process can be made: {error.strerror}\n".encode())
        else:
            if pid == 0:
                self._become_guardian(fds)
            self._guardians.add(pid)
        for fd in fds:
            os.close(fd)

    def _become_guardian(self, fds: list[int]) -> None:
        try:
            self._control.close()
            Guardian(socket.socket(fileno=fds[0]), self._scheduler, *fds[1:]).guard()
        except BaseException as error:  # Said where it can be read, and the tree is the server's to end.
            with contextlib.suppress(OSError):
                os.write(fds[0], f"broken {type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os._exit(0)

    def _reap(self) -> None:
        for pid, status in ended_children():
            self._has_orphans |= pid not in self._guardians or status != 0
            self._guardians.discard(pid)
        if self._has_orphans:
            self._has_orphans = kill_children(spared=self._guardians)


class Guardian:
    """Starts one command, and ends with the last process of its tree."""

    def __init__(
        self,
        control: socket.socket,
        scheduler: int | None,
        stdin: int,
        output: int,
        request: int,
        pulse: int | None = None,
    ) -> None:
        self._control = control
        self._pulse = pulse
        self._stdin, self._output = stdin, output
        with open(request, encoding="utf-8") as file:
            self._request = json.load(file)
        self._command = 0
        self._status = int(signal.SIGKILL)
        self._has_leftovers = False
        self._deadline = float("inf")
        self._lease = self._request["lease"] or float("inf")
        self._pause = SHORTEST_PAUSE
        self._told: set[tuple[int, int]] = set()
        self._words = b""
        self._bell = Bell()
        self._poll = select.poll()
        for fd in (control.fileno(), self._bell.fd, *([] if scheduler is None else [scheduler])):
            self._poll.register(fd, select.POLLIN)
        self._scheduler = scheduler
        adopt_orphans()

    def guard(self) -> None:
        self._listen(0)
        if not self._is_stopping and self._start():
            while self._reap():
                self._listen(self._act())
        self._say(f"ended {self._status}")

    # The start.

    def _start(self) -> bool:
        """Whether the program has taken over; if not, why is said.

        By posix_spawn, since a second fork of Python would cost as much as all the rest. It resets the signals that
        we ignore, makes a session, and leaves the command nothing of ours but its input and its output.
        """
        argv, env, stage = self._request["argv"], self._request["env"], "cwd"
        files = [(os.POSIX_SPAWN_DUP2, self._stdin, 0), *((os.POSIX_SPAWN_DUP2, self._output, n) for n in (1, 2))]
        try:
            if self._request["cwd"] is not None:
                os.chdir(self._request["cwd"])
            stage, os.environ["PATH"] = "program", env.get("PATH", os.defpath)  # Where it is looked for.
            reset = [*IGNORED, signal.SIGXFSZ]  # Which Python ignores.
            self._command = os.posix_spawnp(argv[0], argv, env, file_actions=files, setsid=True, setsigdef=reset)
        except OSError as error:
            self._say(f"refused {stage} {error.errno}")
            return False
        finally:
            os.close(self._stdin)
            os.close(self._output)
        self._say(f"started {self._command} {start_time(self._command) or 0}")
        return True

    # Its life.

    @property
    def _is_stopping(self) -> bool:
        return self._deadline < float("inf")

    def _listen(self, seconds: float | None) -> None:
        """Takes in whatever comes within that time."""
        ready = dict(self._poll.poll(None if seconds is None else 1000 * seconds))
        if self._bell.fd in ready:
            self._bell.drain()
        if self._control.fileno() in ready:
            self._hear()
        if self._scheduler is not None and self._scheduler in ready:
            self._is_left(self._scheduler)

    def _hear(self) -> None:
        try:
            words = self._control.recv(4096)
        except OSError:
            words = b""
        if not words:
            self._is_left(self._control.fileno())
        *lines, self._words = (self._words + words).split(b"\n")
        for line in lines:
            verb, _, number = line.partition(b" ")
            if verb == b"stop":
                self._deadline = min(self._deadline, now() + float(number))
                self._terminate()
            elif verb == b"kill":
                self._deadline = 0
            elif verb == b"lease":
                self._lease = float(number)

    def _is_left(self, fd: int) -> None:
        """The scheduler is gone: there is no grace, since a retry may be about to start."""
        self._poll.unregister(fd)
        self._deadline = 0

    def _reap(self) -> bool:
        """Whether there is still a child, that is: still a process of the tree."""
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
        """Kills if it is time to; how long there is nothing to do then."""
        if 0 < self._lease <= now() and self._pulse is not None:
            (until,) = struct.unpack("d", os.pread(self._pulse, 8, PULSE_UNTIL))
            self._lease = max(self._lease, until)
        end = min(self._deadline, self._lease)
        if end > now():
            return None if end == float("inf") else min(end - now(), LONGEST_WAIT)
        kill_children()
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return self._pause

    def _terminate(self) -> None:
        """TERM for every process of the tree, once each: to many programs a second one means "at once"."""
        for pid, start in descendants(os.getpid()):
            if (pid, start) not in self._told and start_time(pid) == start:
                self._told.add((pid, start))
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGTERM)
                    os.kill(pid, signal.SIGCONT)  # A stopped process does not see a TERM.

    def _say(self, words: str) -> None:
        with contextlib.suppress(OSError):
            self._control.sendall(words.encode() + b"\n")


class Bell:
    """Rings (`fd` can be read) when a child has ended."""

    def __init__(self) -> None:
        self.fd, rung = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(rung, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(rung, warn_on_full_buffer=False)

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 65536)


def adopt_orphans() -> None:
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


def now() -> float:
    """Goes on while the machine sleeps: a lease does too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def ended_children() -> Iterator[tuple[int, int]]:
    """Takes leave of children that have ended: (pid, wait status)."""
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


def kill_children(spared: Container[int] = ()) -> bool:
    """Whether there was one to kill. What it leaves behind becomes our child, and is next.

    The whole group at once where there is one: a group that forks cannot outrun that. Sessions are made inside the
    tree, so that no stranger is in one of its groups; and the pid of a child is not reused before we have reaped it.
    """
    own, found = os.getpgrp(), False
    for pid in children():
        if pid in spared:
            continue
        found = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            group = os.getpgid(pid)
            if group != own:
                os.killpg(group, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return found


def children() -> list[int]:
    own = os.getpid()
    try:
        with open(f"/proc/self/task/{own}/children", "rb") as file:  # noqa: PTH123 pathlib costs more than all the rest
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:  # A kernel without it.
        return [pid for pid, (parent, _) in processes().items() if parent == own]


def descendants(root: int) -> list[tuple[int, int]]:
    """(pid, start time) of every process below one."""
    everyone = processes()
    below: dict[int, list[int]] = {}
    for pid, (parent, _) in everyone.items():
        below.setdefault(parent, []).append(pid)
    found, waiting = [], [root]
    while waiting:
        for pid in below.get(waiting.pop(), ()):
            found.append((pid, everyone[pid][1]))
            waiting.append(pid)
    return found


def processes() -> dict[int, tuple[int, int]]:
    """Of every process that can be seen: its parent and its start time."""
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 as above
        if name.isdigit() and (stat := _stat(int(name))) is not None:
            found[int(name)] = stat
    return found


def start_time(pid: int) -> int | None:
    """In clock ticks since the machine's start; with the pid it names a process for good."""
    stat = _stat(pid)
    return None if stat is None else stat[1]


def _stat(pid: int) -> tuple[int, int] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 as above
            # The name, in parentheses, may hold anything; what follows the last one are numbers.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return (int(fields[1]), int(fields[19])) if len(fields) > 19 else None


if __name__ == "__main__":
    main()
