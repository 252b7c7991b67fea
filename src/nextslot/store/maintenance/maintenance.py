"""What offline commands do with a database, whichever it is: asked, checked, brought up to date, backed up, restored.

Called by `admin`, which gets the right one from `open.py`. `offline.py` knows SQLite files, `offline_postgres.py` the
other. What only reads takes no lock and sees one moment, also while schedulers write.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from nextslot.errors import StoreError
from nextslot.store.contract import Work

from . import export_file, move, sqlite_files
from .doctor import Finding
from .move import Progress

T = TypeVar("T")


class Maintenance(Protocol):
    """Of one database. All of them raise StoreError if it is not there, and make none."""

    def pending(self) -> list[str]:
        """The migrations that the next start would apply."""

    def migrate(self) -> list[str]:
        """Applies them, while nobody else has the database."""

    def examine(self) -> list[Finding]:
        """Whether what is stored is in order."""

    def repair(self) -> int:
        """Counts again, while nobody else has the database; how many counters were wrong."""

    def ask(self, work: Work[T], /) -> T:
        """What a work finds that only reads."""

    def backup(self, target: Path, progress: Progress) -> None:
        """A copy as of one moment, checked, in one file; it is there as a whole or not at all."""

    def restore(self, source: Path, progress: Progress) -> Path | None:
        """Makes a verified backup the database; the name under which a file that was there is kept."""


@dataclass(frozen=True, slots=True)
class SqliteMaintenance:
    path: Path

    def pending(self) -> list[str]:
        return sqlite_files.pending(self.path)

    def migrate(self) -> list[str]:
        return sqlite_files.apply_migrations(self.path)

    def examine(self) -> list[Finding]:
        return sqlite_files.examine(self.path)

    def repair(self) -> int:
        return sqlite_files.repair(self.path)

    def ask(self, work: Work[T], /) -> T:
        return sqlite_files.ask(self.path, work)

    def backup(self, target: Path, progress: Progress) -> None:
        sqlite_files.copy(self.path, target)

    def restore(self, source: Path, progress: Progress) -> Path | None:
        if export_file.is_export(source):
            raise StoreError(
                f"{source} is an export, as a backup of PostgreSQL is one: "
                "`nextslot import` fills an empty data directory with it"
            )
        return sqlite_files.put_in_place(source, self.path)


def verify(source: Path, progress: Progress) -> None:
    """Raises if it is no sound backup, of either database."""
    if export_file.is_export(source):
        problems = list(move.verify(source, progress).findings)
    else:
        problems = [one.problem for one in sqlite_files.examine(source) if one.check != "schema"]
    if problems:
        raise StoreError(f"{source} is not a sound backup: {problems[0]}")
