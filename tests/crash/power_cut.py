"""What a power cut leaves on a disk, from the recorded changes of a real process (`faulty_machine.recorded`).

A sync keeps the contents of its file, or the names of its directory. Everything since is in doubt: each write may be
on the disk, be missing, or be there in part, by sectors; names are kept up to some change, since file systems store
them in order.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

SECTOR = 512
_HEAD = struct.Struct("=c3xIIIQQ")
# The name of the file whose writes are no changes: they say what was acknowledged just then.
ACKNOWLEDGED = "acknowledged"


class Change(NamedTuple):
    """One change: `w`rite, `s`ync, `t`runcate, `c`reate, `r`ename, `u`nlink, `m`kdir or `l`ink."""

    kind: str
    path: str
    other: str
    inode: int
    offset: int
    data: bytes


class Forgetfulness(NamedTuple):
    """The chance that an unsynced write is missing, that a kept one is torn, and that unsynced names are missing."""

    write: float
    tear: float
    names: float


ALL = Forgetfulness(1, 0, 1)
NOTHING = Forgetfulness(0, 0, 0)
MIXTURES = (ALL, NOTHING, Forgetfulness(0.5, 0.3, 0.5), Forgetfulness(0.1, 0.1, 0), Forgetfulness(0.9, 0.5, 0.2))


def read(record: Path) -> Iterator[Change]:
    with record.open("rb") as file:
        while head := file.read(_HEAD.size):
            kind, path, other, data, inode, offset = _HEAD.unpack(head)
            names = os.fsdecode(file.read(path)), os.fsdecode(file.read(other))
            yield Change(kind.decode(), *names, inode, offset, file.read(data))


@dataclass
class _File:
    """A file: its content that is certainly on the disk, and the changes since."""

    synced: bytearray = field(default_factory=bytearray)
    unsynced: list[Change] = field(default_factory=list)

    def sync(self) -> None:
        for change in self.unsynced:
            _apply(self.synced, change)
        self.unsynced.clear()

    def left(self, chance: Random, how: Forgetfulness) -> bytes:
        content = bytearray(self.synced)
        for change in self.unsynced:
            if chance.random() < how.write:
                continue
            if change.kind == "w" and chance.random() < how.tear:
                for torn in _torn(change, chance):
                    _apply(content, torn)
            else:
                _apply(content, change)
        return bytes(content)


class Disk:
    """The disk below a directory. `play` the changes one by one, and `cut` the power between any two."""

    def __init__(self, root: Path) -> None:
        """Takes the current content as synced; create it before the recorded process begins."""
        self._root = root
        # Files have numbers of ours: the system gives that of a deleted file to the next.
        self._files: dict[int, _File] = {}
        self._numbers: dict[int, int] = {}
        self._names: dict[str, int] = {}
        self._directories = {str(root)}
        self._renamed: list[Change] = []
        self.acknowledged: list[str] = []
        for path in root.rglob("*"):
            if path.is_dir():
                self._directories.add(str(path))
            elif path.is_file():
                self._names[str(path)] = self._new_file(path.stat().st_ino, path.read_bytes())

    def _new_file(self, inode: int, content: bytes = b"") -> int:
        number = self._numbers[inode] = len(self._files)
        self._files[number] = _File(bytearray(content))
        return number

    def play(self, change: Change) -> None:
        if Path(change.path).name == ACKNOWLEDGED:
            if change.kind == "w":
                self.acknowledged += change.data.decode().splitlines()
        elif change.kind == "c":
            self._renamed.append(change._replace(inode=self._new_file(change.inode)))
        elif change.kind in "rulm":
            self._renamed.append(change)
        elif change.kind == "s" and change.path in self._directories_now():
            self._keep_names(change.path)
        elif change.inode in self._numbers:
            file = self._files[self._numbers[change.inode]]
            if change.kind == "s":
                file.sync()
            else:
                file.unsynced.append(change)

    def cut(self, target: Path, chance: Random, how: Forgetfulness) -> Path:
        """Writes to `target` what a power cut at this moment leaves."""
        kept = 0 if chance.random() < how.names else len(self._renamed)
        if 0 < how.names < 1:
            kept = chance.randint(0, len(self._renamed))
        names, directories = self._after(self._renamed[:kept])
        for directory in sorted(directories):
            (target / os.path.relpath(directory, self._root)).mkdir(parents=True, exist_ok=True)
        for path, inode in names.items():
            place = target / os.path.relpath(path, self._root)
            # Shared memory of SQLite lives no longer than its processes, and is not written to by calls.
            if place.parent.exists() and not path.endswith("-shm"):
                place.write_bytes(self._files[inode].left(chance, how))
        return target

    def _keep_names(self, directory: str) -> None:
        """Marks the names of a directory as synced; those of other directories stay uncertain."""
        ours = [change for change in self._renamed if directory in _directories_of(change)]
        self._names, self._directories = self._after(ours)
        self._renamed = [change for change in self._renamed if directory not in _directories_of(change)]

    def _directories_now(self) -> set[str]:
        return self._after(self._renamed)[1]

    def _after(self, changes: list[Change]) -> tuple[dict[str, int], set[str]]:
        names, directories = dict(self._names), set(self._directories)
        for change in changes:
            if change.kind == "m":
                directories.add(change.path)
            elif change.kind == "c":
                names[change.path] = change.inode
            elif change.kind == "u":
                names.pop(change.path, None)
                directories.discard(change.path)
            elif change.path in directories:
                _move_directory(change, names, directories)
            elif change.path in names:
                names[change.other] = names[change.path] if change.kind == "l" else names.pop(change.path)
        return names, directories


def _move_directory(change: Change, names: dict[str, int], directories: set[str]) -> None:
    below = change.path + "/"
    for path in [path for path in directories if path == change.path or path.startswith(below)]:
        directories.remove(path)
        directories.add(change.other + path.removeprefix(change.path))
    for path in [path for path in names if path.startswith(below)]:
        names[change.other + path.removeprefix(change.path)] = names.pop(path)


def _directories_of(change: Change) -> set[str]:
    return {str(Path(path).parent) for path in (change.path, change.other) if path}


def _apply(content: bytearray, change: Change) -> None:
    if change.kind == "t":
        del content[change.offset :]
        content.extend(bytes(change.offset - len(content)))
        return
    if len(content) < change.offset:
        content.extend(bytes(change.offset - len(content)))
    content[change.offset : change.offset + len(change.data)] = change.data


def _torn(change: Change, chance: Random) -> Iterator[Change]:
    """Returns some sectors of a write."""
    for first in range(0, len(change.data), SECTOR):
        if chance.random() < 0.5:
            part = change.data[first : first + SECTOR]
            yield change._replace(offset=change.offset + first, data=part)
