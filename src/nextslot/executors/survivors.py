"""Survivors: processes of a run that are left without a guardian. They are ended before the run is declared over.

Recovery calls this for the runs of an earlier life, and a command whose guardian was lost for its own run. A process is
of a run if it has one of its marks (`marks`), or is below a process that has one.
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

from .process_guardian import (
    ENDED,
    kill_cgroup,
    processes,
    start_time,
    status,
)
from .process_marks import Marks, cgroup_path, populated_cgroups

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 10.0
# A tree that never holds still is killed before it is frozen as a whole, after so many looks.
MOST_LOOKS = 20
# So many looks in a row must find nothing, where processes ended before they could be looked at.
EMPTY_LOOKS = 5


class Survivor(NamedTuple):
    """A live process that belongs to a run. Pid and start time name it for good."""

    pid: int
    start_time: int
    run_id: str


def find_survivors(run_ids: Collection[str]) -> list[Survivor]:
    """Returns the live processes of these runs that this user may see."""
    return _Search(run_ids).look()


def end_survivors(run_ids: Collection[str], patience_seconds: float = PATIENCE_SECONDS) -> list[Survivor]:
    """Kills the live processes of these runs, and no other; returns them when all are gone.

    The cgroups of the runs are killed as a whole. What is in none is stopped, look after look, until a look finds no
    new one: what is stopped does not fork. Raises Unavailable for a process that the kernel does not let go: its run
    must not be retried beside it.
    """
    search, looks, give_up = _Search(run_ids), 0, time.monotonic() + patience_seconds
    frozen: dict[Survivor, None] = {}

    def freeze(one: Survivor) -> None:
        if one not in frozen:
            frozen[one] = None
            _freeze(one)

    while True:
        cgroups = populated_cgroups(run_ids)
        for path in cgroups:
            kill_cgroup(path)
        looks, before = looks + 1, len(frozen)
        alive = search.look(freeze)
        if not alive and not cgroups and not search.may_have_missed:
            break
        if (alive or cgroups) and time.monotonic() > give_up:
            left = ", ".join([*(f"{one.pid} (run {one.run_id})" for one in alive), *cgroups])
            raise Unavailable(f"these processes of runs that were lost cannot be ended: {left}")
        if len(frozen) == before or looks % MOST_LOOKS == 0:
            _kill(alive, seconds=1.0)
    for one in frozen:
        log.warning("process %d of run %s had outlived its guardian and was ended", one.pid, one.run_id)
    return list(frozen)


def send_signal(pid: int, start: int, number: int) -> None:
    """Sends a signal to a process, if it is still the one with this start time."""
    with suppress(OSError):
        fd = os.pidfd_open(pid)
        try:
            if start_time(pid) == start:
                signal.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)


class _Search:
    """Looks for the processes of some runs, as often as it takes."""

    def __init__(self, run_ids: Collection[str]) -> None:
        self._marks = Marks(run_ids) if run_ids else None
        self._has_missed = False
        self._empty_looks = 0

    @property
    def may_have_missed(self) -> bool:
        """Whether processes that ended before the last look reached them may have forked; not for ever."""
        return self._has_missed and self._empty_looks < EMPTY_LOOKS

    def look(self, on_found: Callable[[Survivor], object] = lambda one: None) -> list[Survivor]:
        """Returns what is found, and says so of each at once: what keeps forking does not live for long."""
        self._has_missed = False
        found: dict[int, Survivor] = {}
        for look in (self._marked, lambda: _below(found)):
            for one in look():
                found[one.pid] = one
                on_found(one)
        self._empty_looks = 0 if found else self._empty_looks + 1
        return list(found.values())

    def _marked(self) -> Iterator[Survivor]:
        """Those with a mark, the newest first."""
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()] if self._marks is not None else []  # noqa: PTH208 quicker
        for pid in sorted(pids, reverse=True):
            found = status(pid)  # Before the marks are read: a process that has its pid later has another start time.
            self._has_missed |= found is None
            if self._marks is None or found is None or found[2] in ENDED or pid == os.getpid():
                continue
            run_id = self._marks.run_of(pid)
            if run_id is not None:
                yield Survivor(pid, found[1], run_id)


def _below(marked: dict[int, Survivor]) -> Iterator[Survivor]:
    """What is below these; but not what is below ourselves: a scheduler may have been started by a command."""
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
    """Stops a process, and kills all that are in its run's cgroup, if it is in one: that needs no second look."""
    send_signal(one.pid, one.start_time, signal.SIGSTOP)
    path = cgroup_path(one.pid, one.run_id)
    if path is not None:
        kill_cgroup(path)


def _kill(survivors: list[Survivor], seconds: float) -> None:
    """Kills them, and waits a little until they are gone."""
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
