"""Opening a PostgreSQL database: one scheduler per database, a schema that is right, and a sentence that helps."""

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from nextslot import Scheduler
from nextslot.errors import AlreadyOpen, SchemaTooNew, StoreError
from nextslot.store import dialects
from nextslot.store.open_store import data_directory, open_store
from nextslot.store.postgres import sessions
from nextslot.store.postgres.postgres_store import PostgresStore
from tests import databases, postgres
from tests.store.bench import say, say_and_raise, words

HOLDER = """
import sys
from nextslot.store.postgres.postgres_store import PostgresStore
store = PostgresStore(sys.argv[1], lambda tx: None)
print("open", flush=True)
sys.stdin.read()
"""


# One scheduler per database.


def test_a_second_process_is_refused_and_told_who_was_first(url: str) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"open\n"

        with pytest.raises(AlreadyOpen, match=rf"is in use by process {first.pid} on .*stop it first"):
            opened(url)

        first.send_signal(signal.SIGKILL)
        first.wait()
        opened(url).abandon()


async def test_what_is_rolled_back_in_the_process_that_made_the_tables_costs_it_nothing(tmp_path: Path) -> None:
    """The driver forgets what is prepared when it sees a rollback, if it has prepared anything itself."""
    name = f"nextslot_new_{os.getpid()}"
    address = postgres.create(name, "template0")

    store = PostgresStore(address, lambda tx: None, threaded=False)
    try:
        await store.write(say("before"))
        with pytest.raises(RuntimeError):
            await store.write(say_and_raise("undone", RuntimeError("as asked")))
        await store.write(say("after"))
    finally:
        await store.close()
    with psycopg.connect(address) as connection:
        assert [word for (word,) in connection.execute("select type from events order by seq")] == [
            "before",
            "after",
        ]
    postgres.drop(name)


def test_a_second_one_in_the_same_process_is_refused_and_leaves_the_first_in_possession(url: str) -> None:
    first = opened(url)

    for _ in range(2):
        with pytest.raises(AlreadyOpen, match=f"in use by process {os.getpid()} "):
            opened(url)

    first.abandon()
    opened(url).abandon()


def test_two_schemas_of_one_database_do_not_meet(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create schema other")
    stores = [opened(url), opened(f"{url}&options=-csearch_path%3Dother")]

    for store in stores:
        store.abandon()

    with psycopg.connect(url, autocommit=True) as connection:
        assert connection.execute("select count(*) from other.jobs").fetchone() == (0,)
        connection.execute("drop schema other cascade")


async def test_a_forked_child_neither_keeps_the_lock_nor_ends_its_parents_connection(url: str) -> None:
    store = opened(url)
    with forked(store._session.connection.close):
        await store.write(say("a"))

        assert await store.read(words) == ["a"]
        await store.close()
        opened(url).abandon()


# The schema.


def test_opening_again_changes_nothing(url: str) -> None:
    opened(url).abandon()
    before = schema(url)

    opened(url).abandon()

    assert schema(url) == before
    assert before["schema_migrations"] == [(number, name) for number, name, _ in dialects.migrations()]


def test_a_schema_from_the_future_is_refused_and_left_alone(new_url: str) -> None:
    opened(new_url).abandon()
    known = dialects.migrations()[-1][0]
    execute(new_url, f"insert into schema_migrations values ({known + 1}, 'from_the_future')")
    before = schema(new_url)

    with pytest.raises(SchemaTooNew, match=f"has schema {known + 1}, .* knows only {known}: use a newer release"):
        opened(new_url)

    assert schema(new_url) == before


def test_a_new_migration_is_applied_to_an_old_database(new_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(new_url).abandon()
    add_migration(monkeypatch, "create table new (a {int} not null primary key) {table};")

    opened(new_url).abandon()

    assert "new" in schema(new_url)
    assert schema(new_url)["schema_migrations"][-1] == (9999, "added")


def test_a_migration_that_fails_halfway_leaves_the_schema_before_it(
    new_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(new_url).abandon()
    before = schema(new_url)
    add_migration(monkeypatch, "create table half (a {int});\ndrop table events;\ncreate table half (a {int});")

    with pytest.raises(StoreError, match=r'relation "half" already exists'):
        opened(new_url)

    assert schema(new_url) == before
    monkeypatch.undo()
    opened(new_url).abandon()


def test_a_database_of_something_else_is_refused_and_left_alone(new_url: str) -> None:
    execute(new_url, "create table jobs (a int)")

    with pytest.raises(StoreError, match=r'relation "jobs" already exists'):
        opened(new_url)

    assert list(schema(new_url)) == ["jobs"]


def test_a_database_of_another_encoding_is_refused(new_url: str) -> None:
    name = "nextslot_latin"
    postgres.admin().execute(f"create database {name} encoding 'LATIN1' locale 'C' template template0")

    with pytest.raises(StoreError, match="stores text as LATIN1; create it with encoding UTF8"):
        opened(postgres.address(name))

    postgres.drop(name)


def test_an_old_server_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "OLDEST", 990000)

    with pytest.raises(StoreError, match=r"is PostgreSQL \d+, which is too old; use 99 or newer"):
        opened(url)


# Addresses.


def test_a_server_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"the database nextslot on .* cannot be opened: .*No such file"):
        opened(f"postgresql://somebody@/nextslot?host={tmp_path}")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:se%20cret@localhost:1/database",
        "postgresql://user:hunter2@localhost:1/database",
        "postgresql://user:hunter2@[::1/database",
        "postgresql://user:hunter2:5432/database",
        "postgresql://user@localhost:hunter2/database",
        "postgresql://localhost:1/database?password=hunter2",
        "postgresql://localhost:1/database?nonsense=hunter2",
        "mysql://user:hunter2@localhost/database",
    ],
)
def test_a_password_is_in_no_error_and_no_log(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    with pytest.raises(StoreError) as refused:
        open_store(url, lambda tx: None, threaded=False, synchronous="FULL")

    told, error = caplog.text, refused.value
    while error is not None:
        told, error = told + str(error) + repr(error), error.__cause__ or error.__context__  # type: ignore[assignment]
    assert not re.search(r"hunter2|se cret|se%20cret", told)


def test_without_the_driver_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nextslot.store.postgres.postgres_store", None)

    with pytest.raises(StoreError, match=r"pip install nextslot\[postgres\]"):
        open_store("postgresql://host/database", lambda tx: None, threaded=False, synchronous="FULL")


def test_a_scheduler_on_SQLite_needs_no_driver_for_PostgreSQL() -> None:
    program = "import sys, nextslot.scheduler; sys.exit('psycopg' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_files_go_to_a_directory_here_unless_another_is_named() -> None:
    assert data_directory("postgresql://host/database") == Path("nextslot-data")


@pytest.mark.parametrize("synchronous", ["FULL", "NORMAL"])
def test_what_is_acknowledged_is_durable_unless_asked_otherwise(url: str, synchronous: str) -> None:
    store = PostgresStore(url, lambda tx: None, synchronous=synchronous)

    found = store._session.connection.execute("show synchronous_commit").fetchone()

    store.abandon()
    assert found == ("on" if synchronous == "FULL" else "off",)  # The tests' server itself has it off.


async def test_a_scheduler_works_by_its_address_alone(url: str, tmp_path: Path) -> None:
    scheduler = Scheduler(url, data=tmp_path)

    @scheduler.job_type("hello")
    def hello(run: Any, name: str) -> str:
        return f"hello {name}"

    async with scheduler:
        job = await scheduler.submit("hello", {"name": "Ada"})
        assert (await scheduler.wait(job.job_id)).result == "hello Ada"


# Arrangement.


@pytest.fixture
def url(on_database: str, tmp_path: Path) -> str:
    """Makes a database with the whole schema."""
    databases.use("postgres")
    return databases.url(tmp_path)


@pytest.fixture
def new_url() -> Iterator[str]:
    """Makes an empty database."""
    name = f"nextslot_new_{os.getpid()}"
    yield postgres.create(name, "template0")
    postgres.drop(name)


@contextlib.contextmanager
def forked(first: Callable[[], None]) -> Iterator[None]:
    """Forks a child that has done something when the body runs, and lives until its end."""
    begun, begin = os.pipe()
    end, hold = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(hold)
        first()
        os.write(begin, b".")
        os.read(end, 1)
        os._exit(0)
    os.read(begun, 1)
    yield
    for pipe in (begun, begin, end, hold):
        os.close(pipe)
    os.waitpid(child, 0)


def opened(url: str) -> PostgresStore:
    return PostgresStore(url, lambda tx: None)


def execute(url: str, sql: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql)


def schema(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """Returns the tables with their columns, and the applied migrations."""
    with psycopg.connect(url, autocommit=True) as connection:
        columns = connection.execute(
            "select table_name, column_name, data_type from information_schema.columns "
            "where table_schema = 'public' order by table_name, ordinal_position"
        ).fetchall()
        found: dict[str, list[tuple[Any, ...]]] = {}
        for table, column, kind in columns:
            found.setdefault(table, []).append((column, kind))
        if "schema_migrations" in found:
            found["schema_migrations"] = connection.execute(
                "select version, name from schema_migrations order by version"
            ).fetchall()
    return found


def add_migration(monkeypatch: pytest.MonkeyPatch, schema: str) -> None:
    steps = [*dialects.migrations(), (9999, "added", schema)]
    monkeypatch.setattr(dialects, "migrations", lambda: steps)
