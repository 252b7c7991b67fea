"""The file that a database is moved by: lines of JSON, each table with its rows, and digests of all of it at the end.

`move.py` fills and empties such files; what they look like is said in docs/moving.md.

    {"format":"nextslot-export","version":1,"schema":4,"release":"0.1.0"}
    {"table":"offices","columns":["office_id",…],"rows":2}
    ["default",…]
    …
    {"end":{"offices":{"rows":2,"sha256":"…"},…},"findings":[]}
    {"sha256":"…"}                                              (of all bytes before this line)

The same rows give the same bytes: no time and no name of a machine is in it.
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

from . import sqlite_files

T = TypeVar("T")

FORMAT = "nextslot-export"
VERSION = 1
# Fast rather than small: at the usual level half of an export would be spent on it.
COMPRESSION = 1

# Columns that had another name when older exports were written: (table, old name) to the name of now.
RENAMED = {("jobs", "status"): "stage"}

_GZIP = b"\x1f\x8b"
_BEGIN = b'{"format":"nextslot-export"'


class Unreadable(StoreError):
    """The file does not answer: it may be read another time."""


class Unfit(StoreError):
    """The file is no export, or not a whole one, or says what cannot be: nothing will come of it as it is."""


@dataclass(frozen=True, slots=True)
class Header:
    """Which schema the rows are of, and which release wrote them."""

    schema: int
    release: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table as the file has it: its columns in their order, and how many rows follow."""

    name: str
    columns: tuple[str, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class Sum:
    """What a table's rows come to."""

    rows: int
    sha256: str


class Summing:
    """Counts lines and takes their digest, page by page."""

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
    """Rows as the file has them."""
    return b"".join(map(line, rows))


class Writer:
    """Writes an export, front to back."""

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
    """A file that is there as a whole or not at all, for its owner's eyes only: it has secrets in it.

    Compressed if its name ends with .gz.
    """
    part = target.with_name(target.name + ".part")
    try:
        part.unlink(missing_ok=True)
        part.touch(0o600)
        with part.open("wb") as plain:
            if target.suffix == ".gz":
                with gzip.GzipFile("", "wb", COMPRESSION, plain, mtime=0) as packed:
                    yield packed  # type: ignore[misc]  # It is one, in all that is asked of it here.
            else:
                yield plain
        sqlite_files.put(part, target)
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


class Reader:
    """Reads an export, front to back; whatever is wrong with it is said before its end is reached, or there."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path = path
        self._file = file
        self._all = hashlib.sha256()
        self._sums: dict[str, Sum] = {}
        self._reading = Summing()
        self._next: dict[str, Any] = {}
        # How many bytes were read.
        self.position = 0
        self.header = self._header()
        self._advance()

    def tables(self) -> Iterator[Table]:
        """Each table; its rows are to be read before the next is asked for."""
        while "table" in self._next:
            found = self._table()
            self._reading = Summing()
            yield found
            if self._reading.rows != found.rows:
                raise self._damaged(f"{found.name} has other rows than it says")
            self._sums[found.name] = self._reading.sum
            self._advance()

    @property
    def done(self) -> int:
        """Rows of this table that were read, or passed over."""
        return self._reading.rows

    @property
    def digest(self) -> str:
        """Of everything up to here."""
        return self._all.hexdigest()

    def rows(self, table: Table) -> Iterator[list[Any]]:
        """Those that are left of it."""
        while self.done < table.rows:
            text = self._line()
            self._reading.add(text, 1)
            row = self._parsed(text)
            if not isinstance(row, list) or len(row) != len(table.columns):
                raise self._damaged(f"row {self.done} of {table.name} is none")
            yield row

    def pass_over(self, rows: int) -> None:
        """So many rows are not looked at; but what they come to is."""
        lines = self._guarded(lambda: list(islice(self._file, rows)))
        if len(lines) < rows or not lines[-1].endswith(b"\n"):
            raise self._cut()
        text = b"".join(lines)
        self._note(text)
        self._reading.add(text, rows)

    def end(self) -> tuple[dict[str, Sum], list[str]]:
        """What the tables come to, and what the doctor said of them; only of a file that is whole and unchanged."""
        whole = self._all.hexdigest()  # Of all lines but the last, which says it.
        if self._parsed(self._line()) != {"sha256": whole} or self._guarded(lambda: self._file.read(1)):
            raise self._damaged("its digest is another")
        ends = {name: {"rows": one.rows, "sha256": one.sha256} for name, one in self._sums.items()}
        if self._next.get("end") != ends:
            raise self._damaged("its tables have other digests")
        return self._sums, [str(problem) for problem in self._next.get("findings", ())]

    def _header(self) -> Header:
        found = self._parsed(self._line())
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise Unfit(f"{self._path} is no export of nextslot")
        release = str(found.get("release"))
        if found.get("version") != VERSION:
            raise SchemaTooNew(
                f"{self._path} has format {found.get('version')}, this release knows {VERSION}: "
                f"import it with nextslot {release} or newer"
            )
        if not isinstance(found.get("schema"), int):
            raise self._damaged("its header names no schema")
        return Header(found["schema"], release)

    def _table(self) -> Table:
        try:
            name = str(self._next["table"])
            columns = tuple(RENAMED.get((name, str(column)), str(column)) for column in self._next["columns"])
            return Table(name, columns, int(self._next["rows"]))
        except (KeyError, TypeError, ValueError):
            raise self._damaged("the head of a table is none") from None

    def _advance(self) -> None:
        found = self._parsed(self._line())
        if not isinstance(found, dict) or ("table" in found) == ("end" in found):
            raise self._damaged("a table or the end was expected")
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
            raise self._damaged("a line of it is no JSON") from None

    def _cut(self) -> Unfit:
        return Unfit(f"{self._path} ends in the middle: it was cut; export again, or copy it again")

    def _damaged(self, why: str) -> Unfit:
        return Unfit(f"{self._path} is damaged: {why}; export again, or copy it again")


def is_export(path: Path) -> bool:
    """By its first bytes; what is no file, or another kind of one, is told by whoever reads it."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        begin = file.read(len(_BEGIN))
    return begin == _BEGIN or begin.startswith(_GZIP)


@contextmanager
def opened(path: Path) -> Iterator[Reader]:
    """An export, compressed or not."""
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
    return Unreadable(f"{path} cannot be read: {error.strerror or error}")
