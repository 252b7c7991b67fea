"""The chores of a PostgreSQL database. A backup of it is an export of one moment, taken while schedulers write.

Called by `admin`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ..errors import StoreError
from . import exports, move, move_postgres, offline, offline_postgres
from .doctor import Finding
from .move import Progress
from .postgres import PostgresTx
from .store import Work

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PostgresChores:
    url: str

    def pending(self) -> list[str]:
        return offline_postgres.pending(self.url)

    def migrate(self) -> list[str]:
        return offline_postgres.apply_migrations(self.url)

    def examine(self) -> list[Finding]:
        return offline_postgres.examine(self.url)

    def repair(self) -> int:
        return offline_postgres.repair(self.url)

    def ask(self, work: Work[T], /) -> T:
        return offline_postgres.ask(self.url, work)

    def backup(self, target: Path, progress: Progress) -> None:
        # It gets its name when it has been read again, and found to be whole and in order.
        unchecked = target.with_name(f".{target.name}")
        try:
            with offline_postgres.snapshot(self.url) as (address, connection):
                offline_postgres.refuse_unless_current(connection, address)
                move.write(PostgresTx(connection), unchecked, progress)
            if found := move.verify(unchecked, progress).findings:
                raise StoreError(f"the copy is not sound: {found[0]}. {_ADVICE}")
            offline.put(unchecked, target)
        finally:
            unchecked.unlink(missing_ok=True)

    def restore(self, source: Path, progress: Progress) -> Path | None:
        if not exports.is_export(source):
            raise StoreError(
                f"{source} is a SQLite file: restore it into a data directory, `nextslot export` it from there, "
                "and `nextslot import` that"
            )
        move_postgres.load(source, self.url, progress)
        return None


_ADVICE = "`nextslot doctor` tells all of it; `nextslot export` writes it as it is, while no server runs"
