"""The rows of an export: which tables it has, and in which order. Writes them to a file, and verifies it.

`export_file.py` has the format of the file, and `import_file.py` loads it into an empty database. `offline_commands`
calls this; `move_sqlite.py` and `move_postgres.py` open the databases and lock out schedulers. Rows are read in the
order of their keys, by pages, and written unchanged, with ids, numbers and times.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from nextslot.errors import Conflict, SchemaTooNew, StoreError
from nextslot.store import dialects
from nextslot.store.contract import Row, Tx

from . import doctor, export_file
from .export_file import Header, Sum, Summing, Table

# A table comes after the tables that it refers to.
TABLES = (
    "offices",
    "lanes",
    "limits",
    "pauses",
    "office_quotas",
    "outages",
    "affinities",
    "rates",
    "job_templates",
    "schedules",
    "job_groups",
    "jobs",
    "runs",
    "artifacts",
    "checkpoints",
    "signals",
    "dependencies",
    "occurrences",
    "direct_executions",
    "reservations",
    "idempotency_keys",
    "inbox",
    "aliases",
    "events",
    "api_keys",
    "audit",
    "webhooks",
    "webhook_secrets",
    "deliveries",
    "delivery_attempts",
    "rollups_recent",
    "rollups",
    "queue_depths",
    "rollup_bounds",
    "failures",
    "failure_hours",
)
# The full text of jobs, and what it is stored in on SQLite: made of the jobs again after an import.
FULL_TEXT = ("job_text", *(f"job_text_{part}" for part in ("data", "idx", "content", "docsize", "config")))
# Tables that belong to the database itself, not to its content.
NOT_MOVED = (
    "schema_migrations",
    "commit_marks",
    "never",
    "maintenance",
    "nodes",
    "cluster",
    "device_holds",
    "placements",
    *FULL_TEXT,
)

PAGE_ROWS = 2000

# Arguments: the activity ("export", "import", "verify", or "skip" if it was imported before), the table, the number of
# its rows that are done, the number of its rows.
Progress = Callable[[str, str, int, int], None]


@dataclass(frozen=True, slots=True)
class Moved:
    """The result of a move: rows by table, and the doctor's findings about them."""

    tables: dict[str, int]
    findings: tuple[str, ...]
    # Rows that an earlier, interrupted import had stored already.
    resumed_rows: int = 0
    # What an import has changed to fit this release, in sentences.
    changes: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return sum(self.tables.values())


# Writing a file.


def write(tx: Tx, target: Path, progress: Progress) -> Moved:
    """Writes all stored rows, as of one moment, to one file."""
    problems = findings(tx)
    sums: dict[str, Sum] = {}
    with export_file.created(target) as file:
        writer = export_file.Writer(file, Header(newest_schema(), version("nextslot")))
        for name in TABLES:
            table = described(tx, name)
            writer.table(table)
            sums[name] = summed(tx, table, "export", progress, writer.rows)
        writer.end(sums, problems)
    return Moved({name: one.rows for name, one in sums.items()}, tuple(problems))


def newest_schema() -> int:
    return dialects.migrations()[-1][0]


# Reading a file.


def verify(source: Path, progress: Progress) -> Moved:
    """Reads a file to its end and compares it with its own digests. Raises if it is incomplete or damaged."""
    with export_file.opened(source) as reader:
        known_schema(reader.header)
        for table in reader.tables():
            for number, _ in enumerate(reader.rows(table), 1):
                if number % PAGE_ROWS == 0 or number == table.rows:
                    progress("verify", table.name, number, table.rows)
        sums, problems = reader.end()
    return Moved({name: one.rows for name, one in sums.items()}, tuple(problems))


def known_schema(header: Header) -> int:
    if header.schema > newest_schema():
        raise SchemaTooNew(
            f"this export has schema {header.schema}, but this release knows only {newest_schema()}: "
            f"import it with nextslot {header.release} or newer"
        )
    return header.schema


def not_empty(table: str) -> Conflict:
    return Conflict(
        f"the database is not empty (it has {table}), and an import needs an empty one: "
        "give a new data directory, or create a new database"
    )


def findings(tx: Tx) -> list[str]:
    return sorted(finding.problem for finding in doctor.examine(tx))


# Rows in the order of their keys.


def described(tx: Tx, name: str) -> Table:
    columns = tuple(str(column) for column, _ in tx.rows("move.columns", table_name=name))
    if not columns:
        raise StoreError(f"this database has no table {name}; run nextslot migrate")
    [(rows,)] = tx.select(f"select count(*) from {name}", {})
    return Table(name, columns, rows)


def summed(
    tx: Tx, table: Table, doing: str, progress: Progress, write: Callable[[bytes], None] = lambda lines: None
) -> Sum:
    summing, done = Summing(), 0
    for page in _pages(tx, table):
        lines = export_file.lines(page)
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
