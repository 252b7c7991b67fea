"""The files of a run, its log and its artifacts, below the data directory and in the shared store, if there is one.

A run writes to the disk of its node. With a shared store, `unshipped/RUN` marks a run of which the store does not have
all files yet: the marker is created before the first file, and removed when the last file is stored.
"""

import logging
import os
import shutil
import stat
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from nextslot.domain import Artifact
from nextslot.domain.bounds import LOG_CAP_BYTES
from nextslot.domain.request_checks import is_storable
from nextslot.errors import Unavailable
from nextslot.system.instant import Instant

from .checkpoints import FILE_VARIABLE
from .run_log import LogPaths, RunLog, join, make_private
from .shared_run_files import SharedRunFiles, ShippedLog

log = logging.getLogger(__name__)

# The variables that name the files that a command may read, and how the names of these files end.
TOLD = {"NEXTSLOT_INPUTS": ".json", FILE_VARIABLE: ".checkpoint.json", "NEXTSLOT_SIGNALS": ".signals.json"}
# The files of runs: a pattern, and what follows the run's id in the file name.
_KINDS = (("logs/??/*.log", ".log"), ("logs/??/*.log.cut", ".log.cut"), ("logs/pieces/*", ""), ("artifacts/??/*", ""))


class RunFiles:
    """Finds, creates and removes run files in a data directory. Creates directories only when they are used."""

    def __init__(self, data: Path, log_cap: int = LOG_CAP_BYTES, shared: SharedRunFiles | None = None) -> None:
        self._data = data
        self._log_cap = log_cap
        self.shared = shared

    @property
    def directories(self) -> list[Path]:
        """Returns the directories that contain the files of all runs."""
        return [self._data / "logs", self._data / "artifacts", self._data / "inputs"]

    def log_path(self, run_id: str) -> str:
        """Returns the log's path relative to the data directory. The random end of the id spreads logs over 256
        folders."""
        return f"logs/{run_id[-2:]}/{run_id}.log"

    def log_file(self, run_id: str) -> Path:
        return self._data / self.log_path(run_id)

    def log_paths(self, run_id: str) -> LogPaths:
        """Returns the paths of all parts of the log; see `run_log.py`."""
        return LogPaths(self.log_file(run_id), self._pieces / run_id)

    @property
    def _pieces(self) -> Path:
        """Returns the directory of the pieces of all logs, so that pieces left by a crash are found without scanning
        all logs."""
        return self._data / "logs" / "pieces"

    def artifacts_root(self, run_id: str) -> Path:
        return self._data / self.artifacts_path(run_id)

    def open_log(self, run_id: str, cap: int | None = None) -> RunLog:
        self._note_unshipped(run_id)
        return RunLog(self.log_paths(run_id), self._log_cap if cap is None else cap)

    def found_logs(self, run_ids: Iterable[str]) -> dict[str, str]:
        """Returns the paths of those logs that are in this directory, by run; a shared store may have others."""
        return {run_id: self.log_path(run_id) for run_id in run_ids if self.shared or self.log_file(run_id).exists()}

    def logs_in_pieces(self) -> list[str]:
        """Returns runs whose logs are in pieces: running ones, and those whose logs a crash or a full disk left
        unjoined."""
        return sorted(path.name for path in self._pieces.glob("*"))

    def join_logs(self, run_ids: Iterable[str]) -> None:
        """Joins the pieces of each log. A log that cannot be joined now stays readable, and the next start tries
        again."""
        for run_id in run_ids:
            try:
                join(self.log_paths(run_id))
            except OSError as error:
                log.error("the log of run %s stays in pieces until the next start: %s", run_id, error)

    def artifacts_path(self, run_id: str) -> str:
        return f"artifacts/{run_id[-2:]}/{run_id}"

    def artifacts_directory(self, run_id: str) -> Path:
        self._note_unshipped(run_id)
        path = self.artifacts_root(run_id)
        make_private(path)
        return path

    # The shared store. These methods block until the store answers.

    def _note_unshipped(self, run_id: str) -> None:
        if self.shared is not None:
            make_private(self._unshipped)
            (self._unshipped / run_id).touch(mode=0o600)

    @property
    def _unshipped(self) -> Path:
        return self._data / "unshipped"

    def is_unshipped(self, run_id: str) -> bool:
        return self.shared is not None and (self._unshipped / run_id).exists()

    def unshipped(self) -> list[str]:
        """Returns the runs of this directory whose files are not all in the shared store yet, running ones too."""
        return [] if self.shared is None else sorted(path.name for path in self._unshipped.glob("*"))

    def ship_growing(self, run_id: str, shipped: ShippedLog) -> str | None:
        """Stores what a log has more than before. Returns a sentence about what went wrong, if anything."""
        try:
            shipped.ship(self.log_paths(run_id))
        except FileNotFoundError:
            pass  # A part was dropped or joined meanwhile: the next call finds the rest.
        except (Unavailable, OSError) as error:
            return str(error)
        return None

    def ship(self, run_id: str, shipped: ShippedLog | None = None) -> str | None:
        """Stores all files of a run that has ended; may be repeated. Returns what went wrong, if anything."""
        assert self.shared is not None
        try:
            (shipped or self.shared.shipped_log(run_id)).ship(self.log_paths(run_id))
            self.shared.keep_artifacts(run_id, self.artifacts_root(run_id), self.collect_artifacts(run_id))
            (self._unshipped / run_id).unlink(missing_ok=True)
        except (Unavailable, OSError) as error:
            return str(error)
        return None

    def fetch(self, run_id: str, artifacts: Iterable[Artifact]) -> str | None:
        """Fetches artifacts that are not on this disk, as inputs of a run. Returns what went wrong, if anything."""
        if self.shared is None:
            return None
        try:
            for one in artifacts:
                path = self.artifacts_root(run_id) / one.name
                if not path.exists():
                    self._fetch(run_id, one.name, path)
        except (Unavailable, OSError) as error:
            return f"an artifact of run {run_id} could not be fetched: {error}"
        return None

    def _fetch(self, run_id: str, name: str, path: Path) -> None:
        assert self.shared is not None
        make_private(path.parent)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        with open(part, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.writelines(self.shared.artifact(run_id, name))
        part.replace(path)

    def told_files(self, run_id: str) -> dict[str, Path]:
        """Returns the files of `TOLD`; those with content exist while the command runs."""
        return {name: self._data / "inputs" / f"{run_id}{end}" for name, end in TOLD.items()}

    def collect_artifacts(self, run_id: str) -> tuple[Artifact, ...]:
        """Returns the regular files that a run left, and makes them private to their owner.

        Follows no links, so that none leads out of the directory.
        """
        root = self.artifacts_root(run_id)
        if root.is_symlink():
            return ()
        found = []
        for folder, folders, names in os.walk(root):
            folders.sort()
            _keep_private(Path(folder))
            for name in sorted(names):
                path = Path(folder, name)
                inside = path.relative_to(root).as_posix()
                size = _size(path)
                if size is not None and is_storable(inside):
                    _keep_private(path)
                    found.append(Artifact(name=inside, path=f"{self.artifacts_path(run_id)}/{inside}", size=size))
                else:
                    log.warning(
                        "%r of run %s is not stored as an artifact: no regular file, or its name is not valid Unicode",
                        inside,
                        run_id,
                    )
        return tuple(found)

    def older_than(self, before: Instant, with_shared: bool = True) -> list[tuple[str, Instant]]:
        """Returns the runs whose files last changed before a time, each with the time of that change.

        `with_shared` includes runs that only the shared store has.
        """
        changed: dict[str, Instant] = {}
        if self.shared is not None and with_shared:
            try:
                changed |= self.shared.runs_before(before)
            except Unavailable as error:
                log.error("the next purge deletes the objects of old runs: %s", error)
        for pattern, suffix in _KINDS:
            for path in sorted(self._data.glob(pattern)):
                with suppress(FileNotFoundError):  # The run has ended meanwhile and its pieces were joined.
                    at = Instant(path.lstat().st_mtime_ns // 1000)
                    run_id = path.name.removesuffix(suffix)
                    changed[run_id] = max(changed.get(run_id, at), at)
        return [(run_id, at) for run_id, at in changed.items() if at < before]

    def sizes(self) -> dict[str, int]:
        """Returns the bytes of the logs and artifacts of each run that has any. Links are not followed."""
        found: Counter[str] = Counter()
        for pattern, suffix in _KINDS:
            for path in self._data.glob(pattern):
                below = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
                found[path.name.removesuffix(suffix)] += sum(_size(one) or 0 for one in (below or [path]))
        return found

    def remove_all(self, run_ids: Iterable[str]) -> None:
        """Removes the logs and artifacts of runs, in the shared store too. Missing files are no error."""
        run_ids = list(run_ids)
        if self.shared is not None:
            try:
                self.shared.remove(run_ids)
            except Unavailable as error:
                log.error("the next purge deletes the objects of deleted runs: %s", error)
        for run_id in run_ids:
            (self._unshipped / run_id).unlink(missing_ok=True)
            self.log_paths(run_id).remove()
            for told in self.told_files(run_id).values():
                told.unlink(missing_ok=True)
            root = self.artifacts_root(run_id)
            if root.is_symlink():
                root.unlink()
            else:
                shutil.rmtree(root, ignore_errors=True)


def _size(path: Path) -> int | None:
    """Returns the size of a regular file; None for a link, a device or a missing file."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _keep_private(path: Path) -> None:
    """Removes the rights of other users to a file or directory that is no link."""
    with suppress(OSError):  # The file belongs to another user: a command with more rights has left it.
        mode = stat.S_IMODE(path.lstat().st_mode)
        if mode & 0o077:
            path.chmod(mode & 0o700)
