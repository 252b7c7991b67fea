"""The guardians: a program of its own, `python -I -S guardian.py`, that `process.Guardians` starts and talks to.

One fork server a scheduler; it forks a guardian for each command (a fork of this small process costs a tenth of a new
Python). A guardian is the child subreaper of its command: whatever leaves the group or the session, or forks twice and
lets its parent end, becomes the guardian's own child. So "no child is left", which the kernel tells (ECHILD), means
that no process of the tree is left, and killing its own children again and again reaches all of them, in tree order.

To the server, one message a command: the path of the command's cgroup, or "-", with these descriptors: the guardian's
socket, the command's input, its output, a file with the request as JSON (argv, env, cwd, lease, tag), and perhaps the
node's pulse (`system/sidecar.py`), in which the lease may have been put off by a process beside a scheduler that stands
still. On the guardian's socket, in lines, instants of CLOCK_BOOTTIME:

    from the scheduler:  stop SECONDS     TERM for the tree; KILL when the time is over
                         kill             KILL now
                         lease INSTANT    KILL at that instant, unless renewed by a later one
                         ping             is answered by pong
    to the scheduler:    guardian PID START_TIME, before anything else
                         started PID START_TIME | refused STAGE ERRNO | broken WORDS
                         pong
                         ended STATUS     the wait status; nothing of the tree is left

The server keeps the guardian's socket open too, and closes it when the guardian has ended and, if somebody killed the
guardian, when the server has killed what the guardian left. So the end of the socket means that nothing is left, unless
server and guardian were both killed.

The scheduler's end is the end of the tree, at once: it shows as the socket's end, and as its pidfd (a child that the
scheduler forked without exec may hold the socket open). A process that a command stopped (SIGSTOP) sees neither; so the
kernel continues the server when the scheduler dies, and a guardian when the server dies (PR_SET_PDEATHSIG), and the
server continues its guardians when the scheduler is gone.

Guardian and command carry a tag of the run as their limit RLIMIT_RTTIME, and are in the cgroup of the run where one can
be made (`marks`): so `survivors` finds what cleared its environment. Nothing but the standard library, and little of
that.
"""

import contextlib
import ctypes
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Container, Iterator

SERVER_FD, SCHEDULER_FD = 3, 4
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PULSE_UNTIL = 8  # Where the deadline is in the pulse.
# What a command left running when it ended by itself has this long between TERM and KILL.
LEFTOVER_GRACE = 2.0
SHORTEST_PAUSE, LONGEST_PAUSE = 0.001, 0.1
# How long a guardian that the server continued has, once the scheduler is gone.
CONTINUED_SECONDS = 1.0
# Children are killed this often before every process of the tree is looked for, which costs a hundred times as much.
QUICK_ROUNDS, MANY_ROUNDS = 4, 64
MOST_LOOKS = 20
LONGEST_WAIT = 86400.0  # What poll takes is bounded.
STOPPED = ("T", "t")  # States of a process: by a signal, by a debugger.
ENDED = ("Z", "X")
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
    ForkServer(socket.socket(fileno=SERVER_FD), SCHEDULER_FD if is_watched else None).serve()
    os._exit(0)


class ForkServer:
    """Forks guardians; and kills what a guardian that was itself killed has left: it comes to us, a subreaper too."""

    def __init__(self, control: socket.socket, scheduler: int | None) -> None:
        self._control = control
        self._scheduler = scheduler
        # Of each guardian: its socket, and the path of its cgroup. Of killed ones too, as long as orphans are left.
        self._guardians: dict[int, tuple[int, str]] = {}
        self._lost: list[tuple[int, str]] = []
        self._is_open = True
        self._has_orphans = False
        self._kill_at = 0.0
        self._killing = KillSequence()
        self._bell = Wakeup()
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._poll.register(self._bell.fd, select.POLLIN)
        if scheduler is not None:
            self._poll.register(scheduler, select.POLLIN)
        adopt_orphans()
        wake_when_parent_dies()

    def serve(self) -> None:
        while self._is_open or self._guardians or self._has_orphans:
            ready = dict(self._poll.poll(self._pause()))
            if self._bell.fd in ready:
                self._bell.drain()
            self._reap()
            if self._is_open and self._scheduler in ready:
                self._close()
            elif self._is_open and self._control.fileno() in ready:
                self._receive()
            elif not self._is_open:
                self._kill_stopped()

    def _pause(self) -> float | None:
        """Returns how long to wait, in milliseconds, if nothing happens."""
        if self._has_orphans:
            return 10
        return None if self._is_open else 1000 * CONTINUED_SECONDS

    def _close(self) -> None:
        self._is_open = False
        self._poll.unregister(self._control)
        if self._scheduler is not None:
            self._poll.unregister(self._scheduler)
        self._kill_at = now() + CONTINUED_SECONDS
        for pid in self._guardians:
            os.kill(pid, signal.SIGCONT)

    def _kill_stopped(self) -> None:
        """Kills guardians that somebody has stopped again: nobody else is left who would notice them."""
        if now() >= self._kill_at:
            for pid in self._guardians:
                if state(pid) in STOPPED:
                    os.kill(pid, signal.SIGKILL)

    def _receive(self) -> None:
        words, fds, _, _ = socket.recv_fds(self._control, 4096, 8)
        for fd in fds:  # Not by MSG_CMSG_CLOEXEC: Python 3.11 ignores the flags.
            os.set_inheritable(fd, False)
        if not words:
            self._close()
            return
        cgroup = "" if words == b"-" else os.fsdecode(words)
        try:
            pid = os.fork()
        except OSError as error:
            os.write(fds[0], f"broken no process can be made: {error.strerror}\n".encode())
            os.close(fds[0])
        else:
            if pid == 0:
                self._become_guardian(fds, cgroup)
            self._guardians[pid] = fds[0], cgroup
        for fd in fds[1:]:
            os.close(fd)

    def _become_guardian(self, fds: list[int], cgroup: str) -> None:
        try:
            self._control.close()
            for fd, _ in (*self._lost, *self._guardians.values()):
                os.close(fd)
            wake_when_parent_dies()
            Guardian(socket.socket(fileno=fds[0]), self._scheduler, *fds[1:]).guard(cgroup)
        except BaseException as error:  # Said where it can be read, and the tree is the server's to end.
            with contextlib.suppress(OSError):
                os.write(fds[0], f"broken {type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os._exit(0)

    def _reap(self) -> None:
        for pid, status in ended_children():
            guardian = self._guardians.pop(pid, None)
            if guardian is not None and status == 0:
                self._forget(*guardian)
                continue
            self._has_orphans = True
            if guardian is not None:
                self._lost.append(guardian)
                kill_cgroup(guardian[1])
        if self._has_orphans:
            self._has_orphans = self._killing.strike(spared=self._guardians)
        while self._lost and not self._has_orphans:
            self._forget(*self._lost.pop())

    def _forget(self, fd: int, cgroup: str) -> None:
        remove_cgroup(cgroup)
        os.close(fd)


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
        self._killing = KillSequence()
        self._words = b""
        self._bell = Wakeup()
        self._poll = select.poll()
        for fd in (control.fileno(), self._bell.fd, *([] if scheduler is None else [scheduler])):
            self._poll.register(fd, select.POLLIN)
        self._scheduler = scheduler
        adopt_orphans()

    def guard(self, cgroup: str) -> None:
        self._say(f"guardian {os.getpid()} {start_time(os.getpid()) or 0}")
        self._mark(cgroup)
        self._listen(0)
        if not self._is_stopping and self._start():
            while self._reap():
                self._listen(self._act())
        self._say(f"ended {self._status}")

    # The start.

    def _mark(self, cgroup: str) -> None:
        """Marks itself, and with it all that it starts, as of this run; what this system refuses is left out."""
        with contextlib.suppress(OSError, ValueError):
            _, most = resource.getrlimit(resource.RLIMIT_RTTIME)
            resource.setrlimit(resource.RLIMIT_RTTIME, (self._request["tag"], most))
        enter_cgroup(cgroup)

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
            elif verb == b"ping":
                with contextlib.suppress(OSError):  # Who does not read pings again; we must not wait for it.
                    self._control.send(b"pong\n", socket.MSG_DONTWAIT)

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
        self._killing.strike()
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


class Wakeup:
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


class KillSequence:
    """Kills everything below this process, in rounds, until a round finds nothing.

    A round kills the children and their groups, and what they leave becomes our child for the next one. A tree that
    grows faster than that is frozen first. That becomes rare after a while: a process of another user, which we cannot
    kill, would be looked for without end.
    """

    def __init__(self) -> None:
        self._rounds = 0

    def strike(self, spared: Container[int] = ()) -> bool:
        """Returns whether there was something to kill."""
        if not kill_children(spared):
            self._rounds = 0
            return False
        self._rounds += 1
        is_rare = self._rounds & (self._rounds - 1) == 0  # 128, 256, 512, …
        if QUICK_ROUNDS <= self._rounds <= MANY_ROUNDS or (self._rounds > MANY_ROUNDS and is_rare):
            freeze_and_kill(spared)
        return True


def adopt_orphans() -> None:
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


def wake_when_parent_dies() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0)


def enter_cgroup(path: str) -> None:
    if path:
        with contextlib.suppress(OSError):
            os.mkdir(path)  # noqa: PTH102 as below
        with contextlib.suppress(OSError):
            _write(f"{path}/cgroup.procs", str(os.getpid()))


def kill_cgroup(path: str) -> None:
    """Kills every process of a cgroup at once, those that are being forked included (Linux 5.14)."""
    if path:
        with contextlib.suppress(OSError):
            _write(f"{path}/cgroup.kill", "1")


def remove_cgroup(path: str) -> None:
    if path:
        with contextlib.suppress(OSError):
            os.rmdir(path)  # noqa: PTH106 as below


def _write(path: str, words: str) -> None:
    with open(path, "w") as file:  # noqa: PTH123 pathlib costs more than all the rest
        file.write(words)


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


def freeze_and_kill(spared: Container[int] = ()) -> None:
    """Stops the processes below us until a look finds no new one, then kills them: what is stopped does not fork."""
    frozen: set[tuple[int, int]] = set()
    for _ in range(MOST_LOOKS):
        found = set(descendants(os.getpid(), spared)) - frozen
        if not found:
            break
        _signal_all(found, signal.SIGSTOP)
        frozen |= found
    _signal_all(frozen, signal.SIGKILL)


def _signal_all(processes: set[tuple[int, int]], number: int) -> None:
    for pid, start in processes:
        if start_time(pid) == start:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def children() -> list[int]:
    own = os.getpid()
    try:
        with open(f"/proc/self/task/{own}/children", "rb") as file:  # noqa: PTH123 pathlib costs more than all the rest
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:  # A kernel without it.
        return [pid for pid, (parent, _, _) in processes().items() if parent == own]


def descendants(root: int, spared: Container[int] = ()) -> list[tuple[int, int]]:
    """(pid, start time) of every process below one, without the spared ones and what is below them."""
    everyone = processes()
    below: dict[int, list[int]] = {}
    for pid, (parent, _, _) in everyone.items():
        below.setdefault(parent, []).append(pid)
    found, waiting = [], [root]
    while waiting:
        for pid in below.get(waiting.pop(), ()):
            if pid not in spared:
                found.append((pid, everyone[pid][1]))
                waiting.append(pid)
    return found


def processes() -> dict[int, tuple[int, int, str]]:
    """Of every process that can be seen: its parent, its start time and its state, a letter."""
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 as above
        if name.isdigit() and (stat := status(int(name))) is not None:
            found[int(name)] = stat
    return found


def start_time(pid: int) -> int | None:
    """In clock ticks since the machine's start; with the pid it names a process for good."""
    found = status(pid)
    return None if found is None else found[1]


def state(pid: int) -> str | None:
    found = status(pid)
    return None if found is None else found[2]


def status(pid: int) -> tuple[int, int, str] | None:
    """Its parent, its start time and its state, if there is such a process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 as above
            # The name, in parentheses, may hold anything; what follows the last one are numbers.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return (int(fields[1]), int(fields[19]), fields[0].decode()) if len(fields) > 19 else None


if __name__ == "__main__":
    main()
