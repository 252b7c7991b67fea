"""Writes the records of a placed run on shared storage: each appears whole, and some can be written only once.

The scheduler and the wrapper both use it; the wrapper is shipped, so this imports a few modules of the standard library
only.
"""

import contextlib
import json
import os
import socket
from typing import Any

# Who claims a run first, its wrapper or the scheduler, decides whether it can ever start.
CLAIM, END, LEASE, STOP, REQUEST = "claim.json", "end.json", "lease", "stop.json", "request.json"
OUTPUT, ARTIFACTS, CHECKPOINT = "output", "artifacts", "checkpoint"


def write_once(directory: str, name: str, record: dict[str, Any]) -> bool:
    """Writes a record unless there is one of that name. Returns whether this call has written it.

    A hard link is made or refused in one step on every file system that has them, NFS included, where the answer may
    be lost: the number of links of the temporary file says whether it was made.
    """
    temporary = _temporary(directory, name, json.dumps(record).encode())
    try:
        with contextlib.suppress(FileExistsError):
            os.link(temporary, f"{directory}/{name}")
        is_ours = os.stat(temporary).st_nlink == 2
    finally:
        os.unlink(temporary)
    _sync_directory(directory)
    return is_ours


def replace(directory: str, name: str, content: bytes) -> None:
    """Writes a file in place of an older one; a reader sees the one or the other."""
    temporary = _temporary(directory, name, content)
    try:
        os.rename(temporary, f"{directory}/{name}")
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_directory(directory)


def read(directory: str, name: str) -> dict[str, Any] | None:
    """Returns a record; None if there is none. Raises OSError if the storage does not answer."""
    try:
        with open(f"{directory}/{name}", "rb") as file:
            found = json.loads(file.read())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise OSError(f"{name} is no record: {error}") from error
    return found if isinstance(found, dict) else None


def _temporary(directory: str, name: str, content: bytes) -> str:
    path = f"{directory}/.{name}.{socket.gethostname()}.{os.getpid()}.{os.urandom(6).hex()}"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    return path


def _sync_directory(directory: str) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # Some file systems cannot; they say nothing about a lost record either.
            os.fsync(fd)
    finally:
        os.close(fd)
