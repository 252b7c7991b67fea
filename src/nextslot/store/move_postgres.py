"""Moves of a PostgreSQL database: each in one transaction, on the connection that has the scheduler's lock.

Called by `admin`; what is moved is in `move.py`.
"""

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from ..errors import CommitUnknown, SchemaTooNew, StoreError, Unavailable
from . import exports, move
from .exports import Table
from .move import Moved, Progress
from .postgres import PostgresTx
from .postgres_session import Address, Connection, Session, is_lost, migrate_tables, translated
from .store import Tx

# The questions here are about all rows, not about one of them; and they are asked once.
_PLANS = "set local enable_seqscan = on; set local plan_cache_mode = auto; set local work_mem = '64MB'"
# A limit that the server has for short statements is not meant for these.
_PATIENCE = "set local statement_timeout = 0; set local idle_in_transaction_session_timeout = 0"
_READ = "begin isolation level repeatable read read only"


def write(url: str, target: Path, progress: Progress) -> Moved:
    """Exports a database; the lock keeps schedulers out."""
    with _session(url) as (address, session):
        session.connection.execute(f"{_READ}; {_PATIENCE}; {_PLANS}", prepare=False)
        _refuse_unless_current(session.connection, address)
        return move.write(PostgresTx(session.connection), target, progress)


def load(source: Path, url: str, progress: Progress) -> Moved:
    """Imports into an empty database, in one transaction, tables and all."""
    with exports.opened(source) as reader, _session(url) as (address, session):
        session.connection.execute(f"{session.opening}; {_PATIENCE}", prepare=False)
        moved = move.load(reader, _Target(session.connection, address), progress)
        _commit(session)
    return moved


class _Target:
    def __init__(self, connection: Connection, address: Address) -> None:
        self._connection = connection
        self._address = address
        self.tx: Tx = PostgresTx(connection)

    def prepare(self, schema: int) -> None:
        stored = _schema(self._connection)
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
        self._connection.execute(_PLANS, prepare=False)

    def upgrade(self) -> None:
        migrate_tables(self._connection)


def _said(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _commit(session: Session) -> None:
    try:
        cursor = session.connection.execute(session.closing(random.getrandbits(62)), prepare=False)
        while cursor.nextset():
            pass
        if cursor.statusmessage != "COMMIT":
            raise StoreError("the database undid the import instead of committing it")
    except psycopg.Error as error:
        if is_lost(session.connection, error):
            raise CommitUnknown(
                "the connection to the database broke while the import was being committed: it is there as a whole or "
                "not at all; import again, which is refused if it is there"
            ) from error
        raise


@contextlib.contextmanager
def _session(url: str) -> Iterator[tuple[Address, Session]]:
    """What is not committed in it is undone with it."""
    address = Address.of(url)
    try:
        session = Session(address, "FULL")
        try:
            yield address, session
        finally:
            session.close()
    except psycopg.Error as error:
        ours = translated(error, address)
        raise StoreError(f"{address.place}: {ours}") if isinstance(ours, Unavailable) else ours from error


def _refuse_unless_current(connection: Connection, address: Address) -> None:
    stored, newest = _schema(connection), move.newest_schema()
    if stored == 0:
        raise StoreError(f"{address.place} is none of nextslot, or was never used")
    if stored > newest:
        raise SchemaTooNew(f"{address.place} has schema {stored}, this release knows up to {newest}")
    if stored < newest:
        raise StoreError(f"{address.place} has schema {stored}, this release {newest}: start its server once, stop it")


def _schema(connection: Connection) -> int:
    """0 is none."""
    [(is_there,)] = connection.execute("select to_regclass('schema_migrations') is not null", prepare=False)
    if not is_there:
        return 0
    [(done,)] = connection.execute("select coalesce(max(version), 0) from schema_migrations", prepare=False)
    return int(done)
