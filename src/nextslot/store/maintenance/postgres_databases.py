"""A PostgreSQL database without a scheduler: had for itself where something is changed, else read as of one moment.

As `offline.py` is for SQLite files: called by `chores_postgres.py` and `move_postgres.py`.
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

# The questions here are about all rows, not about one of them; and they are asked once.
PLANS = "set local enable_seqscan = on; set local plan_cache_mode = auto; set local work_mem = '64MB'"
# A limit that the server has for short statements is not meant for these.
PATIENCE = "set local statement_timeout = 0; set local idle_in_transaction_session_timeout = 0"
_READ = "begin isolation level repeatable read read only"


@contextlib.contextmanager
def alone(url: str) -> Iterator[tuple[Address, Session]]:
    """Nobody else has the database meanwhile. What is not committed is undone at the end."""
    address = Address.of(url)
    with _speaking_of(address):
        session = Session(address, "FULL")
        try:
            yield address, session
        finally:
            session.close()


@contextlib.contextmanager
def snapshot(url: str) -> Iterator[tuple[Address, Connection]]:
    """One moment of the database, also while schedulers write, and of a standby too: nothing is locked."""
    address = Address.of(url)
    with _speaking_of(address):
        connection = connect(address, "nextslot reads")
        try:
            read_one_moment(connection)
            if schema_of(connection) == 0:
                raise Absent(
                    f"{address.place} was never used: its first server makes the tables, and so does `nextslot key add`"
                )
            yield address, connection
        finally:
            connection.close()


def read_one_moment(connection: Connection) -> None:
    connection.execute(f"{_READ}; {PATIENCE}; {PLANS}", prepare=False)


@contextlib.contextmanager
def _speaking_of(address: Address) -> Iterator[None]:
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
            raise StoreError(f"the database undid {what} instead of committing it")
    except psycopg.Error as error:
        if is_lost(session.connection, error):
            raise CommitUnknown(
                f"the connection to the database broke while {what} was being committed: it is there as a whole or "
                f"not at all; {advice}"
            ) from error
        raise


# The schema.


def pending(url: str) -> list[str]:
    """The migrations that the next start would apply."""
    with snapshot(url) as (address, connection):
        return steps_of(connection, address)


def apply_migrations(url: str) -> list[str]:
    """Brings the schema up to date, and says which steps that took."""
    pending(url)  # What was never used is left to its first server.
    with alone(url) as (address, session):
        wanted = steps_of(session.connection, address)
        session.migrate(random.getrandbits(62))
        return wanted


def steps_of(connection: Connection, address: Address) -> list[str]:
    done, steps = schema_of(connection), dialects.migrations()
    if done > steps[-1][0]:
        raise SchemaTooNew(f"{address.place} has schema {done}, this release knows up to {steps[-1][0]}")
    return [f"{number:04d}_{name}" for number, name, _ in steps if number > done]


def schema_of(connection: Connection) -> int:
    """0 is none."""
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
    """What is stored; the soundness of its own files is the server's business."""
    with snapshot(url) as (address, connection):
        if steps := steps_of(connection, address):
            return [Finding("schema", f"the schema is older than this release: {', '.join(steps)}", "nextslot migrate")]
        return doctor.examine(PostgresTx(connection))


def repair(url: str) -> int:
    """Counts again; how many counters were wrong."""
    pending(url)
    with alone(url) as (address, session):
        refuse_unless_current(session.connection, address)
        session.connection.execute(f"{session.opening}; {PATIENCE}; {PLANS}", prepare=False)
        repaired = doctor.repair(PostgresTx(session.connection))
        commit(session, "the repair")
        return repaired


def ask(url: str, work: Work[T]) -> T:
    """What a work finds."""
    with snapshot(url) as (_, connection):
        return work(PostgresTx(connection))
