"""Reads the logs and artifacts of runs and direct executions; a name never leads out of their directory.

They are on the disk of the node that ran the work, and in the shared store if there is one. A file that is in neither
place is read through the node that ran the work (`files_of_nodes.py`).
"""

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nextslot.domain import Artifact
from nextslot.errors import NotFound, Unavailable
from nextslot.executors import run_log
from nextslot.executors.run_files import RunFiles
from nextslot.executors.run_log import Log, LogPart

from .files_of_nodes import FilesOfNodes

# The most bytes that one call reads.
PIECE = 1024 * 1024

# The most bytes of an artifact that is read into memory.
MOST_TEXT = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Remote:
    """An artifact that is not on this disk, in chunks."""

    size: int
    chunks: AsyncIterator[bytes]


class RunFileService:
    def __init__(self, files: RunFiles, nodes: FilesOfNodes) -> None:
        self._files = files
        self.nodes = nodes

    async def log(self, run_id: str, offset: int = 0, limit: int = PIECE, *, worker_id: str | None = None) -> LogPart:
        """Reads a log from a byte on, counted in all that the run has written; nothing if there is no log (yet).

        With the `worker_id` of the work it finds a log that only another node has. Raises NotFound if that node cannot
        be asked.
        """
        part = await self.local_log(run_id, offset, limit)
        if part.size > 0:
            return part
        elsewhere = await self._elsewhere(
            run_id, worker_id, lambda log: run_log.read(log, offset, limit), f"offset={offset}&limit={limit}"
        )
        return elsewhere or part

    async def tail(self, run_id: str, lines: int, *, worker_id: str | None = None) -> LogPart:
        """Reads the last lines."""
        part = await self.local_tail(run_id, lines)
        if part.size > 0:
            return part
        read = lambda log: run_log.tail(log, lines, PIECE // 16)  # noqa: E731
        return await self._elsewhere(run_id, worker_id, read, f"tail={lines}") or part

    async def local_log(self, run_id: str, offset: int, limit: int) -> LogPart:
        """Reads a log on this disk."""
        return await asyncio.to_thread(_readable, lambda: run_log.read(self._files.log_paths(run_id), offset, limit))

    async def local_tail(self, run_id: str, lines: int) -> LogPart:
        return await asyncio.to_thread(
            _readable, lambda: run_log.tail(self._files.log_paths(run_id), lines, PIECE // 16)
        )

    async def _elsewhere(
        self, run_id: str, worker_id: str | None, read: Callable[[Log], LogPart], wanted: str
    ) -> LogPart | None:
        """Reads a log that is not on this disk; None if no other place can have it."""
        node, shared, silence = self.other_node(worker_id), self._files.shared, None
        if shared is not None:
            try:
                part = await asyncio.to_thread(read, shared.log(run_id))
            except Unavailable as error:
                if node is None:
                    raise
                silence = error
            else:
                if part.size > 0:
                    return part
        if node is None:
            return None
        try:
            return await self.nodes.log(node, run_id, wanted)
        except NotFound:
            if silence is not None:
                raise silence from None
            raise

    def other_node(self, worker_id: str | None) -> str | None:
        """Returns the node that ran the work; None if that is this one, or not known."""
        node = (worker_id or "").rpartition("/slot-")[0]
        return None if node in ("", self.nodes.node) else node

    async def open_artifact(self, run_id: str, artifact: Artifact, worker_id: str | None) -> Path | Remote:
        """Finds an artifact on this disk, in the shared store, or on the node that ran the work."""
        try:
            return await asyncio.to_thread(self.artifact, run_id, artifact)
        except NotFound:
            node, shared, silence = self.other_node(worker_id), self._files.shared, None
            if shared is not None:
                try:
                    chunks = await asyncio.to_thread(shared.artifact, run_id, artifact.name)
                    return Remote(artifact.size, _in_threads(chunks))
                except FileNotFoundError:
                    pass
                except Unavailable as error:
                    silence = error
            if node is None:
                raise silence or NotFound("artifact", artifact.name) from None
        try:
            return Remote(artifact.size, await self.nodes.artifact(node, run_id, artifact.name, artifact.size))
        except NotFound:
            if silence is not None:
                raise silence from None
            raise

    async def text_of(self, run_id: str, name: str, worker_id: str | None) -> str:
        """Reads an artifact that is a text, wherever it is. Raises NotFound if it is gone."""
        found = await self.open_artifact(run_id, Artifact(name=name, path="", size=MOST_TEXT), worker_id)
        if isinstance(found, Path):
            return await asyncio.to_thread(found.read_text, "utf-8")
        return b"".join([chunk async for chunk in found.chunks]).decode()

    def artifact(self, run_id: str, artifact: Artifact) -> Path:
        """Returns the path of an artifact on this disk; raises NotFound if it is gone, or a link that leads out of the
        directory."""
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


async def _in_threads(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
        yield chunk


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False
