"""The maintenance operations of a PostgreSQL database. Its backup is a consistent export, taken while schedulers write.

`offline_commands` calls them.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from nextslot.errors import StoreError
from nextslot.store.contract import Work
from nextslot.store.postgres.postgres_store import PostgresTx

from . import (
    export_file,
    move,
    move_postgres,
    postgres_databases,
    sqlite_files,
)
from .doctor import Finding
from .move import Progress

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PostgresMaintenance:
    url: str

    def pending(self) -> list[str]:
        return postgres_databases.pending(self.url)

    def migrate(self) -> list[str]:
        return postgres_databases.apply_migrations(self.url)

    def examine(self) -> list[Finding]:
        return postgres_databases.examine(self.url)

    def repair(self) -> int:
        return postgres_databases.repair(self.url)

    def ask(self, work: Work[T], /) -> T:
        return postgres_databases.ask(self.url, work)

    def backup(self, target: Path, progress: Progress) -> None:
        # The file gets its final name only after it has been read again and found complete and consistent.
        unchecked = target.with_name(f".{target.name}")
        try:
            with postgres_databases.snapshot(self.url) as (address, connection):
                postgres_databases.refuse_unless_current(connection, address)
                move.write(PostgresTx(connection), unchecked, progress)
            if found := move.verify(unchecked, progress).findings:
                raise StoreError(f"the copy is not sound: {found[0]}. {_ADVICE}")
            sqlite_files.put(unchecked, target)
        finally:
            unchecked.unlink(missing_ok=True)

    def restore(self, source: Path, progress: Progress) -> Path | None:
        if not export_file.is_export(source):
            raise StoreError(
                f"{source} is a SQLite file: restore it into a data directory, export it there with `nextslot export`, "
                "and load that with `nextslot import`"
            )
        move_postgres.load(source, self.url, progress)
        return None


_ADVICE = "`nextslot doctor` shows all findings; `nextslot export` writes the data as it is, while no server runs"
