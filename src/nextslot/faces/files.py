"""Files: the logs and artifacts of runs and direct executions; a name never leads out of their directory.

They are on the disk of the node that ran the work: who asks another is told which.
"""

import asyncio
import os
import stat
from pathlib import Path

from ..errors import NotFound, Unavailable
from ..handlers.files import RunFiles
from ..model import Artifact

# The most that is read at once.
PIECE = 1024 * 1024
# A run whose log could not be made has none, whatever stands in the place of its directory.
_MISSING = (FileNotFoundError, NotADirectoryError)


class Files:
    def __init__(self, files: RunFiles, node: str) -> None:
        self._files = files
        self._node = node

    async def has_log(self, run_id: str) -> bool:
        return await asyncio.to_thread(self._files.log_file(run_id).exists)

    def check_node(self, kind: str, name: str, worker_id: str | None) -> None:
        """Raises if what is not on this disk is on another: that of the node whose worker ran the work."""
        node = (worker_id or "").rpartition("/slot-")[0]
        if node not in ("", self._node):
            where = f"it is on the disk of node {node!r}, where the work ran, and this is node {self._node!r}"
            raise NotFound(kind, name, where)

    async def log(self, run_id: str, offset: int = 0, limit: int = PIECE) -> bytes:
        """A piece of a log from a byte on; nothing if there is none (yet)."""
        return await asyncio.to_thread(_read, self._files.log_file(run_id), offset, limit)

    async def log_size(self, run_id: str) -> int:
        return await asyncio.to_thread(_size, self._files.log_file(run_id))

    async def tail(self, run_id: str, lines: int) -> bytes:
        """The last so many lines."""
        return await asyncio.to_thread(_tail, self._files.log_file(run_id), lines)

    def artifact(self, run_id: str, artifact: Artifact) -> Path:
        """Where the file is; refused if it is gone, or has become a link that leads out."""
        root = self._files.artifacts_root(run_id)
        path = root / artifact.name
        real = Path(os.path.realpath(path))
        if not real.is_relative_to(os.path.realpath(root)) or not _is_regular(real):
            raise NotFound("artifact", artifact.name)
        return real


def _read(path: Path, offset: int, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            # Far beyond the end some file systems refuse to go.
            file.seek(min(offset, os.fstat(file.fileno()).st_size))
            return file.read(limit)
    except _MISSING:
        return b""
    except OSError as error:
        raise _unreadable(error) from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except _MISSING:
        return 0
    except OSError as error:
        raise _unreadable(error) from error


def _unreadable(error: OSError) -> Unavailable:
    return Unavailable(f"the log is there, but cannot be read: {error.strerror}")


def _tail(path: Path, lines: int) -> bytes:
    """Read from the end in pieces, so that a long log costs no more than what is shown."""
    if lines == 0:
        return b""
    end, found = _size(path), b""
    # The newline that ends the last line is none of those between lines.
    while end > 0 and found.count(b"\n", 0, -1) < lines:
        start = max(0, end - PIECE // 16)
        found = _read(path, start, end - start) + found
        end = start
    return b"".join(found.splitlines(keepends=True)[-lines:])


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False
