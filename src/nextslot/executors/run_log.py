"""Run logs: what a run writes is on disk as soon as it is written, and never takes more than the log's cap.

While the run goes on, its log is a head (`logs/ab/RUN.log`, the first half of the cap) and, once that is full, pieces
(`logs/pieces/RUN/POSITION`). A piece that is full never changes, and the oldest is dropped when a new one needs room.
At the end the pieces are appended to the head, behind a line that says how much was cut: from then on the log is one
file. `RUN.log.cut` beside it says where the cut is.

A *position* is the number of a byte in all that the run has written. It stays the same when pieces are dropped and
when they are joined, so a follower goes on from its position, whatever has happened to the files.
"""

import os
import shutil
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import orjson

# A tail has 16 pieces; fewer, but at least 4, if they would be smaller than 64 KiB, since each costs a file.
PIECES, FEWEST_PIECES = 16, 4
SMALL_PIECE = 64 * 1024
# A file ends with a whole line, if that leaves no more than this of its room unused.
UNUSED = 4096
# In place of a file that is open.
CLOSED = -1


@dataclass(frozen=True, slots=True)
class LogPaths:
    """Where a run's log is: its file, and the directory of its pieces."""

    log: Path
    pieces: Path

    @property
    def cut(self) -> Path:
        return self.log.with_name(self.log.name + ".cut")

    def remove(self) -> None:
        """Removes the log in all its parts; what is gone already is fine."""
        shutil.rmtree(self.pieces, ignore_errors=True)
        self.log.unlink(missing_ok=True)
        self.cut.unlink(missing_ok=True)


class RunLog:
    """Writes a log. The handler's thread writes and the executor closes, hence the lock."""

    def __init__(self, paths: LogPaths, cap: int) -> None:
        """Begins an empty log: a run is executed once, so an older log of this name belongs to nobody any more."""
        paths.log.parent.mkdir(parents=True, exist_ok=True)
        paths.remove()
        self._paths = paths
        self._head = max(1, cap // 2)
        self._tail = max(1, cap - self._head)
        self._piece = max(1, self._tail // min(PIECES, max(FEWEST_PIECES, self._tail // SMALL_PIECE)))
        # The pieces that are complete, the oldest first, with their sizes; and the sum of these.
        self._complete: deque[tuple[str, int]] = deque()
        self._complete_size = 0
        self._is_in_pieces = False
        self._position = 0
        self._file, self._path = CLOSED, ""
        # Of the file that is open.
        self._size, self._room, self._ends_line = 0, 0, True
        self._lock = threading.Lock()
        self._begin(str(paths.log), self._head)

    @property
    def is_in_pieces(self) -> bool:
        """Whether `close` has something to join, which takes a while."""
        return self._is_in_pieces

    def write(self, data: bytes) -> None:
        """Hands data to the operating system: from then on it survives the end of this process, of whatever kind."""
        with self._lock:
            while data and self._file != CLOSED:
                count = len(data) if len(data) <= self._room else self._fitting(data)
                self._append(data[:count])
                data = data[count:]
                if data:
                    self._begin_piece()

    def close(self) -> None:
        """Makes the log one file."""
        with self._lock:
            if self._file != CLOSED:
                os.close(self._file)
                self._file = CLOSED
            if self._is_in_pieces:
                join(self._paths)
                self._is_in_pieces = False

    def _fitting(self, data: bytes) -> int:
        """How much of data that is too much goes into this file: whole lines, if that is possible."""
        lines = data.rfind(b"\n", max(0, self._room - UNUSED), self._room) + 1
        if lines:
            return lines
        is_between_lines = self._size > 0 and self._ends_line
        return 0 if is_between_lines and self._room <= UNUSED else self._room

    def _append(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            # A disk that fills up may take a part.
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
            self._paths.pieces.mkdir(parents=True, exist_ok=True)
            self._is_in_pieces = True
        while self._complete and self._complete_size + self._piece > self._tail:
            path, size = self._complete.popleft()
            os.unlink(path)  # noqa: PTH108 - a flood of output has thousands a second
            self._complete_size -= size
        self._begin(f"{self._paths.pieces}/{self._position:016}", self._piece)

    def _begin(self, path: str, room: int) -> None:
        self._path = path
        self._file = _for_the_owner(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
        self._size, self._room, self._ends_line = 0, room, True


def marker(missing: int) -> bytes:
    """The line that stands for what was cut."""
    return f"\n… {missing:,} bytes cut here …\n".encode() if missing else b""


# Where everything is.


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of what a run has written: from one position up to another, and where it is in which file."""

    start: int
    end: int
    path: Path
    at: int

    def read(self, position: int, limit: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.at + position - self.start)
            return file.read(min(limit, self.end - position))


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts that exist: the head, and behind the cut, if there is one, the tail without a gap."""

    head: Stretch
    tail: tuple[Stretch, ...]

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
    def stretches(self) -> tuple[Stretch, ...]:
        return (self.head, *self.tail)


@dataclass(frozen=True, slots=True)
class _Cut:
    """Where a log that is being joined, or has been, was cut: after `head` bytes; `missing` bytes are not there."""

    head: int
    missing: int

    def at(self, position: int) -> int:
        """Where the byte of a position behind the cut is in the joined file."""
        return position - self.missing + len(marker(self.missing))


def layout(paths: LogPaths) -> Layout:
    """Finds the parts of a log, also while it is written or joined."""
    while True:
        cut = _read_cut(paths)
        try:
            pieces = _pieces(paths)
            size = _size(paths.log)
        except FileNotFoundError:
            continue  # A piece was dropped or joined after it was listed.
        # The file grows beyond the head only after the cut is written, so what was read belongs together.
        if cut == _read_cut(paths):
            return _layout(paths, cut, pieces, size)


def _layout(paths: LogPaths, cut: _Cut | None, pieces: list[Stretch], size: int) -> Layout:
    # What has been joined is also in its piece, until that is removed.
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
    """The newest pieces that follow each other without a gap; a power cut may have taken a part of an older one."""
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


def _read_cut(paths: LogPaths) -> _Cut | None:
    try:
        return _Cut(**orjson.loads(paths.cut.read_bytes()))
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        return None  # ValueError, TypeError: a power cut came before it was on disk.


# Joining.


def join(paths: LogPaths) -> None:
    """Appends the pieces to the head, one by one, and removes each. Whoever is killed here may begin again.

    No more than one piece is on disk twice, so the log takes at most that much more than its cap meanwhile.
    """
    found = layout(paths)
    cut = _read_cut(paths)
    if cut is None and found.missing:
        cut = _Cut(found.head.end, found.missing)
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


def _write_cut(paths: LogPaths, cut: _Cut) -> None:
    new = paths.pieces / "cut"
    with open(new, "wb", opener=_for_the_owner) as file:
        file.write(orjson.dumps({"head": cut.head, "missing": cut.missing}))
    new.replace(paths.cut)


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


# Reading.


@dataclass(frozen=True, slots=True)
class LogPart:
    """A part of a log as readers get it, the line about a cut included."""

    text: bytes
    # The positions where it begins and where the next part begins; the size is all that the run has written so far.
    start: int
    next: int
    size: int
    # How many bytes between `start` and `next` are not in the text, because they were cut.
    cut: int = 0


def read(paths: LogPaths, position: int, limit: int) -> LogPart:
    """Reads from a position on. A reader whose next bytes have been cut gets a line that says how many."""
    while True:
        try:
            return _read(layout(paths), position, limit)
        except FileNotFoundError:
            continue  # A piece was dropped or joined after the layout was read; the next one knows.


def _read(found: Layout, start: int, limit: int) -> LogPart:
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


def tail(paths: LogPaths, lines: int, block: int) -> LogPart:
    """Reads the last lines, from the end in blocks, so that a long log costs no more than what is shown."""
    while True:
        found = layout(paths)
        try:
            text = _last_lines(_text_with(found, lines, block), lines)
        except FileNotFoundError:
            continue
        behind = found.end - found.tail_start
        if len(text) <= behind:
            return LogPart(text, found.end - len(text), found.end, found.end)
        before = len(text) - behind - len(marker(found.missing))
        return LogPart(text, found.head.end - max(0, before), found.end, found.end, found.missing)


def _text_with(found: Layout, lines: int, block: int) -> bytes:
    """The end of a log with at least so many lines in it, or all of it."""
    blocks: deque[bytes] = deque()
    # The newline that ends the last line is none of those between lines.
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
