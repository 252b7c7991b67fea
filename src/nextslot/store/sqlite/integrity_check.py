"""Checks a SQLite file for damage when a store opens it: a small file at once, a large file in the background.

`sqlite_store.py` calls this module. `quick_check` reads the whole file: 250 MiB a second, measured with 100,000 jobs.
It finds damaged pages. Only `nextslot doctor` compares the contents of rows with the indexes.

SQLite calls a page malformed also if the disk could not read it (EIO). A disk that fails for a moment is not a damaged
file, and a restore would lose commits. So `is_unreadable` checks the file again before anybody hears of damage.
"""

import contextlib
import ctypes
import errno
import threading
from collections.abc import Callable
from pathlib import Path

import apsw

from nextslot.errors import Damaged

# The size that can be checked at start within a quarter of a second.
CHECKED_AT_ONCE_BYTES = 64 * 2**20


def refuse_if_damaged(path: Path, connection: apsw.Connection) -> None:
    """Raises if the file is small enough to be checked at start and the check finds damage."""
    if not is_large(path) and (found := first_damage(connection)) is not None:
        raise Damaged(sentence(found))


def is_large(path: Path) -> bool:
    return path.stat().st_size > CHECKED_AT_ONCE_BYTES


def first_damage(connection: apsw.Connection) -> str | None:
    try:
        found = [str(line) for (line,) in connection.execute("pragma quick_check(1)")]
    except (apsw.CorruptError, apsw.NotADBError) as error:
        return str(error)
    return None if found == ["ok"] else found[0].replace("\n", " ")


def is_unreadable(path: Path, vfs: str | None = None) -> bool:
    """Returns whether the disk cannot read the file, or could not a moment ago: whether the file itself is sound.

    The file is read through SQLite, because closing a file of one's own would release the locks that SQLite has on it.
    """
    if is_large(path):
        return False  # A check would take too long here; the next start makes one.
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, vfs=vfs)
    except apsw.Error:
        return True
    try:
        return first_damage(connection) is None or _last_errno(connection) == errno.EIO or not _has_readable_log(path)
    except apsw.Error:
        return True
    finally:
        connection.close()


def _last_errno(connection: apsw.Connection) -> int:
    number = ctypes.c_int(0)
    connection.file_control("main", apsw.SQLITE_FCNTL_LAST_ERRNO, ctypes.addressof(number))
    return number.value


def _has_readable_log(path: Path) -> bool:
    """Returns whether the write-ahead log can be read. SQLite's locks are on other files."""
    try:
        with path.with_name(path.name + "-wal").open("rb") as file:
            while file.read(2**20):
                pass
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def sentence(found: str) -> str:
    """Returns the problem and the remedy as a sentence without paths, because `/ready` shows it to everybody."""
    return (
        f"the database file is damaged or not a database: {found}. `nextslot doctor` shows what is wrong; "
        "restore a backup: nextslot restore FILE --force"
    )


class BackgroundCheck:
    """Checks a large file in a separate thread with its own connection, and reports damage once."""

    def __init__(self, connection: apsw.Connection, report: Callable[[str], None]) -> None:
        self._report = report
        self._connection = connection
        self._thread = threading.Thread(target=self._check, name="nextslot-check", daemon=True)
        self._thread.start()

    def _check(self) -> None:
        # Other errors, such as a disk that does not answer, are not damage: the next start checks again.
        with contextlib.suppress(apsw.Error):
            if (found := first_damage(self._connection)) is not None:
                self._report(sentence(found))

    def stop(self) -> None:
        self._connection.interrupt()
        self._thread.join()
        self._connection.close()
