"""A real `nextslot` that kills itself with -9 at a named point, the n-th time that it comes there.

    python -m tests.crash.dying POINT NTH serve --port 0 --data DIRECTORY

The program is what `nextslot` is; around one function of it is a wrapper that counts, and then kills. `died` in the
directory of $CRASH_WITNESS says where it was.
"""

import functools
import importlib
import inspect
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from nextslot.cli.main import main
from nextslot.store.sqlite import sqlite_store


class Point(NamedTuple):
    """A function of ours, and whether it is killed when it is called or when it has done its work."""

    place: str
    is_after: bool = False


class Write(NamedTuple):
    """A write to one of SQLite's files, of which the first half is done."""

    is_log: bool


POINTS: dict[str, Point | Write] = {
    # Starting, and recovery.
    "while the tables are made": Point("nextslot.store.dialects:for_sqlite"),
    "before processes of the last life are ended": Point("nextslot.engine.cluster.recovery:end_survivors"),
    "while recovery stores what was lost": Point(
        "nextslot.engine.cluster.recovery:Recovery._lose_running", is_after=True
    ),
    "between two steps of recovery": Point("nextslot.engine.cluster.recovery:Recovery._decide"),
    "while recovery lets go of callers": Point(
        "nextslot.engine.direct.direct_requests:DirectExecutionHandler.recover", is_after=True
    ),
    "after recovery, before the first dispatch": Point("nextslot.engine.dispatch.dispatcher:Dispatcher.start"),
    # Work.
    "before a commit": Point("nextslot.scheduler.runtime:Runtime.close_transaction", is_after=True),
    "between a commit and its acknowledgement": Point(
        "nextslot.store.sqlite.sqlite_store:SqliteStore.transaction", is_after=True
    ),
    "between a claim and its handler": Point("nextslot.engine.execution.runner:Runner.launch"),
    "when a handler has ended and nothing is stored": Point("nextslot.engine.execution.runner:Runner._record"),
    "while an end is stored": Point("nextslot.engine.finish.job_finisher:JobFinisher.finish", is_after=True),
    "in the middle of a write to the log": Write(is_log=True),
    "in the middle of a checkpoint": Write(is_log=False),
    # Commands, callers and deliveries.
    "while a command starts": Point("nextslot.executors.process_tree.process:Process.__init__"),
    "while a command runs": Point("nextslot.executors.process_tree.process:Process._receive", is_after=True),
    "while a caller is stored": Point(
        "nextslot.engine.direct.direct_requests:DirectExecutionHandler.request", is_after=True
    ),
    "while a caller gets the slot": Point(
        "nextslot.engine.direct.direct_requests:DirectExecutionHandler.start", is_after=True
    ),
    "while the end of a caller's work is stored": Point(
        "nextslot.engine.direct.direct_requests:DirectExecutionHandler.finish", is_after=True
    ),
    "while a delivery is sent": Point("nextslot.engine.webhooks.delivery_worker:DeliveryWorker._send"),
    "when a delivery has arrived and nothing is stored": Point(
        "nextslot.engine.webhooks.delivery_worker:DeliveryWorker._record_soon"
    ),
    "while the end of a delivery is stored": Point(
        "nextslot.engine.webhooks.delivery_worker:DeliveryWorker._record", is_after=True
    ),
    # Sessions that wait.
    "while the checkpoint of a run is stored": Point("nextslot.store.tables.checkpoints:keep", is_after=True),
    "while a run parks": Point("nextslot.store.tables.runs:park", is_after=True),
    "before a parked session runs again": Point("nextslot.store.tables.jobs:answered"),
    "while an answer is stored": Point("nextslot.engine.signals.signals:Signals.send", is_after=True),
    "while a deadline answers": Point("nextslot.engine.signals.signals:Signals._by_deadline", is_after=True),
    # Stopping.
    "in the middle of a drain": Point("nextslot.scheduler.startup_and_shutdown:Lifespan._wait_for_the_end"),
    "after a drain, before the file is closed": Point("nextslot.store.sqlite.sqlite_store:SqliteStore.close"),
    # Copies.
    "while a backup is copied": Point("nextslot.store.maintenance.backup_sqlite:_copy", is_after=True),
    "before a backup gets its name": Point("nextslot.store.maintenance.backup_sqlite:put"),
    "while the old file is put aside": Point("nextslot.store.maintenance.backup_sqlite:_put_aside", is_after=True),
}


class Death:
    """Comes when it has been called so often."""

    def __init__(self, point: str, nth: int) -> None:
        self._point = point
        self._left = nth

    def comes(self) -> bool:
        self._left -= 1
        return self._left == 0

    def strike(self) -> None:
        file = os.open(Path(os.environ["CRASH_WITNESS"], "died"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{self._point}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)


def arm(name: str, nth: int) -> None:
    point, death = POINTS[name], Death(name, nth)
    if isinstance(point, Write):
        _on_disk(point, death)
        return
    module, _, path = point.place.partition(":")
    *owners, function = path.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    setattr(owner, function, _wrapped(getattr(owner, function), point.is_after, death))


def _wrapped(function: Callable[..., Any], is_after: bool, death: Death) -> Callable[..., Any]:
    def before() -> None:
        if not is_after and death.comes():
            death.strike()

    def after(answer: Any) -> Any:
        if is_after and death.comes():
            death.strike()
        return answer

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def later(*arguments: Any, **named: Any) -> Any:
            before()
            return after(await function(*arguments, **named))

        return later

    @functools.wraps(function)
    def now(*arguments: Any, **named: Any) -> Any:
        before()
        return after(function(*arguments, **named))

    return now


def _on_disk(write: Write, death: Death) -> None:
    """Opens every file of the writer through a disk that may die. Counts only some of the writes."""
    kind = apsw.SQLITE_OPEN_WAL if write.is_log else apsw.SQLITE_OPEN_MAIN_DB

    class File(apsw.VFSFile):
        def __init__(self, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
            self._is_counted = bool(flags[0] & kind)
            super().__init__("", name, flags)

        def xWrite(self, data: Any, offset: int) -> None:
            if self._is_counted and death.comes():
                super().xWrite(bytes(data)[: len(data) // 2], offset)
                death.strike()
            super().xWrite(data, offset)

    class Disk(apsw.VFS):
        def __init__(self) -> None:
            super().__init__("dying", "")

        def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> File:
            return File(name, flags)

    disk, connect = Disk(), sqlite_store.connect

    def connect_there(path: Path, synchronous: str, vfs: str | None = None) -> apsw.Connection:
        assert disk is not None  # It is registered as long as somebody has it.
        connection = connect(path, synchronous, "dying")
        connection.wal_autocheckpoint(20)  # Pages: the first checkpoint comes soon, and not only after a thousand.
        return connection

    sqlite_store.connect = connect_there


if __name__ == "__main__":
    arm(sys.argv[1], int(sys.argv[2]))
    main(sys.argv[3:])
