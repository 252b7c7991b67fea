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
from pathlib import Path

import orjson

from .run_log_reader import Cut, LogPaths, layout, marker, read_cut

# How many bytes of a run's log are kept, unless the server or the job type sets another cap.
LOG_CAP = 10 * 1024 * 1024
# A tail has 16 pieces; fewer, but at least 4, if they would be smaller than 64 KiB, since each piece costs a file.
PIECES, FEWEST_PIECES = 16, 4
SMALL_PIECE = 64 * 1024
# A file ends with a complete line if that wastes at most this many bytes.
UNUSED = 4096
# The descriptor's value when no file is open.
CLOSED = -1


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
