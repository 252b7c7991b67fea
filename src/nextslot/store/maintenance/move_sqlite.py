"""Exports a SQLite file that no scheduler uses, and imports into a file that gets its name when it is complete.

`offline_commands` calls it; `exported_rows.py` writes the rows, and `import_file.py` loads them.
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
from nextslot.store.sqlite.sqlite_store import ROWS_AT_ONCE, SqliteTx, connect, connect_reader, migrate, translated

from . import backup_sqlite, export_file, exported_rows, import_file
from .export_file import Table
from .exported_rows import Moved, Progress


def write(path: Path, target: Path, progress: Progress) -> Moved:
    """Exports a file, under the scheduler's lock."""
    if steps := backup_sqlite.pending(path):
        raise StoreError(f"{path} is older than this release ({', '.join(steps)}): run nextslot migrate first")
    with backup_sqlite.locked(path):
        return backup_sqlite.ask(path, lambda tx: exported_rows.write(tx, target, progress))


def load(source: Path, path: Path, progress: Progress) -> Moved:
    """Imports into a staging file, which replaces the empty database file, if any, once it is complete and verified."""
    path = path.resolve()  # Resolve links, so that the file has one lock.
    part = path.with_name(path.name + ".import")
    if export_file.is_export(part):
        raise StoreError(f"{part} is an export, but the import needs this file name: rename the export")
    try:
        with backup_sqlite.locked(path):
            _refuse_unless_empty(path)
            with contextlib.closing(_Staging(part, path)) as staging:
                return import_file.load(source, staging, progress)
    except apsw.Error as error:
        raise translated(error) from error


class _Staging:
    """The staging file. No other process knows its name."""

    def __init__(self, part: Path, path: Path) -> None:
        self._part = part
        self._path = path
        self._open: apsw.Connection | None = None

    @property
    def _connection(self) -> apsw.Connection:
        if self._open is None:
            self._open = connect(self._part, "NORMAL")
            # A rollback journal is small while rows are only added; a write-ahead log would write each row twice. It
            # costs no more than having no journal (measured).
            self._open.pragma("journal_mode", "truncate")
            self._open.pragma("cache_size", -262144)  # 256 MiB, because about thirty indexes are filled at once.
            # A retry may precede the job that it retries: references are checked when all rows are loaded.
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
        # A refusal ends the transaction: see `dialects.sqlite_statement`.
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
        if found := backup_sqlite.damage(self._part):
            raise StoreError(f"the imported data is damaged: {found[0].problem}; import again")
        self._connection.pragma("foreign_keys", True)
        self.begin()

    def upgrade(self) -> None:
        migrate(self._connection)

    def put_in_place(self) -> None:
        self.commit()
        # Leave one file, without a companion file that could be left behind.
        if self._connection.pragma("journal_mode", "delete") != "delete":
            raise StoreError(f"another process has {self._part} open; close it and import again")
        self.close()
        acknowledged_commits.forget(self._path)  # Its record belongs to the empty database that is replaced.
        _remove(self._path)
        backup_sqlite.put(self._part, self._path)

    def discard(self) -> None:
        self.close()
        _remove(self._part)

    def translated(self, error: BaseException) -> BaseException:
        return translated(error)


def _refuse_unless_empty(path: Path) -> None:
    """Raises unless the database file is absent or empty; a file of another program must not be lost either."""
    if not path.exists():
        return
    connection = connect_reader(path)
    try:
        names = [str(name) for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
        if names and "schema_migrations" not in names:
            raise Conflict(f"{path} is a database of another program: give another data directory")
        for name in names:
            if name not in exported_rows.NOT_MOVED and connection.execute(f"select exists (select 1 from {name})").get:
                raise exported_rows.not_empty(name)
    finally:
        connection.close()


def _remove(path: Path) -> None:
    for name in (path.name, *(path.name + companion for companion in (*backup_sqlite.COMPANIONS, "-journal"))):
        path.with_name(name).unlink(missing_ok=True)
