"""Records the number of the last acknowledged commit in a file beside a SQLite database, to detect lost commits.

`sqlite_store.py` calls this module around each commit and when it opens a database. The doctor and restore call it in
`backup_sqlite.py`, import in `move_sqlite.py`.

The number of a commit has two parts, because a counter that every commit changes would cost one more page of the
write-ahead log each time (3 to 9 % of the hand-overs, measured). Nearly every commit appends an event, and the newest
event is never deleted, so its `seq` is the first part. A commit without an event adds 1 to the second part,
`user_version` in the header of the file. Both only grow, and are rolled back with their transaction.

The record is written after the commit has returned, and is not synced. So the record is never ahead of what
`synchronous=FULL` has put on the disk; a crash or a power cut can only leave an older record, which refuses nothing.
"""

import contextlib
import logging
import os
import zlib
from pathlib import Path
from typing import NamedTuple

import apsw

from nextslot.errors import LostCommits

log = logging.getLogger(__name__)

# The header of a SQLite file has 32 bits for `user_version`. Beyond that, only the first part counts on.
_MOST_OTHERS = 2**31 - 1
_LAST_EVENT = "select coalesce(max(seq), 0) from events"


class CommitNumber(NamedTuple):
    """The number of the last commit in a database: its newest event, and how many commits had no event."""

    events: int = 0
    others: int = 0

    def lacks(self, other: "CommitNumber") -> bool:
        return self.events < other.events or self.others < other.others


class Record(NamedTuple):
    """The content of the record file: the last acknowledged commit, and the `synchronous` mode it was made with."""

    number: CommitNumber
    synchronous: str


class AcknowledgedCommits:
    """Numbers the commits of one connection, and records each commit after it is durable."""

    def __init__(self, path: Path, connection: apsw.Connection, synchronous: str) -> None:
        self._path = path
        self._connection = connection
        self._synchronous = synchronous.encode()
        self._last = number_of(connection)
        self._changes = 0
        self._file: int | None = None

    def begin(self) -> None:
        """Prepares for a transaction."""
        self._changes = self._connection.total_changes()

    def next(self) -> CommitNumber | None:
        """Returns the number of the transaction about to be committed, or None if it has changed no row.

        The last inserted rowid would be 4 µs faster than the table (measured), but the full text has rowids too.
        """
        if self._connection.total_changes() == self._changes:
            return None
        events: int = self._connection.execute(_LAST_EVENT).get
        others = self._last.others
        if events == self._last.events and others < _MOST_OTHERS:
            others += 1
            self._connection.pragma("user_version", others)
        return CommitNumber(events, others)

    def has(self, number: CommitNumber) -> bool:
        """Returns whether the database has the commit with this number, the last one that was tried."""
        return number_of(self._connection) == number

    def store(self, number: CommitNumber) -> None:
        """Records a commit that has returned. The commit is durable even if its record cannot be written.

        A memory-mapped file would save 6 of 36 µs (measured in turns, each after a sync), but the process would die if
        another program truncated the file.
        """
        self._last = number
        with contextlib.suppress(OSError):  # An older record refuses nothing.
            if self._file is None:
                self._file = _opened(self._path)
            os.pwrite(self._file, _line(number, self._synchronous), 0)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def refuse_if_removed(path: Path) -> None:
    """Raises if the database is absent or empty although its write-ahead log or its record shows that it had commits.

    SQLite would delete the log of an empty file and begin a new database. An empty file without log and record was left
    by a first start that was killed.
    """
    if path.exists() and path.stat().st_size > 0:
        return
    wal = path.with_name(path.name + "-wal")
    evidence = [file.name for file in (wal, record_path(path)) if _has_content(file)]
    if evidence and (evidence[0] == wal.name or _says_there_were_commits(path)):
        state = "is empty" if path.exists() else "is missing"
        raise LostCommits(
            f"{path} {state}, but it had commits (see {' and '.join(evidence)}). "
            "Put the file back, or restore a backup: nextslot restore FILE --force. "
            f"To begin an empty database instead, delete {' and '.join(evidence)}"
        )


def refuse_if_commits_are_missing(path: Path, connection: apsw.Connection) -> None:
    """Raises if the database lacks acknowledged commits; only warns if a power cut may have lost them."""
    record = read(path)
    found = missing(record, number_of(connection)) if record is not None else None
    if record is None or found is None:
        return
    if record.synchronous == "FULL":
        raise LostCommits(f"{path} {found}. {remedy(path)}")
    log.warning("%s %s; after a power cut, synchronous=NORMAL allows this loss", path, found)
    reset(path, number_of(connection), record.synchronous)


def missing(record: Record | None, number: CommitNumber) -> str | None:
    """Returns a sentence about the recorded commits that a database lacks, or None if it lacks none."""
    if record is None or not number.lacks(record.number):
        return None
    known, has = record.number, number
    return (
        f"lacks commits that were acknowledged (its newest event is {has.events}, and {known.events} was stored; "
        f"{has.others} of {known.others} other commits are there): its write-ahead log was removed or damaged, "
        "or an older file was put in its place"
    )


def remedy(path: Path) -> str:
    return (
        "Put the missing file back, or restore a backup: nextslot restore FILE --force. "
        f"To continue without these commits, delete {record_path(path).name}"
    )


def number_of(connection: apsw.Connection) -> CommitNumber:
    others: int = connection.pragma("user_version")
    events: int = connection.execute(_LAST_EVENT).get if connection.table_exists(None, "events") else 0
    return CommitNumber(events, others)


# The record file.


def record_path(path: Path) -> Path:
    return path.with_name(path.name + ".commits")


def read(path: Path) -> Record | None:
    """Returns the record of a database, or None if the record is missing or incomplete and so proves nothing."""
    try:
        text, _, checksum = record_path(path).read_bytes().strip().rpartition(b" ")
        events, others, synchronous = text.split()
        if int(checksum, 16) == zlib.crc32(text):
            return Record(CommitNumber(int(events), int(others)), synchronous.decode())
    except (OSError, ValueError):
        pass
    return None


def reset(path: Path, number: CommitNumber, synchronous: str = "FULL") -> None:
    """Writes the record durably, for a database that an operator has put in place."""
    file = _opened(path)
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, _line(number, synchronous.encode()), 0)
        os.fsync(file)
    finally:
        os.close(file)


def forget(path: Path) -> None:
    record_path(path).unlink(missing_ok=True)


def _says_there_were_commits(path: Path) -> bool:
    """Returns whether the record shows commits. An incomplete record also shows that there was a database."""
    record = read(path)
    return record is None or record.number > CommitNumber()


def _has_content(file: Path) -> bool:
    """Returns whether a file has content: a power cut at a first start can leave an empty file."""
    return file.exists() and file.stat().st_size > 0


def _opened(path: Path) -> int:
    return os.open(record_path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _line(number: CommitNumber, synchronous: bytes) -> bytes:
    """Returns the record's line. Its length is fixed, so one small write replaces it; the checksum reveals a partial
    write.
    """
    text = b"%020d %020d %-6b" % (*number, synchronous)
    return b"%b %08x\n" % (text, zlib.crc32(text))
