"""What the store on PostgreSQL promises when connections break, servers go away and others come in between."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from nextslot import Scheduler
from nextslot.errors import CommitUnknown, Unavailable
from nextslot.store.contract import Tx
from nextslot.store.postgres import postgres_store
from nextslot.store.postgres.postgres_store import PostgresStore
from tests import databases
from tests.postgres import QUICK, Server
from tests.store.bench import (
    EFFECTS,
    Call,
    NewBench,
    needs_the_event_loop,
    opened_bench,
    say,
    together,
    words,
)

KILL = "select pg_terminate_backend(pg_backend_pid())"


# A transaction that did not get through is run again, and stored once.


async def test_a_connection_that_breaks_in_a_work_costs_the_caller_nothing(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        runs: list[str] = []

        def work(tx: Tx) -> str:
            say("a")(tx)
            runs.append("a")
            if len(runs) == 1:
                kill(bench.store)
            say("b")(tx)
            return "done"

        answers = await together(bench, work, say("c"))

        assert answers == ["done", "said"]
        assert (len(runs), bench.stored()) == (2, ["a", "b", "c"])


async def test_a_connection_that_broke_while_nobody_used_it_costs_nothing(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        kill(bench.store)

        assert await bench.store.write(say("a", answer=1)) == 1
        assert bench.stored() == ["a"]


async def test_a_connection_that_breaks_in_every_attempt_is_told(new_bench: NewBench) -> None:
    async with new_bench() as bench:

        def work(tx: Tx) -> None:
            kill(bench.store)
            say("x")(tx)

        answers = await together(bench, work, work)

        assert [type(answer) for answer in answers] == [Unavailable, Unavailable]
        assert await bench.store.write(say("a", answer=1)) == 1
        assert bench.stored() == ["a"]


@pytest.mark.parametrize("code", ["40001", "40P01"])
async def test_a_transaction_that_the_server_gave_up_is_run_again(new_bench: NewBench, code: str) -> None:
    async with new_bench() as bench:
        runs = []

        def work(tx: Any) -> None:
            say("a")(tx)
            runs.append(1)
            if len(runs) < 3:
                tx.select(f"do $$ begin raise exception 'given up' using errcode = '{code}'; end $$", {})

        await bench.store.write(work)

        assert (len(runs), bench.stored()) == (3, ["a"])


async def test_a_transaction_that_is_given_up_every_time_is_told(new_bench: NewBench) -> None:
    async with new_bench() as bench:

        def work(tx: Any) -> None:
            tx.select("do $$ begin raise exception 'given up' using errcode = '40001'; end $$", {})

        with pytest.raises(Unavailable, match="given up"):
            await bench.store.write(work)


# A commit whose answer did not come.


@pytest.mark.parametrize("dies", ["before", "after"])
async def test_a_connection_that_breaks_during_the_commit_leaves_nothing_unknown(
    new_bench: NewBench, dies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with new_bench() as bench:
        followed: list[str] = []
        break_next_commit(bench.store, dies)

        def work(tx: Tx) -> str:
            tx.cause(Call(lambda: followed.append("a")))
            return str(say("a", answer="done")(tx))

        answers = await together(bench, work, say("b"))

        assert answers == ["done", "said"]
        assert (bench.stored(), followed) == (["a", "b"], ["a"])
        assert await bench.store.write(say("c", answer=1)) == 1


@pytest.mark.parametrize("dies", ["before", "after"])
async def test_a_commit_that_nobody_can_ask_about_is_told_to_be_unknown_and_found_out_later(
    server: Server, tmp_path: Path, dies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_store, "RECONNECT_SECONDS", 0.2)

    store = PostgresStore(server.url(), lambda tx: None, effects=EFFECTS)
    followed = asyncio.Event()
    break_next_commit(store, dies, server.stop)

    def work(tx: Tx) -> None:
        tx.cause(Call(followed.set))
        say(f"told {dies}")(tx)

    with pytest.raises(CommitUnknown, match="may or may not be stored"):
        await store.write(work)
    with pytest.raises(Unavailable, match="does not answer"):
        await store.write(say("x"))
    assert not followed.is_set()
    server.start()

    # Nobody writes: what followed from the commit must follow all the same.
    if dies == "after":
        await asyncio.wait_for(followed.wait(), 10)
    await store.write(say("next"))
    assert (f"told {dies}" in await store.read(words)) is followed.is_set() is (dies == "after")
    await store.close()


async def test_what_is_refused_at_the_commit_itself_is_not_unknown(new_bench: NewBench) -> None:
    async with new_bench() as bench:

        def work(tx: Tx) -> None:
            tx.execute("maintenance.begin", reason="forgotten")

        for _ in range(2):
            [answer] = await together(bench, work)
            assert "foreign key" in str(answer)
        assert not bench.store._session.connection.closed


# A server that is away.


async def test_while_the_server_is_away_callers_are_told_soon_and_afterwards_all_goes_on(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_store, "RECONNECT_SECONDS", 0.3)

    store = PostgresStore(server.url(), lambda tx: None)
    server.stop()

    answers = await asyncio.wait_for(
        asyncio.gather(*(store.write(say(word)) for word in "abcdefgh"), return_exceptions=True), 10
    )
    with pytest.raises(Unavailable):
        await store.read(words)
    server.start()

    assert {type(answer) for answer in answers} == {Unavailable}
    assert await store.write(say("back", answer=1)) == 1
    assert (await store.read(words))[-1] == "back"
    await store.close()


async def test_a_server_that_is_restarted_costs_the_callers_only_time(server: Server) -> None:
    store = PostgresStore(server.url(), lambda tx: None)
    before = len(await store.read(words))
    server.stop()
    writing = [asyncio.ensure_future(store.write(say(word, answer=word))) for word in "abc"]
    await asyncio.sleep(0.1)
    server.start()

    assert await asyncio.gather(*writing) == list("abc")
    assert (await store.read(words))[before:] == list("abc")
    await store.close()


async def test_the_event_loop_goes_on_while_a_commit_waits_for_the_server(tmp_path: Path) -> None:
    async with opened_bench(tmp_path, threaded=True) as bench:
        await bench.store.write(needs_the_event_loop())


async def test_running_work_goes_on_while_the_server_is_away_and_is_recorded_when_it_is_back(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_store, "RECONNECT_SECONDS", 0.2)

    scheduler = Scheduler(server.url(), data=tmp_path)
    may_end, has_ended = asyncio.Event(), asyncio.Event()

    @scheduler.job_type("patient")
    async def patient(run: Any) -> str:
        await may_end.wait()
        has_ended.set()
        return "done"

    async with scheduler:
        job = await scheduler.submit("patient")
        server.stop()
        with pytest.raises(Unavailable):
            await scheduler.submit("patient")
        may_end.set()
        await asyncio.wait_for(has_ended.wait(), 10)
        server.start()

        ended = await asyncio.wait_for(scheduler.wait(job.job_id), 30)

        assert (ended.status, ended.result) == ("COMPLETED", "done")
        assert len(await scheduler.chain(job.job_id)) == 1


async def test_a_reader_whose_connection_broke_reads_again(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        await bench.store.write(say("a"))
        assert await bench.store.read(words) == ["a"]
        for connection in bench.store._open_readers:
            terminate(bench.store, connection.info.backend_pid)

        assert await bench.store.read(words) == ["a"]


# Possession.


async def test_who_was_cut_off_while_another_took_over_does_nothing_more(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres_store, "RECONNECT_SECONDS", 0.1)
        url = databases.url(tmp_path)
        first = PostgresStore(url, lambda tx: None)
        await first.write(say("a"))
        pid = first._session.connection.info.backend_pid
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("select pg_terminate_backend(%s, 5000)", (pid,))
        second = PostgresStore(url, lambda tx: None)
        await second.write(say("b"))

        for _ in range(2):
            with pytest.raises(Unavailable, match="in use by process"):
                await first.write(say("x"))
        await second.close()
        for _ in range(2):
            with pytest.raises(Unavailable, match=r"was used by another process .*restart this process"):
                await first.write(say("x"))

        third = PostgresStore(url, lambda tx: None)
        assert await third.read(words) == ["a", "b"]
        await third.close()
        await first.close()


async def test_writers_of_one_database_take_turns(new_bench: NewBench) -> None:
    """Numbers of events become visible in their order, whoever else writes by the same rule."""
    async with new_bench() as bench:
        opening = bench.store._session.opening
        address = databases.url(bench.directory)
        entered = []

        def another() -> None:
            with psycopg.connect(address, autocommit=True) as other:
                other.execute(opening)
                entered.append(bench.stored())
                other.execute("commit")

        def work(tx: Tx) -> None:
            words(tx)
            thread.start()
            wait_until(lambda: is_waiting_for_a_lock(address))
            say("a")(tx)

        thread = threading.Thread(target=another)
        await bench.store.write(work)
        thread.join(10)

        assert entered == [["a"]]


# Arrangement.


@pytest.fixture(autouse=True)
def _on_postgres(on_database: str) -> None:
    databases.use("postgres")


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    server = Server(**QUICK)
    yield server
    server.remove()


@pytest.fixture
def server(own_server: Server) -> Iterator[Server]:
    """Yields a server that a test may stop. It runs when the test begins and when it ends."""
    yield own_server
    own_server.stop()
    own_server.start()


def kill(store: Any) -> None:
    """Makes the server end the store's writing connection now."""
    terminate(store, store._session.connection.info.backend_pid)


def terminate(store: Any, pid: int) -> None:
    with psycopg.connect(**store._address.parameters, autocommit=True) as other:
        other.execute("select pg_terminate_backend(%s, 5000)", (pid,))


def break_next_commit(store: Any, dies: str, then: Callable[[], None] = lambda: None) -> None:
    """Makes the server end the connection just before or just after the next commit, in each case before its answer."""
    real = store._session.closing
    reopen = store._session.reopen

    def closing(*told: Any) -> str:
        store._session.closing = real
        sql = str(real(*told))
        return f"{KILL}; {sql}" if dies == "before" else f"{sql}; {KILL}"

    def reopening() -> None:
        store._session.reopen = reopen
        then()
        reopen()

    store._session.closing = closing
    store._session.reopen = reopening


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_waiting_for_a_lock(address: str) -> bool:
    with psycopg.connect(address, autocommit=True) as other:
        row = other.execute(
            "select count(*) from pg_locks join pg_database on pg_database.oid = pg_locks.database "
            "where locktype = 'advisory' and not granted and datname = current_database()"
        ).fetchone()
    return row is not None and row[0] > 0
