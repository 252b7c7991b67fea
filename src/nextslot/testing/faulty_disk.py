"""A disk that fails when it is told to, and a store on it that can lose its power: for simulation only.

The faults are SQLite's own: they come from below it, through its file interface, so that what it does about them is
what it does in life. Called by `nextslot.testing.simulation`.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import apsw

from nextslot.store.contract import (
    Closing,
    Effect,
    Effects,
    Tx,
    Work,
)
from nextslot.store.group_commit import WorkResult
from nextslot.store.health import wall_clock
from nextslot.store.sqlite.sqlite_store import (
    SqliteStore,
    SqliteTx,
    connect,
    migrate,
)

_ERRORS: dict[str, type[apsw.Error]] = {"full": apsw.FullError, "io": apsw.IOError, "busy": apsw.BusyError}


class PowerCut(BaseException):
    """Nothing that this process does from now on reaches the disk."""


class FaultyDisk(apsw.VFS):
    """SQLite's usual disk, with faults: armed by the driver, met by whichever transaction comes next."""

    _made = 0

    def __init__(self) -> None:
        FaultyDisk._made += 1
        self.name = f"faulty-{FaultyDisk._made}"
        self.mode: str | None = None
        # After how many writes the fault is met, and whether what is armed ends with the first that meets it.
        self.countdown = 0
        self.is_dead = False
        self.on_death: Callable[[], None] = lambda: None
        super().__init__(self.name, "")

    def arm(self, mode: str, countdown: int = 0) -> None:
        """`full`, `io`, `busy`: writes fail until `heal`. `sync`: one sync does its work, and says that it failed.

        `tear`: the power goes in the middle of a write.
        """
        self.mode, self.countdown = mode, countdown

    def heal(self) -> None:
        self.mode = None

    def die(self) -> None:
        if not self.is_dead:
            self.is_dead = True
            self.on_death()

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> "_FaultyFile":  # noqa: N802
        return _FaultyFile(self, name, flags)

    def meets(self, *modes: str) -> str | None:
        if self.is_dead:
            raise apsw.IOError("the power is gone")
        if self.mode in modes:
            self.countdown -= 1
            if self.countdown < 0:
                return self.mode
        return None


class _FaultyFile(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        super().__init__("", name, flags)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        met = self._disk.meets(*_ERRORS, "tear")
        if met == "tear":
            super().xWrite(bytes(data)[: len(data) // 2], offset)
            self._disk.die()
            raise apsw.IOError("the power is gone")
        if met is not None:
            raise _ERRORS[met](f"{met}, as was asked for")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        """Nothing is synced for real: what a power cut leaves is what was written until then."""
        if self._disk.meets("sync"):
            self._disk.heal()
            raise apsw.IOError("the sync failed, as was asked for")


class FaultyStore(SqliteStore):
    """A store on such a disk, which tells of every commit, and dies before or after the one that it is told."""

    def __init__(
        self,
        path: Path,
        closing: Closing,
        effects: Effects,
        disk: FaultyDisk,
        committed: Callable[[Tx], None],
        opening: Work[None] = lambda tx: None,
        now: Callable[[], int] = wall_clock,
    ) -> None:
        self._disk = disk
        self._committed = committed
        # The power goes so many transactions from now: before the commit, or between it and what is to follow it.
        self.dies_in: int | None = None
        self.dies_before_commit = True
        # The next commit takes so long; what is due meanwhile is late.
        self.delay = 0.0
        super().__init__(
            path, self._close_or_die, effects=effects, opening=opening, threaded=False, vfs=disk.name, now=now
        )
        self._close_rightly = closing

    def transaction(self, works: list[Work[Any]]) -> tuple[list[WorkResult], list[Effect]]:
        if self.dies_in is not None:
            self.dies_in -= 1
        try:
            done = super().transaction(works)
            if self._disk.is_dead or (self.dies_in is not None and self.dies_in < 0):
                self._die()
        except Exception:
            if self._disk.is_dead:
                raise PowerCut from None
            raise
        self._committed(SqliteTx(self._writer))
        return done

    def look(self, work: Work[Any]) -> Any:
        """Reads what is stored, for a checker, whatever has become of the store."""
        return work(SqliteTx(self._writer))

    @property
    def changes(self) -> int:
        """How many rows this life has changed: as long as it stays the same, so does all that is stored."""
        return self._writer.total_changes()

    def _close_connections(self) -> None:
        # A checkpoint would meet the faults too, and SQLite does not tell of them when it closes.
        self._writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        super()._close_connections()

    def _close_or_die(self, tx: Tx) -> None:
        self._close_rightly(tx)
        if self.delay:
            asyncio.get_running_loop().seconds += self.delay  # type: ignore[attr-defined]
            self.delay = 0.0
        if self.dies_in is not None and self.dies_in < 0 and self.dies_before_commit:
            self._die()

    def _die(self) -> None:
        self._disk.die()
        raise PowerCut


def lay_out(path: Path) -> None:
    """A database with its tables and nothing in them, for a first life: to make them costs as much as ten commits."""
    path.parent.mkdir(parents=True)
    path.write_bytes(_empty())


@cache
def _empty() -> bytes:
    with tempfile.TemporaryDirectory(prefix="nextslot-empty-") as place:
        path = Path(place) / "nextslot.db"
        connection = connect(path, "OFF")
        migrate(connection)
        connection.close()  # Which brings its log into the file.
        return path.read_bytes()


def salvage(path: Path, target: Path) -> None:
    """What a power cut leaves of a database: the file, its log and the record of its commits as they are, and nothing
    of the shared memory. The next life refuses the file if the record was ever ahead of it."""
    target.parent.mkdir(parents=True)
    for suffix in ("", "-wal", ".commits"):
        source = path.with_name(path.name + suffix)
        if source.exists():
            shutil.copyfile(source, target.with_name(target.name + suffix))


def dump(path: Path) -> str:
    """Everything that is stored, as text: two databases are the same if these are. But not which process wrote it."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        tables = [
            name
            for (name,) in connection.execute("select name from sqlite_master where type = 'table' order by 1")
            if name != "nodes"
        ]
        return "\n".join(
            f"{table} {row!r}"
            for table in tables
            for row in sorted(connection.execute(f'select * from "{table}"'), key=repr)
        )
    finally:
        connection.close()
