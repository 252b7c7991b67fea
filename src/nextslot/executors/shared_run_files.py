"""SharedRunFiles: run files in a store that all nodes read: logs in pieces, and artifacts.

A log is stored in *pieces*: objects named after the positions at which they begin and end (`run_log.py`). A piece never
changes. A larger piece replaces the pieces that it contains: it is stored first, and then the others are deleted. So
the pieces of a log stay few, and a reader finds the whole log at any moment. Bytes that the node cuts from its log are
removed here too.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nextslot.domain import Artifact
from nextslot.errors import Unavailable
from nextslot.system.instant import Instant

from .object_store import ObjectStore, Stored
from .run_log import Layout, LogPaths

# The most bytes of a piece.
PIECE = 256 * 1024
RUNS = "runs"
# How long an outcome waits at most for the files of its run to be stored.
WAIT_SECONDS = 300.0
# How often a reader lists the pieces again after a listed piece was replaced.
MOST_LOOKS = 20


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a log, by its positions."""

    start: int
    end: int

    @property
    def name(self) -> str:
        return f"{self.start:016}-{self.end:016}"


@dataclass(frozen=True, slots=True)
class Chain:
    """Pieces without a gap, as one contiguous part of a log."""

    objects: ObjectStore
    folder: str
    pieces: Sequence[Piece]

    @property
    def start(self) -> int:
        return self.pieces[0].start if self.pieces else 0

    @property
    def end(self) -> int:
        return self.pieces[-1].end if self.pieces else 0

    def read(self, position: int, limit: int) -> bytes:
        found: list[bytes] = []
        for one in self.pieces:
            if one.end > position and limit > 0:
                count = min(limit, one.end - position)
                found.append(self.objects.read(f"{self.folder}/{one.name}", position - one.start, count))
                position, limit = position + count, limit - count
        return b"".join(found)


class SharedLog:
    """Reads the log of a run from its pieces."""

    def __init__(self, objects: ObjectStore, folder: str) -> None:
        self._objects = objects
        self._folder = folder
        self._looks = 0

    def look(self) -> Layout[Chain]:
        self._looks += 1
        if self._looks > MOST_LOOKS:
            raise Unavailable(f"the store of files {self._objects.url} lists pieces of a log that it does not have")
        pieces = without_contained(pieces_in(self._objects.list(self._folder)))
        head = _first_chain(pieces)
        rest = pieces[len(head) :]
        # As on the disk of a node, the newest pieces without a gap are the tail.
        tail = _last_chain(rest)
        return Layout(self._chain(head), (self._chain(tail),) if tail else ())

    def _chain(self, pieces: Sequence[Piece]) -> Chain:
        return Chain(self._objects, self._folder, pieces)


class ShippedLog:
    """Ships a log from the disk of the node that runs the work. One call at a time."""

    def __init__(self, objects: ObjectStore, folder: str, is_new: bool) -> None:
        self._objects = objects
        self._folder = folder
        # The stored pieces; None until they were listed.
        self._pieces: list[Piece] | None = [] if is_new else None

    def ship(self, log: LogPaths) -> None:
        """Stores what the log has more than its pieces, and deletes pieces that were cut or are contained in others.

        Raises FileNotFoundError if a part of the log is dropped meanwhile.
        """
        if self._pieces is None:
            stored = pieces_in(self._objects.list(self._folder))
            self._pieces = without_contained(stored)
            self._delete(set(stored) - set(self._pieces))
        found = log.look()
        for one in found.stretches:
            at = max(one.start, self._pieces[-1].end if self._pieces else 0)
            while at < one.end:
                end = min(one.end, at + PIECE)
                start = self._joined_from(at, end, one.start)
                text = one.read(start, end - start)
                if len(text) < end - start:
                    return  # The disk has lost bytes that the log had, so the later ones have no known position.
                self._put(Piece(start, end), text)
                at = end
        if found.missing:
            cut = {one for one in self._pieces if one.start >= found.head.end and one.end <= found.tail_start}
            self._delete(cut)
            self._pieces = [one for one in self._pieces if one not in cut]

    def _joined_from(self, start: int, end: int, first: int) -> int:
        """Returns where the new piece begins: it includes earlier pieces that are no larger than what it has already.

        So a byte is stored again only when its piece doubles, and a slow log has few pieces.
        """
        for one in reversed(self._pieces or []):
            is_next = one.end == start and one.start >= first
            if not is_next or one.end - one.start > end - start or end - one.start > PIECE:
                break
            start = one.start
        return start

    def _put(self, piece: Piece, text: bytes) -> None:
        assert self._pieces is not None
        self._objects.put(f"{self._folder}/{piece.name}", text)
        contained = {one for one in self._pieces if one.start >= piece.start and one.end <= piece.end}
        self._pieces = [*(one for one in self._pieces if one not in contained), piece]
        self._delete(contained - {piece})

    def _delete(self, pieces: Iterable[Piece]) -> None:
        self._objects.delete(f"{self._folder}/{one.name}" for one in pieces)


class SharedRunFiles:
    """Stores and finds the files of runs. Every method blocks, and raises Unavailable if the store does not answer."""

    def __init__(self, objects: ObjectStore) -> None:
        self.objects = objects

    def shipped_log(self, run_id: str, is_new: bool = False) -> ShippedLog:
        """Returns the shipper of a run's log; `is_new` says that nothing of the log was stored before."""
        return ShippedLog(self.objects, f"{_folder(run_id)}/log", is_new)

    def log(self, run_id: str) -> SharedLog:
        return SharedLog(self.objects, f"{_folder(run_id)}/log")

    def keep_artifacts(self, run_id: str, root: Path, artifacts: Iterable[Artifact]) -> None:
        """Stores artifacts, except those that are stored already with the same size."""
        folder = f"{_folder(run_id)}/artifacts/"
        missing = list(artifacts)
        if missing:
            stored = {one.path: one.size for one in self.objects.list(folder)}
            for one in missing:
                if stored.get(folder + one.name) != one.size:
                    self.objects.put(folder + one.name, root / one.name)

    def artifact(self, run_id: str, name: str) -> Iterator[bytes]:
        """Reads an artifact in chunks. Raises FileNotFoundError, before the first one, if it is not stored."""
        return self.objects.chunks(f"{_folder(run_id)}/artifacts/{name}")

    def runs_before(self, before: Instant) -> dict[str, Instant]:
        """Returns the runs whose newest object was stored before a time, each with the time of that object."""
        changed: dict[str, Instant] = {}
        for one in self.objects.list(RUNS):
            run_id = one.path.split("/")[2]
            changed[run_id] = max(changed.get(run_id, one.changed), one.changed)
        return {run_id: at for run_id, at in changed.items() if at < before}

    def remove(self, run_ids: Iterable[str]) -> None:
        """Deletes all objects of runs."""
        for run_id in run_ids:
            self.objects.delete([one.path for one in self.objects.list(_folder(run_id))])

    def missing(self, run_id: str, has_log: bool, artifacts: Iterable[str]) -> list[str]:
        """Returns which files of a run are not stored: the names of artifacts, or `log` if its beginning is missing."""
        folder = _folder(run_id)
        stored = {one.path: one for one in self.objects.list(folder)}
        lost = [name for name in artifacts if f"{folder}/artifacts/{name}" not in stored]
        pieces = pieces_in(one for path, one in stored.items() if path.startswith(f"{folder}/log/"))
        if has_log and not any(one.start == 0 for one in pieces):
            lost.append("log")
        return lost


def _folder(run_id: str) -> str:
    return f"{RUNS}/{run_id[-2:]}/{run_id}"


def pieces_in(stored: Iterable[Stored]) -> list[Piece]:
    """Returns the pieces among objects, by their names, in the order of their positions, larger ones first."""
    found = []
    for one in stored:
        start, _, end = one.path.rpartition("/")[2].partition("-")
        if start.isdecimal() and end.isdecimal() and int(start) < int(end):
            found.append(Piece(int(start), int(end)))
    return sorted(found, key=lambda piece: (piece.start, -piece.end))


def without_contained(pieces: Iterable[Piece]) -> list[Piece]:
    """Leaves out pieces that other pieces contain: a node died before it deleted them."""
    found: list[Piece] = []
    for one in pieces:
        if not found or one.end > found[-1].end:
            found.append(one)
    return found


def _first_chain(pieces: Sequence[Piece]) -> Sequence[Piece]:
    end = count = 0
    for one in pieces:
        if one.start > end:
            break
        end, count = one.end, count + 1
    return pieces[:count]


def _last_chain(pieces: Sequence[Piece]) -> Sequence[Piece]:
    count = min(1, len(pieces))
    while count < len(pieces) and pieces[-count].start <= pieces[-count - 1].end:
        count += 1
    return pieces[len(pieces) - count :]
