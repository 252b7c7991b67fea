"""Survivors: processes of an earlier life that still run. Recovery ends them before it declares their runs lost.

A guardian leaves none; these are what is left when the guardians and their server were killed with the scheduler.
"""

import logging
import os
import select
import signal
import time
from collections.abc import Collection
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from ..errors import Unavailable
from .guardian import start_time

log = logging.getLogger(__name__)

RUN_ID = "NEXTSLOT_RUN_ID"
PATIENCE_SECONDS = 10.0
_VARIABLE = RUN_ID.encode() + b"="


class Survivor(NamedTuple):
    """A live process that belongs to a run: its environment says so. Pid and start time name it for good."""

    pid: int
    start_time: int
    run_id: str


def find_survivors(run_ids: Collection[str] | None = None) -> list[Survivor]:
    """The live processes of these runs (of any run, if none are named) that this user may look into."""
    wanted = None if run_ids is None else frozenset(run_ids)
    if wanted is not None and not wanted:
        return []
    found = []
    for entry in Path("/proc").iterdir():
        survivor = _survivor(int(entry.name)) if entry.name.isdigit() else None
        if survivor is not None and (wanted is None or survivor.run_id in wanted):
            found.append(survivor)
    return found


def end_survivors(run_ids: Collection[str], patience_seconds: float = PATIENCE_SECONDS) -> list[Survivor]:
    """Kills the live processes of these runs, and no other; returns them when all are gone.

    A process that the kernel does not let go is told: its run must not be retried beside it.
    """
    ended: dict[Survivor, None] = {}
    give_up = time.monotonic() + patience_seconds
    while alive := find_survivors(run_ids):
        if time.monotonic() > give_up:
            left = ", ".join(f"{one.pid} (run {one.run_id})" for one in alive)
            raise Unavailable(f"these processes of runs that were lost cannot be ended: {left}")
        ended.update(dict.fromkeys(alive))
        _kill(alive, seconds=1.0)
    for one in ended:
        log.warning("process %d of run %s had outlived its scheduler and was ended", one.pid, one.run_id)
    return list(ended)


def _kill(survivors: list[Survivor], seconds: float) -> None:
    """And waits a little until they are gone. By pidfd: between two looks a pid may come to mean another process."""
    with ExitStack() as stack:
        poll, waiting = select.poll(), 0
        for one in survivors:
            with suppress(OSError):
                fd = os.pidfd_open(one.pid)
                stack.callback(os.close, fd)
                if _survivor(one.pid) == one:
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
                    poll.register(fd, select.POLLIN)
                    waiting += 1
        end = time.monotonic() + seconds
        while waiting and (left := end - time.monotonic()) > 0:
            for fd, _ in poll.poll(1000 * left):
                poll.unregister(fd)
                waiting -= 1


def _survivor(pid: int) -> Survivor | None:
    """None if it belongs to no run, has ended (a zombie has no environment), or is another user's."""
    start = start_time(pid)
    if start is None or pid == os.getpid():
        return None
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    for variable in environment.split(b"\0"):
        if variable.startswith(_VARIABLE):
            return Survivor(pid, start, variable.removeprefix(_VARIABLE).decode(errors="replace"))
    return None
