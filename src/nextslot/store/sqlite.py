"""The store on SQLite: one writing connection with group commit, and read-only connections beside it.

Works that wait together are committed together. Where a group runs is decided by how quick commits are: on the event
loop itself while they are (a hop to a thread and back costs about as much as half a commit), in a thread once they are
not, so that a slow disk does not stall the loop. Measured in `bench/handover.py`.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import apsw

from ..errors import AffectedDatabase, AlreadyOpen, NextslotError, Refused, SchemaTooNew, StoreError, Unavailable
from . import text
from .store import Closing, Local, Row, Tx, Work

T = TypeVar("T")
log = logging.getLogger(__name__)

# A group is committed when it has this many rows; a work that is larger runs alone and in the thread.
GROUP_ROWS = 1000
READERS = 4
# Seconds. Between the two the writer stays where it is, so that it does not hop to and fro.
SLOW_COMMIT = 0.010
QUICK_COMMIT = 0.005

_UNAVAILABLE = (apsw.FullError, apsw.IOError, apsw.BusyError, apsw.LockedError, apsw.ReadOnlyError, apsw.CantOpenError)


@dataclass(slots=True)
class _Waiting:
    work: Work[Any]
    rows: int
    done: asyncio.Future[Any]


@dataclass(slots=True)
class _Answer:
    value: Any = None
    error: BaseException | None = None


class SqliteTx:
    """A transaction on a connection: statements by name, and what is to happen once it is committed."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._statements = text.statements()
        self._locals: dict[Callable[[Tx], Any], Any] = {}
        self.committed: list[Callable[[], None]] = []
        # How often a work may have changed what lives with the transaction in memory.
        self.touches = 0

    def row(self, statement: str, /, **values: object) -> Row | None:
        rows = self._connection.execute(self._statements[statement], values).fetchall()
        return rows[0] if rows else None

    def rows(self, statement: str, /, **values: object) -> list[Row]:
        return self._connection.execute(self._statements[statement], values).fetchall()

    def run(self, statement: str, /, **values: object) -> int:
        self._connection.execute(self._statements[statement], values)
        return self._connection.changes()

    def run_many(self, statement: str, values: Iterable[Mapping[str, object]], /) -> None:
        self._connection.executemany(self._statements[statement], values)

    def after_commit(self, call: Callable[[], None], /) -> None:
        self.touches += 1
        self.committed.append(call)

    def local(self, kind: Callable[[Tx], Local], /) -> Local:
        self.touches += 1
        made: Local = self._locals.get(kind) or self._locals.setdefault(kind, kind(self))
        return made


class SqliteStore:
    """One process owns the file. `threaded=False` keeps every statement on the caller's thread, for simulation."""

    def __init__(self, path: Path, closing: Closing, *, threaded: bool = True, synchronous: str = "FULL") -> None:
        refuse_affected_version(apsw.sqlite_lib_version())
        # Whatever link or relative path leads to it, the file is one, and so is its lock.
        self._path = path = path.resolve()
        self._closing = closing
        self._threaded = threaded
        self._lock = FileLock(path)
        try:
            self._writer = _connect(path, synchronous)
            migrate(self._writer)
            # A plain connection that checks no foreign keys can leave it on; from here on the rules hold.
            self._writer.execute("delete from maintenance")
        except BaseException as error:
            self._lock.release()
            raise translated(error) from error
        self._queue: deque[_Waiting] = deque()
        self._is_flushing = False
        self._is_closed = False
        self._is_quick = True
        self._commit_seconds = 0.0
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nextslot-writer")
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="nextslot-reader")
        self._reader = threading.local()
        self._open_readers: list[apsw.Connection] = []

    async def write(self, work: Work[T], /, *, rows: int = 1) -> T:
        if self._is_closed:
            raise Unavailable("the store is closed")
        loop = asyncio.get_running_loop()
        waiting = _Waiting(work, rows, loop.create_future())
        self._queue.append(waiting)
        if not self._is_flushing:
            self._is_flushing = True
            self._idle.clear()
            loop.call_soon(self._flush)
        done: T = await waiting.done
        return done

    async def read(self, work: Work[T], /) -> T:
        if self._is_closed:
            raise Unavailable("the store is closed")
        if not self._threaded:
            return self._read(work)
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, work)

    async def close(self) -> None:
        """Everything that was handed in before is stored first."""
        self._is_closed = True
        await self._idle.wait()
        self._let_go()

    def abandon(self) -> None:
        """For tests: what waits is dropped, as in a crash."""
        self._is_closed = True
        for waiting in self._queue:
            waiting.done.cancel()
        self._queue.clear()
        self._idle.set()
        self._let_go()

    def _let_go(self) -> None:
        self._thread.shutdown()
        self._readers.shutdown()
        for connection in [*self._open_readers, self._writer]:
            connection.close()
        self._lock.release()

    def _flush(self) -> None:
        if not self._queue:
            return  # Abandoned.
        group = self._take_group()
        if self._threaded and (not self._is_quick or group[0].rows > GROUP_ROWS):
            loop = asyncio.get_running_loop()
            committed = loop.run_in_executor(self._thread, self._commit, group)
            committed.add_done_callback(lambda done: self._release(group, *done.result()))
        else:
            self._release(group, *self._commit(group))

    def _take_group(self) -> list[_Waiting]:
        group = [self._queue.popleft()]
        rows = group[0].rows
        while self._queue and rows + self._queue[0].rows <= GROUP_ROWS:
            rows += self._queue[0].rows
            group.append(self._queue.popleft())
        return group

    def _release(self, group: list[_Waiting], answers: list[_Answer], committed: list[Callable[[], None]]) -> None:
        """On the event loop, after the commit: what was to follow it, then the callers, then the next group."""
        for call in committed:
            try:
                call()
            except Exception:  # The callers must get their answers all the same.
                log.exception("what was to follow a commit failed")
        for waiting, answer in zip(group, answers, strict=True):
            if waiting.done.done():
                continue  # The caller was cancelled; what it asked for is stored all the same.
            if answer.error is not None:
                waiting.done.set_exception(answer.error)
            else:
                waiting.done.set_result(answer.value)
        if self._queue:
            asyncio.get_running_loop().call_soon(self._flush)
        else:
            self._is_flushing = False
            self._idle.set()

    def _commit(self, group: list[_Waiting]) -> tuple[list[_Answer], list[Callable[[], None]]]:
        """Optimistic: all in one transaction; if anything fails, each in its own: one takes no other with it."""
        works = [waiting.work for waiting in group]
        if len(works) > 1:
            with contextlib.suppress(Exception):  # Whatever it was, it comes again below, to its own caller.
                return self._transaction(works)
        answers: list[_Answer] = []
        committed: list[Callable[[], None]] = []
        for work in works:
            try:
                answer, calls = self._transaction([work])
            except Exception as error:
                answers.append(_Answer(error=translated(error)))
            else:
                answers += answer
                committed += calls
        return answers, committed

    def _transaction(self, works: list[Work[Any]]) -> tuple[list[_Answer], list[Callable[[], None]]]:
        connection = self._writer
        began = time.perf_counter()
        try:
            connection.execute("begin immediate")
            tx = SqliteTx(connection)
            answers = [self._attempt(tx, work) for work in works]
            self._closing(tx)
            connection.execute("commit")
        except BaseException:
            if connection.in_transaction:
                connection.execute("rollback")
            raise
        finally:
            self._note_speed(time.perf_counter() - began)
        return answers, tx.committed

    def _attempt(self, tx: SqliteTx, work: Work[Any]) -> _Answer:
        """A refusal by one of our own rules, before anything was changed, is an answer and not the group's problem."""
        before = self._writer.total_changes(), tx.touches
        try:
            return _Answer(value=work(tx))
        except NextslotError as error:
            if (self._writer.total_changes(), tx.touches) != before:
                raise
            return _Answer(error=error)

    def _note_speed(self, seconds: float) -> None:
        """What matters is how long the event loop stands still, whatever was done in that time."""
        self._commit_seconds += (seconds - self._commit_seconds) * 0.2
        limit = SLOW_COMMIT if self._is_quick else QUICK_COMMIT
        self._is_quick = self._commit_seconds < limit

    def _read(self, work: Work[T]) -> T:
        connection: apsw.Connection | None = getattr(self._reader, "connection", None)
        try:
            if connection is None:
                connection = self._reader.connection = _connect_reader(self._path)
                self._open_readers.append(connection)
            connection.execute("begin")
            try:
                return work(SqliteTx(connection))
            finally:
                connection.execute("rollback")
        except apsw.Error as error:
            raise translated(error) from error


def _connect(path: Path, synchronous: str) -> apsw.Connection:
    connection = _prepared(apsw.Connection(str(path), statementcachesize=512))
    if connection.pragma("journal_mode", "wal") != "wal":
        raise StoreError(f"{path} cannot use a write-ahead log here: put it on a local disk")
    connection.pragma("synchronous", synchronous)
    connection.pragma("foreign_keys", True)
    # A statement that a rule may refuse keeps what it would have to undo: in memory, not in a file (22 → 16 µs a row).
    connection.pragma("temp_store", 2)
    # Else INSERT OR REPLACE deletes rows without asking the triggers.
    connection.pragma("recursive_triggers", True)
    return connection


def _connect_reader(path: Path) -> apsw.Connection:
    return _prepared(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, statementcachesize=512))


def _prepared(connection: apsw.Connection) -> apsw.Connection:
    connection.set_busy_timeout(5000)
    # Else a statement that uses a partial index is compiled again each time its parameters change: 10 µs instead of 2.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    return connection


def migrate(connection: apsw.Connection) -> None:
    """Brings the schema up to date, each step in a transaction of its own; refuses one from the future."""
    connection.execute("create table if not exists schema_migrations (version integer primary key, name text) strict")
    done: int = connection.execute("select coalesce(max(version), 0) from schema_migrations").get
    steps = text.migrations()
    if done > steps[-1][0]:
        raise SchemaTooNew(
            f"this database has schema {done}, this release of nextslot knows up to {steps[-1][0]}: use a newer release"
        )
    for number, name, schema in steps:
        if number > done:
            with connection:
                for statement in text.for_sqlite(schema):
                    connection.execute(statement)
                connection.execute("insert into schema_migrations values (?, ?)", (number, name))


def refuse_affected_version(version: str) -> None:
    """SQLite before 3.51.3 can lose commits when a checkpoint meets a write (fixed also in 3.50.7 and 3.44.6)."""
    numbers = tuple(int(part) for part in version.split(".")[:3])
    is_fixed = numbers >= (3, 51, 3) or (3, 50, 7) <= numbers < (3, 51) or (3, 44, 6) <= numbers < (3, 45)
    if not is_fixed:
        raise AffectedDatabase(
            f"SQLite {version} has a defect in its write-ahead log that can lose commits; "
            "nextslot needs 3.51.3 or newer (the apsw package brings one)"
        )


def translated(error: BaseException) -> BaseException:
    """The one place where the driver's errors become ours; the driver's own is kept as the cause."""
    ours: Exception
    if isinstance(error, apsw.ConstraintError):
        ours = Refused(str(error))
    elif isinstance(error, _UNAVAILABLE):
        ours = Unavailable(f"the database did not take it: {error}")
    elif isinstance(error, (apsw.CorruptError, apsw.NotADBError)):
        ours = StoreError(f"the database file is damaged, or not a database: {error}")
    elif isinstance(error, apsw.Error):
        ours = StoreError(f"the database failed: {error}")
    elif isinstance(error, StopIteration):
        ours = RuntimeError("a work raised StopIteration")  # A future cannot carry the original.
    else:
        return error
    ours.__cause__ = error
    return ours


class FileLock:
    """One scheduler per database file, by a lock of the operating system that ends with the process.

    The lock is on a file beside the database (`.lock`): SQLite's own locks come and go with its transactions.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + ".lock")
        # Not inheritable, so no child that runs another program keeps it; one that is forked closes it below.
        try:
            self._file: int | None = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"{path} cannot be opened: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._file, 100, 0).decode(errors="replace").strip() or "another process"
            self.release()
            raise AlreadyOpen(
                f"{path} is in use by {holder}: one scheduler per database. Stop it first, or use another file"
            ) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"process {os.getpid()} ({Path(sys.argv[0]).name or 'python'})\n".encode(), 0)
        os.register_at_fork(after_in_child=self.release)

    def release(self) -> None:
        """Closing is enough; and in a forked child it leaves the parent's lock alone."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
