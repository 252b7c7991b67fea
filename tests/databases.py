"""Which database a test runs on, and a plain connection to it, as any tool opens one.

A directory is a test's name for a database: on SQLite the file is in it, on PostgreSQL a database is named after it.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import apsw
import psycopg

from nextslot.store import dialects
from tests import postgres

KINDS = ("sqlite", "postgres")
# What a plain connection raises when the database itself refuses a change.
REFUSALS = (apsw.ConstraintError, psycopg.IntegrityError)

# SQLite, with commits on the writer's thread and reads on the readers', as on a server whose disk is slow.
THREADS = "threads"

_kind = "sqlite"
_is_threaded = False
_borrowed: dict[str, str] = {}


def kinds() -> list[str]:
    """Returns the databases that `$NEXTSLOT_TEST_DATABASE` names: one of the two, or else both."""
    wanted = os.environ.get("NEXTSLOT_TEST_DATABASE")
    return [kind for kind in KINDS if wanted in (None, "", kind)]


def kind() -> str:
    return _kind


def is_threaded() -> bool:
    """Returns whether a scheduler on virtual time has the store's threads anyway."""
    return _is_threaded


def use(wanted: str) -> None:
    """Uses this database from now on: one of the two, or `THREADS`."""
    global _kind, _is_threaded  # One test runs at a time, and all its helpers must agree.
    _kind, _is_threaded = ("sqlite", True) if wanted == THREADS else (wanted, False)
    if wanted == "postgres":
        postgres.address()  # Started here, by the main thread: it ends with the thread that started it.


def borrowed() -> frozenset[str]:
    """Yields the directories that have a database now."""
    return frozenset(_borrowed)


def forget(but: frozenset[str] = frozenset()) -> None:
    """Drops what has been made, but not for these directories."""
    for directory in _borrowed.keys() - but:
        postgres.give_back(_borrowed.pop(directory))


def url(directory: Path) -> str:
    """Returns the address of a directory's database, and makes the database on first use."""
    if _kind == "sqlite":
        return f"sqlite:///{directory}/nextslot.db"
    if str(directory) not in _borrowed:
        for gone in [name for name in _borrowed if not Path(name).exists()]:
            postgres.give_back(_borrowed.pop(gone))
        _borrowed[str(directory)] = postgres.borrow()
    return postgres.address(_borrowed[str(directory)])


def variables(directory: Path) -> dict[str, str]:
    """Returns the environment variables with which a child process uses a directory's database."""
    return {} if _kind == "sqlite" else {"NEXTSLOT_STORE__URL": url(directory)}


def spoil(directory: Path) -> None:
    """Marks a database whose schema the test has changed: it is not used again."""
    if _kind == "postgres":
        url(directory)
        postgres.spoil(_borrowed[str(directory)])


def copy(source: Path, target: Path) -> None:
    """Copies the database of one directory to another."""
    if _kind == "sqlite":
        apsw.Connection(f"{source}/nextslot.db").execute("vacuum into ?", (f"{target}/nextslot.db",))
    else:
        _borrowed[str(target)] = postgres.borrow(_borrowed[str(source)])


def plain(directory: Path) -> "apsw.Connection | Plain":
    """Opens another connection to the same database, for plain SQL."""
    if _kind == "sqlite":
        return apsw.Connection(str(directory / "nextslot.db"))
    return Plain(url(directory), lambda: postgres.spoil(_borrowed[str(directory)]))


def without_rules(directory: Path) -> "apsw.Connection | Plain":
    """Opens a connection that can do what the engine's own commits cannot: no trigger fires, and no check or reference
    is enforced.
    """
    connection = plain(directory)
    if isinstance(connection, Plain):
        for table, name in connection.execute(_CHECKS):
            connection.execute(f"alter table {table} drop constraint {name}")
        connection.execute("set session_replication_role = replica")
        return connection
    for (name,) in connection.execute("select name from sqlite_master where type = 'trigger'").fetchall():
        connection.execute(f"drop trigger {name}")
    connection.pragma("ignore_check_constraints", True)
    return connection


_CHECKS = """
    select conrelid::regclass::text, conname from pg_constraint
    where contype = 'c' and connamespace = 'public'::regnamespace and conrelid <> 0
"""


def columns(connection: "apsw.Connection | Plain", table: str) -> list[str]:
    """Returns the names of a table's columns, without the computed ones."""
    if isinstance(connection, Plain):
        return [row[0] for row in connection.execute(_COLUMNS, {"table": table})]
    return [str(row[1]) for row in connection.execute(f"pragma table_info({table})")]


_COLUMNS = """
    select column_name from information_schema.columns where table_schema = 'public' and table_name = :table
        and is_generated = 'NEVER'
    order by ordinal_position
"""


class Plain:
    """A connection to PostgreSQL that is used as one to SQLite: what is refused leaves the transaction as it was.

    With `keeps_nothing` all that is done is undone in the end, the schema too; a commit then only checks.
    """

    def __init__(self, address: str, spoil: Callable[[], None] = lambda: None, *, keeps_nothing: bool = False) -> None:
        self._connection = psycopg.connect(address, autocommit=True)
        self._spoil = spoil
        self._keeps_nothing = keeps_nothing
        if keeps_nothing:
            self._plainly("begin")
        self._savepoints: list[str] = []

    def execute(self, sql: str, values: Sequence[object] | Mapping[str, object] | None = None) -> "Rows":
        word, _, name = sql.strip().partition(" ")
        if word in ("create", "drop", "alter"):
            self._spoil()
        if self._keeps_nothing and word in _INSTEAD:
            return self._run(_INSTEAD[word], None)
        if sql.startswith("drop trigger ") and " on " not in sql:
            sql = f"{sql} on {self._table_of(name.removeprefix('trigger '))}"
        if word == "savepoint":
            self._plainly(f"savepoint {name}" if self._savepoints else f"begin; savepoint {name}")
            self._savepoints.append(name)
            return Rows()
        if word == "release":
            self._savepoints.pop()
            self._plainly(f"release {name}" if self._savepoints else "commit")
            return Rows()
        if self.in_transaction and word not in ("commit", "rollback"):
            return self._undoing(sql, values)
        return self._run(sql, values)

    def __enter__(self) -> "Plain":
        self._plainly("begin")
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._plainly("rollback" if kind else "commit")

    def set_busy_timeout(self, milliseconds: int) -> None:
        """Does nothing: readers wait for nobody here."""

    def pragma(self, name: str, value: object = None) -> None:
        """Does nothing: references are always checked here."""
        assert name in ("foreign_keys", "recursive_triggers")

    def close(self) -> None:
        self._connection.close()

    def __del__(self) -> None:
        self._connection.close()

    def _table_of(self, trigger: str) -> str:
        found = self._run("select tgrelid::regclass::text from pg_trigger where tgname = ?", (trigger,))
        return str(found.get)

    @property
    def in_transaction(self) -> bool:
        return self._connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS

    def _undoing(self, sql: str, values: Sequence[object] | Mapping[str, object] | None) -> "Rows":
        self._plainly("savepoint statement")
        try:
            rows = self._run(sql, values)
        except psycopg.Error:
            self._plainly("rollback to statement; release statement")
            raise
        self._plainly("release statement")
        return rows

    def _plainly(self, sql: str) -> None:
        self._connection.execute(sql)

    def _run(self, sql: str, values: Sequence[object] | Mapping[str, object] | None) -> "Rows":
        if isinstance(values, Mapping):
            placed = dialects.placed(sql)
            cursor: psycopg.Cursor[Any] = psycopg.RawCursor(self._connection)
            cursor.execute(placed.sql, [values[name] for name in placed.names])
        else:
            spelled = sql.replace("%", "%%").replace("?", "%s") if values else sql
            cursor = self._connection.execute(spelled, values or None)
        return Rows(cursor.fetchall() if cursor.description else ())


# What is deferred to the commit is checked by it.
_INSTEAD = {
    "begin": "savepoint beginning",
    "rollback": "rollback to beginning",
    "commit": "set constraints all immediate",
}


class Rows(list[tuple[Any, ...]]):
    """What a statement answered, read as the SQLite driver's cursors are."""

    def fetchall(self) -> list[tuple[Any, ...]]:
        return list(self)

    @property
    def get(self) -> Any:
        """Returns one value, one row, or all rows."""
        if not self:
            return None
        first = self[0][0] if len(self[0]) == 1 else self[0]
        return first if len(self) == 1 else [row[0] if len(row) == 1 else row for row in self]


def watched(store: Any, look: Callable[[], None]) -> None:
    """Calls `look` after each commit of a store, before any caller gets an answer."""
    if _kind == "sqlite":

        def hook(*_: object) -> int:
            look()
            return apsw.SQLITE_OK

        store._writer.set_wal_hook(hook)
        return
    commit = store._commit

    def committing(*transaction: Any) -> None:
        commit(*transaction)
        look()

    store._commit = committing


@contextlib.contextmanager
def taking_nothing(store: Any) -> Iterator[None]:
    """Makes the store fail like a full disk or a read-only server: it stores nothing inside this context."""
    if _kind == "sqlite":
        store._writer.pragma("max_page_count", store._writer.pragma("page_count"))
        yield
        store._writer.pragma("max_page_count", 1_000_000)
        return
    for wanted in ("on", "off"):
        store._session.connection.execute(f"set default_transaction_read_only = {wanted}")
        if wanted == "on":
            yield


def add_rule(directory: Path, rule: str) -> None:
    """Adds a rule, so that the database refuses one more thing."""
    connection = plain(directory)
    for statement in (dialects.for_sqlite if _kind == "sqlite" else dialects.for_postgres)(rule):
        connection.execute(statement)
    connection.close()


def each(directory: Path, sql: str) -> Iterator[tuple[Any, ...]]:
    """Yields the rows of a query, on a connection of its own."""
    connection = plain(directory)
    try:
        yield from connection.execute(sql).fetchall()
    finally:
        connection.close()
