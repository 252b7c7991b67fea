"""What the store on PostgreSQL promises although it seldom waits for the server: nobody can tell, but by the time."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from nextslot import NewJob
from nextslot.errors import Refused, StoreError
from nextslot.store import dialects
from nextslot.store.contract import PrefetchedWork, Read, Tx
from nextslot.store.postgres.pipeline import Wire, wire_of
from nextslot.store.postgres.sessions import Address, connect
from nextslot.store.tables import column_codec, events, lanes
from nextslot.system.instant import Instant
from tests import databases
from tests.store.bench import NewBench, event, say, together, words
from tests.support import running_scheduler

ODD = ["", "null", "NULL", '"', "\\", '\\"', "a,b", "{}", "{a}", "'", " x ", "ü–🙂", "a\nb\tc", "$1", ":now", "%s"]


# How often it waits.


@pytest.mark.parametrize("slots", [1, 10])
@pytest.mark.virtual_time
async def test_a_hand_over_waits_twice_however_many_end_together(tmp_path: Path, slots: int) -> None:
    """For what it asks, and for the commit."""
    async with running_scheduler(tmp_path) as scheduler:
        await scheduler.offices.change("default", max_concurrent_jobs=slots)
        await scheduler.submit_many([NewJob(job_type="work", params={"seconds": 1}) for _ in range(60)])
        await asyncio.sleep(3.5)

        with round_trips() as waits:
            await asyncio.sleep(1)

        assert len(waits) == 2


async def test_works_that_only_put_something_wait_twice_together(new_bench: NewBench) -> None:
    """It must be known that the connection lives before something is committed on it."""
    async with new_bench() as bench:
        with round_trips() as waits:
            await together(bench, *(say(word) for word in "abc"))

        assert (len(waits), bench.stored()) == (2, ["a", "b", "c"])


# What is put.


async def test_what_is_put_is_seen_by_whoever_asks_after_it(new_bench: NewBench) -> None:
    async with new_bench() as bench:

        def work(tx: Tx) -> list[str]:
            say("a")(tx)
            say("b")(tx)
            return words(tx)

        assert await bench.store.write(work) == ["a", "b"]


async def test_what_is_put_and_refused_is_refused_to_its_caller_and_to_no_other(new_bench: NewBench) -> None:
    async with new_bench() as bench:

        def overdraw(tx: Tx) -> str:
            lanes.add_limit(tx, "k", 5)
            lanes.use(tx, "k", -1)
            return "not yet refused"

        first, second, third = await together(bench, say("a"), overdraw, say("b"))

        assert (first, third) == ("said", "said")
        assert isinstance(second, Refused)
        assert bench.stored() == ["a", "b"]
        assert await bench.store.read(limit) is None


async def test_what_is_put_keeps_its_order(new_bench: NewBench) -> None:
    """A limit is never below zero, not even for a moment."""
    async with new_bench() as bench:

        def work(tx: Tx) -> None:
            lanes.add_limit(tx, "k", 5)
            lanes.use(tx, "k", 1)
            say("used")(tx)
            lanes.use(tx, "k", -1)

        await bench.store.write(work)

        assert (await bench.store.read(limit), bench.stored()) == (0, ["used"])


async def test_two_changes_of_one_row_are_both_done(new_bench: NewBench) -> None:
    async with new_bench() as bench:

        def work(tx: Tx) -> None:
            for key in ("k", "other"):
                lanes.add_limit(tx, key, 5)
            for key, units in (("k", 3), ("other", 1), ("k", -1)):
                lanes.use(tx, key, units)

        await bench.store.write(work)

        assert await bench.store.read(limit) == 2


async def test_many_rows_at_once_are_stored_as_they_would_be_one_by_one(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        said = [event(f"w{number}", details=odd) for number, odd in enumerate(ODD)]
        said[3] = said[3]._replace(office_id="o", job_id="j", timestamp=Instant(2**62))

        with round_trips() as waits:
            await bench.store.write(lambda tx: events.append(tx, said))

        stored = bench.other.execute(
            "select type, office_id, job_id, run_id, details, timestamp from events order by seq"
        )
        assert list(stored) == said
        assert len(waits) == 2


async def test_rows_that_are_all_alike_are_all_stored(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        await bench.store.write(lambda tx: events.append(tx, [event("a")] * 3))

        assert bench.stored() == ["a"] * 3


async def test_more_rows_than_are_kept_back_are_all_stored_in_their_order(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        many = [f"w{number}" for number in range(4321)]

        await bench.store.write(lambda tx: events.append(tx, [event(word) for word in many]))

        assert bench.stored() == many


async def test_a_value_that_cannot_be_stored_leaves_nothing_on_its_way(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        first, second, third = await together(bench, say("a"), say("b", details="\0"), say("c"))

        assert (first, third, bench.stored()) == ("said", "said", ["a", "c"])
        assert isinstance(second, StoreError)


# What is asked ahead.


async def test_an_answer_that_a_work_before_has_changed_is_asked_for_again(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        await bench.store.write(lambda tx: lanes.add_limit(tx, "k", 5))

        answers = await together(bench, lambda tx: lanes.use(tx, "k", 3), PrefetchedWork(limit, [LIMIT]))

        assert answers == [None, 3]


async def test_an_answer_is_given_once(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        await bench.store.write(lambda tx: lanes.add_limit(tx, "k", 5))

        def work(tx: Tx) -> list[int | None]:
            before = limit(tx)
            lanes.use(tx, "k", 3)
            return [before, limit(tx)]

        assert await bench.store.write(PrefetchedWork(work, [LIMIT, LIMIT])) == [0, 3]


async def test_what_is_foreseen_and_not_asked_does_no_harm(new_bench: NewBench) -> None:
    async with new_bench() as bench:
        assert await bench.store.write(PrefetchedWork(say("a"), [LIMIT])) == "said"
        assert bench.stored() == ["a"]


async def test_what_two_transactions_have_asked_is_asked_ahead_and_is_as_new_as_the_transaction(
    new_bench: NewBench,
) -> None:
    """Also if somebody else has changed it since: it is asked when the turn to write has come."""
    async with new_bench() as bench:

        def work(tx: Tx) -> tuple[list[str], int | None]:
            return words(tx), limit(tx)

        await bench.store.write(lambda tx: lanes.add_limit(tx, "k", 5))
        waits_of = []
        for used in range(4):
            bench.other.execute("update limits set used = ? where limit_key = 'k'", (used,))
            with round_trips() as waits:
                assert await bench.store.write(work) == ([], used)
            waits_of.append(len(waits))

        assert waits_of == [3, 3, 2, 2]


async def test_what_was_asked_after_a_change_of_it_is_not_asked_ahead(new_bench: NewBench) -> None:
    async with new_bench() as bench:

        def work(tx: Tx) -> int | None:
            lanes.add_limit(tx, "k", 5)
            return limit(tx)

        for _ in range(3):
            await bench.store.write(work)

        assert bench.store._prefetched_reads == []


# On the wire.


def test_what_follows_a_refused_statement_is_not_done_and_the_connection_goes_on(wire: Wire) -> None:
    wire.send_all("create temporary table t (a int primary key); insert into t values (1)")
    wire.exchange()
    for _ in range(2):
        wire.send_all("insert into t values (2); insert into t values (1); insert into t values (3)")

        with pytest.raises(psycopg.IntegrityError, match="duplicate key"):
            wire.exchange()

        assert asked(wire, "select a from t order by a") == [(1,)]


def test_more_than_fits_on_the_wire_at_once_goes_both_ways(wire: Wire) -> None:
    large = "x" * 3_000_000

    replies = [wire.send(dialects.placed("select cast(:a as text)"), {"a": f"{number}{large}"}) for number in range(10)]
    wire.push()
    wire.exchange()

    assert [reply.rows() for reply in replies] == [[(f"{number}{large}",)] for number in range(10)]


def test_what_was_pushed_and_forgotten_leaves_nothing_to_read(wire: Wire) -> None:
    wire.send_all("select 1; select 2")
    wire.push()
    wire.send_all("select 3")
    wire.forget()

    assert asked(wire, "select 4") == [(4,)]


def test_a_wait_that_is_interrupted_ends_the_connection(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next question would get the answer to the last."""

    def interrupted(self: Wire) -> Any:
        raise KeyboardInterrupt

    wire.send_all("select 1")
    with monkeypatch.context() as patch:
        patch.setattr(Wire, "_received", interrupted)
        with pytest.raises(KeyboardInterrupt):
            wire.exchange()

    wire.send_all("select 2")
    with pytest.raises(psycopg.OperationalError):
        wire.exchange()


def test_statements_beyond_number_are_all_answered(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nextslot.store.postgres.pipeline.MOST_PREPARED", 3)

    for number in range(6):
        assert asked(wire, f"select {number}") == asked(wire, f"select {number}") == [(number,)]


# Arrangement.

LIMIT = Read("limits.get_many", {"limit_keys": column_codec.key_set(["k"])})


def limit(tx: Tx) -> int | None:
    """Returns how much of a limit is used; None if the limit does not exist."""
    found = lanes.limits(tx, ["k"]).get("k")
    return None if found is None else found.used


@contextmanager
def round_trips() -> Iterator[list[None]]:
    waits: list[None] = []
    real = Wire.exchange

    def exchange(wire: Wire) -> None:
        waits.append(None)
        real(wire)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Wire, "exchange", exchange)
        yield waits


@pytest.fixture(autouse=True)
def _on_postgres(on_database: str) -> None:
    databases.use("postgres")


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    connection = connect(Address.of(databases.url(tmp_path)), "a test of the wire")
    yield wire_of(connection)
    connection.close()


def asked(wire: Wire, sql: str) -> list[tuple[Any, ...]]:
    reply = wire.send_all(sql)
    wire.exchange()
    return reply.rows()
