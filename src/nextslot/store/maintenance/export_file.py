"""The export file, which moves a database: lines of JSON with the rows of each table, and digests at the end.

`exported_rows.py` writes and reads these files; docs/moving.md describes the format.

    {"format":"nextslot-export","version":1,"schema":4,"release":"0.1.0"}
    {"table":"offices","columns":["office_id",…],"rows":2}
    ["default",…]
    …
    {"end":{"offices":{"rows":2,"sha256":"…"},…},"findings":[]}
    {"sha256":"…"}                                              (of all bytes before this line)

The same rows always give the same bytes: the file contains neither the time nor the machine's name.
"""

import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeVar

import orjson

from nextslot.errors import SchemaTooNew, StoreError

from . import backup_sqlite

T = TypeVar("T")

FORMAT = "nextslot-export"
VERSION = 1
# Fast rather than small: the default level would take half of an export's time.
COMPRESSION = 1

# Columns that had another name in older exports: (table, old name) to the current name.
RENAMED = {("jobs", "status"): "stage"}

_GZIP = b"\x1f\x8b"
_BEGIN = b'{"format":"nextslot-export"'


class Unreadable(StoreError):
    """The file could not be read, but another attempt may succeed."""


class Unfit(StoreError):
    """The file is not an export, or is incomplete or inconsistent; another attempt cannot succeed."""


@dataclass(frozen=True, slots=True)
class Header:
    """The schema of the rows, and the release that wrote them."""

    schema: int
    release: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table in the file: its columns in order, and the number of rows that follow."""

    name: str
    columns: tuple[str, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class Sum:
    """The number of a table's rows, and their digest."""

    rows: int
    sha256: str


class Summing:
    """Counts lines and computes their digest, page by page."""

    def __init__(self) -> None:
        self.rows = 0
        self._digest = hashlib.sha256()

    def add(self, lines: bytes, rows: int) -> None:
        self.rows += rows
        self._digest.update(lines)

    @property
    def sum(self) -> Sum:
        return Sum(self.rows, self._digest.hexdigest())


def line(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)


def lines(rows: Sequence[Sequence[object]]) -> bytes:
    """Returns rows in the format of the file."""
    return b"".join(map(line, rows))


class Writer:
    """Writes an export from front to back."""

    def __init__(self, file: IO[bytes], header: Header) -> None:
        self._file = file
        self._all = hashlib.sha256()
        self._write(line({"format": FORMAT, "version": VERSION, "schema": header.schema, "release": header.release}))

    def table(self, table: Table) -> None:
        self._write(line({"table": table.name, "columns": table.columns, "rows": table.rows}))

    def rows(self, rows: bytes) -> None:
        self._write(rows)

    def end(self, sums: Mapping[str, Sum], findings: Sequence[str]) -> None:
        ends = {name: {"rows": one.rows, "sha256": one.sha256} for name, one in sums.items()}
        self._write(line({"end": ends, "findings": findings}))
        self._file.write(line({"sha256": self._all.hexdigest()}))

    def _write(self, data: bytes) -> None:
        self._all.update(data)
        self._file.write(data)


@contextmanager
def created(target: Path) -> Iterator[IO[bytes]]:
    """Opens a new file that appears only when complete. Only its owner may read it, since it contains secrets.

    The file is compressed if its name ends with .gz.
    """
    part = target.with_name(target.name + ".part")
    try:
        part.unlink(missing_ok=True)
        part.touch(0o600)
        with part.open("wb") as plain:
            if target.suffix == ".gz":
                with gzip.GzipFile("", "wb", COMPRESSION, plain, mtime=0) as packed:
                    yield packed  # type: ignore[misc]  # GzipFile has every method that is used here.
            else:
                yield plain
        backup_sqlite.put(part, target)
    except OSError as error:
        raise StoreError(
            f"{target} cannot be written: {error.strerror or error}; check the directory and its space"
        ) from error
    finally:
        part.unlink(missing_ok=True)


# The types of values that a column can have.
_SCALARS = frozenset({type(None), bool, int, float, str})


class Reader:
    """Reads an export from front to back. Raises as soon as it finds a problem, at the latest at the end."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path = path
        self._file = file
        self._all = hashlib.sha256()
        self._sums: dict[str, Sum] = {}
        self._reading = Summing()
        self._next: dict[str, Any] = {}
        # The number of bytes read so far.
        self.position = 0
        self.header = self._header()
        self._advance()

    def tables(self) -> Iterator[Table]:
        """Yields each table. The caller must read its rows before it takes the next table."""
        while "table" in self._next:
            found = self._table()
            self._reading = Summing()
            yield found
            if self._reading.rows != found.rows:
                raise self._damaged(f"{found.name} has {self._reading.rows} rows instead of {found.rows}")
            self._sums[found.name] = self._reading.sum
            self._advance()

    @property
    def done(self) -> int:
        """Returns how many rows of this table were read or skipped."""
        return self._reading.rows

    @property
    def digest(self) -> str:
        """Returns the digest of everything read so far."""
        return self._all.hexdigest()

    def rows(self, table: Table) -> Iterator[list[Any]]:
        """Yields the remaining rows of a table."""
        while self.done < table.rows:
            text = self._line()
            self._reading.add(text, 1)
            row = self._parsed(text)
            if not isinstance(row, list) or len(row) != len(table.columns):
                raise self._damaged(f"row {self.done} of {table.name} is not a list of {len(table.columns)} values")
            if not _SCALARS.issuperset(map(type, row)):
                raise self._damaged(
                    f"row {self.done} of {table.name} has a list or an object where a column has a value"
                )
            yield row

    def pass_over(self, rows: int) -> None:
        """Skips rows without parsing them, but includes them in the digests."""
        lines = self._guarded(lambda: list(islice(self._file, rows)))
        if len(lines) < rows or not lines[-1].endswith(b"\n"):
            raise self._cut()
        text = b"".join(lines)
        self._note(text)
        self._reading.add(text, rows)

    def end(self) -> tuple[dict[str, Sum], list[str]]:
        """Returns the sums of the tables and the doctor's findings in the file. Raises if the file is incomplete or
        changed.
        """
        whole = self._all.hexdigest()  # The digest of all lines before the last one, which contains it.
        if self._parsed(self._line()) != {"sha256": whole} or self._guarded(lambda: self._file.read(1)):
            raise self._damaged("its digest does not match its content")
        ends = {name: {"rows": one.rows, "sha256": one.sha256} for name, one in self._sums.items()}
        if self._next.get("end") != ends:
            raise self._damaged("the digest of a table does not match its rows")
        return self._sums, [str(problem) for problem in self._next.get("findings", ())]

    def _header(self) -> Header:
        found = self._parsed(self._line())
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise Unfit(f"{self._path} is not an export of nextslot; give a file that `nextslot export` has written")
        release = str(found.get("release"))
        if found.get("version") != VERSION:
            raise SchemaTooNew(
                f"{self._path} has format {found.get('version')}, but this release reads only {VERSION}: "
                f"import it with nextslot {release} or newer"
            )
        if not isinstance(found.get("schema"), int):
            raise self._damaged("its header contains no schema")
        return Header(found["schema"], release)

    def _table(self) -> Table:
        try:
            name = str(self._next["table"])
            columns = tuple(RENAMED.get((name, str(column)), str(column)) for column in self._next["columns"])
            return Table(name, columns, int(self._next["rows"]))
        except (KeyError, TypeError, ValueError):
            raise self._damaged("the header of a table is incomplete") from None

    def _advance(self) -> None:
        found = self._parsed(self._line())
        if not isinstance(found, dict) or ("table" in found) == ("end" in found):
            raise self._damaged("a line is neither a table nor the end")
        self._next = found

    def _line(self) -> bytes:
        text = self._guarded(self._file.readline)
        if not text.endswith(b"\n"):
            raise self._cut()
        self._note(text)
        return text

    def _note(self, text: bytes) -> None:
        self._all.update(text)
        self.position += len(text)

    def _guarded(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except EOFError:
            raise self._cut() from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise self._damaged(str(error)) from None
        except OSError as error:
            raise _unreadable(self._path, error) from error

    def _parsed(self, text: bytes) -> Any:
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            raise self._damaged("a line is not JSON") from None

    def _cut(self) -> Unfit:
        return Unfit(f"{self._path} is incomplete: its end is missing; export or copy it again")

    def _damaged(self, why: str) -> Unfit:
        return Unfit(f"{self._path} is damaged: {why}; export or copy it again")


def is_export(path: Path) -> bool:
    """Returns whether a file begins like an export. Other problems are reported when the file is read."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        begin = file.read(len(_BEGIN))
    return begin == _BEGIN or begin.startswith(_GZIP)


@contextmanager
def opened(path: Path) -> Iterator[Reader]:
    """Opens an export, compressed or not."""
    try:
        plain = path.open("rb")
    except OSError as error:
        raise _unreadable(path, error) from error
    with plain:
        try:
            is_packed = plain.peek(2)[:2] == _GZIP
        except OSError as error:
            raise _unreadable(path, error) from error
        if is_packed:
            with gzip.GzipFile(fileobj=plain, mode="rb") as packed:
                yield Reader(path, packed)  # type: ignore[arg-type]
        else:
            yield Reader(path, plain)


def _unreadable(path: Path, error: OSError) -> Unreadable:
    return Unreadable(f"{path} cannot be read: {error.strerror or error}; check the path and its permissions")
