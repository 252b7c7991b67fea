"""A disk that fails or is recorded, and a wrong clock, below a real process: compiles and directs `faulty_machine.c`.

`scripts/chaos.py` makes the machines of its servers fail with it; `tests/crash/power_cut.py` reads what it records.
"""

import functools
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("faulty_machine.c")
FAULTS = ("read fails", "write fails", "disk full", "short write", "sync fails", "open fails")
# `struct control` of the library: how often of a million, two unused numbers, how often it happened, the clock.
_LAYOUT = struct.Struct("=6I8x6Qq")
_CLOCK_AT = 80


class FaultyMachine:
    """How often the disk below a directory fails, and how wrong the clock is.

    A process that began with `environment` follows each change.
    """

    def __init__(self, root: Path, file: Path) -> None:
        self._root, self._file = root, file
        file.write_bytes(bytes(_LAYOUT.size))
        with file.open("r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), _LAYOUT.size)

    def environment(self) -> dict[str, str]:
        variables = {"NEXTSLOT_DISK_ROOT": str(self._root), "NEXTSLOT_DISK_CONTROL": str(self._file)}
        return {"LD_PRELOAD": str(library()), **variables}

    def fail(self, share: Mapping[str, float]) -> None:
        """Sets the share of operations that fail, by kind; kinds that are not named never fail."""
        for number, kind in enumerate(FAULTS):
            struct.pack_into("=I", self._map, 4 * number, round(share.get(kind, 0) * 1_000_000))

    def set_clock(self, ahead: int) -> None:
        """Sets how many seconds the wall clock is ahead. Monotonic clocks stay right."""
        struct.pack_into("=q", self._map, _CLOCK_AT, ahead)

    def happened(self) -> dict[str, int]:
        return dict(zip(FAULTS, _LAYOUT.unpack_from(self._map)[6:12], strict=True))


def recorded(root: Path, record: Path) -> dict[str, str]:
    """Returns the environment of a process that records each change below `root`."""
    return {"LD_PRELOAD": str(library()), "NEXTSLOT_DISK_ROOT": str(root), "NEXTSLOT_DISK_RECORD": str(record)}


@functools.cache
def library() -> Path:
    """Returns the compiled library. Without a compiler, a test is skipped, but not where all tests must run."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        if os.environ.get("CI") == "true":
            pytest.fail("there is no C compiler: apt-get install gcc libc6-dev")
        pytest.skip("there is no C compiler")
    made = Path(tempfile.mkdtemp(prefix="nextslot-machine-")) / "faulty_machine.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(made), str(SOURCE), "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    # PostgreSQL runs as another user and loads it too.
    made.parent.chmod(0o755)
    return made
