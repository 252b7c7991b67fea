"""Reads the logs and artifacts of runs and direct executions; a name never leads out of their directory.

The files are on the disk of the node that ran the work. Another node answers with an error that names this node.
"""

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path

from nextslot.domain import Artifact
from nextslot.errors import NotFound, Unavailable
from nextslot.executors import run_log
from nextslot.executors.run_files import RunFiles
from nextslot.executors.run_log import LogPart

# The most bytes that one call reads.
PIECE = 1024 * 1024


class RunFileService:
    def __init__(self, files: RunFiles, node: str) -> None:
        self._files = files
        self._node = node

    async def has_log(self, run_id: str) -> bool:
        return await asyncio.to_thread(self._files.log_file(run_id).exists)

    def check_node(self, kind: str, name: str, worker_id: str | None) -> None:
        """Raises NotFound, naming the other node, if another node ran the work and so has the file."""
        node = (worker_id or "").rpartition("/slot-")[0]
        if node not in ("", self._node):
            where = f"it is on the disk of node {node!r}, where the work ran, and this is node {self._node!r}"
            raise NotFound(kind, name, where)

    async def log(self, run_id: str, offset: int = 0, limit: int = PIECE) -> LogPart:
        """Reads a log from a byte offset on, counted over everything that the run has written. Returns nothing if there
        is no log (yet).
        """
        return await asyncio.to_thread(_readable, lambda: run_log.read(self._files.log_paths(run_id), offset, limit))

    async def tail(self, run_id: str, lines: int) -> LogPart:
        """Reads the last lines of a log."""
        return await asyncio.to_thread(
            _readable, lambda: run_log.tail(self._files.log_paths(run_id), lines, PIECE // 16)
        )

    def artifact(self, run_id: str, artifact: Artifact) -> Path:
        """Returns the path of an artifact. Raises NotFound if the file is missing or is a link out of the directory."""
        root = self._files.artifacts_root(run_id)
        path = root / artifact.name
        real = Path(os.path.realpath(path))
        if not real.is_relative_to(os.path.realpath(root)) or not _is_regular(real):
            raise NotFound("artifact", artifact.name)
        return real


def _readable(read: Callable[[], LogPart]) -> LogPart:
    try:
        return read()
    except OSError as error:
        raise Unavailable(
            f"the log cannot be read: {error.strerror}; the server's user must own its data directory"
        ) from error


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False
