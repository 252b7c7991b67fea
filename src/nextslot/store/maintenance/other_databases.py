"""Reads databases of other programs, for extensions that adopt them: read-only, whole tables, rows by column name."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from nextslot.errors import StoreError


class OtherDatabase(Protocol):
    """A database of another program, as of one moment."""

    def tables(self) -> dict[str, list[str]]:
        """Returns the columns of each table."""

    def rows(self, table: str) -> Iterator[dict[str, Any]]:
        """Yields the rows of a table that `tables` has named."""


@contextlib.contextmanager
def opened(address: str | Path) -> Iterator[OtherDatabase]:
    """Opens a database so that nothing can change in it: a `postgresql://` address, or the path of a SQLite file."""
    if isinstance(address, Path):
        with _sqlite(address) as found:
            yield found
    elif address.startswith(("postgresql://", "postgres://")):
        with _postgres(address) as found:
            yield found
    else:
        raise StoreError(f"{address!r} is not the address of a database; give one such as postgresql://user@host/name")


class _Sqlite:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def tables(self) -> dict[str, list[str]]:
        names = self._connection.execute("select name from sqlite_master where type = 'table' order by name").fetchall()
        return {name: [row[1] for row in self._connection.execute(_PRAGMA, (name,))] for (name,) in names}

    def rows(self, table: str) -> Iterator[dict[str, Any]]:
        columns = self.tables()[table]
        quoted = table.replace('"', '""')
        for row in self._connection.execute(f'select * from "{quoted}"'):
            yield dict(zip(columns, row, strict=True))


_PRAGMA = "select * from pragma_table_info(?)"


@contextlib.contextmanager
def _sqlite(path: Path) -> Iterator[_Sqlite]:
    import apsw

    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            connection.execute("begin")
            connection.execute("select count(*) from sqlite_master").fetchall()
            yield _Sqlite(connection)
        finally:
            connection.close()
    except apsw.Error as error:
        raise StoreError(f"{path} cannot be read as a SQLite database: {error}") from error


class _Postgres:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def tables(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for table, column in self._connection.execute(_COLUMNS):
            found.setdefault(table, []).append(column)
        return found

    def rows(self, table: str) -> Iterator[dict[str, Any]]:
        from psycopg import sql

        with self._connection.cursor(name="nextslot_adopt") as cursor:
            cursor.itersize = 1000
            cursor.execute(sql.SQL("select * from {}").format(sql.Identifier(table)))
            names: list[str] = []
            for row in cursor:
                names = names or [column.name for column in cursor.description]
                yield dict(zip(names, row, strict=True))


_COLUMNS = """
    select table_name, column_name from information_schema.columns
    where table_schema = any (current_schemas(false)) order by table_name, ordinal_position
"""


@contextlib.contextmanager
def _postgres(address: str) -> Iterator[_Postgres]:
    try:
        import psycopg
    except ImportError:
        raise StoreError("PostgreSQL needs the extra `postgres`: install nextslot[postgres]") from None
    try:
        connection = psycopg.connect(address, application_name="nextslot adopt", connect_timeout=10)
        try:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            yield _Postgres(connection)
        finally:
            connection.close()
    except psycopg.Error as error:
        raise StoreError(f"the old database cannot be read: {str(error).strip()}") from error
