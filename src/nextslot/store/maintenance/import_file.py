"""Fills an empty database from an export, in a place beside it: seen as a whole when it is verified, and not before.

Called by `move_sqlite.py` and `move_postgres.py`, which make such places. What is loaded is committed there piece by
piece, each with how far it has come, so that an import that was broken off goes on where it was. A row may come before
what it refers to, so references are looked at when all rows are there. Indexes are filled with their tables: rows come
in the order of their keys, and to make the indexes afterwards took as long (measured with 100,000 jobs, on both).
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from nextslot.errors import StoreError
from nextslot.store.contract import Tx

from . import export_file, move
from .export_file import (
    Header,
    Reader,
    Sum,
    Table,
    Unfit,
    Unreadable,
)
from .move import Moved, Progress

log = logging.getLogger(__name__)

# What one commit takes: about a second's work, which is what is lost when it is broken off.
PIECE_ROWS = 20_000
PIECE_BYTES = 32 * 2**20

# What a staging place is like. One that an earlier or later release has left otherwise is not gone on with.
LAYOUT = 1
# Its own tables; what is stored in the second is told by `move_postgres.py`.
OWN_TABLES = ("import_progress", "import_references")
_MAKE = (
    "create table import_progress (layout bigint not null, table_name text not null, table_rows bigint not null, "
    "all_rows bigint not null, sha256 text not null)"
)


@dataclass(frozen=True, slots=True)
class Reached:
    """How far an import has come: rows of a table and in all, and the digest of the export up to there."""

    table: str = ""
    table_rows: int = 0
    all_rows: int = 0
    sha256: str = ""


class Staging(Protocol):
    """A place beside an empty database. What is committed there stays, whatever becomes of this process."""

    @property
    def tx(self) -> Tx: ...

    def is_there(self) -> bool:
        """Whether an import has left one."""

    def make(self, schema: int) -> None:
        """A new one, in a transaction that is left open. Its tables may refer to what is not there yet."""

    def begin(self) -> None: ...

    def execute(self, sql: str) -> None:
        """A statement that changes the schema."""

    def load(self, table: Table, rows: Iterator[list[Any]]) -> None: ...

    def commit(self) -> None: ...

    def settle(self) -> None:
        """All is there: references are checked, and a transaction is begun in which nobody changes it any more."""

    def upgrade(self) -> None:
        """Brings the schema up to this release, in that transaction."""

    def put_in_place(self) -> None:
        """Commits, and it is the database."""

    def discard(self) -> None:
        """Whatever is there is thrown away, also an open transaction."""

    def translated(self, error: BaseException) -> BaseException:
        """The driver's error as ours."""


def load(source: Path, staging: Staging, progress: Progress) -> Moved:
    """Everything that the file has, compared with it; goes on with what an earlier import of the same file has left.

    What is wrong with the file or with what was stored of it throws away what is staged; a database that does not
    answer, a full disk and an interruption do not.
    """
    with export_file.opened(source) as reader:
        schema = move.known_schema(reader.header)
        reached = _reached(staging, schema)
        try:
            return _fill(reader, staging, reached, progress)
        except Exception as error:  # Of whichever driver: what it means is asked.
            if not _is_final(staging.translated(error)):
                raise
            staging.discard()
            if reached is None or isinstance(error, Unfit):
                raise
            _tell_anew(staging.translated(error))
    return load(source, staging, progress)


def _is_final(error: BaseException) -> bool:
    return isinstance(error, StoreError) and not isinstance(error, Unreadable)


def _tell_anew(why: BaseException) -> None:
    log.warning("what an import that was broken off has left is of no use, so this one begins anew: %s", why)


@contextmanager
def _committed(staging: Staging) -> Iterator[Tx]:
    """What is not committed is undone by whoever ends it."""
    staging.begin()
    yield staging.tx
    staging.commit()


# How far it has come.


def _reached(staging: Staging, schema: int) -> Reached | None:
    """None if there is nothing to go on with."""
    if not staging.is_there():
        return None
    try:
        with _committed(staging) as tx:
            found = _stored(tx, schema)
    except Exception as error:  # As above.
        ours = staging.translated(error)
        if not _is_final(ours):
            raise
        _tell_anew(ours)
        return None
    return found if found.all_rows else None


def _stored(tx: Tx, schema: int) -> Reached:
    rows = tx.select("select layout, table_name, table_rows, all_rows, sha256 from import_progress", {})
    if len(rows) != 1 or rows[0][0] != LAYOUT:
        raise StoreError("another release has left it")
    [(made,)] = tx.select("select max(version) from schema_migrations", {})
    if made != schema:
        raise StoreError(f"it has schema {made}, and the export has {schema}")
    return Reached(*rows[0][1:])


def _note(tx: Tx, reached: Reached) -> None:
    tx.select(
        "update import_progress set table_name = :name, table_rows = :rows, all_rows = :all_rows, sha256 = :sha256",
        {"name": reached.table, "rows": reached.table_rows, "all_rows": reached.all_rows, "sha256": reached.sha256},
    )


# Filled.


def _fill(reader: Reader, staging: Staging, reached: Reached | None, progress: Progress) -> Moved:
    if reached is None:
        _begin(staging, reader.header.schema)
    found = _tables(reader, staging, reached, progress)
    sums, known = reader.end()
    if missing := [name for name in move.TABLES if name not in sums and reader.header.schema == move.newest_schema()]:
        raise Unfit(f"the export has no table {missing[0]}")
    staging.settle()
    _verify(staging.tx, found, sums, progress)
    staging.upgrade()
    findings = _accepted(staging.tx, reader.header, known)
    staging.execute("drop table import_progress")
    staging.put_in_place()
    return Moved({name: one.rows for name, one in sums.items()}, findings, reached.all_rows if reached else 0)


def _begin(staging: Staging, schema: int) -> None:
    staging.discard()
    staging.make(schema)
    staging.execute(_MAKE)
    staging.tx.select("insert into import_progress values (:layout, '', 0, 0, '')", {"layout": LAYOUT})
    staging.commit()


def _tables(reader: Reader, staging: Staging, reached: Reached | None, progress: Progress) -> list[Table]:
    """Every table of the file; what is stored of them is passed over, and the rest loaded."""
    found: list[Table] = []
    before = 0
    for table in reader.tables():
        if reached is not None:
            reached = _passed_over(reader, table, reached, progress)
        if reached is None:
            _load_table(reader, staging, table, before, progress)
        found.append(table)
        before += table.rows
    if reached is not None:
        raise StoreError(_OTHER)
    return found


_OTHER = "it is of another file"


def _passed_over(reader: Reader, table: Table, reached: Reached, progress: Progress) -> Reached | None:
    """None once the place is found where it goes on."""
    is_last = table.name == reached.table
    rows = reached.table_rows if is_last else table.rows
    if rows > table.rows:
        raise StoreError(_OTHER)
    while reader.done < rows:
        reader.pass_over(min(PIECE_ROWS, rows - reader.done))
        progress("skip", table.name, reader.done, table.rows)
    if is_last and reader.digest != reached.sha256:
        raise StoreError(_OTHER)
    return None if is_last else reached


def _load_table(reader: Reader, staging: Staging, table: Table, before: int, progress: Progress) -> None:
    if table.name in (*move.NOT_MOVED, *OWN_TABLES):
        raise Unfit(f"the export has a table {table.name}, which is never moved")
    with _committed(staging) as tx:
        own = move.described(tx, table.name)
    if own.columns != table.columns:
        raise Unfit(f"the export has a table {table.name} that schema {reader.header.schema} has otherwise")
    if own.rows != reader.done:
        raise StoreError(f"{table.name} has {own.rows} rows where {reader.done} were stored")
    rows = reader.rows(table)
    while reader.done < table.rows:
        with _committed(staging) as tx:
            tx.execute("maintenance.begin", reason="import")
            staging.load(table, _piece(reader, rows))
            tx.execute("maintenance.end")
            _note(tx, Reached(table.name, reader.done, before + reader.done, reader.digest))
        progress("import", table.name, reader.done, table.rows)


def _piece(reader: Reader, rows: Iterator[list[Any]]) -> Iterator[list[Any]]:
    """No row is read that is not in it: the digest is that of what is stored."""
    end = reader.position + PIECE_BYTES
    for row in islice(rows, PIECE_ROWS):
        yield row
        if reader.position >= end:
            return


# Verified.


def _verify(tx: Tx, tables: Sequence[Table], sums: dict[str, Sum], progress: Progress) -> None:
    for table in tables:
        if move.summed(tx, table, "verify", progress) != sums[table.name]:
            raise StoreError(f"what was stored of {table.name} is not what the export has: nothing was imported")


def _accepted(tx: Tx, header: Header, known: Sequence[str]) -> tuple[str, ...]:
    """What the doctor finds was there before. An older release may not have known what to look for."""
    findings = move.findings(tx)
    new = [problem for problem in findings if problem not in known]
    if new and header.schema == move.newest_schema() and header.release == version("nextslot"):
        raise StoreError(f"what was imported is not in order, and was so before: {new[0]}; nothing was imported")
    return tuple(findings)
