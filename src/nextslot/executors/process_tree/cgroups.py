"""Finds, enters, kills and removes cgroups (version 2). The guardian program and the scheduler both use it."""

import contextlib
import errno
import os
from collections.abc import Iterable, Mapping

# Tests read another directory.
Proc = str | os.PathLike[str]
# Where the scheduler's own processes go when the cgroups of its commands have limits.
OWN_PART = "scheduler"


def own_cgroup() -> str | None:
    """Returns the directory of this process's cgroup if this user may create cgroups in it and move processes into
    them, else None.

    A service may do so with systemd's `Delegate=yes`. Root may do so unless the file system is read-only, as in a
    container.
    """
    group = group_of(os.getpid())
    path = None if group is None else path_of(group)
    if path is not None and os.path.basename(path) == OWN_PART:  # noqa: PTH119 as below
        path = os.path.dirname(path)  # noqa: PTH120 as below
    if path is None or not os.access(path, os.W_OK) or not os.access(f"{path}/cgroup.procs", os.W_OK):
        return None
    return path


def group_of(pid: int, proc: Proc = "/proc") -> str | None:
    """Returns the cgroup of a process as a path in the version 2 hierarchy, which the kernel lists under the number
    0."""
    lines = _read(f"{proc}/{pid}/cgroup").splitlines()
    return next((line[3:] for line in lines if line.startswith("0::/")), None)


def path_of(group: str, proc: Proc = "/proc") -> str | None:
    """Returns the directory of a cgroup, or None if no mounted file system shows it."""
    for line in _read(f"{proc}/self/mountinfo").splitlines():
        fields, _, rest = line.partition(" - ")
        if rest.startswith("cgroup2 "):
            _, _, _, root, point, *_ = fields.split(" ")
            root = root.rstrip("/")
            if f"{group}/".startswith(f"{root}/"):
                return os.path.normpath(f"{point}/{group.removeprefix(root)}")
    return None


def is_populated(path: str) -> bool:
    """Returns whether a process runs in a cgroup or below it. The kernel keeps this flag, so quick forks cannot
    hide."""
    return "populated 1" in _read(f"{path}/cgroup.events")


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 pathlib costs the guardian more than all the rest
            return os.fsdecode(file.read())
    except OSError:
        return ""


def enter_cgroup(path: str, limits: Mapping[str, str]) -> None:
    """Creates a cgroup with these limits and moves this process into it. Raises OSError if a limit cannot be set."""
    if path:
        with contextlib.suppress(OSError):
            os.mkdir(path)  # noqa: PTH102 as above
        for name, value in limits.items():
            _write(f"{path}/{name}", value)
        with contextlib.suppress(OSError) if not limits else contextlib.nullcontext():
            _write(f"{path}/cgroup.procs", str(os.getpid()))
    elif limits:
        raise OSError(errno.EPERM, "the limits of the sandbox need a cgroup, and none can be made")


def enable_controllers(path: str, wanted: Iterable[str]) -> set[str]:
    """Lets the cgroups below one limit memory, processors or processes. Returns the controllers that are not there.

    The kernel allows this only while no process is in the cgroup itself, so this moves the scheduler's processes into a
    part of it.
    """
    missing = set(wanted) - set(_read(f"{path}/cgroup.controllers").split())
    new = set(wanted) - missing - set(_read(f"{path}/cgroup.subtree_control").split())
    if new and not missing:
        own = f"{path}/{OWN_PART}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(own)  # noqa: PTH102 as above
        for pid in _read(f"{path}/cgroup.procs").split():
            with contextlib.suppress(ProcessLookupError):
                _write(f"{own}/cgroup.procs", pid)
        _write(f"{path}/cgroup.subtree_control", " ".join(f"+{name}" for name in sorted(new)))
    return missing


def kill_cgroup(path: str) -> None:
    """Kills every process of a cgroup at once, those that are being forked included (Linux 5.14)."""
    if path:
        with contextlib.suppress(OSError):
            _write(f"{path}/cgroup.kill", "1")


def remove_cgroup(path: str) -> None:
    if path:
        with contextlib.suppress(OSError):
            os.rmdir(path)  # noqa: PTH106 as above


def _write(path: str, words: str) -> None:
    with open(path, "w") as file:  # noqa: PTH123 as above
        file.write(words)
