"""Writes the records of a placed run on shared storage: each record appears whole, and some can be written only once.

The scheduler and the wrapper both use this module. It is shipped with the wrapper, so it imports only a few modules of
the standard library.
"""

import contextlib
import json
import os
import socket
from typing import Any

# The first writer of a claim, the wrapper or the scheduler, decides whether the run can ever start.
CLAIM, END, LEASE, STOP, REQUEST = "claim.json", "end.json", "lease", "stop.json", "request.json"
OUTPUT, ARTIFACTS, CHECKPOINT = "output", "artifacts", "checkpoint"


def write_once(directory: str, name: str, record: dict[str, Any]) -> bool:
    """Writes a record unless one of that name exists. Returns whether this call has written the record.

    Every file system with hard links, NFS included, creates or refuses a hard link in one step. NFS may lose the
    answer, so the number of links of the temporary file says whether the link was created.
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
    """Replaces a file in one step: a reader sees either the older or the newer content."""
    temporary = _temporary(directory, name, content)
    try:
        os.rename(temporary, f"{directory}/{name}")
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_directory(directory)


def read(directory: str, name: str) -> dict[str, Any] | None:
    """Returns a record; None if it does not exist. Raises OSError if the storage does not answer."""
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
        with contextlib.suppress(OSError):  # Some file systems cannot sync a directory.
            os.fsync(fd)
    finally:
        os.close(fd)
