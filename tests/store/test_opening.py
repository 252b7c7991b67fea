"""Opening a database: one scheduler per file, a schema that is right, and a sentence that helps when it is not."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from nextslot.errors import (
    AffectedDatabase,
    AlreadyOpen,
    SchemaTooNew,
    StoreError,
)
from nextslot.store import dialects
from nextslot.store.contract import Store
from nextslot.store.open_store import data_directory, open_store
from nextslot.store.sqlite.sqlite_store import SqliteStore, refuse_affected_version

HOLDER = """
import sys
from pathlib import Path
from nextslot.store.sqlite.sqlite_store import SqliteStore
store = SqliteStore(Path(sys.argv[1]), lambda tx: None)
print("open", flush=True)
sys.stdin.read()
"""


# One scheduler per database file.


def test_a_second_process_is_refused_and_told_who_was_first(tmp_path: Path, holder: "Holder") -> None:
    first = holder.hold(tmp_path / "nextslot.db")

    with pytest.raises(AlreadyOpen, match=rf"nextslot\.db is in use by process {first.pid} .*Stop it first"):
        opened(tmp_path / "nextslot.db")


def test_a_second_one_in_the_same_process_is_refused(tmp_path: Path) -> None:
    first = opened(tmp_path / "nextslot.db")

    for _ in range(2):
        with pytest.raises(AlreadyOpen, match=rf"in use by process {os.getpid()} "):
            opened(tmp_path / "nextslot.db")

    first.abandon()


def test_a_link_to_the_file_is_the_same_file(tmp_path: Path) -> None:
    first = opened(tmp_path / "nextslot.db")
    (tmp_path / "link.db").symlink_to("nextslot.db")

    with pytest.raises(AlreadyOpen):
        opened(tmp_path / "link.db")

    first.abandon()


def test_a_refused_one_leaves_the_first_in_possession(tmp_path: Path, holder: "Holder") -> None:
    first = holder.hold(tmp_path / "nextslot.db")

    for _ in range(2):
        with pytest.raises(AlreadyOpen, match=str(first.pid)):
            opened(tmp_path / "nextslot.db")


def test_two_files_in_one_directory_do_not_meet(tmp_path: Path) -> None:
    stores = [opened(tmp_path / name) for name in ("a.db", "b.db")]

    assert sorted(path.name for path in tmp_path.glob("*.db")) == ["a.db", "b.db"]
    for store in stores:
        store.abandon()


def test_a_store_that_is_closed_leaves_the_file_to_the_next(tmp_path: Path) -> None:
    for _ in range(3):
        opened(tmp_path / "nextslot.db").abandon()


def test_kill_9_frees_the_file(tmp_path: Path, holder: "Holder") -> None:
    first = holder.hold(tmp_path / "nextslot.db")

    first.send_signal(signal.SIGKILL)
    first.wait()

    opened(tmp_path / "nextslot.db").abandon()


def test_a_spawned_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    store = opened(tmp_path / "nextslot.db")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)

    store.abandon()

    opened(tmp_path / "nextslot.db").abandon()
    child.communicate(b"\n")


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    store = opened(tmp_path / "nextslot.db")
    with forked():
        store.abandon()

        opened(tmp_path / "nextslot.db").abandon()


def test_a_forked_child_that_ends_leaves_its_parent_in_possession(tmp_path: Path) -> None:
    store = opened(tmp_path / "nextslot.db")
    with forked():
        pass

    with pytest.raises(AlreadyOpen):
        opened(tmp_path / "nextslot.db")
    store.abandon()


def test_a_file_that_cannot_be_opened_is_not_kept_locked(tmp_path: Path) -> None:
    path = tmp_path / "nextslot.db"
    path.write_bytes(b"not a database at all" * 100)

    with pytest.raises(StoreError, match="damaged or not a database"):
        opened(path)

    path.unlink()
    opened(path).abandon()


# The version of SQLite.


@pytest.mark.parametrize(
    "version",
    ["3.7.0", "3.44.5", "3.45.0", "3.50.6", "3.50.0", "3.51.0", "3.51.2"],
)
def test_a_SQLite_that_can_lose_commits_is_refused(version: str) -> None:
    with pytest.raises(AffectedDatabase, match=rf"SQLite {re.escape(version)} has a defect .* install SQLite 3\.51\.3"):
        refuse_affected_version(version)


@pytest.mark.parametrize("version", ["3.44.6", "3.44.10", "3.50.7", "3.50.12", "3.51.3", "3.52.0", "3.54.1", "4.0.0"])
def test_a_SQLite_with_the_correction_is_accepted(version: str) -> None:
    refuse_affected_version(version)


def test_the_version_is_looked_at_before_the_file_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")

    with pytest.raises(AffectedDatabase):
        opened(tmp_path / "nextslot.db")

    assert list(tmp_path.iterdir()) == []


# Migrations.


def test_a_new_file_gets_the_whole_schema(tmp_path: Path) -> None:
    opened(tmp_path / "nextslot.db").abandon()

    tables = {name for kind, name, _ in schema(tmp_path) if kind == "table"}
    assert tables >= {"jobs", "runs", "artifacts", "events", "reservations", "occurrences", "schema_migrations"}
    assert migrations(tmp_path) == [(number, name) for number, name, _ in dialects.migrations()]


def test_opening_again_changes_nothing(tmp_path: Path) -> None:
    opened(tmp_path / "nextslot.db").abandon()
    before = (schema(tmp_path), migrations(tmp_path))

    opened(tmp_path / "nextslot.db").abandon()

    assert (schema(tmp_path), migrations(tmp_path)) == before


def test_a_schema_from_the_future_is_refused_and_left_alone(tmp_path: Path) -> None:
    opened(tmp_path / "nextslot.db").abandon()
    known = dialects.migrations()[-1][0]
    connection(tmp_path).execute("insert into schema_migrations values (?, 'from_the_future')", (known + 1,))
    before = (schema(tmp_path), migrations(tmp_path))

    with pytest.raises(SchemaTooNew, match=f"has schema {known + 1}, .* knows only {known}: use a newer release"):
        opened(tmp_path / "nextslot.db")

    assert (schema(tmp_path), migrations(tmp_path)) == before


def test_a_new_migration_is_applied_to_an_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(tmp_path / "nextslot.db").abandon()
    add_migration(monkeypatch, "create table new (a {int} not null primary key) {table};")

    opened(tmp_path / "nextslot.db").abandon()

    assert "new" in {name for _, name, _ in schema(tmp_path)}
    assert migrations(tmp_path)[-1] == (9999, "added")


def test_a_migration_that_fails_halfway_leaves_the_schema_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(tmp_path / "nextslot.db").abandon()
    before = (schema(tmp_path), migrations(tmp_path))
    add_migration(monkeypatch, "create table half (a {int});\ndrop table events;\ncreate table half (a {int});")

    with pytest.raises(StoreError, match="table half already exists"):
        opened(tmp_path / "nextslot.db")

    assert (schema(tmp_path), migrations(tmp_path)) == before
    monkeypatch.undo()
    opened(tmp_path / "nextslot.db").abandon()


def test_a_database_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    connection(tmp_path).execute("create table jobs (a)")

    with pytest.raises(StoreError, match="table jobs already exists"):
        opened(tmp_path / "nextslot.db")

    assert [name for kind, name, _ in schema(tmp_path) if kind == "table"] == ["jobs", "schema_migrations"]


# Addresses.


@pytest.mark.parametrize(
    "url",
    ["", "nextslot.db", "sqlite:", "sqlite://", "sqlite:///", "sqlite://host/file.db", "mysql:///file.db", "/tmp/x.db"],
)
def test_what_is_no_address_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(StoreError, match=re.escape(f"{url!r} is not a database address; use sqlite:///file.db")):
        open_at(url)
    with pytest.raises(StoreError, match="is not a database address"):
        data_directory(url)


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"the directory of .*missing/nextslot\.db does not exist: create it first"):
        open_at(f"sqlite:///{tmp_path}/missing/nextslot.db")


def test_a_directory_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nextslot.db").mkdir()

    with pytest.raises(StoreError, match=r"nextslot\.db is a directory: give the path of a file in it"):
        open_at(f"sqlite:///{tmp_path}/nextslot.db")


def test_a_database_in_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(StoreError, match="a database in memory loses every job"):
        open_at("sqlite:///:memory:")

    assert list(tmp_path.iterdir()) == []


def test_a_promise_that_is_unknown_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"synchronous cannot be .*use FULL"):
        open_store(f"sqlite:///{tmp_path}/nextslot.db", lambda tx: None, threaded=True, synchronous="OFF")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("in_url", "name"),
    [
        ("with space.db", "with space.db"),
        ("with%20space.db", "with space.db"),
        ("100%25.db", "100%.db"),
        ("작업 큐 ñ.db", "작업 큐 ñ.db"),
        ("it's;--.db", "it's;--.db"),
        ("a?b#c.db", "a?b#c.db"),
    ],
)
def test_a_file_may_have_any_name(tmp_path: Path, in_url: str, name: str) -> None:
    store = open_at(f"sqlite:///{tmp_path}/{in_url}")

    assert (tmp_path / name).is_file()
    assert data_directory(f"sqlite:///{tmp_path}/{in_url}") == tmp_path
    abandon(store)


async def test_a_relative_address_is_relative_to_where_it_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_at("sqlite:///nextslot.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    assert await store.read(lambda tx: tx.rows("events.last")) == [(0,)]

    await store.close()
    assert list((tmp_path / "elsewhere").iterdir()) == []


# Arrangement.


class Holder:
    """Other processes that have a database open until the test ends."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []

    def hold(self, path: Path) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        return process

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


@pytest.fixture
def holder() -> Iterator[Holder]:
    holder = Holder()
    yield holder
    holder.end()


def opened(path: Path) -> SqliteStore:
    return SqliteStore(path, lambda tx: None)


def open_at(url: str) -> Store:
    return open_store(url, lambda tx: None, threaded=False, synchronous="FULL")


def abandon(store: Store) -> None:
    assert isinstance(store, SqliteStore)
    store.abandon()


@contextlib.contextmanager
def forked() -> Iterator[None]:
    """Forks a child that runs no other program. It has begun when the body runs, and ends after it."""
    begun, begin = os.pipe()
    end, hold = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(hold)
        os.write(begin, b".")
        os.read(end, 1)
        os._exit(0)
    os.read(begun, 1)
    yield
    for pipe in (begun, begin, end, hold):
        os.close(pipe)
    os.waitpid(child, 0)


def connection(directory: Path) -> apsw.Connection:
    return apsw.Connection(str(directory / "nextslot.db"))


def schema(directory: Path) -> list[tuple[object, ...]]:
    return connection(directory).execute("select type, name, sql from sqlite_schema order by type, name").fetchall()


def migrations(directory: Path) -> list[tuple[object, ...]]:
    return connection(directory).execute("select version, name from schema_migrations order by version").fetchall()


def add_migration(monkeypatch: pytest.MonkeyPatch, schema: str) -> None:
    steps = [*dialects.migrations(), (9999, "added", schema)]
    monkeypatch.setattr(dialects, "migrations", lambda: steps)
