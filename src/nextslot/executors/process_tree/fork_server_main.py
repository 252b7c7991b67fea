"""The program that forks a guardian for each command. `fork_server.Guardians` starts it and talks to it.

Each scheduler has one fork server, which forks a guardian for each command (a fork of this small process costs a tenth
of a new Python). A guardian is the child subreaper of its command: a process that leaves the group or the session, or
that forks twice and lets its parent end, becomes a child of the guardian. So when the kernel reports that the guardian
has no child left (ECHILD), no process of the tree is left; and by killing its own children repeatedly the guardian
reaches the whole tree.

The scheduler sends the server one message for each command: the path of the command's cgroup, or "-", with these
descriptors: the guardian's socket, the command's input, its output, a file with the request as JSON (argv, env, cwd,
lease, tag, channel), if `channel` is true the socket that becomes the command's descriptor 3, and optionally the node's
heartbeat file (`system/sidecar.py`), in which the sidecar may have postponed the lease of a scheduler that is not
responding. On the guardian's socket both sides send lines; instants are of
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
created (`run_marks`), so `survivors` finds processes that cleared their environment. This program imports only a
few modules of the standard library, to start quickly.
"""

import contextlib
import gc
import os
import select
import signal
import socket
import sys

from .cgroups import kill_cgroup, remove_cgroup
from .guardian import IGNORED, Guardian, Wakeup, adopt_orphans, ended_children, now, wake_when_parent_dies
from .kill_tree import STOPPED, KillSequence, state

SERVER_FD, SCHEDULER_FD = 3, 4
# How long a guardian that the server continued may take to end, once the scheduler has died.
CONTINUED_SECONDS = 1.0


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
