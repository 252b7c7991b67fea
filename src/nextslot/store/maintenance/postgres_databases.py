"""Opens a PostgreSQL database without a scheduler: exclusively for changes, or read-only as of one moment.

The counterpart of `sqlite_files.py`; `maintenance_postgres.py` and `move_postgres.py` call it.
"""

import contextlib
import random
from collections.abc import Iterator
from typing import TypeVar

import psycopg

from nextslot.errors import (
    CommitUnknown,
    SchemaTooNew,
    StoreError,
    Unavailable,
)
from nextslot.store import dialects
from nextslot.store.contract import Work
from nextslot.store.postgres.postgres_store import PostgresTx
from nextslot.store.postgres.sessions import (
    Address,
    Connection,
    Session,
    connect,
    is_lost,
    translated,
)

from . import doctor
from .doctor import Finding
from .sqlite_files import Absent

T = TypeVar("T")

# Planner settings for one-off queries over all rows of a table.
PLANNER_SETTINGS = "set local enable_seqscan = on; set local plan_cache_mode = auto; set local work_mem = '64MB'"
# Lifts the server's timeouts, which are meant for short statements.
NO_TIMEOUTS = "set local statement_timeout = 0; set local idle_in_transaction_session_timeout = 0"
_READ = "begin isolation level repeatable read read only"


@contextlib.contextmanager
def alone(url: str) -> Iterator[tuple[Address, Session]]:
    """Opens the database exclusively. Changes that are not committed are rolled back at the end."""
    address = Address.of(url)
    with _with_place_in_errors(address):
        session = Session(address, "FULL")
        try:
            yield address, session
        finally:
            session.close()


@contextlib.contextmanager
def snapshot(url: str) -> Iterator[tuple[Address, Connection]]:
    """Opens one consistent state of the database without locks, while schedulers write or on a standby."""
    address = Address.of(url)
    with _with_place_in_errors(address):
        connection = connect(address, "nextslot reads")
        try:
            read_one_moment(connection)
            if schema_of(connection) == 0:
                raise Absent(
                    f"{address.place} has no tables of nextslot yet: start a server on it, or run `nextslot key add`"
                )
            yield address, connection
        finally:
            connection.close()


def read_one_moment(connection: Connection) -> None:
    connection.execute(f"{_READ}; {NO_TIMEOUTS}; {PLANNER_SETTINGS}", prepare=False)


@contextlib.contextmanager
def _with_place_in_errors(address: Address) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        ours = translated(error, address)
        raise StoreError(f"{address.place}: {ours}") if isinstance(ours, Unavailable) else ours from error


def commit(session: Session, what: str, advice: str = "try again") -> None:
    try:
        cursor = session.connection.execute(session.closing(random.getrandbits(62)), prepare=False)
        while cursor.nextset():
            pass
        if cursor.statusmessage != "COMMIT":
            raise StoreError(f"the database rolled back {what} instead of committing it")
    except psycopg.Error as error:
        if is_lost(session.connection, error):
            raise CommitUnknown(
                f"the connection broke while {what} was being committed, so it is stored completely or "
                f"not at all: {advice}"
            ) from error
        raise


# The schema.


def pending(url: str) -> list[str]:
    """Returns the migrations that the next start would apply."""
    with snapshot(url) as (address, connection):
        return steps_of(connection, address)


def apply_migrations(url: str) -> list[str]:
    """Applies the pending migrations and returns their names."""
    pending(url)  # Raises if the database was never used: its first server creates the tables.
    with alone(url) as (address, session):
        wanted = steps_of(session.connection, address)
        session.migrate(random.getrandbits(62))
        return wanted


def steps_of(connection: Connection, address: Address) -> list[str]:
    done, steps = schema_of(connection), dialects.migrations()
    if done > steps[-1][0]:
        raise SchemaTooNew(
            f"{address.place} has schema {done}, but this release knows only {steps[-1][0]}: use a newer release"
        )
    return [f"{number:04d}_{name}" for number, name, _ in steps if number > done]


def schema_of(connection: Connection) -> int:
    """Returns the version of the schema; 0 if there is none."""
    [(is_there,)] = connection.execute("select to_regclass('schema_migrations') is not null", prepare=False)
    if not is_there:
        return 0
    [(done,)] = connection.execute("select coalesce(max(version), 0) from schema_migrations", prepare=False)
    return int(done)


def refuse_unless_current(connection: Connection, address: Address) -> None:
    if steps := steps_of(connection, address):
        raise StoreError(f"{address.place} is older than this release ({', '.join(steps)}): run nextslot migrate first")


# The doctor.


def examine(url: str) -> list[Finding]:
    """Returns the findings about the stored data. The server checks its own files."""
    with snapshot(url) as (address, connection):
        if steps := steps_of(connection, address):
            return [Finding("schema", f"the schema is older than this release: {', '.join(steps)}", "nextslot migrate")]
        return doctor.examine(PostgresTx(connection))


def repair(url: str) -> int:
    """Corrects wrong counters and returns how many there were."""
    pending(url)
    with alone(url) as (address, session):
        refuse_unless_current(session.connection, address)
        session.connection.execute(f"{session.opening}; {NO_TIMEOUTS}; {PLANNER_SETTINGS}", prepare=False)
        repaired = doctor.repair(PostgresTx(session.connection))
        commit(session, "the repair")
        return repaired


def ask(url: str, work: Work[T]) -> T:
    """Runs a work that only reads, and returns its result."""
    with snapshot(url) as (_, connection):
        return work(PostgresTx(connection))
