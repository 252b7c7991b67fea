"""Survivors: processes of a run whose guardian has died. They are killed before the run is declared over.

Recovery calls this module for the runs of an earlier scheduler process; a command whose guardian was lost calls it for
its own run. A process belongs to a run if it carries one of the run's marks (`run_marks`), or is below such a
process.
"""

import logging
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, suppress
from typing import NamedTuple

from nextslot.errors import Unavailable

from .cgroups import kill_cgroup
from .kill_tree import ENDED, processes, start_time, status
from .run_marks import Marks, cgroup_path, populated_cgroups

log = logging.getLogger(__name__)

GIVE_UP_SECONDS = 10.0
# After this many scans, kill what was found even if each scan still finds new processes.
MAX_SCANS = 20
# If processes ended before they could be inspected, this many scans in a row must find nothing.
EMPTY_SCANS = 5


class Survivor(NamedTuple):
    """A live process of a run. Pid and start time identify it uniquely."""

    pid: int
    start_time: int
    run_id: str


def find_survivors(run_ids: Collection[str]) -> list[Survivor]:
    """Returns the live processes of these runs that this user may see."""
    return _Search(run_ids).scan()


def end_survivors(run_ids: Collection[str], give_up_seconds: float = GIVE_UP_SECONDS) -> list[Survivor]:
    """Kills the live processes of these runs, and no others. Returns them when all have ended.

    Kills the cgroups of the runs as a whole. Processes outside them are stopped (SIGSTOP) until a scan finds no new
    ones, since a stopped process cannot fork. Raises Unavailable if the kernel does not end a process, because its run
    must not be retried beside it.
    """
    search, scans, give_up = _Search(run_ids), 0, time.monotonic() + give_up_seconds
    frozen: dict[Survivor, None] = {}

    def freeze(one: Survivor) -> None:
        if one not in frozen:
            frozen[one] = None
            _freeze(one)

    while True:
        cgroups = populated_cgroups(run_ids)
        for path in cgroups:
            kill_cgroup(path)
        scans, before = scans + 1, len(frozen)
        alive = search.scan(freeze)
        if not alive and not cgroups and not search.may_have_missed:
            break
        if (alive or cgroups) and time.monotonic() > give_up:
            left = ", ".join([*(f"{one.pid} (run {one.run_id})" for one in alive), *cgroups])
            raise Unavailable(f"these processes of crashed runs do not end, end them by hand: {left}")
        if len(frozen) == before or scans % MAX_SCANS == 0:
            _kill(alive, seconds=1.0)
    for one in frozen:
        log.warning("process %d of run %s had outlived its guardian and was killed", one.pid, one.run_id)
    return list(frozen)


def send_signal(pid: int, start: int, number: int) -> None:
    """Sends a signal to a process, if the process with this pid still has this start time."""
    with suppress(OSError):
        fd = os.pidfd_open(pid)
        try:
            if start_time(pid) == start:
                signal.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)


class _Search:
    """Scans for the processes of the given runs, as often as needed."""

    def __init__(self, run_ids: Collection[str]) -> None:
        self._marks = Marks(run_ids) if run_ids else None
        self._has_missed = False
        self._empty_scans = 0

    @property
    def may_have_missed(self) -> bool:
        """Returns whether processes that ended before they were inspected may have forked. Gives up after a few empty
        scans.
        """
        return self._has_missed and self._empty_scans < EMPTY_SCANS

    def scan(self, on_found: Callable[[Survivor], object] = lambda one: None) -> list[Survivor]:
        """Returns the processes found, and calls `on_found` for each immediately, because a forking process does not
        live long.
        """
        self._has_missed = False
        found: dict[int, Survivor] = {}
        for scan in (self._marked, lambda: _below(found)):
            for one in scan():
                found[one.pid] = one
                on_found(one)
        self._empty_scans = 0 if found else self._empty_scans + 1
        return list(found.values())

    def _marked(self) -> Iterator[Survivor]:
        """Yields the processes with a mark, newest first."""
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()] if self._marks is not None else []  # noqa: PTH208 quicker
        for pid in sorted(pids, reverse=True):
            found = status(pid)  # Read before the marks: if the pid is reused in between, the start time differs.
            self._has_missed |= found is None
            if self._marks is None or found is None or found[2] in ENDED or pid == os.getpid():
                continue
            run_id = self._marks.run_of(pid)
            if run_id is not None:
                yield Survivor(pid, found[1], run_id)


def _below(marked: dict[int, Survivor]) -> Iterator[Survivor]:
    """Yields the processes below these, except those below ourselves: a command may have started this scheduler."""
    if not marked:
        return
    everyone = processes()
    below: dict[int, list[int]] = {}
    for pid, (parent, _, state) in everyone.items():
        if state not in ENDED and pid != os.getpid():
            below.setdefault(parent, []).append(pid)
    waiting = list(marked.values())
    while waiting:
        above = waiting.pop()
        for pid in below.get(above.pid, ()):
            one = Survivor(pid, everyone[pid][1], above.run_id)
            if pid not in marked:
                yield one
                waiting.append(one)


def _freeze(one: Survivor) -> None:
    """Stops a process. If it is in its run's cgroup, kills the whole cgroup, which needs no second scan."""
    send_signal(one.pid, one.start_time, signal.SIGSTOP)
    path = cgroup_path(one.pid, one.run_id)
    if path is not None:
        kill_cgroup(path)


def _kill(survivors: list[Survivor], seconds: float) -> None:
    """Kills processes and waits up to `seconds` for their end."""
    with ExitStack() as stack:
        poll, waiting = select.poll(), 0
        for one in survivors:
            with suppress(OSError):
                fd = os.pidfd_open(one.pid)
                stack.callback(os.close, fd)
                if start_time(one.pid) == one.start_time:
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
                    poll.register(fd, select.POLLIN)
                    waiting += 1
        end = time.monotonic() + seconds
        while waiting and (left := end - time.monotonic()) > 0:
            for fd, _ in poll.poll(1000 * left):
                poll.unregister(fd)
                waiting -= 1
