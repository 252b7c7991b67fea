"""Moves a database: everything that is stored into a file (`exports.py`), and such a file into an empty database.

Called by `admin`. `move_sqlite.py` and `move_postgres.py` open the databases; nobody else has them meanwhile. Rows are
read in the order of their keys, by pages, and written as they were: ids, numbers and times too. What was written is
read again and compared, before anybody can see it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from ..errors import Conflict, SchemaTooNew, StoreError
from . import doctor, exports, text
from .exports import Header, Reader, Sum, Summing, Table
from .store import Row, Tx

# Whoever refers to another comes after it.
TABLES = (
    "offices",
    "lanes",
    "limits",
    "pauses",
    "outages",
    "job_templates",
    "schedules",
    "job_groups",
    "jobs",
    "runs",
    "artifacts",
    "dependencies",
    "occurrences",
    "direct_executions",
    "reservations",
    "idempotency_keys",
    "events",
    "api_keys",
    "audit",
    "webhooks",
    "webhook_secrets",
    "deliveries",
    "delivery_attempts",
)
# What belongs to a database and not to what is stored in it.
NOT_MOVED = ("schema_migrations", "commit_marks", "never", "maintenance", "nodes", "cluster")

PAGE_ROWS = 2000

# What is being done ("export", "import", "verify"), to which table, how many of its rows are done, of how many.
Progress = Callable[[str, str, int, int], None]


@dataclass(frozen=True, slots=True)
class Moved:
    """What was moved: rows by table, and what the doctor had to say of them."""

    tables: dict[str, int]
    findings: tuple[str, ...]

    @property
    def rows(self) -> int:
        return sum(self.tables.values())


class Target(Protocol):
    """An empty database in a transaction, or as good as one: nothing of it is seen before it is finished."""

    tx: Tx

    def prepare(self, schema: int) -> None:
        """Makes the tables as that schema has them."""

    def load(self, table: Table, rows: Iterator[list[Any]]) -> None: ...

    def loaded(self) -> None:
        """All rows are there, and what was put off can be done: references are checked."""

    def upgrade(self) -> None:
        """Brings the schema up to this release."""


# Into a file.


def write(tx: Tx, target: Path, progress: Progress) -> Moved:
    """Everything that is stored, as of one moment, in one file."""
    findings = _findings(tx)
    sums: dict[str, Sum] = {}
    with exports.created(target) as file:
        writer = exports.Writer(file, Header(newest_schema(), version("nextslot")))
        for name in TABLES:
            table = _described(tx, name)
            writer.table(table)
            sums[name] = _summed(tx, table, "export", progress, writer.rows)
        writer.end(sums, findings)
    return Moved({name: one.rows for name, one in sums.items()}, tuple(findings))


def newest_schema() -> int:
    return text.migrations()[-1][0]


# Out of a file.


def load(reader: Reader, target: Target, progress: Progress) -> Moved:
    """Fills an empty database, and compares it with the file; raises if anything is not as it was."""
    schema = _known_schema(reader.header)
    target.prepare(schema)
    target.tx.run("maintenance.begin", reason="import")
    found = [_load_table(reader, target, table, progress) for table in reader.tables()]
    sums, known = reader.end()
    if missing := [name for name in TABLES if name not in sums and schema == newest_schema()]:
        raise StoreError(f"the export has no table {missing[0]}")
    target.tx.run("maintenance.end")
    target.loaded()
    for table in found:
        if _summed(target.tx, table, "verify", progress) != sums[table.name]:
            raise StoreError(f"what was stored of {table.name} is not what the export has: nothing was imported")
    target.upgrade()
    return Moved({name: one.rows for name, one in sums.items()}, _accepted(target.tx, reader.header, known))


def verify(source: Path, progress: Progress) -> Moved:
    """Reads a file to its end, and compares it with its own digests; raises if it is not whole."""
    with exports.opened(source) as reader:
        _known_schema(reader.header)
        for table in reader.tables():
            for _ in _counted(reader, table, "verify", progress):
                pass
        sums, findings = reader.end()
    return Moved({name: one.rows for name, one in sums.items()}, tuple(findings))


def _known_schema(header: Header) -> int:
    if header.schema > newest_schema():
        raise SchemaTooNew(
            f"this export has schema {header.schema}, this release of nextslot knows up to {newest_schema()}: "
            f"import it with nextslot {header.release} or newer"
        )
    return header.schema


def _counted(reader: Reader, table: Table, doing: str, progress: Progress) -> Iterator[list[Any]]:
    for number, row in enumerate(reader.rows(table), 1):
        yield row
        if number % PAGE_ROWS == 0 or number == table.rows:
            progress(doing, table.name, number, table.rows)


def _load_table(reader: Reader, target: Target, table: Table, progress: Progress) -> Table:
    own = _described(target.tx, table.name)
    if own.columns != table.columns:
        raise StoreError(f"the export has a table {table.name} that schema {reader.header.schema} has otherwise")
    if own.rows:
        raise not_empty(table.name)
    target.load(table, _counted(reader, table, "import", progress))
    return table


def not_empty(table: str) -> Conflict:
    return Conflict(
        f"the database is not empty (there are {table}): an import needs one that nothing was stored in; "
        "name a new data directory, or create a new database"
    )


def _accepted(tx: Tx, header: Header, known: Sequence[str]) -> tuple[str, ...]:
    """What the doctor finds was there before. An older release may not have known what to look for."""
    findings = _findings(tx)
    new = [problem for problem in findings if problem not in known]
    if new and header.schema == newest_schema() and header.release == version("nextslot"):
        raise StoreError(f"what was imported is not in order, and was so before: {new[0]}; nothing was imported")
    return tuple(findings)


def _findings(tx: Tx) -> list[str]:
    return sorted(finding.problem for finding in doctor.examine(tx))


# Rows in the order of their keys.


def _described(tx: Tx, name: str) -> Table:
    columns = tuple(str(column) for column, _ in tx.rows("move.columns", table_name=name))
    if not columns:
        raise StoreError(f"there is no table {name} in this database")
    [(rows,)] = tx.select(f"select count(*) from {name}", {})
    return Table(name, columns, rows)


def _summed(
    tx: Tx, table: Table, doing: str, progress: Progress, write: Callable[[bytes], None] = lambda lines: None
) -> Sum:
    summing, done = Summing(), 0
    for page in _pages(tx, table):
        lines = exports.lines(page)
        write(lines)
        summing.add(lines, len(page))
        done += len(page)
        progress(doing, table.name, done, table.rows)
    return summing.sum


def _pages(tx: Tx, table: Table) -> Iterator[list[Row]]:
    keys = [name for name, place in sorted(tx.rows("move.columns", table_name=table.name), key=_by_place) if place]
    places = [table.columns.index(key) for key in keys]
    order = ", ".join(keys)
    columns = ", ".join(table.columns)
    after = f"where ({order}) > ({', '.join(f':key_{number}' for number in range(len(keys)))})"
    page = tx.select(f"select {columns} from {table.name} order by {order} limit {PAGE_ROWS}", {})
    while page:
        yield page
        if len(page) < PAGE_ROWS:
            return
        last = {f"key_{number}": page[-1][place] for number, place in enumerate(places)}
        page = tx.select(f"select {columns} from {table.name} {after} order by {order} limit {PAGE_ROWS}", last)


def _by_place(column: Row) -> int:
    return int(column[1])
