"""Web applications: processes that only submit, and jobs that are stored in the application's own transaction."""

import asyncio
import importlib.util
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import psycopg
import pytest
import sqlalchemy
from pydantic import Field
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from nextslot import AsyncClient, AsyncSubmitter, Client, NewJob, Scheduler, Submitter, enqueue, enqueue_async
from nextslot.errors import Invalid, RunFailed, StoreError, Unavailable
from tests import databases
from tests.serving import serving
from tests.support import new_scheduler

WEB = Path(__file__).parents[2] / "examples/web"
spec = importlib.util.spec_from_file_location("orders", WEB / "orders.py")
assert spec is not None
assert spec.loader is not None
orders = importlib.util.module_from_spec(spec)
spec.loader.exec_module(orders)


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[str]:
    """A database of the scheduler, with the application's table beside."""
    databases.use("postgres")
    url = databases.url(tmp_path)
    asyncio.run(started(tmp_path))
    with psycopg.connect(url) as connection:
        connection.execute(orders.TABLE)
    yield url
    databases.spoil(tmp_path)
    databases.use("sqlite")


async def started(directory: Path) -> None:
    async with new_scheduler(directory, clock=None):
        pass


def stored(url: str) -> tuple[list[int], list[int]]:
    """The orders, and those that a job was asked for."""
    with psycopg.connect(url) as connection:
        made = connection.execute("select number from orders order by 1").fetchall()
        asked = connection.execute("select (params::jsonb->>'order')::int from inbox order by job_id").fetchall()
    return [number for (number,) in made], [number for (number,) in asked]


def test_an_order_and_its_job_are_both_there_or_neither(postgres: str) -> None:
    with psycopg.connect(postgres) as connection:
        orders.order(connection, 1)
    with psycopg.connect(postgres) as connection:
        orders.order(connection, 2)
        connection.rollback()
    engine = sqlalchemy.create_engine(postgres.replace("postgresql://", "postgresql+psycopg://"))
    with Session(engine) as session, session.begin():
        orders.order_by_sqlalchemy(session, 3)
    with Session(engine) as session:
        orders.order_by_sqlalchemy(session, 4)
    engine.dispose()

    assert stored(postgres) == ([1, 3], [1, 3])


@pytest.mark.real_time
async def test_an_order_and_its_job_are_both_there_or_neither_on_an_event_loop(postgres: str) -> None:
    async with await psycopg.AsyncConnection.connect(postgres) as connection:
        await orders.order_async(connection, 1)
    async with await psycopg.AsyncConnection.connect(postgres) as connection:
        await orders.order_async(connection, 2)
        await connection.rollback()
    engine = create_async_engine(postgres.replace("postgresql://", "postgresql+psycopg://"))
    async with AsyncSession(engine) as session, session.begin():
        await orders.order_by_async_session(session, 3)
    async with AsyncSession(engine) as session:
        await orders.order_by_async_session(session, 4)
    async with engine.begin() as connection_of_engine:
        await connection_of_engine.exec_driver_sql("insert into orders values (5, 'a')")
        await enqueue_async(connection_of_engine, "pack", {"order": 5}, priority=3)
    with pytest.raises(Invalid, match="priorty is not a field of a job"):
        await enqueue_async(connection, "pack", priorty=3)  # type: ignore[call-arg]
    await engine.dispose()

    assert stored(postgres) == ([1, 3, 5], [1, 3, 5])


KILLED = """
import sys, time, psycopg
sys.path.insert(0, sys.argv[1])
import orders
with psycopg.connect(sys.argv[2]) as connection:
    orders.order(connection, 1)
    connection.commit()
    orders.order(connection, 2)
    print("before the commit", flush=True)
    time.sleep(600)
"""


def test_a_program_that_is_killed_before_its_commit_leaves_neither(postgres: str) -> None:
    program = subprocess.Popen([sys.executable, "-c", KILLED, WEB, postgres], stdout=subprocess.PIPE)
    assert program.stdout is not None
    assert program.stdout.readline() == b"before the commit\n"

    program.send_signal(signal.SIGKILL)
    program.wait(30)

    assert stored(postgres) == ([1], [1])
    program.stdout.close()


def test_processes_may_submit_to_the_database_directly(postgres: str) -> None:
    with Submitter(postgres) as submitter:
        first = submitter.submit("work", {"seconds": 0}, priority=3)
        child = os.fork()
        if child == 0:
            submitter.submit("work", {"of": "the child"})
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        second, third = submitter.submit_many([{"job_type": "work"}, {"job_type": "work", "depends_on": [first]}])
        with psycopg.connect(postgres, autocommit=True) as admin:
            admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'nextslot submitter'"
            )
        fourth = submitter.submit("work")

    with psycopg.connect(postgres) as connection:
        found = [one for (one,) in connection.execute("select job_id from inbox order by job_id")]
    assert [one for one in found if one in (first, second, third, fourth)] == [first, second, third, fourth]
    assert len(found) == 5


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda s: s.submit("work", priorty=3), "priorty is not a field of a job; did you mean priority?"),
        (lambda s: s.submit(None), "job_type is missing; give the name of a job type"),
        (lambda s: s.submit_many([7]), "jobs.0 is 7; it must be a dict of the fields of a job"),
        (lambda s: s.submit_many([{"job_type": "work", "key": "a"}]), "key: names a job within one request"),
    ],
)
def test_a_wrong_request_is_refused_before_it_is_sent(wrong: Any, sentence: str) -> None:
    with Submitter("postgresql://nobody@127.0.0.1:1/none") as submitter, pytest.raises(Invalid, match=sentence):
        wrong(submitter)


def test_what_is_no_connection_to_postgresql_is_refused_before_any_statement() -> None:
    with closing(sqlite3.connect(":memory:")) as sqlite:
        for wrong in (sqlite, "postgresql:///shop", None):
            with pytest.raises(Invalid, match="must be a connection of psycopg, or a Connection or Session of SQLAlch"):
                enqueue(wrong, "pack")


def test_an_address_that_cannot_be_used_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="is a SQLite file, which one scheduler alone opens; give the address of its"):
        Submitter(f"sqlite:///{tmp_path}/nextslot.db")
    with pytest.raises(StoreError, match="this is not the address of a PostgreSQL database"):
        Submitter("postgresql://[")
    with Submitter("postgresql://nobody@127.0.0.1:1/none") as submitter, pytest.raises(Unavailable, match="refused"):
        submitter.submit("work")


@pytest.mark.real_time
async def test_on_an_event_loop_it_is_awaited(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        async with AsyncSubmitter(server.url) as submitter:
            job_id = await submitter.submit("echo", {"text": "hello"})
            (other,) = await submitter.submit_many([{"job_type": "echo"}])
        with Client(server.url) as client:
            assert client.wait(job_id, timeout=30).result["text"] == "hello"
            assert client.wait(other, timeout=30).status == "COMPLETED"


def test_the_workers_of_a_web_application_share_one_scheduler(tmp_path: Path) -> None:
    with serving(tmp_path, prepare=packing) as server:
        port = free_port()
        command = [sys.executable, "-m", "uvicorn", "--app-dir", WEB, "app:app", "--workers", "2", "--port", str(port)]
        workers = subprocess.Popen(
            list(map(str, command)), env={**os.environ, "NEXTSLOT_URL": server.url}, stderr=subprocess.DEVNULL
        )
        try:
            when_it_answers(port, workers)
            with ThreadPoolExecutor(8) as callers:
                answers = list(callers.map(lambda number: ask(port, number), range(60)))
        finally:
            workers.terminate()
            workers.wait(30)
        with Client(server.url) as client:
            ended = [client.wait(one["job_id"], timeout=60) for one in answers]

        assert [one.result for one in ended] == [f"order {number} is packed" for number in range(60)]
        assert len({one["worker"] for one in answers}) == 2


def packing(scheduler: Scheduler) -> None:
    scheduler.job_type("pack")(pack)


def pack(order: int) -> str:
    return f"order {order} is packed"


def ask(port: int, number: int) -> Any:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/orders/{number}", method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def when_it_answers(port: int, process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/openapi.json", timeout=5).close()
        except OSError:
            assert process.poll() is None, "uvicorn has ended"
            assert time.monotonic() < end, "uvicorn did not start"
            time.sleep(0.1)
        else:
            return


@pytest.mark.real_time
async def test_a_handle_submits_through_clients_and_submitters_with_its_types(tmp_path: Path) -> None:
    shop = Scheduler(f"sqlite:///{tmp_path}/not-started.db")

    @shop.job_type("double", job_options={"priority": 4})
    def double(number: Annotated[int, Field(gt=0)], at: date = date(2026, 11, 19)) -> Doubled:
        return Doubled(number=number * 2, at=at)

    def register(scheduler: Scheduler) -> None:
        scheduler.job_types.add("double", double.function)

    with serving(tmp_path, register) as server, Client(server.url) as client, Submitter(server.url) as submitter:
        first = double.via(client).submit(1)
        second, third = double.via(client).submit_many([{"number": 2}, {"number": 3, "at": date(2026, 1, 2)}])
        fourth = double.with_options(depends_on=[third]).via(submitter).submit(number=4)
        (fifth,) = submitter.submit_many([NewJob(job_type="double", params={"number": 5})])
        async with AsyncClient(server.url) as async_client, AsyncSubmitter(server.url) as async_submitter:
            sixth = await double.via(async_client).submit(6)
            (seventh,) = await double.via(async_submitter).submit_many([{"number": 7}])
            assert await double.via(async_client).run_direct(9) == Doubled(number=18, at=date(2026, 11, 19))

        assert (first.priority, third.params) == (4, {"number": 3, "at": "2026-01-02"})
        results = [client.wait(one, 60).result for one in (first, second, third, fourth, fifth, sixth, seventh)]
        assert [one["number"] for one in results] == [2, 4, 6, 8, 10, 12, 14]
        assert double.via(client).run_direct(8) == Doubled(number=16, at=date(2026, 11, 19))
        with pytest.raises(Invalid, match="number is 0; it must be greater than 0"):
            double.via(client).submit(0)
        with pytest.raises(RunFailed, match="double ended FAILED"):
            double.with_options(timeout_seconds=0.001).via(client).run_direct(8, at=date(1, 1, 1))


@dataclass
class Doubled:
    number: int
    at: date

    def __post_init__(self) -> None:
        if self.at.year == 1:
            time.sleep(1)
