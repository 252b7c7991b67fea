"""The contract of a store on both databases: what `write` and `read` promise, on one thread and on several."""

import asyncio
import threading
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from nextslot.errors import (
    Conflict,
    Invalid,
    Refused,
    StoreError,
    Unavailable,
)
from nextslot.store.contract import Tx
from nextslot.store.postgres import postgres_store
from nextslot.store.sqlite import sqlite_store
from nextslot.store.tables import events, jobs
from nextslot.system.instant import Instant
from tests import databases
from tests.store.bench import (
    Call,
    NewBench,
    Noted,
    Update,
    event,
    opened_bench,
    refuse,
    say,
    say_and_raise,
    together,
    words,
)

READERS = max(sqlite_store.READERS, postgres_store.READERS)


# Writing.


async def test_what_is_written_is_durable_when_write_returns(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        answer = await bench.store.write(say("a", answer=42))

        assert answer == 42
        assert bench.stored() == ["a"]


async def test_works_that_wait_together_are_committed_together_in_their_order(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        answers = await asyncio.gather(*(bench.store.write(say(word, answer=word)) for word in "abcdef"))

        assert answers == list("abcdef")
        assert bench.stored() == list("abcdef")
        assert bench.commits == 1


async def test_a_refusal_is_its_callers_only_and_costs_the_others_nothing(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        answers = await together(bench, say("a"), refuse, say("b"))

        assert [type(answer) for answer in answers] == [str, Conflict, str]
        assert bench.stored() == ["a", "b"]
        assert bench.commits == 1


async def test_an_error_after_changes_leaves_nothing_and_takes_no_other_with_it(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        answers = await together(bench, say("a"), say_and_raise("x", ValueError("no")), say("b"))

        assert [type(answer) for answer in answers] == [str, ValueError, str]
        assert bench.stored() == ["a", "b"]


async def test_a_refusal_after_changes_leaves_nothing_and_takes_no_other_with_it(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        answers = await together(bench, say("a"), say_and_raise("x", Conflict("no")), say("b"))

        assert [type(answer) for answer in answers] == [str, Conflict, str]
        assert bench.stored() == ["a", "b"]


async def test_a_refusal_leaves_nothing_in_memory_either(new_bench: NewBench) -> None:
    """What a work noted beside the database (events to append, calls to make) goes with it."""
    async with new_bench() as bench:
        called: list[str] = []
        bench.at_closing = lambda tx: events.append(tx, tx.local(Noted).values)

        def calls_and_refuses(tx: Tx) -> None:
            tx.cause(Call(lambda: called.append("x")))
            raise Conflict("no")

        def notes_and_refuses(tx: Tx) -> None:
            tx.local(Noted).values.append(event("x"))
            raise Conflict("no")

        await together(bench, say("a"), calls_and_refuses, notes_and_refuses, say("b"))
        await together(bench, calls_and_refuses)
        await together(bench, notes_and_refuses)

        assert (bench.stored(), called) == (["a", "b"], [])


async def test_what_a_deferred_constraint_finds_at_the_commit_takes_no_other_with_it(new_bench: NewBench) -> None:
    async with new_bench() as bench:

        def leaves_maintenance_on(tx: Tx) -> None:
            say("x")(tx)
            tx.execute("maintenance.begin", reason="forgotten")

        answers = await together(bench, say("a"), leaves_maintenance_on, say("b"))

        assert [type(answer) for answer in answers] == [str, Refused, str]
        assert "foreign key" in str(answers[1]).lower()
        assert bench.stored() == ["a", "b"]


async def test_every_work_may_fail_and_the_store_goes_on(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        answers = await together(bench, *(say_and_raise("x", ValueError(word)) for word in "abc"))

        assert [str(answer) for answer in answers] == ["a", "b", "c"]
        assert await bench.store.write(say("d", answer=1)) == 1
        assert bench.stored() == ["d"]


async def test_a_work_that_raises_StopIteration_fails_alone(new_bench: NewBench) -> None:
    """A future cannot carry it; the callers behind it must not wait for ever."""
    async with new_bench() as bench:

        def looks_for_what_is_not_there(tx: Tx) -> None:
            next(iter(()))

        answers = await asyncio.wait_for(together(bench, say("a"), looks_for_what_is_not_there, say("b")), 5)

        assert [type(answer) for answer in answers] == [str, RuntimeError, str]
        assert bench.stored() == ["a", "b"]


async def test_a_work_sees_what_it_wrote_and_how_many_rows_changed(new_bench: NewBench) -> None:
    async with new_bench() as bench:

        def work(tx: Tx) -> tuple[object, ...]:
            say("a")(tx)
            changes = [tx.execute("limits.pause", scope="type", name="t", now=1) for _ in range(2)]
            return events.last(tx), tx.rows("limits.pauses"), changes, tx.row("jobs.get", job_id="nobody")

        assert await bench.store.write(work) == (1, [("type", "t")], [1, 0], None)


# After the commit.


async def test_what_follows_a_commit_happens_once_in_order_and_on_the_event_loop(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        seen: list[tuple[str, list[str], bool]] = []

        def tell(word: str) -> None:
            seen.append((word, bench.stored(), threading.current_thread() is threading.main_thread()))

        def work(tx: Tx, word: str) -> None:
            say(word)(tx)
            tx.cause(Call(lambda: tell(word + "1")))
            tx.cause(Call(lambda: tell(word + "2")))

        await together(bench, lambda tx: work(tx, "a"), lambda tx: work(tx, "b"), rows=2000)

        both = ["a", "b"]
        assert [word for word, _, _ in seen] == ["a1", "a2", "b1", "b2"]
        assert [stored for _, stored, _ in seen] == [["a"], ["a"], both, both]
        assert all(is_on_loop for _, _, is_on_loop in seen)


async def test_a_work_that_is_run_again_is_followed_once(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        runs, followed = [], []

        def work(tx: Tx, word: str) -> None:
            runs.append(word)
            say(word)(tx)
            tx.cause(Call(lambda: followed.append(word)))

        await together(bench, lambda tx: work(tx, "a"), say_and_raise("x", ValueError()), lambda tx: work(tx, "b"))

        assert (runs, followed) == (["a", "a", "b"], ["a", "b"])
        assert bench.stored() == ["a", "b"]


async def test_memory_follows_each_commit_before_the_next_transaction_begins(new_bench: NewBench) -> None:
    """Also where a group is run again one by one: no work decides by memory that is older than the database."""
    async with new_bench() as bench:
        memory: list[str] = []
        seen: dict[str, list[str]] = {}

        def work(tx: Tx, word: str) -> None:
            seen[word] = list(memory)
            say(word)(tx)
            tx.cause(Update(lambda: memory.append(word)))

        def fail_at_the_commit(tx: Tx) -> None:
            tx.execute("maintenance.begin", reason="forgotten")

        works = [lambda tx, word=word: work(tx, word) for word in "abc"]
        await together(bench, *works, fail_at_the_commit)

        assert seen == {"a": [], "b": ["a"], "c": ["a", "b"]}
        assert memory == bench.stored() == ["a", "b", "c"]


async def test_a_work_that_fails_in_a_group_leaves_the_others_their_one_commit(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        before = bench.commits
        answers = await together(bench, say("a"), say_and_raise("x", Conflict("no")), say("b"), say("c"))

        assert [type(answer) for answer in answers] == [str, Conflict, str, str]
        assert (bench.stored(), bench.commits - before) == (["a", "b", "c"], 1)


async def test_when_many_works_of_a_group_fail_each_of_the_rest_is_still_done_once(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        works = [say_and_raise("x", Conflict("no")) if number % 2 else say(str(number)) for number in range(20)]
        answers = await together(bench, *works)

        assert [type(answer) for answer in answers] == [str, Conflict] * 10
        assert sorted(bench.stored()) == sorted(str(number) for number in range(0, 20, 2))


async def test_a_work_runs_in_no_callers_context(new_bench: NewBench) -> None:
    """Works of several callers share a transaction: a context variable would be the first one's for all."""
    asking: ContextVar[str | None] = ContextVar("asking", default=None)

    async with new_bench() as bench:
        seen: list[str | None] = []

        def work(tx: Tx) -> None:
            seen.append(asking.get())
            say("a")(tx)
            tx.cause(Update(lambda: seen.append(asking.get())))
            tx.cause(Call(lambda: seen.append(asking.get())))

        async def ask(who: str) -> None:
            asking.set(who)
            await bench.store.write(work)

        await asyncio.gather(*(asyncio.create_task(ask(who)) for who in ("anna", "ben")))

        assert seen == [None] * 6


async def test_nothing_follows_a_rollback(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        followed = []

        def work(tx: Tx) -> None:
            tx.cause(Call(lambda: followed.append("x")))
            say_and_raise("x", ValueError())(tx)

        for works in ([work], [work, say("a")]):
            await together(bench, *works)

        assert followed == []


async def test_what_follows_a_commit_is_done_before_the_caller_goes_on(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        order = []

        await bench.store.write(lambda tx: tx.cause(Call(lambda: order.append("followed"))))
        order.append("returned")

        assert order == ["followed", "returned"]


async def test_a_call_that_fails_after_the_commit_keeps_no_caller_waiting(
    new_bench: NewBench, caplog: pytest.LogCaptureFixture
) -> None:
    async with new_bench() as bench:

        def work(tx: Tx) -> None:
            say("a")(tx)
            tx.cause(Call(lambda: 1 // 0))

        await asyncio.wait_for(together(bench, work, say("b")), 5)

        assert await asyncio.wait_for(bench.store.write(say("c", answer=1)), 5) == 1
        assert bench.stored() == ["a", "b", "c"]
    assert "the effect Call of a committed transaction failed" in caplog.text


# Closing a transaction.


async def test_closing_runs_once_for_each_transaction_before_its_commit(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        bench.at_closing = say("closed")

        await together(bench, say("a"), say("b"))
        await together(bench, say("c"))

        assert bench.stored() == ["a", "b", "closed", "c", "closed"]
        assert (bench.closings, bench.commits) == (2, 2)


async def test_an_error_while_closing_leaves_nothing_behind(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        bench.at_closing = say_and_raise("x", ValueError("cannot close"))
        answers = await together(bench, say("a"), say("b"))
        bench.at_closing = lambda tx: None
        await together(bench, say("c"))

        assert [str(answer) for answer in answers] == ["cannot close", "cannot close"]
        assert bench.stored() == ["c"]


async def test_what_lives_with_a_transaction_is_one_for_its_works_and_new_for_the_next(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        first, second = await together(bench, lambda tx: tx.local(Noted), lambda tx: tx.local(Noted))
        [third] = await together(bench, lambda tx: tx.local(Noted))

        assert first is second
        assert first is not third


# Callers.


async def test_a_caller_that_is_cancelled_takes_nothing_from_the_others(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        tasks = [asyncio.create_task(bench.store.write(say(word, answer=word))) for word in "abc"]
        await asyncio.sleep(0)
        tasks[1].cancel()

        answers = await asyncio.gather(*tasks, return_exceptions=True)

        assert answers[0] == "a"
        assert answers[2] == "c"
        assert isinstance(answers[1], asyncio.CancelledError)
        assert bench.stored() == ["a", "b", "c"]


async def test_a_caller_that_is_cancelled_during_the_commit_takes_nothing_from_the_others(
    threaded_bench: NewBench,
) -> None:
    async with threaded_bench() as bench:
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


async def test_a_large_work_runs_alone(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        tasks = [bench.store.write(say(word), rows=rows) for word, rows in (("a", 1), ("b", 1001), ("c", 1), ("d", 1))]
        await asyncio.gather(*tasks)

        assert bench.stored() == ["a", "b", "c", "d"]
        assert bench.commits == 3


async def test_a_group_holds_a_thousand_rows(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        await together(bench, say("a"), say("b"), rows=500)
        one = bench.commits
        await together(bench, say("c"), say("d"), say("e"), rows=500)

        assert (one, bench.commits - one) == (1, 2)


# Reading.


async def test_a_read_sees_the_last_commit(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        assert await bench.store.read(words) == []
        await bench.store.write(say("a"))
        assert await bench.store.read(words) == ["a"]
        await bench.store.write(say("b"))
        assert await bench.store.read(words) == ["a", "b"]


async def test_a_read_sees_one_moment_however_long_it_takes(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        await bench.store.write(say("a"))

        def work(tx: Tx) -> tuple[list[str], list[str]]:
            before = words(tx)
            bench.other.execute("insert into events (type, details, timestamp) values ('b', '{}', 1)")
            return before, words(tx)

        assert await bench.store.read(work) == (["a"], ["a"])
        assert await bench.store.read(words) == ["a", "b"]


async def test_a_read_cannot_write(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        with pytest.raises(Unavailable, match=r"read-?only"):
            await bench.store.read(say("x"))

        assert await bench.store.read(words) == []


def raise_of_our_own(tx: Tx) -> None:
    raise TypeError("a mistake of our own")


async def test_a_value_that_no_database_stores_is_refused_in_words_wherever_it_stands(new_bench: NewBench) -> None:
    """Such as a path, or a schedule where its id was meant."""
    wrong: Any = Path("jobs.db")
    sentence = "a value of the type PosixPath is neither an id nor a name; give one that a list shows"
    async with new_bench() as bench:
        for _ in range(2 * READERS):
            with pytest.raises(Invalid, match=sentence):
                await bench.store.read(lambda tx: jobs.get(tx, wrong))
        with pytest.raises(Invalid, match=sentence):
            await bench.store.write(lambda tx: jobs.get(tx, wrong))
        with pytest.raises(Invalid, match=sentence):
            await bench.store.write(lambda tx: jobs.cancel(tx, wrong, None, None, Instant(1)))
        with pytest.raises(TypeError, match="of our own"):
            await bench.store.read(raise_of_our_own)

        await bench.store.write(say("a"))
        assert await bench.store.read(words) == ["a"]


async def test_a_read_that_fails_leaves_its_reader_usable(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        for _ in range(2 * READERS):
            with pytest.raises(Conflict):
                await bench.store.read(refuse)

        reads = [bench.store.read(words) for _ in range(2 * READERS)]
        assert await asyncio.gather(*reads) == [[]] * (2 * READERS)


async def test_reads_go_on_while_a_commit_takes_long(threaded_bench: NewBench) -> None:
    async with threaded_bench() as bench:
        may_go_on = threading.Event()
        writing = asyncio.create_task(bench.store.write(lambda tx: (say("a")(tx), may_go_on.wait(5)), rows=2000))
        await asyncio.sleep(0)

        assert await bench.store.read(words) == []

        may_go_on.set()
        assert await writing == ("said", True)


# The end.


async def test_close_stores_what_was_handed_in_and_then_refuses(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        tasks = [asyncio.create_task(bench.store.write(say(word), rows=600)) for word in "abc"]
        await asyncio.sleep(0)

        await bench.store.close()

        assert await asyncio.gather(*tasks) == ["said"] * 3
        assert bench.stored() == ["a", "b", "c"]
        with pytest.raises(Unavailable, match="closed"):
            await bench.store.write(say("d"))
        with pytest.raises(Unavailable, match="closed"):
            await bench.store.read(words)


async def test_a_crash_drops_what_waits(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        await bench.store.write(say("a"))
        waiting = asyncio.create_task(bench.store.write(say("b")))
        await asyncio.sleep(0)

        bench.store.abandon()

        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert bench.stored() == ["a"]


# Failure, named.


async def test_a_broken_invariant_is_Refused_with_the_databases_own_words(new_bench: NewBench) -> None:
    async with new_bench() as bench:

        def breaks_a_rule(tx: Tx) -> None:
            tx.execute("runs.add_artifact", run_id="nobody", name="a", path="a", size=1)

        with pytest.raises(Refused, match=r"(?i)foreign key constraint") as refused:
            await bench.store.write(breaks_a_rule)

        assert isinstance(refused.value.__cause__, databases.REFUSALS)


async def test_no_error_of_the_driver_reaches_a_caller(new_bench: NewBench) -> None:
    async with new_bench() as bench:

        def forgets_a_value(tx: Tx) -> None:
            tx.execute("events.append", type=None, office_id=None, job_id=None, run_id=None, details="{}", timestamp=1)

        with pytest.raises(Refused, match=r"(?i)not.null"):
            await bench.store.write(forgets_a_value)
        bench.other.execute("alter table events rename to gone")
        for ask in (bench.store.write, bench.store.read):
            with pytest.raises(StoreError, match=r"no such table: events|relation .events. does not exist") as failed:
                await ask(words)
            assert isinstance(failed.value.__cause__, (apsw.SQLError, psycopg.ProgrammingError))


# Arrangement.


@pytest.fixture
def threaded_bench(tmp_path: Path) -> NewBench:
    return lambda: opened_bench(tmp_path, threaded=True)
