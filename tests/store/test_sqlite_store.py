"""The contract of `store/store.py` on SQLite: what `write` and `read` promise, on one thread and on several."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import apsw
import pytest

from nextslot.clock import Instant
from nextslot.errors import Conflict, Refused, StoreError, Unavailable
from nextslot.store import events, sqlite
from nextslot.store.sqlite import SqliteStore
from nextslot.store.store import Tx

T = TypeVar("T")


class Bench:
    """A store whose transactions are counted, and another connection that sees what is committed."""

    def __init__(self, directory: Path, *, threaded: bool) -> None:
        self.path = directory / "nextslot.db"
        self.closings = 0
        self.commits = 0
        self.at_closing: Callable[[Tx], None] = lambda tx: None
        self.store = SqliteStore(self.path, self._closing, threaded=threaded)
        self.writer = self.store._writer
        self.writer.set_wal_hook(self._committed)
        self.other = apsw.Connection(str(self.path))

    def _closing(self, tx: Tx) -> None:
        self.closings += 1
        self.at_closing(tx)

    def _committed(self, connection: apsw.Connection, name: str, pages: int) -> int:
        self.commits += 1
        return apsw.SQLITE_OK

    def stored(self) -> list[str]:
        """The words that are committed, as somebody else sees them."""
        return [str(row[0]) for row in self.other.execute("select type from events order by seq")]


Main = Callable[[Bench], Awaitable[None]]
Run = Callable[[Main], None]


@pytest.fixture(params=[True, False], ids=["threaded", "one thread"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Runs a test's body with a store on a real event loop."""

    def run(main: Main) -> None:
        async def body() -> None:
            bench = Bench(tmp_path, threaded=request.param)
            try:
                await main(bench)
            finally:
                await bench.store.close()

        asyncio.run(body())

    return run


# Writing.


def test_what_is_written_is_durable_when_write_returns(run: Run) -> None:
    async def main(bench: Bench) -> None:
        answer = await bench.store.write(say("a", answer=42))

        assert answer == 42
        assert bench.stored() == ["a"]
        assert bench.writer.pragma("synchronous") == 2  # FULL
        assert bench.writer.pragma("journal_mode") == "wal"

    run(main)


def test_works_that_wait_together_are_committed_together_in_their_order(run: Run) -> None:
    async def main(bench: Bench) -> None:
        answers = await asyncio.gather(*(bench.store.write(say(word, answer=word)) for word in "abcdef"))

        assert answers == list("abcdef")
        assert bench.stored() == list("abcdef")
        assert bench.commits == 1

    run(main)


def test_a_refusal_is_its_callers_only_and_costs_the_others_nothing(run: Run) -> None:
    async def main(bench: Bench) -> None:
        answers = await together(bench, say("a"), refuse, say("b"))

        assert [type(answer) for answer in answers] == [str, Conflict, str]
        assert bench.stored() == ["a", "b"]
        assert bench.commits == 1

    run(main)


def test_an_error_after_changes_leaves_nothing_and_takes_no_other_with_it(run: Run) -> None:
    async def main(bench: Bench) -> None:
        answers = await together(bench, say("a"), say_and_raise("x", ValueError("no")), say("b"))

        assert [type(answer) for answer in answers] == [str, ValueError, str]
        assert bench.stored() == ["a", "b"]

    run(main)


def test_a_refusal_after_changes_leaves_nothing_and_takes_no_other_with_it(run: Run) -> None:
    async def main(bench: Bench) -> None:
        answers = await together(bench, say("a"), say_and_raise("x", Conflict("no")), say("b"))

        assert [type(answer) for answer in answers] == [str, Conflict, str]
        assert bench.stored() == ["a", "b"]

    run(main)


def test_a_refusal_leaves_nothing_in_memory_either(run: Run) -> None:
    """What a work noted beside the database (events to append, calls to make) goes with it."""

    async def main(bench: Bench) -> None:
        called: list[str] = []
        bench.at_closing = lambda tx: events.append(tx, tx.local(Noted).values)

        def calls_and_refuses(tx: Tx) -> None:
            tx.after_commit(lambda: called.append("x"))
            raise Conflict("no")

        def notes_and_refuses(tx: Tx) -> None:
            tx.local(Noted).values.append(event("x"))
            raise Conflict("no")

        await together(bench, say("a"), calls_and_refuses, notes_and_refuses, say("b"))
        await together(bench, calls_and_refuses)
        await together(bench, notes_and_refuses)

        assert (bench.stored(), called) == (["a", "b"], [])

    run(main)


def test_what_a_deferred_constraint_finds_at_the_commit_takes_no_other_with_it(run: Run) -> None:
    async def main(bench: Bench) -> None:
        def leaves_maintenance_on(tx: Tx) -> None:
            say("x")(tx)
            tx.run("maintenance.begin", reason="forgotten")

        answers = await together(bench, say("a"), leaves_maintenance_on, say("b"))

        assert [type(answer) for answer in answers] == [str, Refused, str]
        assert "FOREIGN KEY" in str(answers[1])
        assert bench.stored() == ["a", "b"]

    run(main)


def test_every_work_may_fail_and_the_store_goes_on(run: Run) -> None:
    async def main(bench: Bench) -> None:
        answers = await together(bench, *(say_and_raise("x", ValueError(word)) for word in "abc"))

        assert [str(answer) for answer in answers] == ["a", "b", "c"]
        assert await bench.store.write(say("d", answer=1)) == 1
        assert bench.stored() == ["d"]

    run(main)


def test_a_work_that_raises_StopIteration_fails_alone(run: Run) -> None:
    """A future cannot carry it; the callers behind it must not wait for ever."""

    async def main(bench: Bench) -> None:
        def looks_for_what_is_not_there(tx: Tx) -> None:
            next(iter(()))

        answers = await asyncio.wait_for(together(bench, say("a"), looks_for_what_is_not_there, say("b")), 5)

        assert [type(answer) for answer in answers] == [str, RuntimeError, str]
        assert bench.stored() == ["a", "b"]

    run(main)


def test_a_work_sees_what_it_wrote_and_how_many_rows_changed(run: Run) -> None:
    async def main(bench: Bench) -> None:
        def work(tx: Tx) -> tuple[object, ...]:
            say("a")(tx)
            changes = [tx.run("limits.pause", scope="type", name="t", now=1) for _ in range(2)]
            return events.last(tx), tx.rows("limits.pauses"), changes, tx.row("jobs.get", job_id="nobody")

        assert await bench.store.write(work) == (1, [("type", "t")], [1, 0], None)

    run(main)


# After the commit.


def test_what_follows_a_commit_happens_once_in_order_and_on_the_event_loop(run: Run) -> None:
    async def main(bench: Bench) -> None:
        seen: list[tuple[str, list[str], bool]] = []

        def tell(word: str) -> None:
            seen.append((word, bench.stored(), threading.current_thread() is threading.main_thread()))

        def work(tx: Tx, word: str) -> None:
            say(word)(tx)
            tx.after_commit(lambda: tell(word + "1"))
            tx.after_commit(lambda: tell(word + "2"))

        await together(bench, lambda tx: work(tx, "a"), lambda tx: work(tx, "b"), rows=2000)

        both = ["a", "b"]
        assert [word for word, _, _ in seen] == ["a1", "a2", "b1", "b2"]
        assert [stored for _, stored, _ in seen] == [["a"], ["a"], both, both]
        assert all(is_on_loop for _, _, is_on_loop in seen)

    run(main)


def test_a_work_that_is_run_again_is_followed_once(run: Run) -> None:
    async def main(bench: Bench) -> None:
        runs, followed = [], []

        def work(tx: Tx, word: str) -> None:
            runs.append(word)
            say(word)(tx)
            tx.after_commit(lambda: followed.append(word))

        await together(bench, lambda tx: work(tx, "a"), say_and_raise("x", ValueError()), lambda tx: work(tx, "b"))

        assert (runs, followed) == (["a", "a", "b"], ["a", "b"])
        assert bench.stored() == ["a", "b"]

    run(main)


def test_nothing_follows_a_rollback(run: Run) -> None:
    async def main(bench: Bench) -> None:
        followed = []

        def work(tx: Tx) -> None:
            tx.after_commit(lambda: followed.append("x"))
            say_and_raise("x", ValueError())(tx)

        for works in ([work], [work, say("a")]):
            await together(bench, *works)

        assert followed == []

    run(main)


def test_what_follows_a_commit_is_done_before_the_caller_goes_on(run: Run) -> None:
    async def main(bench: Bench) -> None:
        order = []

        await bench.store.write(lambda tx: tx.after_commit(lambda: order.append("followed")))
        order.append("returned")

        assert order == ["followed", "returned"]

    run(main)


def test_a_call_that_fails_after_the_commit_keeps_no_caller_waiting(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main(bench: Bench) -> None:
        def work(tx: Tx) -> None:
            say("a")(tx)
            tx.after_commit(lambda: 1 // 0)  # type: ignore[arg-type]

        await asyncio.wait_for(together(bench, work, say("b")), 5)

        assert await asyncio.wait_for(bench.store.write(say("c", answer=1)), 5) == 1
        assert bench.stored() == ["a", "b", "c"]

    run(main)
    assert "what was to follow a commit failed" in caplog.text


# Closing a transaction.


def test_closing_runs_once_for_each_transaction_before_its_commit(run: Run) -> None:
    async def main(bench: Bench) -> None:
        bench.at_closing = say("closed")

        await together(bench, say("a"), say("b"))
        await together(bench, say("c"))

        assert bench.stored() == ["a", "b", "closed", "c", "closed"]
        assert (bench.closings, bench.commits) == (2, 2)

    run(main)


def test_an_error_while_closing_leaves_nothing_behind(run: Run) -> None:
    async def main(bench: Bench) -> None:
        bench.at_closing = say_and_raise("x", ValueError("cannot close"))
        answers = await together(bench, say("a"), say("b"))
        bench.at_closing = lambda tx: None
        await together(bench, say("c"))

        assert [str(answer) for answer in answers] == ["cannot close", "cannot close"]
        assert bench.stored() == ["c"]

    run(main)


def test_what_lives_with_a_transaction_is_one_for_its_works_and_new_for_the_next(run: Run) -> None:
    async def main(bench: Bench) -> None:
        first, second = await together(bench, lambda tx: tx.local(Noted), lambda tx: tx.local(Noted))
        [third] = await together(bench, lambda tx: tx.local(Noted))

        assert first is second
        assert first is not third

    run(main)


# Callers.


def test_a_caller_that_is_cancelled_takes_nothing_from_the_others(run: Run) -> None:
    async def main(bench: Bench) -> None:
        tasks = [asyncio.create_task(bench.store.write(say(word, answer=word))) for word in "abc"]
        await asyncio.sleep(0)
        tasks[1].cancel()

        answers = await asyncio.gather(*tasks, return_exceptions=True)

        assert answers[0] == "a"
        assert answers[2] == "c"
        assert isinstance(answers[1], asyncio.CancelledError)
        assert bench.stored() == ["a", "b", "c"]

    run(main)


def test_a_caller_that_is_cancelled_during_the_commit_takes_nothing_from_the_others(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        loop, is_inside, may_go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def work(tx: Tx) -> str:
            loop.call_soon_threadsafe(is_inside.set)
            assert may_go_on.wait(5)
            return str(say("a")(tx))

        tasks = [asyncio.create_task(bench.store.write(work, rows=2000))]
        tasks.append(asyncio.create_task(bench.store.write(say("b"))))
        await is_inside.wait()
        tasks[0].cancel()
        may_go_on.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)

        assert [type(answer) for answer in answers] == [asyncio.CancelledError, str]
        assert bench.stored() == ["a", "b"]

    run_threaded(tmp_path, main)


def test_a_large_work_runs_alone(run: Run) -> None:
    async def main(bench: Bench) -> None:
        tasks = [bench.store.write(say(word), rows=rows) for word, rows in (("a", 1), ("b", 1001), ("c", 1), ("d", 1))]
        await asyncio.gather(*tasks)

        assert bench.stored() == ["a", "b", "c", "d"]
        assert bench.commits == 3

    run(main)


def test_a_group_holds_a_thousand_rows(run: Run) -> None:
    async def main(bench: Bench) -> None:
        await together(bench, say("a"), say("b"), rows=500)
        one = bench.commits
        await together(bench, say("c"), say("d"), say("e"), rows=500)

        assert (one, bench.commits - one) == (1, 2)

    run(main)


# Where a commit runs.


def test_the_event_loop_goes_on_while_a_large_work_runs(tmp_path: Path) -> None:
    run_threaded(tmp_path, lambda bench: bench.store.write(needs_the_event_loop(), rows=1001))


def test_slow_commits_move_the_writer_off_the_event_loop(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        on_loop = await bench.store.write(lambda tx: is_main_thread())
        await bench.store.write(lambda tx: time.sleep(10 * sqlite.SLOW_COMMIT))

        await bench.store.write(needs_the_event_loop())

        assert on_loop

    run_threaded(tmp_path, main)


def test_quick_commits_bring_the_writer_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(bench: Bench) -> None:
        monkeypatch.setattr(sqlite, "SLOW_COMMIT", 0)
        await bench.store.write(say("slow"))
        in_thread = await bench.store.write(lambda tx: not is_main_thread())
        monkeypatch.undo()
        monkeypatch.setattr(sqlite, "QUICK_COMMIT", 10.0)
        await bench.store.write(say("quick"))

        back = await bench.store.write(lambda tx: is_main_thread())

        assert (in_thread, back) == (True, True)

    run_threaded(tmp_path, main)


def test_a_store_on_one_thread_stays_there(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, threaded=False)
        await bench.store.write(lambda tx: time.sleep(10 * sqlite.SLOW_COMMIT))

        places = [
            await bench.store.write(lambda tx: is_main_thread()),
            await bench.store.write(lambda tx: is_main_thread(), rows=2000),
            await bench.store.read(lambda tx: is_main_thread()),
        ]

        assert places == [True, True, True]
        await bench.store.close()

    asyncio.run(main())


def test_a_store_that_waits_for_a_lock_leaves_the_event_loop(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        bench.writer.set_busy_timeout(50)
        bench.other.execute("begin immediate")
        with pytest.raises(Unavailable):
            await bench.store.write(say("x"))
        bench.other.execute("rollback")

        await bench.store.write(needs_the_event_loop())

    run_threaded(tmp_path, main)


# Reading.


def test_a_read_sees_the_last_commit(run: Run) -> None:
    async def main(bench: Bench) -> None:
        assert await bench.store.read(words) == []
        await bench.store.write(say("a"))
        assert await bench.store.read(words) == ["a"]
        await bench.store.write(say("b"))
        assert await bench.store.read(words) == ["a", "b"]

    run(main)


def test_a_read_sees_one_moment_however_long_it_takes(run: Run) -> None:
    async def main(bench: Bench) -> None:
        await bench.store.write(say("a"))

        def work(tx: Tx) -> tuple[list[str], list[str]]:
            before = words(tx)
            bench.other.execute("insert into events (type, details, timestamp) values ('b', '{}', 1)")
            return before, words(tx)

        assert await bench.store.read(work) == (["a"], ["a"])
        assert await bench.store.read(words) == ["a", "b"]

    run(main)


def test_a_read_cannot_write(run: Run) -> None:
    async def main(bench: Bench) -> None:
        with pytest.raises(Unavailable, match="readonly"):
            await bench.store.read(say("x"))

        assert await bench.store.read(words) == []

    run(main)


def test_a_read_that_fails_leaves_its_reader_usable(run: Run) -> None:
    async def main(bench: Bench) -> None:
        for _ in range(2 * sqlite.READERS):
            with pytest.raises(Conflict):
                await bench.store.read(refuse)

        assert await asyncio.gather(*(bench.store.read(words) for _ in range(2 * sqlite.READERS))) == [[]] * 8

    run(main)


def test_reads_go_on_while_a_commit_takes_long(tmp_path: Path) -> None:
    async def main(bench: Bench) -> None:
        may_go_on = threading.Event()
        writing = asyncio.create_task(bench.store.write(lambda tx: (say("a")(tx), may_go_on.wait(5)), rows=2000))
        await asyncio.sleep(0)

        assert await bench.store.read(words) == []

        may_go_on.set()
        assert await writing == ("said", True)

    run_threaded(tmp_path, main)


# The end.


def test_close_stores_what_was_handed_in_and_then_refuses(run: Run) -> None:
    async def main(bench: Bench) -> None:
        tasks = [asyncio.create_task(bench.store.write(say(word), rows=600)) for word in "abc"]
        await asyncio.sleep(0)

        await bench.store.close()

        assert await asyncio.gather(*tasks) == ["said"] * 3
        assert bench.stored() == ["a", "b", "c"]
        with pytest.raises(Unavailable, match="closed"):
            await bench.store.write(say("d"))
        with pytest.raises(Unavailable, match="closed"):
            await bench.store.read(words)

    run(main)


def test_a_crash_drops_what_waits(run: Run) -> None:
    async def main(bench: Bench) -> None:
        await bench.store.write(say("a"))
        waiting = asyncio.create_task(bench.store.write(say("b")))
        await asyncio.sleep(0)

        bench.store.abandon()

        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert bench.stored() == ["a"]

    run(main)


# Failure, named.


def test_a_full_disk_is_told_and_the_next_write_works(run: Run) -> None:
    async def main(bench: Bench) -> None:
        await bench.store.write(say("a"))
        bench.writer.pragma("max_page_count", bench.writer.pragma("page_count"))

        answers = await together(bench, say("b"), say("x", details='"' + "x" * 1_000_000 + '"'), say("c"))

        assert [type(answer) for answer in answers] == [str, Unavailable, str]
        assert "full" in str(answers[1])
        bench.writer.pragma("max_page_count", 1_000_000)
        await bench.store.write(say("d", details='"' + "d" * 1_000_000 + '"'))
        assert bench.stored() == ["a", "b", "c", "d"]

    run(main)


def test_a_read_only_file_is_told_and_the_next_write_works(run: Run) -> None:
    async def main(bench: Bench) -> None:
        bench.writer.pragma("query_only", True)
        answers = await together(bench, say("x"), say("y"))
        bench.writer.pragma("query_only", False)
        await bench.store.write(say("a"))

        assert [type(answer) for answer in answers] == [Unavailable, Unavailable]
        assert bench.stored() == ["a"]

    run(main)


def test_a_locked_file_is_told_and_the_next_write_works(run: Run) -> None:
    async def main(bench: Bench) -> None:
        bench.writer.set_busy_timeout(10)
        bench.other.execute("begin immediate")
        answers = await together(bench, say("x"), say("y"))
        bench.other.execute("rollback")
        await bench.store.write(say("a"))

        assert [type(answer) for answer in answers] == [Unavailable, Unavailable]
        assert bench.stored() == ["a"]

    run(main)


@pytest.mark.parametrize("call", ["xWrite", "xSync"])
def test_a_disk_that_fails_is_told_and_the_next_write_works(run: Run, disk: "FailingDisk", call: str) -> None:
    async def main(bench: Bench) -> None:
        await bench.store.write(say("a"))
        disk.failing = call
        answers = await together(bench, say("x"), say("y"))
        disk.failing = None
        await bench.store.write(say("b"))

        assert [type(answer) for answer in answers] == [Unavailable, Unavailable]
        assert bench.stored() == ["a", "b"]

    run(main)


def test_a_broken_invariant_is_Refused_with_the_databases_own_words(run: Run) -> None:
    async def main(bench: Bench) -> None:
        def breaks_a_rule(tx: Tx) -> None:
            tx.run("runs.add_artifact", run_id="nobody", name="a", path="a", size=1)

        with pytest.raises(Refused, match="FOREIGN KEY constraint failed") as refused:
            await bench.store.write(breaks_a_rule)

        assert isinstance(refused.value.__cause__, apsw.ConstraintError)

    run(main)


def test_no_error_of_the_driver_reaches_a_caller(run: Run) -> None:
    async def main(bench: Bench) -> None:
        def forgets_a_value(tx: Tx) -> None:
            tx.run("events.append", type=None, office_id=None, job_id=None, run_id=None, details="{}", timestamp=1)

        with pytest.raises(Refused, match="NOT NULL"):
            await bench.store.write(forgets_a_value)
        bench.other.execute("alter table events rename to gone")
        for ask in (bench.store.write, bench.store.read):
            with pytest.raises(StoreError, match="no such table: events") as failed:
                await ask(words)
            assert isinstance(failed.value.__cause__, apsw.SQLError)

    run(main)


@pytest.mark.parametrize("way", ["read", "write"])
def test_a_damaged_file_is_told(tmp_path: Path, way: str) -> None:
    async def main() -> None:
        before = Bench(tmp_path, threaded=False)
        await before.store.write(lambda tx: [say(word, details="1" * 1000)(tx) for word in "abcdefgh"])
        before.other.close()
        await before.store.close()
        damage(before.path, "events")
        store = SqliteStore(before.path, lambda tx: None)

        with pytest.raises(StoreError, match="damaged"):
            await getattr(store, way)(words)

        await store.close()

    asyncio.run(main())


# Arrangement.


class Noted:
    """Something that lives with a transaction."""

    def __init__(self, tx: Tx) -> None:
        self.values: list[events.Values] = []


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


def event(word: str, details: str = "{}") -> events.Values:
    return {**events.values(word, Instant(1), None), "details": details}


def say(word: str, *, answer: Any = "said", details: str = "{}") -> Callable[[Tx], Any]:
    """A work that stores a word."""

    def work(tx: Tx) -> Any:
        events.append(tx, [event(word, details)])
        return answer

    return work


def say_and_raise(word: str, error: Exception) -> Callable[[Tx], Any]:
    def work(tx: Tx) -> None:
        say(word)(tx)
        raise error

    return work


def refuse(tx: Tx) -> None:
    raise Conflict("no")


def words(tx: Tx) -> list[str]:
    return [row[1] for row in tx.rows("events.after", after=0, limit=1000)]


async def together(bench: Bench, *works: Callable[[Tx], Any], rows: int = 1) -> list[Any]:
    """Hands works in at once; what became of each."""
    return await asyncio.gather(*(bench.store.write(work, rows=rows) for work in works), return_exceptions=True)


def is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def needs_the_event_loop() -> Callable[[Tx], None]:
    """A work that cannot end unless the event loop goes on meanwhile."""
    loop, went_on = asyncio.get_running_loop(), threading.Event()

    def work(tx: Tx) -> None:
        loop.call_soon_threadsafe(went_on.set)
        assert went_on.wait(5), "the event loop stood still"

    return work


def run_threaded(directory: Path, main: Main) -> None:
    async def body() -> None:
        bench = Bench(directory, threaded=True)
        try:
            await main(bench)
        finally:
            await bench.store.close()

    asyncio.run(body())


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
