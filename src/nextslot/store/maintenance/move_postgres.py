"""Moves of a PostgreSQL database, on the connection that has the scheduler's lock.

Called by `admin`; what is moved is in `move.py`, and how a database is filled in `imports.py`.
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
from nextslot.store.postgres.sessions import (
    Address,
    Session,
    migrate_tables,
    translated,
)

from . import export_file, import_file, move
from . import postgres_databases as offline
from .export_file import Table
from .move import Moved, Progress

# But not what `maintenance` refers to: that is what keeps it from being committed.
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
    """Exports a database; the lock keeps schedulers out."""
    offline.pending(url)  # A database that was never used gets no lock, and a sentence.
    with offline.alone(url) as (address, session):
        offline.read_one_moment(session.connection)
        offline.refuse_unless_current(session.connection, address)
        return move.write(PostgresTx(session.connection), target, progress)


def load(source: Path, url: str, progress: Progress) -> Moved:
    """Imports into a schema beside, whose tables take the place of the empty ones or of none when all is verified."""
    with export_file.opened(source):
        pass  # What is no export needs no database.
    with offline.alone(url) as (address, session):
        staging = _Staging(session, address)
        staging.rehearse()
        return import_file.load(source, staging, progress)


class _Staging:
    """A schema that nobody looks into. Its tables become those of the usual one in the last transaction."""

    def __init__(self, session: Session, address: Address) -> None:
        self._session = session
        self._connection = session.connection
        self._address = address
        self._name = session.keys.staging
        [(self._usual,)] = self._ask("select quote_ident(current_schema())")
        self.tx: Tx = PostgresTx(self._connection)

    def rehearse(self) -> None:
        """What would be in the way in the end is told before anything is done."""
        self._open(self._usual)
        self._make_room((*move.TABLES, *move.NOT_MOVED))
        self._say("rollback")

    def is_there(self) -> bool:
        return self._ask("select 1 from pg_namespace where nspname = %s", (self._name,)) != []

    def make(self, schema: int) -> None:
        self._open(self._name)
        [(database, user)] = self._ask("select quote_ident(current_database()), quote_ident(current_user)")
        try:
            self._say(f"create schema {self._name}")
        except errors.InsufficientPrivilege as error:
            raise StoreError(
                "an import is put together in a schema of its own, and this user may make none; let the owner of the "
                f"database say: grant create on database {database} to {user}"
            ) from error
        self._say(f"comment on schema {self._name} is 'What nextslot import has loaded so far'")
        migrate_tables(self._connection, schema)
        self._put_off_references()

    def begin(self) -> None:
        self._open(self._name)

    def execute(self, sql: str) -> None:
        self._say(sql)

    def load(self, table: Table, rows: Iterator[list[Any]]) -> None:
        copying = f"copy {table.name} ({', '.join(table.columns)}) from stdin"
        try:
            with self._connection.cursor() as cursor, cursor.copy(copying) as copy:
                for row in rows:
                    copy.write_row(row)
        except (psycopg.DataError, UnicodeEncodeError) as error:
            raise StoreError(f"PostgreSQL cannot store a row of {table.name}: {_said(error)}") from error

    def commit(self) -> None:
        self._say("commit")

    def settle(self) -> None:
        self.begin()
        tables = [name for (name,) in self._ask(_TABLES)]
        self._say(f"lock table {', '.join(tables)} in access exclusive mode")
        self._say(f"analyze {', '.join(tables)}")
        # Not before: the rules are planned while the tables are empty, and would look at every row for ever.
        self._say(offline.PLANS)
        for (statement,) in self._ask("select statement from import_references order by statement"):
            self._say(statement)
        self._say("drop table import_references")

    def upgrade(self) -> None:
        migrate_tables(self._connection)

    def put_in_place(self) -> None:
        tables = [name for (name,) in self._ask(_TABLES)]
        functions = [name for (name,) in self._ask(_FUNCTIONS)]
        self._look_at(self._usual)
        grants = self._make_room(tables)
        for name in functions:
            self._say(f"drop function if exists {name}")
            self._say(f"alter function {self._name}.{name} set schema {self._usual}")
        for name in tables:
            self._say(f"alter table {self._name}.{name} set schema {self._usual}")
        for sql in (f"drop schema {self._name}", *grants):
            self._say(sql)
        offline.commit(self._session, "the import", "import again, which is refused if it is there")

    def discard(self) -> None:
        wire_of(self._connection).forget()
        self._say("rollback")
        self._say(f"drop schema if exists {self._name} cascade")

    def translated(self, error: BaseException) -> BaseException:
        return translated(error, self._address)

    def _put_off_references(self) -> None:
        """They are looked at together, which is also quicker than one by one."""
        self._say("create table import_references (statement text not null)")
        for take_away, make in self._ask(_REFERENCES):
            self._say(take_away)
            self._connection.execute("insert into import_references values (%s)", (make,), prepare=False)

    def _make_room(self, tables: Sequence[str]) -> list[str]:
        """In the usual schema: empty tables are taken away; and who was granted what on them, or would be by default.

        So they are made first, as by a first start, should they not be there.
        """
        there = [name for (name,) in self._ask(_TABLES) if name in tables]
        if there:
            self._say(f"lock table {', '.join(there)} in access exclusive mode")
        for name in [name for name in move.TABLES if name in there]:
            if self._ask(f"select 1 from {name} limit 1"):
                raise move.not_empty(name)
        migrate_tables(self._connection)
        self._refuse_triggers(tables)
        grants = [grant for (grant,) in self._ask(_GRANTS, (list(tables),))]
        try:
            self._say(f"drop table {', '.join(tables)}")
        except errors.DependentObjectsStillExist as error:
            raise Conflict(
                f"{self._address.place} has empty tables that something else needs ({error.diag.message_detail}); "
                f"{_DROP_IT}"
            ) from error
        return grants

    def _refuse_triggers(self, tables: Sequence[str]) -> None:
        for table, trigger in self._ask(_TRIGGERS, (list(tables),)):
            if trigger not in dialects.rules():
                raise Conflict(
                    f"{self._address.place} has an empty table {table} with a trigger {trigger} that is not "
                    f"nextslot's; {_DROP_IT}"
                )

    def _open(self, schema: str) -> None:
        self._say(f"{self._session.opening}; {offline.PATIENCE}")
        self._look_at(schema)

    def _look_at(self, schema: str) -> None:
        self._say(f"set local search_path = {schema}")

    def _say(self, sql: str) -> None:
        self._connection.execute(sql, prepare=False)

    def _ask(self, sql: str, values: Sequence[object] | None = None) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, values, prepare=False).fetchall()


_DROP_IT = "an import puts tables of its own there: drop it, and make it again afterwards"


def _said(error: Exception) -> str:
    return str(error).partition("\n")[0]
