"""The maintenance operations of a database: query, check, migrate, back up, restore.

`offline_commands` calls them; `open_store.py` selects the implementation. `backup_sqlite.py` works on SQLite files,
`postgres_databases.py` on PostgreSQL. Operations that only read take no lock and see one consistent state, even while
schedulers write.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from nextslot.errors import StoreError
from nextslot.store.contract import Work

from . import backup_sqlite, export_file, exported_rows
from .doctor import Finding
from .exported_rows import Progress

T = TypeVar("T")


class Maintenance(Protocol):
    """The operations of one database. All raise StoreError if it does not exist, and never create it."""

    def pending(self) -> list[str]:
        """Returns the migrations that the next start would apply."""

    def migrate(self) -> list[str]:
        """Applies these migrations. Refused while another process uses the database."""

    def examine(self) -> list[Finding]:
        """Returns the doctor's findings."""

    def repair(self) -> int:
        """Corrects wrong counters and returns how many there were. Refused while another process uses the database."""

    def ask(self, work: Work[T], /) -> T:
        """Runs a work that only reads, and returns its result."""

    def backup(self, target: Path, progress: Progress) -> None:
        """Writes a consistent, checked copy to one file, which appears only when complete."""

    def restore(self, source: Path, progress: Progress) -> Path | None:
        """Makes a verified backup the database. Returns the new name of the file that it replaced, if any."""


@dataclass(frozen=True, slots=True)
class SqliteMaintenance:
    path: Path

    def pending(self) -> list[str]:
        return backup_sqlite.pending(self.path)

    def migrate(self) -> list[str]:
        return backup_sqlite.apply_migrations(self.path)

    def examine(self) -> list[Finding]:
        return backup_sqlite.examine(self.path)

    def repair(self) -> int:
        return backup_sqlite.repair(self.path)

    def ask(self, work: Work[T], /) -> T:
        return backup_sqlite.ask(self.path, work)

    def backup(self, target: Path, progress: Progress) -> None:
        backup_sqlite.copy(self.path, target)

    def restore(self, source: Path, progress: Progress) -> Path | None:
        if export_file.is_export(source):
            raise StoreError(
                f"{source} is an export or a backup of PostgreSQL, not a SQLite file: "
                "load it into an empty data directory with `nextslot import`"
            )
        return backup_sqlite.put_in_place(source, self.path)


def verify(source: Path, progress: Progress) -> None:
    """Raises if the file is not a sound backup of either database."""
    if export_file.is_export(source):
        problems = list(exported_rows.verify(source, progress).findings)
    else:
        problems = [one.problem for one in backup_sqlite.examine(source) if one.check != "schema"]
    if problems:
        raise StoreError(f"{source} is not a sound backup: {problems[0]}; use another one")
