"""Run logs: a log is on disk as soon as the run writes it, and never exceeds its cap.

During the run, the log is a head (`logs/ab/RUN.log`, the first half of the cap) and, once the head is full, pieces
(`logs/pieces/RUN/POSITION`). A full piece never changes, and the oldest piece is dropped when a new one needs room. At
the end of the run the pieces are appended to the head, after a line that says how much was cut: from then on the log is
one file. `RUN.log.cut` beside it says where the cut is.

A *position* is the offset of a byte in everything that the run has written. It does not change when pieces are dropped
or joined, so a reader that follows the log continues from its position.
"""

import os
import shutil
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import orjson

# A tail has 16 pieces; fewer, but at least 4, if they would be smaller than 64 KiB, since each piece costs a file.
PIECES, FEWEST_PIECES = 16, 4
SMALL_PIECE = 64 * 1024
# A file ends with a complete line if that wastes at most this many bytes.
UNUSED = 4096
# The descriptor's value when no file is open.
CLOSED = -1


@dataclass(frozen=True, slots=True)
class LogPaths:
    """The paths of a run's log: its file, and the directory of its pieces."""

    log: Path
    pieces: Path

    @property
    def cut(self) -> Path:
        return self.log.with_name(self.log.name + ".cut")

    def look(self) -> "Layout[Stretch]":
        return layout(self)

    def remove(self) -> None:
        """Removes all parts of the log. Missing files are no error."""
        shutil.rmtree(self.pieces, ignore_errors=True)
        self.log.unlink(missing_ok=True)
        self.cut.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class LogPart:
    """A part of a log as readers get it, including the line about a cut."""

    text: bytes
    # The positions at which this part and the next one begin. `size` is all that the run has written so far.
    start: int
    next: int
    size: int
    # The number of bytes between `start` and `next` that are not in the text because they were cut.
    cut: int = 0
    # The number of the first line in the log as it is kept, from 1; None if it was not counted.
    line: int | None = None


def marker(missing: int) -> bytes:
    """Returns the line that replaces the bytes that were cut."""
    return f"\n… {missing:,} bytes cut here …\n".encode() if missing else b""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A contiguous part of what a run has written: its positions, its file, and its offset `at` in that file."""

    start: int
    end: int
    path: Path
    at: int

    def read(self, position: int, limit: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.at + position - self.start)
            return file.read(min(limit, self.end - position))


class Readable(Protocol):
    """A contiguous part of what a run has written, wherever it is."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    def read(self, position: int, limit: int) -> bytes: ...


S = TypeVar("S", bound=Readable, covariant=True)


@dataclass(frozen=True, slots=True)
class Layout(Generic[S]):
    """The existing parts: the head and, after the cut if there is one, the tail, which has no gap."""

    head: S
    tail: tuple[S, ...]

    @property
    def end(self) -> int:
        return self.tail[-1].end if self.tail else self.head.end

    @property
    def tail_start(self) -> int:
        return self.tail[0].start if self.tail else self.head.end

    @property
    def missing(self) -> int:
        return self.tail_start - self.head.end

    @property
    def stretches(self) -> tuple[S, ...]:
        return (self.head, *self.tail)


@dataclass(frozen=True, slots=True)
class Cut:
    """The cut of a joined log, or of one being joined: after `head` bytes, `missing` bytes were dropped."""

    head: int
    missing: int

    def at(self, position: int) -> int:
        """Returns the offset in the joined file of a position after the cut."""
        return position - self.missing + len(marker(self.missing))


class RunLog:
    """Writes a log. It has a lock because the handler's thread writes and the executor closes."""

    def __init__(self, paths: LogPaths, cap: int) -> None:
        """Begins an empty log. A run is executed once, so an existing log of this name is obsolete."""
        make_private(paths.log.parent)
        paths.remove()
        self._paths = paths
        self._head = max(1, cap // 2)
        self._tail = max(1, cap - self._head)
        self._piece = max(1, self._tail // min(PIECES, max(FEWEST_PIECES, self._tail // SMALL_PIECE)))
        # The complete pieces, oldest first, with their sizes; and the sum of the sizes.
        self._complete: deque[tuple[str, int]] = deque()
        self._complete_size = 0
        self._is_in_pieces = False
        self._position = 0
        self._file, self._path = CLOSED, ""
        # The state of the open file.
        self._size, self._room, self._ends_line = 0, 0, True
        self._lock = threading.Lock()
        self._begin(str(paths.log), self._head)

    @property
    def is_in_pieces(self) -> bool:
        """Returns whether `close` has pieces to join, which takes a while."""
        return self._is_in_pieces

    def write(self, data: bytes) -> None:
        """Hands data to the operating system, so that the data survives any end of this process."""
        with self._lock:
            while data and self._file != CLOSED:
                count = len(data) if len(data) <= self._room else self._fitting(data)
                self._append(data[:count])
                data = data[count:]
                if data:
                    self._begin_piece()

    def close(self) -> None:
        """Closes the log and joins its pieces into one file."""
        with self._lock:
            if self._file != CLOSED:
                os.close(self._file)
                self._file = CLOSED
            if self._is_in_pieces:
                join(self._paths)
                self._is_in_pieces = False

    def _fitting(self, data: bytes) -> int:
        """Returns how many bytes of the data to put into this file: complete lines, if possible."""
        lines = data.rfind(b"\n", max(0, self._room - UNUSED), self._room) + 1
        if lines:
            return lines
        is_between_lines = self._size > 0 and self._ends_line
        return 0 if is_between_lines and self._room <= UNUSED else self._room

    def _append(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            # A disk that fills up may take only a part.
            count = os.write(self._file, rest)
            self._position += count
            self._size += count
            self._room -= count
            rest = rest[count:]
        if data:
            self._ends_line = data.endswith(b"\n")

    def _begin_piece(self) -> None:
        os.close(self._file)
        self._file = CLOSED
        if self._is_in_pieces:
            self._complete.append((self._path, self._size))
            self._complete_size += self._size
        else:
            make_private(self._paths.pieces)
            self._is_in_pieces = True
        while self._complete and self._complete_size + self._piece > self._tail:
            path, size = self._complete.popleft()
            os.unlink(path)  # noqa: PTH108 - much output drops thousands of pieces a second
            self._complete_size -= size
        self._begin(f"{self._paths.pieces}/{self._position:016}", self._piece)

    def _begin(self, path: str, room: int) -> None:
        self._path = path
        self._file = _for_the_owner(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
        self._size, self._room, self._ends_line = 0, room, True


def join(paths: LogPaths) -> None:
    """Appends the pieces to the head one by one, and removes each. If the process dies here, a second call completes
    the work.

    At most one piece is on disk twice, so meanwhile the log exceeds its cap by at most one piece.
    """
    found = layout(paths)
    cut = read_cut(paths)
    if cut is None and found.missing:
        cut = Cut(found.head.end, found.missing)
        _write_cut(paths, cut)
    with open(paths.log, "ab", buffering=0, opener=_for_the_owner) as log:
        for piece in found.tail:
            if piece.path != paths.log:
                at = piece.start if cut is None else cut.at(piece.start)
                if cut is not None and piece.start == cut.head + cut.missing:
                    log.truncate(cut.head)
                    log.write(marker(cut.missing))
                log.truncate(at)
                with piece.path.open("rb") as source:
                    shutil.copyfileobj(source, log)
                piece.path.unlink()
    shutil.rmtree(paths.pieces, ignore_errors=True)


def _write_cut(paths: LogPaths, cut: Cut) -> None:
    new = paths.pieces / "cut"
    with open(new, "wb", opener=_for_the_owner) as file:
        file.write(orjson.dumps({"head": cut.head, "missing": cut.missing}))
    new.replace(paths.cut)


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def make_private(directory: Path) -> None:
    """Creates a directory and its missing parents, for their owner only: a run's files may be another's secrets."""
    try:
        directory.mkdir(0o700)
    except FileExistsError:
        pass
    except FileNotFoundError:
        make_private(directory.parent)
        make_private(directory)


# Readers, also of a log that is being written.


def layout(paths: LogPaths) -> Layout[Stretch]:
    """Finds the parts of a log, even while it is written or joined."""
    while True:
        cut = read_cut(paths)
        try:
            pieces = _pieces(paths)
            size = _size(paths.log)
        except FileNotFoundError:
            continue  # A piece was dropped or joined after it was listed.
        # The file grows beyond the head only after the cut is written, so both reads belong together.
        if cut == read_cut(paths):
            return _layout(paths, cut, pieces, size)


def _layout(paths: LogPaths, cut: Cut | None, pieces: list[Stretch], size: int) -> Layout[Stretch]:
    # A piece that has been joined exists twice until its file is removed.
    joined_up_to = pieces[0].start if pieces else None
    if cut is None:
        end = size if joined_up_to is None else min(size, joined_up_to)
        return Layout(Stretch(0, end, paths.log, 0), tuple(pieces))
    start = cut.head + cut.missing
    end = start + max(0, size - cut.at(start))
    joined = Stretch(start, end if joined_up_to is None else min(end, joined_up_to), paths.log, cut.at(start))
    head = Stretch(0, min(cut.head, size), paths.log, 0)
    return Layout(head, tuple(one for one in (joined, *pieces) if one.end > one.start))


def _pieces(paths: LogPaths) -> list[Stretch]:
    """Returns the newest pieces without a gap. A power cut may have truncated an older piece."""
    try:
        names = [path.name for path in paths.pieces.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    found: list[Stretch] = []
    for name in sorted(filter(str.isdecimal, names), key=int, reverse=True):
        start, path = int(name), paths.pieces / name
        end = start + path.stat().st_size
        if found and end != found[-1].start:
            break
        found.append(Stretch(start, end, path, 0))
    return found[::-1]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return 0


def read_cut(paths: LogPaths) -> Cut | None:
    try:
        return Cut(**orjson.loads(paths.cut.read_bytes()))
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        return None  # ValueError, TypeError: a power cut left an incomplete file.


class Log(Protocol):
    """A log for readers, on any storage."""

    def look(self) -> Layout[Readable]:
        """Returns the current parts. Raises FileNotFoundError, now or at a read, if a part has just gone."""


def read(log: Log, position: int, limit: int) -> LogPart:
    """Reads from a position. If the next bytes were cut, the text begins with a line that says how many."""
    while True:
        try:
            return _read(log.look(), position, limit)
        except FileNotFoundError:
            continue  # A piece was dropped or joined after the layout was read: read the layout again.


def _read(found: Layout[Readable], start: int, limit: int) -> LogPart:
    texts: list[bytes] = []
    position, cut = start, 0
    for one in found.stretches:
        if one.end <= position or limit <= 0:
            continue
        if one.start > position:
            cut = one.start - position
            texts.append(marker(cut))
            position = one.start
            limit -= len(texts[-1])
        text = one.read(position, max(limit, 1))
        texts.append(text)
        position += len(text)
        limit -= len(text)
    return LogPart(b"".join(texts), start, position, found.end, cut)


def tail(log: Log, lines: int, block: int) -> LogPart:
    """Reads the last lines, backwards in blocks, and counts the lines before them."""
    while True:
        try:
            found = log.look()
            text = _last_lines(_text_with(found, lines, block), lines)
            before = len(text) - (found.end - found.tail_start)
            if before <= 0:
                start = found.end - len(text)
                return LogPart(text, start, found.end, found.end, line=_line_at(found, start, block))
            start = found.head.end - max(0, before - len(marker(found.missing)))
            line = _line_at(found, start, block)
            return LogPart(text, start, found.end, found.end, found.missing, line)
        except FileNotFoundError:
            continue


def _line_at(found: Layout[Readable], position: int, block: int) -> int:
    """Returns the number of the line that begins at a position, with the line about the cut counted."""
    line = 1
    for one in found.stretches:
        at, end = one.start, min(one.end, position)
        while at < end and (text := one.read(at, min(block, end - at))):
            line += text.count(b"\n")
            at += len(text)
    return line + (marker(found.missing).count(b"\n") if position >= found.tail_start else 0)


def _text_with(found: Layout[Readable], lines: int, block: int) -> bytes:
    """Returns the end of a log with at least this many lines, or all of it."""
    blocks: deque[bytes] = deque()
    # One more, since the newline that ends the last line does not separate two lines.
    wanted = lines + 1
    for one in reversed(found.stretches):
        end = one.end
        while end > one.start and wanted > 0:
            start = max(one.start, end - block)
            blocks.appendleft(one.read(start, end - start))
            wanted -= blocks[0].count(b"\n")
            end = start
        if one.start == found.tail_start and found.missing and wanted > 0:
            blocks.appendleft(marker(found.missing))
            wanted -= 2
    return b"".join(blocks)


def _last_lines(text: bytes, lines: int) -> bytes:
    at = len(text) - text.endswith(b"\n")
    for _ in range(lines):
        at = text.rfind(b"\n", 0, at)
        if at < 0:
            return text
    return text[at + 1 :] if lines else b""
