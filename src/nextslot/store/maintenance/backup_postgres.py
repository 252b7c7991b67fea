"""Backs up, restores, migrates and checks a PostgreSQL database. Its backup is an export, taken while schedulers write.

`offline_commands` calls them.
"""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from nextslot.errors import StoreError
from nextslot.store.contract import Work
from nextslot.store.postgres.postgres_store import PostgresTx

from . import backup_sqlite, doctor, export_file, exported_rows, move_postgres
from .doctor import Finding
from .exported_rows import Progress
from .postgres_databases import NO_TIMEOUTS, PLANNER_SETTINGS, alone, commit, refuse_unless_current, snapshot, steps_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PostgresMaintenance:
    url: str

    def pending(self) -> list[str]:
        with snapshot(self.url) as (address, connection):
            return steps_of(connection, address)

    def migrate(self) -> list[str]:
        self.pending()  # Raises if the database was never used: its first server creates the tables.
        with alone(self.url) as (address, session):
            wanted = steps_of(session.connection, address)
            session.migrate(random.getrandbits(62))
            return wanted

    def examine(self) -> list[Finding]:
        """Returns the findings about the stored data. The server checks its own files."""
        with snapshot(self.url) as (address, connection):
            if steps := steps_of(connection, address):
                problem = f"the schema is older than this release: {', '.join(steps)}"
                return [Finding("schema", problem, "nextslot migrate")]
            return doctor.examine(PostgresTx(connection))

    def repair(self) -> int:
        self.pending()
        with alone(self.url) as (address, session):
            refuse_unless_current(session.connection, address)
            session.connection.execute(f"{session.opening}; {NO_TIMEOUTS}; {PLANNER_SETTINGS}", prepare=False)
            tx = PostgresTx(session.connection)
            repaired = doctor.repair(tx)
            tx.settle()
            commit(session, "the repair")
            return repaired

    def ask(self, work: Work[T], /) -> T:
        with snapshot(self.url) as (_, connection):
            return work(PostgresTx(connection))

    def backup(self, target: Path, progress: Progress) -> None:
        # The file gets its final name only after it has been read again and found complete and consistent.
        unchecked = target.with_name(f".{target.name}")
        try:
            with snapshot(self.url) as (address, connection):
                refuse_unless_current(connection, address)
                exported_rows.write(PostgresTx(connection), unchecked, progress)
            if found := exported_rows.verify(unchecked, progress).findings:
                raise StoreError(f"the copy is not sound: {found[0]}. {_ADVICE}")
            backup_sqlite.put(unchecked, target)
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
