"""Where a run's files are: its log, capped, and its artifacts, all below the data directory."""

import logging
import os
import shutil
import stat
import threading
from collections.abc import Iterable
from pathlib import Path

from ..clock import Instant
from ..model import Artifact
from ..policy.requests import is_storable

log = logging.getLogger(__name__)

LOG_CAP = 10 * 1024 * 1024


class RunFiles:
    """The directories of a data directory; nothing is created until it is used."""

    def __init__(self, data: Path, log_cap: int = LOG_CAP) -> None:
        self._data = data
        self._log_cap = log_cap

    def log_path(self, run_id: str) -> str:
        """Relative to the data directory; spread over 256 folders by the random end of the id."""
        return f"logs/{run_id[-2:]}/{run_id}.log"

    def log_file(self, run_id: str) -> Path:
        return self._data / self.log_path(run_id)

    def artifacts_root(self, run_id: str) -> Path:
        return self._data / self.artifacts_path(run_id)

    def open_log(self, run_id: str, cap: int | None = None) -> "RunLog":
        return RunLog(self.log_file(run_id), self._log_cap if cap is None else cap)

    def artifacts_path(self, run_id: str) -> str:
        return f"artifacts/{run_id[-2:]}/{run_id}"

    def artifacts_directory(self, run_id: str) -> Path:
        path = self.artifacts_root(run_id)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def collect_artifacts(self, run_id: str) -> tuple[Artifact, ...]:
        """The regular files that a run left; links are not followed, so none leads out of the directory."""
        root = self.artifacts_root(run_id)
        if root.is_symlink():
            return ()
        found = []
        for folder, folders, names in os.walk(root):
            folders.sort()
            for name in sorted(names):
                path = Path(folder, name)
                inside = path.relative_to(root).as_posix()
                size = _size(path)
                if size is not None and is_storable(inside):
                    found.append(Artifact(name=inside, path=f"{self.artifacts_path(run_id)}/{inside}", size=size))
                else:
                    log.warning("%r of run %s is not kept as an artifact", inside, run_id)
        return tuple(found)

    def older_than(self, before: Instant) -> list[tuple[str, Instant]]:
        """Runs whose log, or whose artifacts, were last changed before a time, and when that was."""
        changed: dict[str, Instant] = {}
        for kind in ("logs", "artifacts"):
            for path in sorted((self._data / kind).glob("??/*")):
                at = Instant(path.lstat().st_mtime_ns // 1000)
                run_id = path.name.removesuffix(".log")
                changed[run_id] = max(changed.get(run_id, at), at)
        return [(run_id, at) for run_id, at in changed.items() if at < before]

    def remove_all(self, run_ids: Iterable[str]) -> None:
        """The logs and artifacts of runs; what is gone already is fine."""
        for run_id in run_ids:
            self.log_file(run_id).unlink(missing_ok=True)
            root = self.artifacts_root(run_id)
            if root.is_symlink():
                root.unlink()
            else:
                shutil.rmtree(root, ignore_errors=True)


def _size(path: Path) -> int | None:
    """Of a regular file; None for a link or a device, or if it is gone by now."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


class RunLog:
    """A log file of bounded size: its first half as it comes, then its newest half, with a line that says what is cut.

    Written by the handler's thread and closed by ours, hence the lock.
    """

    def __init__(self, path: Path, cap: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._half = max(1, cap // 2)
        self._file = path.open("ab")
        self._written = 0
        self._tail = bytearray()
        self._cut = 0
        self._lock = threading.Lock()

    def write(self, data: bytes) -> None:
        with self._lock:
            if self._file.closed:
                return
            room = self._half - self._written
            if room > 0:
                self._file.write(data[:room])
                self._file.flush()
                self._written += len(data[:room])
                data = data[room:]
            if data:
                self._tail += data
                # Cut in large steps: dropping a few bytes at every line would copy the whole tail each time.
                if len(self._tail) > 2 * self._half:
                    self._cut += len(self._tail) - self._half
                    del self._tail[: -self._half]

    def close(self) -> None:
        with self._lock:
            extra = len(self._tail) - self._half
            if extra > 0:
                self._cut += extra
                del self._tail[:extra]
            if self._cut:
                self._file.write(f"\n… {self._cut:,} bytes cut here …\n".encode())
            self._file.write(self._tail)
            self._file.close()
