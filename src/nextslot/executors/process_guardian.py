"""The guardian program, `python -I -S process_guardian.py`, which `process.Guardians` starts and talks to.

Each scheduler has one fork server, which forks a guardian for each command (a fork of this small process costs a tenth
of a new Python). A guardian is the child subreaper of its command: a process that leaves the group or the session, or
that forks twice and lets its parent end, becomes a child of the guardian. So when the kernel reports that the guardian
has no child left (ECHILD), no process of the tree is left; and by killing its own children repeatedly the guardian
reaches the whole tree.

The scheduler sends the server one message for each command: the path of the command's cgroup, or "-", with these
descriptors: the guardian's socket, the command's input, its output, a file with the request as JSON (argv, env, cwd,
lease, tag), and optionally the node's heartbeat file (`system/sidecar.py`), in which the sidecar may have postponed the
lease of a scheduler that is not responding. On the guardian's socket both sides send lines; instants are of
CLOCK_BOOTTIME:

    from the scheduler:  stop SECONDS     send TERM to the tree, KILL when the time is over
                         kill             KILL now
                         lease INSTANT    KILL at that instant, unless a later one postpones it
                         ping             answered by pong
    to the scheduler:    guardian PID START_TIME, before anything else
                         started PID START_TIME | refused STAGE ERRNO | broken WORDS
                         pong
                         ended STATUS     the wait status; no process of the tree is left

The server keeps the guardian's socket open too. It closes the socket when the guardian has ended and, if the guardian
was killed, when the server has killed the processes that the guardian left. So the end of the socket means that no
process is left, unless both server and guardian were killed.

When the scheduler dies, its command trees are killed at once. Guardians see this death by the end of the socket and by
the scheduler's pidfd (a child that the scheduler forked without exec may hold the socket open). A guardian that the
command has stopped (SIGSTOP) sees neither. Therefore the kernel continues the server when the scheduler dies and a
guardian when the server dies (PR_SET_PDEATHSIG), and the server continues its guardians when the scheduler has died.

Guardian and command carry the tag of the run as their limit RLIMIT_RTTIME, and are in the run's cgroup where one can be
created (`process_marks`), so `survivors` finds processes that cleared their environment. This program imports only a
few modules of the standard library, to start quickly.
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
HEARTBEAT_UNTIL = 8  # The offset of the deadline in the heartbeat file.
# How long processes that outlived the command itself get between TERM and KILL.
LEFTOVER_GRACE = 2.0
SHORTEST_PAUSE, LONGEST_PAUSE = 0.001, 0.1
# How long a guardian that the server continued may take to end, once the scheduler has died.
CONTINUED_SECONDS = 1.0
# How many rounds kill only the children, before a round scans all processes, which costs a hundred times as much.
QUICK_ROUNDS, MANY_ROUNDS = 4, 64
MAX_SCANS = 20
LONGEST_WAIT = 86400.0  # poll accepts only bounded timeouts.
STOPPED = ("T", "t")  # Process states: stopped by a signal, stopped by a debugger.
ENDED = ("Z", "X")
# Guardians take orders only from their sockets. Ctrl-C in a terminal or TERM for a whole service is for the scheduler
# to handle.
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
    """Forks guardians, and kills the processes that a killed guardian leaves: the server is a subreaper, so it adopts
    them.
    """

    def __init__(self, control: socket.socket, scheduler: int | None) -> None:
        self._control = control
        self._scheduler = scheduler
        # The socket and the cgroup path of each guardian; `_lost` holds those of killed guardians while orphans are
        # left.
        self._guardians: dict[int, tuple[int, str]] = {}
        self._lost: list[tuple[int, str]] = []
        self._is_open = True
        self._has_orphans = False
        self._kill_at = 0.0
        self._killing = KillSequence()
        self._wakeup = Wakeup()
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._poll.register(self._wakeup.fd, select.POLLIN)
        if scheduler is not None:
            self._poll.register(scheduler, select.POLLIN)
        adopt_orphans()
        wake_when_parent_dies()

    def serve(self) -> None:
        while self._is_open or self._guardians or self._has_orphans:
            ready = dict(self._poll.poll(self._pause()))
            if self._wakeup.fd in ready:
                self._wakeup.drain()
            self._reap()
            if self._is_open and self._scheduler in ready:
                self._close()
            elif self._is_open and self._control.fileno() in ready:
                self._receive()
            elif not self._is_open:
                self._kill_stopped()

    def _pause(self) -> float | None:
        """Returns the timeout of the next poll in milliseconds."""
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
        """Kills guardians that were stopped again: once the scheduler has died, no other process would notice them."""
        if now() >= self._kill_at:
            for pid in self._guardians:
                if state(pid) in STOPPED:
                    os.kill(pid, signal.SIGKILL)

    def _receive(self) -> None:
        words, fds, _, _ = socket.recv_fds(self._control, 4096, 8)
        for fd in fds:  # Set here because Python 3.11 ignores the flag MSG_CMSG_CLOEXEC.
            os.set_inheritable(fd, False)
        if not words:
            self._close()
            return
        cgroup = "" if words == b"-" else os.fsdecode(words)
        try:
            pid = os.fork()
        except OSError as error:
            os.write(fds[0], f"broken the guardian process could not be forked: {error.strerror}\n".encode())
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
        except BaseException as error:  # Report the error to the scheduler; the server ends the process tree.
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
            self._has_orphans = self._killing.kill_round(spared=self._guardians)
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
        heartbeat_file: int | None = None,
    ) -> None:
        self._control = control
        self._heartbeat_file = heartbeat_file
        self._stdin, self._output = stdin, output
        with open(request, encoding="utf-8") as file:
            self._request = json.load(file)
        self._command = 0
        self._status = int(signal.SIGKILL)
        self._has_leftovers = False
        self._deadline = float("inf")
        self._lease = self._request["lease"] or float("inf")
        self._pause = SHORTEST_PAUSE
        self._terminated: set[tuple[int, int]] = set()
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
        """Marks this process, and thereby all that it starts, as part of the run. Skips marks that the system
        refuses."""
        with contextlib.suppress(OSError, ValueError):
            _, most = resource.getrlimit(resource.RLIMIT_RTTIME)
            resource.setrlimit(resource.RLIMIT_RTTIME, (self._request["tag"], most))
        enter_cgroup(cgroup)

    def _start(self) -> bool:
        """Starts the program. Returns whether that worked, and reports the error to the scheduler if not.

        Uses posix_spawn, since a second fork of Python would double the cost of a start. It resets the signals that
        this process ignores, creates a session, and passes only the command's input and output.
        """
        argv, env, stage = self._request["argv"], self._request["env"], "cwd"
        files = [(os.POSIX_SPAWN_DUP2, self._stdin, 0), *((os.POSIX_SPAWN_DUP2, self._output, n) for n in (1, 2))]
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
            os.close(self._stdin)
            os.close(self._output)
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

    def _scheduler_died(self, fd: int) -> None:
        """Kills the tree without grace once the scheduler has died, since another scheduler may be about to retry the
        job.
        """
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
        """Kills the tree if its time is over. Returns how long to wait then, or None to wait for messages only."""
        if 0 < self._lease <= now() and self._heartbeat_file is not None:
            (until,) = struct.unpack("d", os.pread(self._heartbeat_file, 8, HEARTBEAT_UNTIL))
            self._lease = max(self._lease, until)
        end = min(self._deadline, self._lease)
        if end > now():
            return None if end == float("inf") else min(end - now(), LONGEST_WAIT)
        self._killing.kill_round()
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return self._pause

    def _terminate(self) -> None:
        """Sends TERM to each process of the tree once: many programs take a second TERM as an order to exit at once."""
        for pid, start in descendants(os.getpid()):
            if (pid, start) not in self._terminated and start_time(pid) == start:
                self._terminated.add((pid, start))
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGTERM)
                    os.kill(pid, signal.SIGCONT)  # A stopped process does not handle TERM.

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


class KillSequence:
    """Kills all processes below this one, in rounds, until a round finds none.

    A round kills the children and their process groups; their orphans become our children for the next round. If the
    tree grows faster than that, its processes are stopped first. After many rounds this is done only rarely, because a
    process of another user, which we cannot kill, would make us scan all processes for ever.
    """

    def __init__(self) -> None:
        self._rounds = 0

    def kill_round(self, spared: Container[int] = ()) -> bool:
        """Kills one round. Returns whether there was a process to kill."""
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


def kill_children(spared: Container[int] = ()) -> bool:
    """Kills all children. Returns whether there was one. Their orphans become our children for the next round.

    Kills a child's whole process group at once, since a forking group cannot outrun that. Sessions are created inside
    the tree, so its groups contain no foreign process; and a child's pid is not reused before we have reaped it.
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
    """Stops the processes below this one until a scan finds no new one, then kills them: a stopped process cannot
    fork."""
    frozen: set[tuple[int, int]] = set()
    for _ in range(MAX_SCANS):
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
    except FileNotFoundError:  # The kernel lacks this file.
        return [pid for pid, (parent, _, _) in processes().items() if parent == own]


def descendants(root: int, spared: Container[int] = ()) -> list[tuple[int, int]]:
    """Returns (pid, start time) of every process below `root`, without the spared ones and the processes below
    those."""
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
    """Returns the parent, the start time and the state letter of every visible process, by pid."""
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 as above
        if name.isdigit() and (stat := status(int(name))) is not None:
            found[int(name)] = stat
    return found


def start_time(pid: int) -> int | None:
    """Returns the start time in clock ticks since boot. Pid and start time identify a process uniquely."""
    found = status(pid)
    return None if found is None else found[1]


def state(pid: int) -> str | None:
    found = status(pid)
    return None if found is None else found[2]


def status(pid: int) -> tuple[int, int, str] | None:
    """Returns the parent, the start time and the state of a process, or None if it does not exist."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 as above
            # The process name, in parentheses, may contain anything; only numbers follow the last parenthesis.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return (int(fields[1]), int(fields[19]), fields[0].decode()) if len(fields) > 19 else None


if __name__ == "__main__":
    main()
