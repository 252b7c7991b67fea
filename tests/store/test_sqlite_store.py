"""What only the store on SQLite does: where a commit runs, and what becomes of a file that fails."""

import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import apsw
import pytest

from nextslot.errors import Damaged, Unavailable
from nextslot.store.sqlite import integrity_check, sqlite_store
from nextslot.store.sqlite.sqlite_store import SqliteStore
from tests.store.bench import Bench, NewBench, is_main_thread, needs_the_event_loop, opened_bench, say, together

# Durable.


async def test_a_commit_is_on_the_disk_when_it_is_acknowledged(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        assert bench.store._writer.pragma("synchronous") == 2  # FULL
        assert bench.store._writer.pragma("journal_mode") == "wal"


# Where a commit runs.


async def test_the_event_loop_goes_on_while_a_large_work_runs(tmp_path: Path) -> None:
    async with threaded_bench(tmp_path) as bench:
        await bench.store.write(needs_the_event_loop(), rows=1001)


async def test_slow_commits_move_the_writer_off_the_event_loop(tmp_path: Path) -> None:
    async with threaded_bench(tmp_path) as bench:
        on_loop = await bench.store.write(lambda tx: is_main_thread())
        await bench.store.write(lambda tx: time.sleep(10 * sqlite_store.SLOW_COMMIT))

        await bench.store.write(needs_the_event_loop())

        assert on_loop


async def test_quick_commits_bring_the_writer_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with threaded_bench(tmp_path) as bench:
        monkeypatch.setattr(sqlite_store, "SLOW_COMMIT", 0)
        await bench.store.write(say("slow"))
        in_thread = await bench.store.write(lambda tx: not is_main_thread())
        monkeypatch.undo()
        monkeypatch.setattr(sqlite_store, "QUICK_COMMIT", 10.0)
        await bench.store.write(say("quick"))

        back = await bench.store.write(lambda tx: is_main_thread())

        assert (in_thread, back) == (True, True)


async def test_a_store_on_one_thread_stays_there(tmp_path: Path) -> None:
    bench = Bench(tmp_path, threaded=False)
    await bench.store.write(lambda tx: time.sleep(10 * sqlite_store.SLOW_COMMIT))

    places = [
        await bench.store.write(lambda tx: is_main_thread()),
        await bench.store.write(lambda tx: is_main_thread(), rows=2000),
        await bench.store.read(lambda tx: is_main_thread()),
    ]

    assert places == [True, True, True]
    await bench.store.close()


async def test_a_store_that_waits_for_a_lock_leaves_the_event_loop(tmp_path: Path) -> None:
    async with threaded_bench(tmp_path) as bench:
        bench.store._writer.set_busy_timeout(50)
        bench.other.execute("begin immediate")
        with pytest.raises(Unavailable):
            await bench.store.write(say("x"))
        bench.other.execute("rollback")

        await bench.store.write(needs_the_event_loop())


# Failure, named.


async def test_a_full_disk_is_told_and_the_next_write_works(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        await bench.store.write(say("a"))
        bench.store._writer.pragma("max_page_count", bench.store._writer.pragma("page_count"))

        answers = await together(bench, say("b"), say("x", details='"' + "x" * 1_000_000 + '"'), say("c"))

        assert [type(answer) for answer in answers] == [str, Unavailable, str]
        assert "full" in str(answers[1])
        bench.store._writer.pragma("max_page_count", 1_000_000)
        await bench.store.write(say("d", details='"' + "d" * 1_000_000 + '"'))
        assert bench.stored() == ["a", "b", "c", "d"]


async def test_a_read_only_file_is_told_and_the_next_write_works(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        bench.store._writer.pragma("query_only", True)
        answers = await together(bench, say("x"), say("y"))
        bench.store._writer.pragma("query_only", False)
        await bench.store.write(say("a"))

        assert [type(answer) for answer in answers] == [Unavailable, Unavailable]
        assert bench.stored() == ["a"]


async def test_a_locked_file_is_told_and_the_next_write_works(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        bench.store._writer.set_busy_timeout(10)
        bench.other.execute("begin immediate")
        answers = await together(bench, say("x"), say("y"))
        bench.other.execute("rollback")
        await bench.store.write(say("a"))

        assert [type(answer) for answer in answers] == [Unavailable, Unavailable]
        assert bench.stored() == ["a"]


@pytest.mark.parametrize("call", ["xWrite", "xSync"])
async def test_a_disk_that_fails_is_told_and_the_next_write_works(
    new_bench: NewBench, disk: "FailingDisk", call: str
) -> None:
    async with new_bench() as bench:
        await bench.store.write(say("a"))
        disk.failing = call
        answers = await together(bench, say("x"), say("y"))
        disk.failing = None
        await bench.store.write(say("b"))

        assert [type(answer) for answer in answers] == [Unavailable, Unavailable]
        assert bench.stored() == ["a", "b"]


@pytest.mark.parametrize("way", ["read", "write"])
async def test_damage_that_is_met_while_it_runs_is_reported_and_kept_in_mind(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integrity_check, "CHECKED_AT_ONCE_BYTES", 0)

    before = Bench(tmp_path, threaded=False)
    await before.store.write(say("a"))
    before.other.close()
    await before.store.close()
    damage(tmp_path / "nextslot.db", "nodes")
    store = SqliteStore(tmp_path / "nextslot.db", lambda tx: None, threaded=False)
    found_at_the_start = store.health.damage

    with pytest.raises(Damaged, match="damaged"):
        await getattr(store, way)(lambda tx: tx.rows("nodes.all"))

    assert found_at_the_start is None
    assert "restore a backup" in (store.health.damage or "")
    await store.close()


# Arrangement.


class FailingDisk(apsw.VFS):
    """The disk, until `failing` names a call: then the write-ahead log cannot be written, or not be synced."""

    def __init__(self) -> None:
        self.failing: str | None = None
        super().__init__("failing", "", makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> "FailingFile":
        return FailingFile(self, name, flags)


class FailingFile(apsw.VFSFile):
    def __init__(self, disk: FailingDisk, name: Any, flags: list[int]) -> None:
        super().__init__("unix", name, flags)
        self._disk = disk
        self._is_log = bool(flags[0] & apsw.SQLITE_OPEN_WAL)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._fail("xWrite")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self._fail("xSync")
        super().xSync(flags)

    def _fail(self, call: str) -> None:
        if self._is_log and self._disk.failing == call:
            raise apsw.IOError(f"{call} failed as asked")


@pytest.fixture
def disk() -> Any:
    disk = FailingDisk()
    yield disk
    disk.unregister()


def threaded_bench(directory: Path) -> AbstractAsyncContextManager[Bench]:
    return opened_bench(directory, threaded=True)


def damage(path: Path, table: str) -> None:
    """Overwrites the pages of a table."""
    connection = apsw.Connection(str(path))
    connection.pragma("wal_checkpoint(TRUNCATE)")
    size: int = connection.pragma("page_size")
    pages = connection.execute("select pageno from dbstat where name = ?", (table,)).fetchall()
    connection.close()
    with path.open("r+b") as file:
        for (page,) in pages:
            file.seek((int(str(page)) - 1) * size)
            file.write(b"\xff" * size)
