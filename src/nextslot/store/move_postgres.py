"""Moves of a PostgreSQL database: each in one transaction, on the connection that has the scheduler's lock.

Called by `admin`; what is moved is in `move.py`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from ..errors import StoreError
from . import exports, move
from . import offline_postgres as offline
from .exports import Table
from .move import Moved, Progress
from .postgres import PostgresTx
from .postgres_session import Address, Connection, migrate_tables
from .store import Tx


def write(url: str, target: Path, progress: Progress) -> Moved:
    """Exports a database; the lock keeps schedulers out."""
    offline.pending(url)  # A database that was never used gets no lock, and a sentence.
    with offline.alone(url) as (address, session):
        offline.read_one_moment(session.connection)
        offline.refuse_unless_current(session.connection, address)
        return move.write(PostgresTx(session.connection), target, progress)


def load(source: Path, url: str, progress: Progress) -> Moved:
    """Imports into an empty database, in one transaction, tables and all."""
    with exports.opened(source) as reader, offline.alone(url) as (address, session):
        session.connection.execute(f"{session.opening}; {offline.PATIENCE}", prepare=False)
        moved = move.load(reader, _Target(session.connection, address), progress)
        offline.commit(session, "the import", "import again, which is refused if it is there")
    return moved


class _Target:
    def __init__(self, connection: Connection, address: Address) -> None:
        self._connection = connection
        self._address = address
        self.tx: Tx = PostgresTx(connection)

    def prepare(self, schema: int) -> None:
        stored = offline.schema_of(self._connection)
        migrate_tables(self._connection, schema)
        if stored > schema:
            raise StoreError(
                f"{self._address.place} has tables of schema {stored} already, and the export is of schema {schema}: "
                "name a database without tables"
            )

    def load(self, table: Table, rows: Iterator[list[Any]]) -> None:
        """In one statement, so that a retry may come before what it follows: references are looked at when it ends."""
        copying = f"copy {table.name} ({', '.join(table.columns)}) from stdin"
        try:
            with self._connection.cursor() as cursor, cursor.copy(copying) as copy:
                for row in rows:
                    copy.write_row(row)
        except (psycopg.DataError, UnicodeEncodeError) as error:
            raise StoreError(f"PostgreSQL cannot store a row of {table.name}: {_said(error)}") from error

    def loaded(self) -> None:
        self._connection.execute("set constraints all immediate", prepare=False)
        self._connection.execute(f"analyze {', '.join(move.TABLES)}", prepare=False)
        # Not before: the rules are planned while the tables are empty, and would look at every row for ever.
        self._connection.execute(offline.PLANS, prepare=False)

    def upgrade(self) -> None:
        migrate_tables(self._connection)


def _said(error: Exception) -> str:
    return str(error).partition("\n")[0]
