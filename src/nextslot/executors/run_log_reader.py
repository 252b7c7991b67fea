"""Reads run logs from a position or from their end, also while they are written. `run_log` documents their parts."""

import shutil
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import orjson


@dataclass(frozen=True, slots=True)
class LogPaths:
    """The paths of a run's log: its file, and the directory of its pieces."""

    log: Path
    pieces: Path

    @property
    def cut(self) -> Path:
        return self.log.with_name(self.log.name + ".cut")

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


@dataclass(frozen=True, slots=True)
class Layout:
    """The existing parts: the head and, after the cut if there is one, the tail, which has no gap."""

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
class Cut:
    """The cut of a joined log, or of one being joined: after `head` bytes, `missing` bytes were dropped."""

    head: int
    missing: int

    def at(self, position: int) -> int:
        """Returns the offset in the joined file of a position after the cut."""
        return position - self.missing + len(marker(self.missing))


def layout(paths: LogPaths) -> Layout:
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


def _layout(paths: LogPaths, cut: Cut | None, pieces: list[Stretch], size: int) -> Layout:
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


def read(paths: LogPaths, position: int, limit: int) -> LogPart:
    """Reads from a position. If the next bytes were cut, the text begins with a line that says how many."""
    while True:
        try:
            return _read(layout(paths), position, limit)
        except FileNotFoundError:
            continue  # A piece was dropped or joined after the layout was read: read the layout again.


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
    """Reads the last lines, backwards in blocks, so that the cost does not depend on the log's length."""
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
