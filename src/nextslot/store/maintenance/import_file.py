"""Imports an export into a staging area beside an empty database, which becomes the database once it is verified.

`move_sqlite.py` and `move_postgres.py` provide the staging area and call this module. Rows are committed there in
pieces, each with the progress so far, so that an interrupted import can be continued. A row may precede the row that it
refers to, so references are checked when all rows are loaded. Indexes are filled along with their tables: rows come in
the order of their keys, and creating the indexes afterwards took as long (measured with 100,000 jobs, on both
databases).
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
from nextslot.store.tables import search

from . import export_file, exported_rows
from .export_file import Header, Reader, Sum, Table, Unfit, Unreadable
from .exported_rows import Moved, Progress

log = logging.getLogger(__name__)

# The size of one commit: about a second of work, which is lost when the import is interrupted.
PIECE_ROWS = 20_000
PIECE_BYTES = 32 * 2**20

# The version of the staging area's own tables. An import is not continued in an area of another version.
LAYOUT = 1
# The tables of the staging area itself; `move_postgres.py` explains the second.
OWN_TABLES = ("import_progress", "import_references")
_MAKE = (
    "create table import_progress (layout bigint not null, table_name text not null, table_rows bigint not null, "
    "all_rows bigint not null, sha256 text not null)"
)


@dataclass(frozen=True, slots=True)
class Reached:
    """The progress of an import: rows of the current table and in all, and the digest of the export up to there."""

    table: str = ""
    table_rows: int = 0
    all_rows: int = 0
    sha256: str = ""


class Staging(Protocol):
    """A staging area beside an empty database. What is committed there survives the end of this process."""

    @property
    def tx(self) -> Tx: ...

    def is_there(self) -> bool:
        """Returns whether an earlier import has left a staging area."""

    def make(self, schema: int) -> None:
        """Creates the staging area in a transaction that stays open. References in its tables are not checked yet."""

    def begin(self) -> None: ...

    def execute(self, sql: str) -> None:
        """Executes a statement that changes the schema."""

    def load(self, table: Table, rows: Iterator[list[Any]]) -> None: ...

    def commit(self) -> None: ...

    def settle(self) -> None:
        """Checks the references of all loaded rows, and begins a transaction that no other process can disturb."""

    def upgrade(self) -> None:
        """Migrates the schema to this release, in that transaction."""

    def put_in_place(self) -> None:
        """Commits, and makes the staging area the database."""

    def discard(self) -> None:
        """Rolls back an open transaction and removes the staging area."""

    def translated(self, error: BaseException) -> BaseException:
        """Translates a driver's error into ours."""


def load(source: Path, staging: Staging, progress: Progress) -> Moved:
    """Imports the whole file and verifies the result. Continues an interrupted import of the same file.

    If the file or the staged data is wrong, the staging area is removed. It stays if the database does not answer, if
    the disk is full, or if the import is interrupted.
    """
    with export_file.opened(source) as reader:
        schema = exported_rows.known_schema(reader.header)
        reached = _reached(staging, schema)
        try:
            return _fill(reader, staging, reached, progress)
        except Exception as error:  # Each driver has its own error classes; `translated` makes them ours.
            if not _is_final(staging.translated(error)):
                raise
            staging.discard()
            if reached is None or isinstance(error, Unfit):
                raise
            _warn_of_restart(staging.translated(error))
    return load(source, staging, progress)


def _is_final(error: BaseException) -> bool:
    return isinstance(error, StoreError) and not isinstance(error, Unreadable)


def _warn_of_restart(why: BaseException) -> None:
    log.warning("an interrupted import cannot be continued, so this import starts again from the beginning: %s", why)


@contextmanager
def _committed(staging: Staging) -> Iterator[Tx]:
    """Runs a transaction and commits it. After an error, the caller rolls back."""
    staging.begin()
    yield staging.tx
    staging.commit()


# The progress so far.


def _reached(staging: Staging, schema: int) -> Reached | None:
    """Returns the progress of an interrupted import, or None if there is nothing to continue."""
    if not staging.is_there():
        return None
    try:
        with _committed(staging) as tx:
            found = _stored(tx, schema)
    except Exception as error:  # As in `load`: `translated` makes it ours.
        ours = staging.translated(error)
        if not _is_final(ours):
            raise
        _warn_of_restart(ours)
        return None
    return found if found.all_rows else None


def _stored(tx: Tx, schema: int) -> Reached:
    rows = tx.select("select layout, table_name, table_rows, all_rows, sha256 from import_progress", {})
    if len(rows) != 1 or rows[0][0] != LAYOUT:
        raise StoreError("another release of nextslot began it")
    [(made,)] = tx.select("select max(version) from schema_migrations", {})
    if made != schema:
        raise StoreError(f"it has schema {made}, but the export has {schema}")
    return Reached(*rows[0][1:])


def _note(tx: Tx, reached: Reached) -> None:
    tx.select(
        "update import_progress set table_name = :name, table_rows = :rows, all_rows = :all_rows, sha256 = :sha256",
        {"name": reached.table, "rows": reached.table_rows, "all_rows": reached.all_rows, "sha256": reached.sha256},
    )


# Filling the staging area.


def _fill(reader: Reader, staging: Staging, reached: Reached | None, progress: Progress) -> Moved:
    if reached is None:
        _begin(staging, reader.header.schema)
    found = _tables(reader, staging, reached, progress)
    sums, known = reader.end()
    if missing := [
        name
        for name in exported_rows.TABLES
        if name not in sums and reader.header.schema == exported_rows.newest_schema()
    ]:
        raise Unfit(f"the export lacks the table {missing[0]}; export again")
    staging.settle()
    _verify(staging.tx, found, sums, progress)
    before = _names(staging.tx) if "schedules" in sums else {}
    staging.upgrade()
    search.fill(staging.tx)
    renamed = _renamed(before, _names(staging.tx))
    findings = _accepted(staging.tx, reader.header, known)
    staging.execute("drop table import_progress")
    staging.put_in_place()
    return Moved({name: one.rows for name, one in sums.items()}, findings, reached.all_rows if reached else 0, renamed)


def _begin(staging: Staging, schema: int) -> None:
    staging.discard()
    staging.make(schema)
    staging.execute(_MAKE)
    staging.tx.select("insert into import_progress values (:layout, '', 0, 0, '')", {"layout": LAYOUT})
    staging.commit()


def _tables(reader: Reader, staging: Staging, reached: Reached | None, progress: Progress) -> list[Table]:
    """Loads every table of the file, and skips what is already stored. Returns the tables."""
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


_OTHER = "it was made from another file"


def _passed_over(reader: Reader, table: Table, reached: Reached, progress: Progress) -> Reached | None:
    """Skips the rows of a table that are already stored. Returns None once the end of the stored rows is found."""
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
    if table.name in (*exported_rows.NOT_MOVED, *OWN_TABLES):
        raise Unfit(f"the export contains the table {table.name}, which is never exported; export again")
    with _committed(staging) as tx:
        own = exported_rows.described(tx, table.name)
    if own.columns != table.columns:
        raise Unfit(
            f"the columns of {table.name} in the export are not those of schema {reader.header.schema}; export again"
        )
    if own.rows != reader.done:
        raise StoreError(f"{table.name} has {own.rows} rows instead of the {reader.done} that were stored")
    rows = reader.rows(table)
    while reader.done < table.rows:
        with _committed(staging) as tx:
            tx.execute("maintenance.begin", reason="import")
            staging.load(table, _piece(reader, rows))
            tx.execute("maintenance.end")
            _note(tx, Reached(table.name, reader.done, before + reader.done, reader.digest))
        progress("import", table.name, reader.done, table.rows)


def _piece(reader: Reader, rows: Iterator[list[Any]]) -> Iterator[list[Any]]:
    """Yields the rows of one piece and reads no further, since the digest must cover only what is stored."""
    end = reader.position + PIECE_BYTES
    for row in islice(rows, PIECE_ROWS):
        yield row
        if reader.position >= end:
            return


# Verifying the result.


def _verify(tx: Tx, tables: Sequence[Table], sums: dict[str, Sum], progress: Progress) -> None:
    for table in tables:
        if exported_rows.summed(tx, table, "verify", progress) != sums[table.name]:
            raise StoreError(
                f"the stored rows of {table.name} differ from the export, so nothing was imported; import again"
            )


def _names(tx: Tx) -> dict[str, str]:
    return dict(tx.select("select schedule_id, name from schedules where deleted_at is null order by schedule_id", {}))


def _renamed(before: dict[str, str], after: dict[str, str]) -> tuple[str, ...]:
    """Returns sentences about renamed schedules: an older release allowed several schedules with one name."""
    return tuple(
        f"the schedule {key} is now named {name!r}: another one of its office is named {before[key]!r}"
        for key, name in after.items()
        if name != before.get(key, name)
    )


def _accepted(tx: Tx, header: Header, known: Sequence[str]) -> tuple[str, ...]:
    """Returns the doctor's findings. Raises if the import caused a finding, except if an older release may not have
    checked for it.
    """
    findings = exported_rows.findings(tx)
    new = [problem for problem in findings if problem not in known]
    if new and header.schema == exported_rows.newest_schema() and header.release == version("nextslot"):
        raise StoreError(f"the imported data is inconsistent, so nothing was imported: {new[0]}; export again")
    return tuple(findings)
