"""Where cgroups (version 2) are: that of a process, and whether we may make others below our own."""

import os
from pathlib import Path

_PROC = Path("/proc")


def own_cgroup() -> str | None:
    """Returns the directory of our cgroup where this user may make cgroups and move processes into them, else None.

    A service has that by systemd's `Delegate=yes`; root has it unless the file system is read-only, as in a container.
    """
    group = group_of(os.getpid())
    path = None if group is None else path_of(group)
    if path is None or not os.access(path, os.W_OK) or not os.access(f"{path}/cgroup.procs", os.W_OK):
        return None
    return path


def group_of(pid: int, proc: Path = _PROC) -> str | None:
    """Returns the cgroup of a process, as a path in the hierarchy of version 2, which has the number 0."""
    lines = _read(f"{proc}/{pid}/cgroup").splitlines()
    return next((line[3:] for line in lines if line.startswith("0::/")), None)


def path_of(group: str, proc: Path = _PROC) -> str | None:
    """Returns the directory of a cgroup, if a file system that is mounted shows it."""
    for line in _read(f"{proc}/self/mountinfo").splitlines():
        fields, _, rest = line.partition(" - ")
        if rest.startswith("cgroup2 "):
            _, _, _, root, point, *_ = fields.split(" ")
            root = root.rstrip("/")
            if f"{group}/".startswith(f"{root}/"):
                return os.path.normpath(f"{point}/{group.removeprefix(root)}")
    return None


def is_populated(path: str) -> bool:
    """Returns whether a process lives in a cgroup, or below it: the kernel knows, however quickly they fork."""
    return "populated 1" in _read(f"{path}/cgroup.events")


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 as in `marks`
            return os.fsdecode(file.read())
    except OSError:
        return ""
