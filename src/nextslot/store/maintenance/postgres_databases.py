"""Opens a PostgreSQL database without a scheduler: exclusively for changes, or read-only as of one moment.

The counterpart of `backup_sqlite.py`; `backup_postgres.py` and `move_postgres.py` call it.
"""

import contextlib
import random
from collections.abc import Iterator

import psycopg

from nextslot.errors import CommitUnknown, StoreError, Unavailable
from nextslot.store import dialects
from nextslot.store.postgres.sessions import Address, Connection, Session, connect, is_lost, translated

from .backup_sqlite import Absent

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


def steps_of(connection: Connection, address: Address) -> list[str]:
    steps = dialects.steps_after(schema_of(connection), place=address.place)
    return [f"{number:04d}_{name}" for number, name, _ in steps]


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
