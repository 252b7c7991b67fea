"""A disk that fails on request and forgets what was not synced, and a store on it that can lose its power.

The faults are injected below SQLite, through its file interface, so SQLite reacts as it would to real ones.
`nextslot.testing.simulation` calls this module. `ForgetfulFiles` does the same for files that Python writes.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import apsw

from nextslot.store.contract import Closing, Effect, Effects, Tx, Work, wall_clock
from nextslot.store.group_commit import WorkResult
from nextslot.store.sqlite.sqlite_store import SqliteStore, SqliteTx, connect, migrate

T = TypeVar("T")

_ERRORS: dict[str, type[apsw.Error]] = {"full": apsw.FullError, "io": apsw.IOError, "busy": apsw.BusyError}


class PowerCut(BaseException):
    """Raised at a simulated power cut: nothing that this process does from now on reaches the disk."""


class FaultyDisk(apsw.VFS):
    """SQLite's usual disk with faults. A test arms a fault, and the next transaction meets it."""

    _made = 0

    def __init__(self, chance: Random | None = None) -> None:
        FaultyDisk._made += 1
        self._chance = chance or Random(0)
        self._files: list[_FaultyFile] = []
        self.name = f"faulty-{FaultyDisk._made}"
        self.mode: str | None = None
        # How many writes succeed before the fault occurs.
        self.countdown = 0
        self.is_dead = False
        self.on_death: Callable[[], None] = lambda: None
        super().__init__(self.name, "")

    def arm(self, mode: str, countdown: int = 0) -> None:
        """Arms a fault. `full`, `io`, `busy`: writes fail until `heal`. `sync`: one sync succeeds but reports a
        failure.

        `tear`: the power fails in the middle of a write.
        """
        self.mode, self.countdown = mode, countdown

    def heal(self) -> None:
        self.mode = None

    def die(self) -> None:
        """Cuts the power. Half of the time some of the writes that were not synced are forgotten, in any order."""
        if not self.is_dead:
            self.is_dead = True
            share = self._chance.choice((0.0, 0.0, 0.5, 1.0))
            for file in self._files:
                file.forget(lambda: self._chance.random() < share)
            self.on_death()

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> "_FaultyFile":  # noqa: N802
        file = _FaultyFile(self, name, flags)
        self._files.append(file)
        return file

    def closed(self, file: "_FaultyFile") -> None:
        self._files = [one for one in self._files if one is not file]

    def meets(self, *modes: str) -> str | None:
        if self.is_dead:
            raise apsw.IOError("simulated power cut")
        if self.mode in modes:
            self.countdown -= 1
            if self.countdown < 0:
                return self.mode
        return None


class _FaultyFile(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        # For each write that is not synced yet: its offset, and the bytes that were there before.
        self._unsynced: list[tuple[int, bytes]] = []
        super().__init__("", name, flags)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        met = self._disk.meets(*_ERRORS, "tear")
        if met == "tear":
            super().xWrite(bytes(data)[: len(data) // 2], offset)
            self._disk.die()
            raise apsw.IOError("simulated power cut")
        if met is not None:
            raise _ERRORS[met](f"simulated fault: {met}")
        self._unsynced.append((offset, self._content(len(data), offset)))
        super().xWrite(data, offset)

    def _content(self, length: int, offset: int) -> bytes:
        """Returns the stored bytes of a range. Beyond the end they are zeros, as in a file where nothing was
        written.
        """
        here = max(0, min(length, self.xFileSize() - offset))
        return bytes(self.xRead(here, offset) if here else b"").ljust(length, b"\0")

    def forget(self, is_forgotten: Callable[[], bool]) -> None:
        """Undoes some of the writes that were not synced, the newest first."""
        for offset, before in reversed(self._unsynced):
            if is_forgotten():
                super().xWrite(before, offset)
        self._unsynced.clear()

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self._unsynced.clear()
        super().xTruncate(newsize)

    def xClose(self) -> None:  # noqa: N802
        self._disk.closed(self)
        super().xClose()

    def xSync(self, flags: int) -> None:  # noqa: N802
        """Marks everything that was written before as safe. It need not wait for the real disk."""
        self._unsynced.clear()
        if self._disk.meets("sync"):
            self._disk.heal()
            raise apsw.IOError("simulated fault: the sync failed")


class FaultyStore(SqliteStore):
    """A store on a faulty disk. It reports every commit, and can lose its power before or after a given commit."""

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
        # The power fails after this many transactions: before the commit, or between the commit and its effects.
        self.dies_in: int | None = None
        self.dies_before_commit = True
        # How long the next commit takes; work that is due meanwhile is late.
        self.delay = 0.0
        # How many turns of the event loop pass between a read, or a commit, and its answer. Others commit in the
        # meantime.
        self.turns: Callable[[], int] = lambda: 0
        super().__init__(
            path, self._close_or_die, effects=effects, opening=opening, threaded=False, vfs=disk.name, now=now
        )
        self._close_normally = closing

    async def read(self, work: Work[T], /, *, is_small: bool = False) -> T:
        found = await super().read(work, is_small=is_small)
        await self._let_others_go()
        return found

    async def write(self, work: Work[T], /, *, rows: int = 1) -> T:
        done = await super().write(work, rows=rows)
        await self._let_others_go()
        return done

    async def _let_others_go(self) -> None:
        for _ in range(self.turns()):
            await asyncio.sleep(0)

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

    def inspect(self, work: Work[Any]) -> Any:
        """Reads the stored data for a checker, even after the store has failed."""
        return work(SqliteTx(self._writer))

    @property
    def changes(self) -> int:
        """Returns how many rows this store has changed; while it stays the same, so does the stored data."""
        return self._writer.total_changes()

    def _close_connections(self) -> None:
        # A checkpoint would meet the faults too, and SQLite does not report them when it closes.
        self._writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        super()._close_connections()

    def _close_or_die(self, tx: Tx) -> None:
        self._close_normally(tx)
        if self.delay:
            asyncio.get_running_loop().seconds += self.delay  # type: ignore[attr-defined]
            self.delay = 0.0
        if self.dies_in is not None and self.dies_in < 0 and self.dies_before_commit:
            self._die()

    def _die(self) -> None:
        self._disk.die()
        raise PowerCut


def create_empty(path: Path) -> None:
    """Creates a database with empty tables, from a cached copy: creating the tables costs as much as ten commits."""
    path.parent.mkdir(parents=True)
    path.write_bytes(_empty())


@cache
def _empty() -> bytes:
    with tempfile.TemporaryDirectory(prefix="nextslot-empty-") as place:
        path = Path(place) / "nextslot.db"
        connection = connect(path, "OFF")
        migrate(connection)
        connection.close()  # Closing writes its log into the file.
        return path.read_bytes()


def salvage(path: Path, target: Path) -> None:
    """Copies what a power cut leaves of a database: the file, its log and the record of its commits, but not the shared
    memory. The next start refuses the file if the record was ever ahead of it.
    """
    target.parent.mkdir(parents=True)
    for suffix in ("", "-wal", ".commits"):
        source = path.with_name(path.name + suffix)
        if source.exists():
            shutil.copyfile(source, target.with_name(target.name + suffix))


def dump(path: Path) -> str:
    """Returns all stored data as text, to compare two databases. Leaves out which process wrote it."""
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


class ForgetfulFiles:
    """The files of a directory as a power cut would leave them: only what was synced is certain to be there.

    Inside this context `os.fsync` of a file remembers its content, and of the directory its names. `left` then writes
    one of the directories that a power cut could leave: with the current names, or with the synced ones.
    """

    def __init__(self, directory: Path, synced: Callable[[], None] = lambda: None) -> None:
        self._directory = directory
        self._synced = synced
        self._contents = {path.stat().st_ino: path.read_bytes() for path in directory.iterdir() if path.is_file()}
        self._names = self._current_names()
        self._fsync = os.fsync
        # A new file gets the inode of a deleted one, unless some process still has that file open.
        self._held = [path.open("rb") for path in directory.iterdir() if path.is_file()]

    def __enter__(self) -> "ForgetfulFiles":
        os.fsync = self._remember  # type: ignore[assignment]  # It takes the same, under another name.
        return self

    def __exit__(self, *error: object) -> None:
        os.fsync = self._fsync
        for file in self._held:
            file.close()

    def left(self, target: Path, has_current_names: bool) -> Path:
        """Writes what a power cut would leave into another directory, and returns that directory."""
        target.mkdir(parents=True)
        for name, inode in (self._current_names() if has_current_names else self._names).items():
            (target / name).write_bytes(self._contents.get(inode, b""))
        return target

    def _remember(self, file: Any) -> None:
        descriptor = file if isinstance(file, int) else file.fileno()
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path == self._directory:
            self._names = self._current_names()
        elif path.parent == self._directory:
            self._contents[path.stat().st_ino] = path.read_bytes()
            self._held.append(path.open("rb"))
        self._synced()

    def _current_names(self) -> dict[str, int]:
        return {path.name: path.stat().st_ino for path in self._directory.iterdir() if path.is_file()}
