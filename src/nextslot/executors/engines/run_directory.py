"""RunDirectory: the scheduler's view of the directory of one placed run, on storage that the engine shares."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nextslot.domain import Json

from . import records

# How many bytes of the output one call of `look` reads.
CHUNK = 256 * 1024


@dataclass(frozen=True, slots=True)
class Look:
    """The current contents of a run's records; `error` says why they could not be read."""

    claim: Mapping[str, Any] | None = None
    end: Mapping[str, Any] | None = None
    lease: str = ""
    output: bytes = b""
    # The position of the next byte of the output.
    position: int = 0
    checkpoint: str | None = None
    error: str | None = None


class RunDirectory:
    def __init__(self, path: Path, token_hash: str) -> None:
        """Accepts only records that contain the run's token; others belong to another start."""
        self.path = path
        self._token_hash = token_hash

    # Writes of the scheduler.

    def prepare(self, request: Mapping[str, Json], files: Mapping[str, bytes] | None = None) -> None:
        """Creates the directory, readable for its owner only, since the request may contain secrets, and writes the
        request.

        `files` are further files that the command reads.
        """
        (self.path / records.ARTIFACTS).mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.chmod(0o700)
        for name, content in (files or {}).items():
            records.replace(str(self.path), name, content)
        records.replace(str(self.path), records.REQUEST, json.dumps(request).encode())

    def request(self) -> Mapping[str, Any] | None:
        """Returns the request that `prepare` wrote, if it was for this run."""
        return self._ours(records.read(str(self.path), records.REQUEST))

    def take(self, token: str, why: str) -> bool:
        """Claims the run for the scheduler, so that no wrapper can start it. Returns False if a wrapper was first."""
        claim = {"token": token, "by": "scheduler", "why": why}
        if records.write_once(str(self.path), records.CLAIM, claim):
            return True
        found = records.read(str(self.path), records.CLAIM)
        return found is not None and found.get("by") == "scheduler"

    def give_up(self, token: str, why: str) -> bool:
        """Ends a run by its record, and so the tree of a wrapper that lives. Returns False if the run had ended."""
        return records.write_once(str(self.path), records.END, {"token": token, "by": "scheduler", "why": why})

    def disown(self, why: str) -> bool:
        """Claims the run or, if a wrapper has, gives it up. Returns False if the wrapper has ended the run."""
        request = self.request()
        if request is None:
            return True
        token = str(request["token"])
        if self.take(token, f"crash: {why}") or self.give_up(token, why):
            return True
        end = records.read(str(self.path), records.END)
        return end is not None and end.get("by") == "scheduler"

    def ask_to_stop(self, kind: str, grace_seconds: float) -> None:
        stop = {"kind": kind, "grace_seconds": grace_seconds}
        records.replace(str(self.path), records.STOP, json.dumps(stop).encode())

    # The methods with which the scheduler reads the records.

    def look(self, position: int) -> Look:
        """Reads the records, and the output from a position on."""
        try:
            # Reads the end before the output, so that an output read after an end is complete.
            end = self._ours(records.read(str(self.path), records.END))
            claim = self._ours(records.read(str(self.path), records.CLAIM))
            lease = self._text(records.LEASE) or ""
            output, following = self.output(position)
            return Look(claim, end, lease, output, following, self._text(records.CHECKPOINT))
        except OSError as error:
            return Look(position=position, error=f"{error.strerror or error}")

    def output(self, position: int) -> tuple[bytes, int]:
        """Returns a chunk of the output, and the position after it. A line in it stands for a dropped part."""
        for path in self._pieces():
            begin = int(path.name)
            size = path.stat().st_size
            if begin + size <= position:
                continue
            missing = max(begin - position, 0)
            with path.open("rb") as file:
                file.seek(position + missing - begin)
                data = file.read(CHUNK)
            said = f"\n… {missing:,} bytes cut here …\n".encode() if missing else b""
            return said + data, position + missing + len(data)
        return b"", position

    def copy_artifacts(self, target: Path) -> None:
        """Copies the artifacts of the run into the directory of run files. Copies links as links and follows none."""
        source = self.path / records.ARTIFACTS
        if source.is_dir() and not source.is_symlink() and any(source.iterdir()):
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def _pieces(self) -> list[Path]:
        with suppress(FileNotFoundError):
            return sorted(path for path in (self.path / records.OUTPUT).iterdir() if path.name.isdigit())
        return []

    def _text(self, name: str) -> str | None:
        with suppress(FileNotFoundError):
            return (self.path / name).read_text(encoding="utf-8", errors="replace")
        return None

    def _ours(self, found: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        return found if found is not None and hash_of(str(found.get("token"))) == self._token_hash else None


def hash_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
