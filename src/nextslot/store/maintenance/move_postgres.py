"""Exports and imports a PostgreSQL database, on the connection that holds the scheduler's lock.

`offline_commands` calls it; `exported_rows.py` writes the rows, and `import_file.py` loads them.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
from psycopg import errors

from nextslot.errors import Conflict, StoreError
from nextslot.store import dialects
from nextslot.store.contract import Tx
from nextslot.store.postgres.pipeline import wire_of
from nextslot.store.postgres.postgres_store import PostgresTx
from nextslot.store.postgres.sessions import Address, Session, migrate_tables, translated

from . import export_file, exported_rows, import_file
from . import postgres_databases as offline
from .export_file import Table
from .exported_rows import Moved, Progress

# All foreign keys but those of `maintenance`, whose reference keeps an unfinished maintenance from being committed.
_REFERENCES = """
    select format('alter table %s drop constraint %I', conrelid::regclass, conname),
        format('alter table %s add constraint %I %s', conrelid::regclass, conname, pg_get_constraintdef(oid)) as made
    from pg_constraint
    where connamespace = current_schema()::regnamespace and contype = 'f' and conrelid <> 'maintenance'::regclass
    order by made
"""
_TABLES = """
    select relname::text from pg_class
    where relkind = 'r' and relnamespace = current_schema()::regnamespace order by 1
"""
_FUNCTIONS = (
    "select oid::regprocedure::text from pg_proc where pronamespace = current_schema()::regnamespace order by 1"
)
_ENQUEUE = "nextslot_enqueue(text, jsonb, jsonb)"
_TRIGGERS = """
    select tgrelid::regclass::text, tgname::text from pg_trigger join pg_class on pg_class.oid = tgrelid
    where relnamespace = current_schema()::regnamespace and relname::text = any(%s) and not tgisinternal order by 1, 2
"""
_GRANTS = """
    select 'grant ' || privilege_type || ' on ' || relname || ' to '
        || case grantee when 0 then 'public' else quote_ident(pg_get_userbyid(grantee)) end
        || case when is_grantable then ' with grant option' else '' end
    from pg_class, aclexplode(relacl)
    where relnamespace = current_schema()::regnamespace and relname::text = any(%s) and grantee <> relowner
"""


def write(url: str, target: Path, progress: Progress) -> Moved:
    """Exports a database. The lock keeps schedulers out."""
    with offline.snapshot(url):
        pass  # Raises a clear error, and creates no lock, if the database was never used.
    with offline.alone(url) as (address, session):
        offline.read_one_moment(session.connection)
        offline.refuse_unless_current(session.connection, address)
        return exported_rows.write(PostgresTx(session.connection), target, progress)


def load(source: Path, url: str, progress: Progress) -> Moved:
    """Imports into a staging schema, whose tables replace the empty ones, if any, when everything is verified."""
    with export_file.opened(source):
        pass  # A file that is not an export is refused before connecting.
    with offline.alone(url) as (address, session):
        staging = _Staging(session, address)
        staging.check_replacement()
        return import_file.load(source, staging, progress)


class _Staging:
    """The staging schema, which nobody else reads. The last transaction moves its tables to the usual schema."""

    def __init__(self, session: Session, address: Address) -> None:
        self._session = session
        self._connection = session.connection
        self._address = address
        self._name = session.keys.staging
        [(self._usual,)] = self._query("select quote_ident(current_schema())")
        self.tx: Tx = PostgresTx(self._connection)

    def check_replacement(self) -> None:
        """Tries the final replacement and rolls it back, so that obstacles are reported before anything is loaded."""
        self._open(self._usual)
        self._make_room((*exported_rows.TABLES, *exported_rows.NOT_MOVED))
        self._execute("rollback")

    def is_there(self) -> bool:
        return self._query("select 1 from pg_namespace where nspname = %s", (self._name,)) != []

    def make(self, schema: int) -> None:
        self._open(self._name)
        [(database, user)] = self._query("select quote_ident(current_database()), quote_ident(current_user)")
        try:
            self._execute(f"create schema {self._name}")
        except errors.InsufficientPrivilege as error:
            raise StoreError(
                "this user may not create the schema that an import needs; let the owner of the "
                f"database execute: grant create on database {database} to {user}"
            ) from error
        self._execute(f"comment on schema {self._name} is 'What nextslot import has loaded so far'")
        migrate_tables(self._connection, schema)
        self._defer_references()

    def begin(self) -> None:
        self._open(self._name)

    def execute(self, sql: str) -> None:
        self._execute(sql)

    def load(self, table: Table, rows: Iterator[list[Any]]) -> None:
        copying = f"copy {table.name} ({', '.join(table.columns)}) from stdin"
        try:
            with self._connection.cursor() as cursor, cursor.copy(copying) as copy:
                for row in rows:
                    copy.write_row(row)
        except (psycopg.DataError, UnicodeEncodeError) as error:
            raise StoreError(f"PostgreSQL cannot store a row of {table.name}: {_first_line(error)}") from error

    def commit(self) -> None:
        self._execute("commit")

    def settle(self) -> None:
        self.begin()
        tables = [name for (name,) in self._query(_TABLES)]
        self._execute(f"lock table {', '.join(tables)} in access exclusive mode")
        self._execute(f"analyze {', '.join(tables)}")
        # Not before: otherwise the rules would be planned while the tables are empty, and scan every row for ever.
        self._execute(offline.PLANNER_SETTINGS)
        for (statement,) in self._query("select statement from import_references order by statement"):
            self._execute(statement)
        self._execute("drop table import_references")

    def upgrade(self) -> None:
        migrate_tables(self._connection)

    def put_in_place(self) -> None:
        tables = [name for (name,) in self._query(_TABLES)]
        functions = [name for (name,) in self._query(_FUNCTIONS)]
        self._set_search_path(self._usual)
        grants = self._make_room(tables)
        for name in functions:
            self._execute(f"drop function if exists {name}")
            self._execute(f"alter function {self._name}.{name} set schema {self._usual}")
        for name in tables:
            self._execute(f"alter table {self._name}.{name} set schema {self._usual}")
        # A function that runs with its owner's rights names the schema of the tables that it uses.
        enqueue = f"alter function {_ENQUEUE} set search_path = {self._usual}, pg_temp"
        for sql in (enqueue, f"drop schema {self._name}", *grants):
            self._execute(sql)
        offline.commit(self._session, "the import", "import again, which is refused if it is there")

    def discard(self) -> None:
        wire_of(self._connection).forget()
        self._execute("rollback")
        self._execute(f"drop schema if exists {self._name} cascade")

    def translated(self, error: BaseException) -> BaseException:
        return translated(error, self._address)

    def _defer_references(self) -> None:
        """Drops the foreign keys and stores how to create them again: checking them all at the end is also faster."""
        self._execute("create table import_references (statement text not null)")
        for drop, create in self._query(_REFERENCES):
            self._execute(drop)
            self._connection.execute("insert into import_references values (%s)", (create,), prepare=False)

    def _make_room(self, tables: Sequence[str]) -> list[str]:
        """Drops the empty tables of the database's own schema. Returns the grants on them as statements.

        First creates the tables if they do not exist, as a first start would, to learn their default grants.
        """
        there = [name for (name,) in self._query(_TABLES) if name in tables]
        if there:
            self._execute(f"lock table {', '.join(there)} in access exclusive mode")
        for name in [name for name in exported_rows.TABLES if name in there]:
            if self._query(f"select 1 from {name} limit 1"):
                raise exported_rows.not_empty(name)
        migrate_tables(self._connection)
        # Some are SQLite's alone.
        tables = [name for (name,) in self._query(_TABLES) if name in tables]
        self._refuse_triggers(tables)
        grants = [grant for (grant,) in self._query(_GRANTS, (list(tables),))]
        try:
            self._execute(f"drop table {', '.join(tables)}")
        except errors.DependentObjectsStillExist as error:
            raise Conflict(
                f"{self._address.place} has empty tables that other objects depend on ({error.diag.message_detail}); "
                f"{_DROP_IT}"
            ) from error
        return grants

    def _refuse_triggers(self, tables: Sequence[str]) -> None:
        for table, trigger in self._query(_TRIGGERS, (list(tables),)):
            if trigger not in dialects.rules():
                raise Conflict(
                    f"{self._address.place} has an empty table {table} with a trigger {trigger} that is not "
                    f"nextslot's; {_DROP_IT}"
                )

    def _open(self, schema: str) -> None:
        self._execute(f"{self._session.opening}; {offline.NO_TIMEOUTS}")
        self._set_search_path(schema)

    def _set_search_path(self, schema: str) -> None:
        self._execute(f"set local search_path = {schema}")

    def _execute(self, sql: str) -> None:
        self._connection.execute(sql, prepare=False)

    def _query(self, sql: str, values: Sequence[object] | None = None) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, values, prepare=False).fetchall()


_DROP_IT = "an import replaces these tables: drop that object, and create it again afterwards"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
