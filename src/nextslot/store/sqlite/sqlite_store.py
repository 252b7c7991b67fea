"""The store on SQLite: one writing connection with group commit, and read-only connections beside it.

Works that wait at the same time are committed together. While commits are quick, the group runs on the event loop
itself (switching to a thread and back costs about half a commit). Once commits are slow, it runs in a thread, so that a
slow disk does not block the loop. Measured in `bench/handover.py`.
"""

import contextlib
import errno
import fcntl
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import apsw

from nextslot.errors import (
    AffectedDatabase,
    AlreadyOpen,
    Damaged,
    DiskLow,
    Refused,
    StoreError,
    Unavailable,
)
from nextslot.store import dialects
from nextslot.store.contract import (
    Closing,
    Effect,
    Effects,
    Health,
    Membership,
    NoEffects,
    Row,
    Work,
    not_a_name,
    wall_clock,
)
from nextslot.store.group_commit import (
    GROUP_ROWS,
    GroupCommit,
    TxMemory,
    WorkResult,
    attempt_all,
)
from nextslot.system.disk_space import free_bytes
from nextslot.telemetry.meters import Meters

from . import acknowledged_commits, integrity_check
from .acknowledged_commits import AcknowledgedCommits
from .integrity_check import BackgroundCheck
from .readers import Readers

T = TypeVar("T")

READERS = 4
# How many rows one INSERT statement takes. A statement that a rule may refuse costs as much overhead as a row (19 → 9
# µs a job with its rules and indexes, measured from 1 to 500 rows: no gain beyond 50).
ROWS_AT_ONCE = 50
# Seconds. Between the two thresholds the writer stays where it is, so that it does not switch back and forth.
SLOW_COMMIT = 0.010
QUICK_COMMIT = 0.005

# Free bytes with which opening a database never fails: its schema, the log of the migrations and the log's index.
ROOM_TO_OPEN = 2 * 2**20

_BAD_BINDING = re.compile(r"Bad binding argument type supplied - argument #\d+: type (\w+)")
_UNAVAILABLE = (apsw.FullError, apsw.IOError, apsw.BusyError, apsw.LockedError, apsw.ReadOnlyError, apsw.CantOpenError)


class SqliteTx(TxMemory):
    """A transaction on a connection: executes statements by name, and collects the effects of its commit."""

    def __init__(self, connection: apsw.Connection) -> None:
        super().__init__()
        self._connection = connection
        self._statements = dialects.statements()

    def row(self, statement: str, /, **values: object) -> Row | None:
        rows = self._connection.execute(self._statements[statement], values).fetchall()
        return rows[0] if rows else None

    def rows(self, statement: str, /, **values: object) -> list[Row]:
        return self._connection.execute(self._statements[statement], values).fetchall()

    def execute(self, statement: str, /, **values: object) -> int:
        self._connection.execute(self._statements[statement], values)
        return self._connection.changes()

    def execute_later(self, statement: str, /, **values: object) -> None:
        self._connection.execute(self._statements[statement], values)

    def execute_batch(self, statement: str, names: tuple[str, ...], rows: Iterable[Sequence[object]], /) -> None:
        sql, left = self._statements[statement], iter(rows)
        at_once = dialects.many_rows(sql, names, ROWS_AT_ONCE)
        # Executes row by row: a remainder, a short list, or a statement that is not a plain insert.
        while chunk := list(islice(left, ROWS_AT_ONCE)):
            if at_once is None or len(chunk) < ROWS_AT_ONCE:
                self._connection.executemany(sql, chunk)
            else:
                self._connection.execute(at_once, tuple(chain.from_iterable(chunk)))

    def select(self, sql: str, values: Mapping[str, object], /) -> list[Row]:
        return self._connection.execute(sql, values).fetchall()

    def footprint(self) -> object:
        return self._connection.total_changes(), self.touches


class SqliteStore:
    """The store of the one process that owns the file. `threaded=False` keeps every statement on the caller's thread,
    for simulation.
    """

    def __init__(
        self,
        path: Path,
        closing: Closing,
        *,
        effects: Effects | None = None,
        opening: Work[None] = lambda tx: None,
        threaded: bool = True,
        synchronous: str = "FULL",
        meters: Meters | None = None,
        vfs: str | None = None,
        now: Callable[[], int] = wall_clock,
    ) -> None:
        """`vfs` names a replacement for SQLite's own disk access, such as a faulty disk for tests."""
        refuse_affected_version(apsw.sqlite_lib_version())
        # Resolve links and relative paths, so that each file has exactly one lock.
        self._path = path = path.resolve()
        self._opening = opening
        self._closing = closing
        self._threaded = threaded
        self._vfs = vfs
        self.health = Health(now)
        self._lock = FileLock(path)
        try:
            self._writer = connect_writer(path, synchronous, vfs)
            self._acknowledged = AcknowledgedCommits(path, self._writer, synchronous)
        except BaseException as error:
            self._lock.release()
            raise _no_room(path, error) or _unread(path, vfs, error) or translated(error) from error
        self._is_quick = True
        self._commit_seconds = 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nextslot-writer")
        self._meters = meters or Meters()
        self._commits = GroupCommit(self, self._thread, effects or NoEffects(), self._meters)
        self._readers = Readers(self._read, READERS, threaded, self._meters)
        self._reader = threading.local()
        self._open_readers: list[apsw.Connection] = []
        self._check: BackgroundCheck | None = None
        if threaded and integrity_check.is_large(path):
            self._check = BackgroundCheck(connect_reader(path, vfs), self.health.found_damage)

    async def write(self, work: Work[T], /, *, rows: int = 1) -> T:
        return await self._commits.write(work, rows)

    async def read(self, work: Work[T], /, *, is_small: bool = False) -> T:
        self._commits.refuse_if_closed()
        return await self._readers.read(work, is_inline=is_small and self._is_quick)

    @property
    def is_shared(self) -> bool:
        return False

    def join(self, membership: Membership) -> None:
        """Makes the member the leader: no other process can write the file, so there is no lease either."""
        membership.member.leads(True)

    def follow(self, is_following: bool) -> None:
        """Does nothing: there are no other nodes."""

    async def leave(self) -> None:
        """Does nothing: there is no lease."""

    async def close(self) -> None:
        """Stores all works that were submitted before, then closes the store."""
        await self._commits.close()
        self._close_connections()

    def abandon(self) -> None:
        """Drops the waiting works, as a crash would; for tests."""
        self._commits.abandon()
        self._close_connections()

    def _close_connections(self) -> None:
        if self._check is not None:
            self._check.stop()
        self._thread.shutdown()
        self._readers.close()
        for connection in [*self._open_readers, self._writer]:
            connection.close()
        self._acknowledged.close()
        self._lock.release()

    # How a group is committed.

    def is_inline(self, rows: int) -> bool:
        return not self._threaded or (self._is_quick and rows <= GROUP_ROWS)

    def settle(self) -> list[Effect]:
        """Returns nothing: a commit to a local file always reports whether it was stored."""
        return []

    def wait_for_turn(self, works: list[Work[Any]]) -> Callable[[Work[Any]], bool]:
        """Does not wait: there are no other nodes."""
        return lambda work: False

    def transaction(self, works: list[Work[Any]]) -> tuple[list[WorkResult], list[Effect]]:
        connection = self._writer
        began = time.perf_counter()
        try:
            self._acknowledged.begin()
            connection.execute("begin immediate")
            tx = SqliteTx(connection)
            self._opening(tx)
            answers = attempt_all(tx, works)
            self._closing(tx)
            self._commit(connection)
        except BaseException:
            if connection.in_transaction:
                connection.execute("rollback")
            raise
        finally:
            self._note_speed(time.perf_counter() - began)
        return answers, tx.effects

    def _commit(self, connection: apsw.Connection) -> None:
        number = self._acknowledged.next()
        try:
            connection.execute("commit")
        except apsw.Error:
            # A checkpoint after the commit may fail, which does not undo the commit.
            if number is None or connection.in_transaction or not self._acknowledged.has(number):
                raise
        if number is not None:
            self._acknowledged.store(number)
            self.health.stored()

    def translated(self, error: BaseException) -> BaseException:
        """Translates an error of a write, and records what it says about the file."""
        ours = _unread(self._path, self._vfs, error) or translated(error)
        if isinstance(ours, (Unavailable, Damaged)) and ours is not error:
            self.health.failed(str(ours))
        self._note_damage(ours)
        return ours

    def _note_damage(self, error: BaseException) -> None:
        if isinstance(error, Damaged):
            self.health.found_damage(str(error))

    def _note_speed(self, seconds: float) -> None:
        """Updates the average transaction time, which decides whether transactions may block the event loop."""
        self._commit_seconds += (seconds - self._commit_seconds) * 0.2
        limit = SLOW_COMMIT if self._is_quick else QUICK_COMMIT
        self._is_quick = self._commit_seconds < limit

    def _read(self, work: Work[T]) -> T:
        connection: apsw.Connection | None = getattr(self._reader, "connection", None)
        try:
            if connection is None:
                connection = self._reader.connection = connect_reader(self._path, self._vfs)
                self._open_readers.append(connection)
            connection.execute("begin")
            try:
                return work(SqliteTx(connection))
            finally:
                connection.execute("rollback")
        except (apsw.Error, TypeError) as error:
            ours = _unread(self._path, self._vfs, error) or translated(error)
            self._note_damage(ours)
            if ours is error:
                raise
            raise ours from error


def connect_writer(path: Path, synchronous: str, vfs: str | None) -> apsw.Connection:
    """Opens a database for writing: refuses one that is damaged or lost commits, migrates the schema."""
    acknowledged_commits.refuse_if_removed(path)
    connection = connect(path, synchronous, vfs)
    try:
        acknowledged_commits.refuse_if_commits_are_missing(path, connection)
        integrity_check.refuse_if_damaged(path, connection)
        migrate(connection)
        # A maintenance connection without foreign key checks may have left this switch on; the rules hold from here on.
        connection.execute("delete from maintenance")
    except BaseException:
        connection.close()
        raise
    return connection


def connect(path: Path, synchronous: str, vfs: str | None = None) -> apsw.Connection:
    if not path.exists():
        # Readable by its owner only, since it contains secrets. SQLite gives its write-ahead log the same permissions.
        path.touch(0o600)
    connection = _prepared(apsw.Connection(str(path), vfs=vfs, statementcachesize=512))
    if connection.pragma("journal_mode", "wal") != "wal":
        raise StoreError(f"{path} cannot use a write-ahead log on this file system: move it to a local disk")
    connection.pragma("synchronous", synchronous)
    connection.pragma("foreign_keys", True)
    # A statement that a rule may refuse keeps an undo journal: in memory instead of a file (22 → 16 µs a row).
    connection.pragma("temp_store", 2)
    # Cached pages may take 8 MiB, so that a long queue needs no memory (bench/memory.py). The changes of a transaction
    # may take 64 MiB: with less, a request of 100,000 jobs writes its pages repeatedly (bench/graph.py).
    connection.pragma("cache_size", -8192)
    connection.pragma("cache_spill", 16384)
    # Without this, INSERT OR REPLACE deletes rows without firing the triggers.
    connection.pragma("recursive_triggers", True)
    return connection


def connect_reader(path: Path, vfs: str | None = None) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READONLY
    return _prepared(apsw.Connection(str(path), flags=flags, vfs=vfs, statementcachesize=512))


def _prepared(connection: apsw.Connection) -> apsw.Connection:
    connection.set_busy_timeout(5000)
    # Without this, a statement with a partial index is compiled again each time its parameters change: 10 µs instead of
    # 2.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    return connection


def migrate(connection: apsw.Connection, last: int | None = None) -> None:
    """Migrates the schema to the newest version, or to `last`, each step in its own transaction. Refuses a newer
    schema.
    """
    connection.execute("create table if not exists schema_migrations (version integer primary key, name text) strict")
    done: int = connection.execute("select coalesce(max(version), 0) from schema_migrations").get
    for number, name, schema in dialects.steps_after(done, last):
        with connection:
            for statement in dialects.for_sqlite(schema):
                connection.execute(statement)
            connection.execute("insert into schema_migrations values (?, ?)", (number, name))


def refuse_affected_version(version: str) -> None:
    """Raises if this SQLite can lose commits when a checkpoint meets a write: versions before 3.51.3 (also fixed in
    3.50.7 and 3.44.6).
    """
    numbers = tuple(int(part) for part in version.split(".")[:3])
    is_fixed = numbers >= (3, 51, 3) or (3, 50, 7) <= numbers < (3, 51) or (3, 44, 6) <= numbers < (3, 45)
    if not is_fixed:
        raise AffectedDatabase(
            f"SQLite {version} has a defect in its write-ahead log that can lose commits; "
            "install SQLite 3.51.3 or newer (the apsw package contains one)"
        )


def translated(error: BaseException) -> BaseException:
    """Translates a driver's error into ours, with the original as its cause. No other place translates SQLite
    errors."""
    ours: Exception
    if isinstance(error, apsw.ConstraintError):
        ours = Refused(str(error))
    elif isinstance(error, _UNAVAILABLE):
        ours = Unavailable(f"the database did not store the change: {error}")
    elif isinstance(error, (apsw.CorruptError, apsw.NotADBError)):
        ours = Damaged(integrity_check.sentence(str(error)))
    elif isinstance(error, apsw.Error):
        ours = StoreError(f"the database failed: {error}")
    elif isinstance(error, TypeError) and (found := _BAD_BINDING.match(str(error))) is not None:
        ours = not_a_name(found[1])
    elif isinstance(error, StopIteration):
        ours = RuntimeError("a work raised StopIteration")  # A future cannot carry StopIteration.
    else:
        return error
    ours.__cause__ = error
    return ours


def _unread(path: Path, vfs: str | None, error: BaseException) -> Unavailable | None:
    """Says that the disk could not be read, if that is why SQLite calls the file damaged."""
    if isinstance(error, apsw.CorruptError) and integrity_check.is_unreadable(path, vfs):
        return Unavailable("the disk could not read the database (input/output error); check the disk")
    return None


def _no_room(path: Path, error: BaseException) -> DiskLow | None:
    """Says where the disk is full, if that is why a database cannot be opened; SQLite may call it an I/O error."""
    free = free_bytes(path.parent)
    is_short = isinstance(error, apsw.IOError) and free < ROOM_TO_OPEN
    if not (is_short or isinstance(error, apsw.FullError) or getattr(error, "errno", None) == errno.ENOSPC):
        return None
    return DiskLow(
        f"the disk is full: {path.parent} has {free:,} free bytes, too few to open the database; "
        "free some space there, then start again"
    )


class FileLock:
    """Allows one scheduler per database file, by a lock of the operating system that ends with the process.

    The lock is on a separate file (`.lock`), because SQLite's own locks last only as long as its transactions.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + ".lock")
        # Not inheritable, so that no child program keeps the lock; a forked child closes it below.
        try:
            self._file: int | None = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(
                f"{path} cannot be opened: {error.strerror}; check the path and its permissions"
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._file, 100, 0).decode(errors="replace").strip() or "another process"
            self.release()
            raise AlreadyOpen(
                f"{path} is in use by {holder}. Stop it first, or use another file: a database has one scheduler"
            ) from None
        with contextlib.suppress(OSError):  # For people only. Whoever opens the database reports a full disk.
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"process {os.getpid()} ({Path(sys.argv[0]).name or 'python'})\n".encode(), 0)
        os.register_at_fork(after_in_child=self.release)

    def release(self) -> None:
        """Closes the file, which releases the lock. In a forked child, the parent's lock stays."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
