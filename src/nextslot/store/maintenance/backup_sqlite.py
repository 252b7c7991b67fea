"""Backs up, restores, migrates and checks SQLite files. Copies can be made while a scheduler runs.

`offline_commands` calls it. Operations that write take the scheduler's own lock; those that read see the last commit.
"""

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import apsw

from nextslot.errors import StoreError
from nextslot.store import dialects
from nextslot.store.contract import Work
from nextslot.store.sqlite import acknowledged_commits
from nextslot.store.sqlite.sqlite_store import (
    FileLock,
    SqliteTx,
    connect,
    connect_reader,
    migrate,
    refuse_affected_version,
    translated,
)

from . import doctor
from .doctor import Finding

T = TypeVar("T")

# The suffixes of SQLite's files beside the database file.
COMPANIONS = ("-wal", "-shm")


class Absent(StoreError):
    """There is no database at the given place."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Locks the file against schedulers and other commands."""
    refuse_affected_version(apsw.sqlite_lib_version())
    lock = FileLock(path.resolve())
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _opened(path: Path, *, is_writing: bool = False) -> Iterator[apsw.Connection]:
    acknowledged_commits.refuse_if_removed(path.resolve())
    if not path.is_file():
        raise Absent(f"there is no database {path}; check the path")
    try:
        connection = connect(path, "FULL") if is_writing else connect_reader(path)
        try:
            yield connection
        finally:
            connection.close()
    except apsw.Error as error:
        raise translated(error) from error


# The schema.


def pending(path: Path) -> list[str]:
    """Returns the migrations that the next start would apply."""
    with _opened(path) as connection:
        return _pending(connection)


def _pending(connection: apsw.Connection) -> list[str]:
    done = 0
    if connection.table_exists(None, "schema_migrations"):
        done = connection.execute("select coalesce(max(version), 0) from schema_migrations").get
    return [f"{number:04d}_{name}" for number, name, _ in dialects.steps_after(done)]


def apply_migrations(path: Path) -> list[str]:
    """Applies the pending migrations under the lock, and returns their names."""
    pending(path)  # Raises for a missing file before a lock file is created.
    with locked(path), _opened(path, is_writing=True) as connection:
        wanted = _pending(connection)
        migrate(connection)
        return wanted


# The doctor.


def examine(path: Path) -> list[Finding]:
    """Returns the findings about the file itself, or else about the stored data, as of one moment."""
    recorded = acknowledged_commits.read(
        path.resolve()
    )  # Read before the database, because a running scheduler writes its record after its commit.
    with _opened(path) as connection:
        damage = [*_damage(connection)]
        if damage:
            return damage
        if lost := acknowledged_commits.missing(recorded, acknowledged_commits.number_of(connection)):
            return [Finding("commits", f"the database {lost}", acknowledged_commits.remedy(path))]
        if steps := _pending(connection):
            return [Finding("schema", f"the schema is older than this release: {', '.join(steps)}", "nextslot migrate")]
        connection.execute("begin")
        return doctor.examine(SqliteTx(connection))


def damage(path: Path) -> list[Finding]:
    """Returns the findings about the file itself and about references to missing rows."""
    with _opened(path) as connection:
        return [*_damage(connection)]


def ask(path: Path, work: Work[T]) -> T:
    """Runs a work that only reads, as of one moment, even while a scheduler writes."""
    with _opened(path) as connection:
        connection.execute("begin")
        return work(SqliteTx(connection))


def repair(path: Path) -> int:
    """Corrects wrong counters under the lock, and returns how many there were."""
    pending(path)
    with locked(path), _opened(path, is_writing=True) as connection:
        connection.execute("begin immediate")
        repaired = doctor.repair(SqliteTx(connection))
        connection.execute("commit")
        return repaired


def _damage(connection: apsw.Connection) -> Iterator[Finding]:
    advice = "restore a backup: nextslot restore FILE --force"
    try:
        lines = [line for (line,) in connection.execute("pragma integrity_check") if line != "ok"]
    except (apsw.CorruptError, apsw.NotADBError) as error:
        lines = [str(error)]
    if lines:
        yield from (Finding("integrity", f"the file is damaged: {line}", advice) for line in lines)
        return
    for table, _, parent, _ in connection.execute("pragma foreign_key_check"):
        yield Finding("references", f"a row of {table} refers to a missing row of {parent}", advice)


# Copies.


def copy(path: Path, target: Path) -> None:
    """Copies the database as of one moment, even while a scheduler writes. The copy appears only when complete."""
    part = target.with_name(target.name + ".part")
    part.unlink(missing_ok=True)
    try:
        with _opened(path) as source:
            _copy(source, part)
        found = examine(part)
        if found:
            raise StoreError(f"the copy is not sound: {found[0].problem}. {found[0].suggestion}")
        put(part, target)
    finally:
        part.unlink(missing_ok=True)


def _copy(source: apsw.Connection, part: Path) -> None:
    part.touch(0o600)
    copied = apsw.Connection(str(part))
    try:
        with copied.backup("main", source, "main") as backup:
            backup.step(-1)  # In one step: page by page, each commit of a busy scheduler would restart the copy.
        # Leave one file, without a log that could be forgotten when the file is moved.
        copied.pragma("journal_mode", "delete")
    finally:
        copied.close()


def put_in_place(source: Path, path: Path) -> Path | None:
    """Makes a copy of `source` the database, under its lock. Returns the new name of the replaced file, if any.

    SQLite would apply a leftover log of the old file to the new one, so the log is first written into its own file.
    """
    path = path.resolve()  # SQLite keeps the log beside the file itself, not beside a link to it.
    part = path.with_name(path.name + ".part")
    with locked(path):
        part.unlink(missing_ok=True)
        try:
            with _opened(source) as connection:
                number = acknowledged_commits.number_of(connection)
                _copy(connection, part)
            kept = _put_aside(path) if any(one.exists() for one in (path, *_companions(path))) else None
            # Before the file: whichever of the two files is in place after a crash, it has all commits recorded now.
            acknowledged_commits.reset(path, number)
            put(part, path)
        finally:
            part.unlink(missing_ok=True)
    return kept


def _put_aside(path: Path) -> Path:
    """Renames a file and its log; also a log whose file was removed or is empty.

    Returns the new name of the file; without a file, that of its log or of the log's index.
    """
    number = 1
    kept = path.with_name(f"{path.name}.replaced-{number}")
    while any(one.exists() for one in (kept, *_companions(kept))):
        number += 1
        kept = path.with_name(f"{path.name}.replaced-{number}")
    if path.exists():
        # SQLite deletes the log of an empty file.
        if path.stat().st_size > 0:
            _empty_log(path)
        os.link(path, kept)
    for companion, beside in zip(COMPANIONS, _companions(path), strict=True):
        if beside.exists():
            beside.rename(kept.with_name(kept.name + companion))
    return next(one for one in (kept, *_companions(kept)) if one.exists())


def _empty_log(path: Path) -> None:
    # A damaged file keeps its log, for an investigation.
    with contextlib.suppress(StoreError), _opened(path, is_writing=True) as connection:
        connection.pragma("wal_checkpoint(truncate)")


def _companions(path: Path) -> list[Path]:
    return [path.with_name(path.name + companion) for companion in COMPANIONS]


def put(part: Path, target: Path) -> None:
    """Renames a file to its target, durably."""
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(target)
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
