"""Moves of a SQLite file: out of one that no scheduler has, and into one that gets its name when all is in it.

Called by `admin`; what is moved is in `move.py`.
"""

import contextlib
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import apsw

from ..errors import Conflict, StoreError
from . import exports, move, offline
from .exports import Table
from .move import Moved, Progress
from .sqlite import ROWS_AT_ONCE, SqliteTx, connect, connect_reader, migrate, translated
from .store import Tx


def write(path: Path, target: Path, progress: Progress) -> Moved:
    """Exports a file, under the scheduler's lock."""
    if steps := offline.pending(path):
        raise StoreError(f"{path} is older than this release ({', '.join(steps)}): run nextslot migrate first")
    with offline.locked(path):
        return offline.ask(path, lambda tx: move.write(tx, target, progress))


def load(source: Path, path: Path, progress: Progress) -> Moved:
    """Imports into a file beside, which takes the place of the empty one or of none when it is whole and verified."""
    path = path.resolve()  # Whatever link leads to it, the file is one.
    part = path.with_name(path.name + ".import")
    with exports.opened(source) as reader, offline.locked(path):
        _refuse_unless_empty(path)
        _remove(part)
        try:
            with _staged(part) as target:
                moved = move.load(reader, target, progress)
            if found := offline.damage(part):
                raise StoreError(f"what was imported is not sound: {found[0].problem}")
            _remove(path)
            offline.put(part, path)
        finally:
            _remove(part)
    return moved


class _Staged:
    """A file that nobody knows of yet: it needs no journal, since half of it is thrown away."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self.tx: Tx = SqliteTx(connection)

    def prepare(self, schema: int) -> None:
        migrate(self._connection, schema)
        self._connection.execute("begin")
        # A retry may come before what it follows: references are looked at when all rows are there.
        self._connection.pragma("defer_foreign_keys", True)

    def load(self, table: Table, rows: Iterator[list[Any]]) -> None:
        row = f"({', '.join('?' * len(table.columns))})"
        into = f"insert into {table.name} ({', '.join(table.columns)}) values "
        many = into + ", ".join([row] * ROWS_AT_ONCE)
        while page := list(islice(rows, ROWS_AT_ONCE)):
            if len(page) == ROWS_AT_ONCE:
                self._connection.execute(many, tuple(chain.from_iterable(page)))
            else:
                self._connection.executemany(into + row, page)

    def loaded(self) -> None:
        self._connection.execute("commit")

    def upgrade(self) -> None:
        migrate(self._connection)


@contextlib.contextmanager
def _staged(part: Path) -> Iterator[_Staged]:
    try:
        connection = connect(part, "OFF")
        try:
            connection.pragma("journal_mode", "off")
            connection.pragma("cache_size", -262144)  # 256 MiB: thirty indexes are filled at once.
            yield _Staged(connection)
        finally:
            connection.close()
    except apsw.Error as error:
        raise translated(error) from error


def _refuse_unless_empty(path: Path) -> None:
    """Also another program's file is not to be lost."""
    if not path.exists():
        return
    try:
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
    except apsw.Error as error:
        raise translated(error) from error


def _remove(path: Path) -> None:
    for name in (path.name, *(path.name + companion for companion in offline.COMPANIONS)):
        path.with_name(name).unlink(missing_ok=True)
