"""Moves of a SQLite file: out of one that no scheduler has, and into one that gets its name when all is in it.

Called by `admin`; what is moved is in `move.py`, and how a file is filled in `imports.py`.
"""

import contextlib
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import apsw

from nextslot.errors import Conflict, StoreError
from nextslot.store.contract import Tx
from nextslot.store.sqlite import acknowledged_commits
from nextslot.store.sqlite.sqlite_store import (
    ROWS_AT_ONCE,
    SqliteTx,
    connect,
    connect_reader,
    migrate,
    translated,
)

from . import (
    export_file,
    import_file,
    move,
    sqlite_files,
)
from .export_file import Table
from .move import Moved, Progress


def write(path: Path, target: Path, progress: Progress) -> Moved:
    """Exports a file, under the scheduler's lock."""
    if steps := sqlite_files.pending(path):
        raise StoreError(f"{path} is older than this release ({', '.join(steps)}): run nextslot migrate first")
    with sqlite_files.locked(path):
        return sqlite_files.ask(path, lambda tx: move.write(tx, target, progress))


def load(source: Path, path: Path, progress: Progress) -> Moved:
    """Imports into a file beside, which takes the place of the empty one or of none when it is whole and verified."""
    path = path.resolve()  # Whatever link leads to it, the file is one.
    part = path.with_name(path.name + ".import")
    if export_file.is_export(part):
        raise StoreError(f"{part} is in the way: an import is put together under this name, so give the export another")
    try:
        with sqlite_files.locked(path):
            _refuse_unless_empty(path)
            with contextlib.closing(_Staging(part, path)) as staging:
                return import_file.load(source, staging, progress)
    except apsw.Error as error:
        raise translated(error) from error


class _Staging:
    """A file that nobody knows of yet."""

    def __init__(self, part: Path, path: Path) -> None:
        self._part = part
        self._path = path
        self._open: apsw.Connection | None = None

    @property
    def _connection(self) -> apsw.Connection:
        if self._open is None:
            self._open = connect(self._part, "NORMAL")
            # A journal of what was there before, which is little while rows are only added: through a log as a
            # scheduler has it, each would be written twice. It costs no more than no journal at all (measured).
            self._open.pragma("journal_mode", "truncate")
            self._open.pragma("cache_size", -262144)  # 256 MiB: thirty indexes are filled at once.
            # A retry may come before what it follows: references are looked at when all rows are there.
            self._open.pragma("foreign_keys", False)
        return self._open

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    @property
    def tx(self) -> Tx:
        return SqliteTx(self._connection)

    def is_there(self) -> bool:
        return self._part.exists()

    def make(self, schema: int) -> None:
        self.begin()
        migrate(self._connection, schema)

    def begin(self) -> None:
        self._connection.execute("begin immediate")

    def execute(self, sql: str) -> None:
        self._connection.execute(sql)

    def load(self, table: Table, rows: Iterator[list[Any]]) -> None:
        row = f"({', '.join('?' * len(table.columns))})"
        # What is refused ends the transaction: see `text.sqlite_statement`.
        into = f"insert or rollback into {table.name} ({', '.join(table.columns)}) values "
        many = into + ", ".join([row] * ROWS_AT_ONCE)
        while page := list(islice(rows, ROWS_AT_ONCE)):
            if len(page) == ROWS_AT_ONCE:
                self._connection.execute(many, tuple(chain.from_iterable(page)))
            else:
                self._connection.executemany(into + row, page)

    def commit(self) -> None:
        self._connection.execute("commit")

    def settle(self) -> None:
        self.close()
        if found := sqlite_files.damage(self._part):
            raise StoreError(f"what was imported is not sound: {found[0].problem}")
        self._connection.pragma("foreign_keys", True)
        self.begin()

    def upgrade(self) -> None:
        migrate(self._connection)

    def put_in_place(self) -> None:
        self.commit()
        # One file, with nothing beside it that would be left behind.
        if self._connection.pragma("journal_mode", "delete") != "delete":
            raise StoreError(f"somebody else has {self._part} open")
        self.close()
        acknowledged_commits.forget(self._path)  # The database that it is about has nothing in it.
        _remove(self._path)
        sqlite_files.put(self._part, self._path)

    def discard(self) -> None:
        self.close()
        _remove(self._part)

    def translated(self, error: BaseException) -> BaseException:
        return translated(error)


def _refuse_unless_empty(path: Path) -> None:
    """Also another program's file is not to be lost."""
    if not path.exists():
        return
    connection = connect_reader(path)
    try:
        names = [str(name) for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
        if names and "schema_migrations" not in names:
            raise Conflict(f"{path} is a database of something else: name another data directory")
        for name in names:
            if name not in move.NOT_MOVED and connection.execute(f"select exists (select 1 from {name})").get:
                raise move.not_empty(name)
    finally:
        connection.close()


def _remove(path: Path) -> None:
    for name in (path.name, *(path.name + companion for companion in (*sqlite_files.COMPANIONS, "-journal"))):
        path.with_name(name).unlink(missing_ok=True)
