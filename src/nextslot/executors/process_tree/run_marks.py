"""Marks by which a process is recognised as part of a run. A guardian sets them, `survivors` reads them.

- NEXTSLOT_RUN_ID in its environment. `env -i` clears it.
- The tag of the run as its limit RLIMIT_RTTIME, so large that it limits nothing. It needs no privileges and survives
  `env -i`, `setsid`, a double fork and closed files; only real-time programs change this limit.
- The cgroup of the run, where guardians may create one. Only a process that may create cgroups can leave it.
"""

import hashlib
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from .cgroups import group_of, is_populated, own_cgroup, path_of, remove_cgroup

RUN_ID = "NEXTSLOT_RUN_ID"
_VARIABLE = b"\0" + RUN_ID.encode() + b"="
_LIMIT = b"Max realtime timeout"
_CGROUP = "nextslot-"


def tag_of(run_id: str) -> int:
    """Returns the number that all processes of a run have as a limit: in microseconds, more than 73,000 years."""
    digest = hashlib.blake2b(os.fsencode(run_id), digest_size=8).digest()
    return 1 << 61 | int.from_bytes(digest, "big") >> 3


def cgroup_of(run_id: str) -> str:
    """Returns the name of a run's cgroup."""
    return f"{_CGROUP}{tag_of(run_id):x}"


def cgroup_path(pid: int, run_id: str) -> str | None:
    """Returns the directory of the run's cgroup if the process is in it or below it, else None."""
    above, name, _ = (group_of(pid) or "").partition(cgroup_of(run_id))
    return path_of(above + name) if name else None


def populated_cgroups(run_ids: Collection[str]) -> list[str]:
    """Returns the directories of those cgroups of these runs, below this process's cgroup, that contain a process."""
    parent = own_cgroup() if run_ids else None
    paths = [f"{parent}/{cgroup_of(run_id)}" for run_id in run_ids] if parent is not None else []
    return [path for path in paths if is_populated(path)]


def remove_cgroups(parent: str) -> None:
    """Removes the empty cgroups that a killed fork server left. The kernel refuses to remove those in use."""
    with suppress(OSError):
        for path in Path(parent).glob(f"{_CGROUP}*"):
            remove_cgroup(str(path))


class Marks:
    """Recognises the processes of the given runs."""

    def __init__(self, run_ids: Collection[str]) -> None:
        self._run_ids = {os.fsencode(run_id): run_id for run_id in run_ids}
        self._tags = {str(tag_of(run_id)).encode(): run_id for run_id in run_ids}
        self._cgroups = {cgroup_of(run_id): run_id for run_id in run_ids}

    def run_of(self, pid: int) -> str | None:
        """Returns the run that a process belongs to. The limit is checked first, since every user may read it."""
        return self._by_limit(pid) or self._by_environment(pid) or self._by_cgroup(pid)

    def _by_limit(self, pid: int) -> str | None:
        _, _, rest = _read(pid, "limits").partition(_LIMIT)
        return self._tags.get(rest.split(maxsplit=1)[0]) if rest else None

    def _by_environment(self, pid: int) -> str | None:
        _, _, rest = (b"\0" + _read(pid, "environ")).partition(_VARIABLE)
        return self._run_ids.get(rest.partition(b"\0")[0]) if rest else None

    def _by_cgroup(self, pid: int) -> str | None:
        return next((self._cgroups[name] for name in (group_of(pid) or "").split("/") if name in self._cgroups), None)


def _read(pid: int, name: str) -> bytes:
    """Returns the file's content, or nothing if the process has ended or this user may not read it."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123 three times as fast, for every process
            return file.read()
    except OSError:
        return b""
