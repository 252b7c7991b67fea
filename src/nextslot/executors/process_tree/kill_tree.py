"""Ends a whole process tree: TERM to each process, then KILL after the grace time. Reads the process table.

The guardian program calls it and keeps the deadline; the grace time of a command is `GRACE_SECONDS` of `command.py`.

Imports only a few modules of the standard library, so that the guardian program starts quickly.
"""

import contextlib
import os
import signal
from collections.abc import Container

# How many rounds kill only the children, before a round scans all processes, which costs a hundred times as much.
QUICK_ROUNDS, MANY_ROUNDS = 4, 64
MAX_SCANS = 20
# How long processes that outlived the command itself get between TERM and KILL.
LEFTOVER_GRACE = 2.0
STOPPED = ("T", "t")  # Process states: stopped by a signal, stopped by a debugger.
ENDED = ("Z", "X")


class KillSequence:
    """Kills all processes below this one, in rounds, until a round finds none.

    A round kills the children and their process groups; their orphans become children of this process for the next
    round. If the tree grows faster than that, its processes are stopped first. After many rounds this is done only
    rarely: a process of another user, which this one cannot kill, would cause a scan of all processes for ever.
    """

    def __init__(self) -> None:
        self._rounds = 0
        self._terminated: set[tuple[int, int]] = set()

    def terminate(self, spared: int | None = None) -> None:
        """Sends TERM to each process of the tree once: many programs take a second TERM as an order to exit at once."""
        for pid, start in descendants(os.getpid()):
            if pid != spared and (pid, start) not in self._terminated and start_time(pid) == start:
                self._terminated.add((pid, start))
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGTERM)
                    os.kill(pid, signal.SIGCONT)  # A stopped process does not handle TERM.

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


def kill_children(spared: Container[int] = ()) -> bool:
    """Kills all children. Returns whether there was one. Their orphans become this process's children for the next
    round.

    Kills a child's whole process group at once, since a forking group cannot outrun that. Sessions are created inside
    the tree, so its groups contain no foreign process; and a child's pid is not reused before this process has reaped
    it.
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
