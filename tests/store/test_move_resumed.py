"""An interrupted import continues where it stopped; nobody sees any of it before it is complete."""

import contextlib
import hashlib
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from nextslot.errors import Conflict, StoreError, Unavailable
from nextslot.store import dialects
from nextslot.store.maintenance import (
    backup_sqlite,
    export_file,
    exported_rows,
    import_file,
)
from nextslot.store.open_store import load_export, write_export
from nextslot.store.sqlite.sqlite_store import connect
from tests import postgres
from tests.store.moving import (
    END_THE_OTHERS,
    STAGING,
    Notes,
    answers,
    close,
    file,
    has_nothing,
    is_file,
    path_of,
    quietly,
    staged,
    unseen,
)

ANEW = "so this import starts again from the beginning: "


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_file, "PIECE_ROWS", 20)


def break_off(exported: Path, url: str, doing: str, table: str = "") -> None:
    """Runs an import until it has done that to some rows of the table."""

    def progress(now: str, name: str, done: int, rows: int) -> None:
        if now == doing and table in ("", name):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_export(exported, url, progress)


def go_on(exported: Path, url: str) -> tuple[int, Notes]:
    """Continues an import. Returns the rows that were done before, and the reported progress."""
    notes: Notes = []
    return load_export(exported, url, lambda *note: notes.append(note)).resumed_rows, notes


def told(notes: Notes, doing: str) -> dict[str, int]:
    """Returns how far each table came."""
    return {table: done for now, table, done, _ in notes if now == doing}


def is_as_exported(url: str, exported: Path, tmp_path: Path) -> bool:
    write_export(url, tmp_path / "again", quietly)
    return (tmp_path / "again").read_bytes() == exported.read_bytes()


def stored_rows(url: str) -> int:
    """Returns the rows that the staging area says are stored."""
    place = staged(url)
    assert place is not None
    rows: int = answers(place, "select all_rows from import_progress")[0][0]
    return rows


# It continues.


def test_broken_off_again_and_again_no_row_is_loaded_twice(exported: Path, empty: str, tmp_path: Path) -> None:
    chance = random.Random(7)
    loaded = tries = left = 0

    def a_few(doing: str, table: str, done: int, rows: int) -> None:
        nonlocal loaded, left
        if doing == "import":
            loaded, left = loaded + 1, left - 1
            if left == 0:
                raise KeyboardInterrupt

    while True:
        left = chance.randint(1, 12)
        with contextlib.suppress(KeyboardInterrupt):
            moved = load_export(exported, empty, a_few)
            break
        tries += 1
        assert unseen(empty)

    assert tries > 5
    assert loaded == sum(-(-rows // import_file.PIECE_ROWS) for rows in moved.tables.values()), "each piece once"
    assert is_as_exported(empty, exported, tmp_path)


def test_it_goes_on_after_what_was_committed_and_says_so(exported: Path, empty: str) -> None:
    break_off(exported, empty, "import", "events")
    stored = stored_rows(empty)

    resumed_rows, notes = go_on(exported, empty)

    assert resumed_rows == stored > 200
    assert told(notes, "skip")["events"] == import_file.PIECE_ROWS
    assert "jobs" in told(notes, "skip")
    assert set(told(notes, "import")) == set(exported_rows.TABLES[exported_rows.TABLES.index("events") :])
    assert (
        min(done for now, table, done, _ in notes if (now, table) == ("import", "events")) == 2 * import_file.PIECE_ROWS
    )


@pytest.mark.parametrize("table", ["offices", "delivery_attempts"])
def test_when_all_rows_are_loaded_it_is_verified_at_once(
    exported: Path, empty: str, tmp_path: Path, table: str
) -> None:
    break_off(exported, empty, "verify", table)
    assert unseen(empty)

    resumed_rows, notes = go_on(exported, empty)

    assert told(notes, "import") == {}
    assert resumed_rows == sum(told(notes, "verify").values())
    assert is_as_exported(empty, exported, tmp_path)


def test_going_on_can_be_broken_off_too(exported: Path, empty: str) -> None:
    break_off(exported, empty, "verify")
    before = stored_rows(empty)
    break_off(exported, empty, "skip", "jobs")

    assert stored_rows(empty) == before
    assert go_on(exported, empty)[0] == before


def test_what_was_not_committed_of_a_piece_is_undone(
    exported: Path, empty: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = import_file._piece

    def broken(reader: export_file.Reader, rows: Iterator[list[Any]]) -> Iterator[list[Any]]:
        for number, row in enumerate(pieces(reader, rows)):
            if number == 13:
                raise KeyboardInterrupt
            yield row

    with monkeypatch.context() as patched:
        patched.setattr(import_file, "_piece", broken)
        with pytest.raises(KeyboardInterrupt):
            load_export(exported, empty, quietly)

    stored = stored_rows(empty)
    assert go_on(exported, empty)[0] == stored < 100
    assert is_as_exported(empty, exported, tmp_path)


def test_a_piece_ends_early_where_rows_are_large(exported: Path, empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_file, "PIECE_BYTES", 1)

    _, notes = go_on(exported, empty)

    steps = [done for now, table, done, _ in notes if (now, table) == ("import", "jobs")]
    assert steps == list(range(1, len(steps) + 1))


def test_a_compressed_file_goes_on_as_well(source: str, empty: str, tmp_path: Path) -> None:
    write_export(source, tmp_path / "all.gz", quietly)
    break_off(tmp_path / "all.gz", empty, "import", "runs")

    assert go_on(tmp_path / "all.gz", empty)[0] > 0


def test_it_goes_on_with_the_same_bytes_under_another_name(
    source: str, exported: Path, empty: str, tmp_path: Path
) -> None:
    """Also compressed: what counts is what is in it."""
    break_off(exported, empty, "import", "runs")
    write_export(source, tmp_path / "all.gz", quietly)

    assert go_on(tmp_path / "all.gz", empty)[0] > 0


def test_an_older_release_s_file_goes_on_too(exported: Path, empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    later = "create table later (\n    a {int} not null primary key\n) {table};\ninsert into later values (1);"
    newer = [*dialects.migrations(), (dialects.migrations()[-1][0] + 1, "later", later)]
    monkeypatch.setattr(dialects, "migrations", lambda: newer)
    break_off(exported, empty, "verify", "runs")

    resumed_rows, notes = go_on(exported, empty)

    assert resumed_rows == sum(told(notes, "verify").values())
    assert answers(empty, "select a from later") == [(1,)]


# It stays, or it is thrown away.


def test_a_full_disk_leaves_what_was_stored(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = file(tmp_path / "target.db")
    connections: list[apsw.Connection] = []

    def connected(*given: Any) -> apsw.Connection:
        connections.append(connect(*given))
        return connections[-1]

    def fill_up(doing: str, table: str, done: int, rows: int) -> None:
        if table == "jobs":
            connections[0].pragma("max_page_count", connections[0].pragma("page_count"))

    with monkeypatch.context() as patched:
        patched.setattr("nextslot.store.maintenance.move_sqlite.connect", connected)
        with pytest.raises(Unavailable, match=r"the database did not store the change: .*full"):
            load_export(exported, target, fill_up)

    assert unseen(target)
    assert go_on(exported, target)[0] > 0


def test_a_lost_connection_leaves_what_was_stored(exported: Path, fresh: str, tmp_path: Path) -> None:
    def lost(doing: str, table: str, done: int, rows: int) -> None:
        if (doing, table) == ("verify", "jobs"):
            answers(fresh, END_THE_OTHERS)

    with pytest.raises(StoreError, match="the database did not store the change"):
        load_export(exported, fresh, lost)

    assert unseen(fresh)
    assert told(go_on(exported, fresh)[1], "import") == {}
    assert is_as_exported(fresh, exported, tmp_path)


def test_a_file_that_does_not_answer_leaves_what_was_stored(
    exported: Path, empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(reader: export_file.Reader, rows: Iterator[list[Any]]) -> Iterator[list[Any]]:
        raise export_file.Unreadable("it is on a disk that is gone")
        yield []

    break_off(exported, empty, "import", "runs")
    stored = stored_rows(empty)
    with monkeypatch.context() as patched:
        patched.setattr(import_file, "_piece", away)
        with pytest.raises(StoreError, match="a disk that is gone"):
            load_export(exported, empty, quietly)

    assert stored_rows(empty) == stored


@pytest.mark.parametrize("content", [None, b"hello\n"])
def test_the_name_of_a_file_that_is_no_export_changes_nothing(
    exported: Path, empty: str, tmp_path: Path, content: bytes | None
) -> None:
    break_off(exported, empty, "import", "runs")
    stored = stored_rows(empty)
    if content is not None:
        (tmp_path / "other").write_bytes(content)

    with pytest.raises(StoreError):
        load_export(tmp_path / "other", empty, quietly)

    assert stored_rows(empty) == stored


def test_the_same_file_cut_meanwhile_throws_it_away(exported: Path, empty: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(exported.read_bytes())
    break_off(copy, empty, "verify")
    copy.write_bytes(exported.read_bytes()[:-20_000])

    with pytest.raises(StoreError, match="is incomplete"):
        load_export(copy, empty, quietly)

    assert has_nothing(empty)


def test_another_file_begins_anew(exported: Path, empty: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    close(file(tmp_path / "other.db"))
    answers(file(tmp_path / "other.db"), "insert into pauses values ('type', 'theirs', 1)")
    write_export(file(tmp_path / "other.db"), tmp_path / "other", quietly)

    for table in ("offices", "jobs", "delivery_attempts"):
        break_off(exported, empty, "import", table)
        break_off(tmp_path / "other", empty, "import", "pauses")

    assert [record.message.partition(ANEW)[2] for record in caplog.records] == ["it was made from another file"] * 5
    resumed_rows, _ = go_on(tmp_path / "other", empty)
    assert resumed_rows == 1
    assert is_as_exported(empty, tmp_path / "other", tmp_path)


def test_a_file_without_the_table_that_was_reached_is_another(
    exported: Path, empty: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An end that comes too early, with the right digest."""
    lines = exported.read_bytes().split(b"\n")
    start = next(number for number, line in enumerate(lines) if line.startswith(b'{"table":"events"'))
    summed = export_file.line({"end": {}, "findings": []})
    body = b"\n".join(lines[:start]) + b"\n" + summed
    (tmp_path / "less").write_bytes(body + export_file.line({"sha256": hashlib.sha256(body).hexdigest()}))
    break_off(exported, empty, "import", "events")

    with pytest.raises(StoreError, match="the digest of a table does not match"):
        load_export(tmp_path / "less", empty, quietly)

    assert "starts again from the beginning: it was made from another file" in caplog.text
    assert has_nothing(empty)


def test_what_is_in_the_place_of_a_staging_file_and_is_none_is_left_alone(exported: Path, tmp_path: Path) -> None:
    (tmp_path / "target.db.import").mkdir()

    with pytest.raises(Unavailable, match="unable to open database file"):
        load_export(exported, file(tmp_path / "target.db"), quietly)

    assert (tmp_path / "target.db.import").is_dir()


@pytest.mark.parametrize(
    "damage",
    [
        "delete from limits",
        "update lanes set turn = turn + 1",
        "update offices set name = 'theirs'",
        "drop table import_progress",
        "delete from import_progress",
        "update import_progress set all_rows = all_rows + 1, table_rows = table_rows + 1",
        "update import_progress set layout = 0",
        "delete from schema_migrations where version = (select max(version) from schema_migrations)",
        "drop table deliveries",
    ],
)
def test_what_was_changed_behind_its_back_begins_anew(
    exported: Path, empty: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    break_off(exported, empty, "import", "events")
    answers(staged(empty) or "", damage if is_file(empty) or "drop table" not in damage else f"{damage} cascade")

    resumed_rows, _ = go_on(exported, empty)

    assert resumed_rows == 0
    assert ANEW in caplog.text
    assert is_as_exported(empty, exported, tmp_path)


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def torn(data: bytes) -> bytes:
    """Leaves a file as a power cut does if the disk has written only some of its pages."""
    chance = random.Random(3)
    pages = [data[start : start + 4096] for start in range(0, len(data), 4096)]
    return b"".join(page if number < 3 or chance.random() < 0.9 else bytes(4096) for number, page in enumerate(pages))


def nonsense(data: bytes) -> bytes:
    return random.Random(4).randbytes(len(data))


@pytest.mark.parametrize("damage", [cut, torn, nonsense, lambda data: b""])
@pytest.mark.parametrize("doing", ["import", "verify"])
def test_a_damaged_staging_file_begins_anew(
    exported: Path, tmp_path: Path, damage: Callable[[bytes], bytes], doing: str
) -> None:
    target = file(tmp_path / "target.db")
    break_off(exported, target, doing, "events")
    part = path_of(staged(target) or "")
    part.write_bytes(damage(part.read_bytes()))

    resumed_rows, _ = go_on(exported, target)

    assert resumed_rows == 0
    assert is_as_exported(target, exported, tmp_path)


def test_a_file_that_had_not_got_its_name_yet_begins_anew(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """There is nothing in it any more that says what it is."""
    target = file(tmp_path / "target.db")

    def killed(part: Path, path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(backup_sqlite, "put", killed)
        with pytest.raises(KeyboardInterrupt):
            load_export(exported, target, quietly)
    assert unseen(target)

    assert go_on(exported, target)[0] == 0
    assert ANEW in caplog.text
    assert is_as_exported(target, exported, tmp_path)


def test_an_export_by_the_name_that_an_import_uses_is_not_lost(exported: Path, tmp_path: Path) -> None:
    (tmp_path / "target.db.import").write_bytes(exported.read_bytes())

    with pytest.raises(StoreError, match=r"is an export, but the import needs this file name"):
        load_export(tmp_path / "target.db.import", file(tmp_path / "target.db"), quietly)

    assert (tmp_path / "target.db.import").read_bytes() == exported.read_bytes()


# Somebody else in between.


def test_a_server_in_between_finds_an_empty_database_and_what_it_stores_is_not_lost(
    exported: Path, empty: str, tmp_path: Path
) -> None:
    break_off(exported, empty, "import", "events")
    close(empty)
    answers(empty, "insert into pauses values ('type', 'theirs', 1)")

    with pytest.raises(Conflict, match=r"not empty \(it has pauses\)"):
        load_export(exported, empty, quietly)
    assert answers(empty, "select name from pauses") == [("theirs",)]

    answers(empty, "delete from pauses")
    assert go_on(exported, empty)[0] > 0
    assert is_as_exported(empty, exported, tmp_path)


def test_two_schemas_of_one_database_have_staging_places_of_their_own(exported: Path, fresh: str) -> None:
    answers(fresh, "create schema other")
    other = f"{fresh}&options=-csearch_path%3Dother"

    break_off(exported, fresh, "import", "jobs")
    break_off(exported, other, "import", "events")
    assert len(answers(fresh, STAGING)) == 2

    assert go_on(exported, fresh)[0] < go_on(exported, other)[0]
    assert answers(fresh, "select count(*) from jobs") == answers(fresh, "select count(*) from other.jobs")
    assert answers(fresh, STAGING) == []


# What is in its place in the end.


def test_an_imported_database_has_the_schema_of_one_that_was_started(
    exported: Path, empty: str, tmp_path: Path
) -> None:
    close(empty)
    started = schema(empty)

    load_export(exported, empty, quietly)

    assert len(started) > 150
    assert schema(empty) == started


def schema(url: str) -> list[tuple[Any, ...]]:
    """Returns every table, column, index, constraint, trigger and function, as the database itself writes it."""
    if is_file(url):
        return answers(url, "select type, name, tbl_name, sql from sqlite_schema order by type, name")
    return sorted(row for question in SCHEMA for row in answers(url, question))


SCHEMA = (
    "select relname::text, relkind::text, relpersistence::text from pg_class "
    "where relnamespace not in (select oid from pg_namespace where nspname ~ '^pg_|^information_schema$')",
    "select table_schema || '.' || table_name, column_name::text, data_type || is_nullable "
    "|| coalesce(column_default, '') || coalesce(collation_name, '') || ordinal_position "
    "from information_schema.columns where table_schema !~ '^pg_|^information_schema$'",
    "select 'index', indexrelid::regclass::text, pg_get_indexdef(indexrelid) from pg_index join pg_class "
    "on pg_class.oid = indrelid where relnamespace = 'public'::regnamespace and indisvalid",
    "select conrelid::regclass::text, conname::text, pg_get_constraintdef(oid) || convalidated from pg_constraint "
    "where connamespace = 'public'::regnamespace",
    "select tgrelid::regclass::text, tgname::text, pg_get_triggerdef(oid) || tgenabled::text from pg_trigger "
    "where not tgisinternal",
    "select 'function', oid::regprocedure::text, pg_get_functiondef(oid) from pg_proc "
    "where pronamespace = 'public'::regnamespace",
    "select 'schema', nspname::text, '' from pg_namespace where nspname !~ '^pg_'",
)


def test_the_rules_hold_in_an_imported_database(exported: Path, empty: str) -> None:
    load_export(exported, empty, quietly)

    for refused in ("update audit set actor = 'me'", "delete from jobs", "insert into maintenance values ('me', 1)"):
        with pytest.raises((psycopg.IntegrityError, apsw.ConstraintError)):
            change(empty, refused)


def change(url: str, sql: str) -> None:
    if not is_file(url):
        answers(url, sql)
        return
    connection = apsw.Connection(str(path_of(url)))
    connection.pragma("foreign_keys", True)
    try:
        connection.execute(sql)
    finally:
        connection.close()


@pytest.fixture
def reporter() -> Iterator[str]:
    """Makes a user who may read but owns nothing."""
    name = f"reporter_{os.getpid()}"
    postgres.admin().execute(f"create role {name}")
    yield name
    postgres.admin().execute(f"drop role {name}")


@pytest.mark.parametrize("is_by_default", [True, False])
def test_who_may_read_the_empty_tables_may_read_them_when_they_are_full(
    exported: Path, fresh: str, reporter: str, is_by_default: bool
) -> None:
    if is_by_default:
        answers(fresh, f"alter default privileges in schema public grant select on tables to {reporter}")
    else:
        close(fresh)
        answers(fresh, f"grant select on jobs to {reporter} with grant option")

    load_export(exported, fresh, quietly)

    may = f"select has_table_privilege('{reporter}', 'jobs', %s)"
    assert answers(fresh, may % "'select'") == [(True,)]
    assert answers(fresh, may % "'select with grant option'") == [(not is_by_default,)]
    assert answers(fresh, may % "'insert'") == [(False,)]
    answers(fresh, f"drop owned by {reporter}")


def test_a_user_who_may_make_no_schema_is_told_what_to_grant(exported: Path, fresh: str, reporter: str) -> None:
    answers(fresh, f"grant create, usage on schema public to {reporter}")
    name = answers(fresh, "select current_database()")[0][0]
    theirs = f"{fresh}&options=-crole%3D{reporter}"

    with pytest.raises(StoreError, match=f"grant create on database {name} to {reporter}"):
        load_export(exported, theirs, quietly)
    assert has_nothing(fresh)

    answers(fresh, f"grant create on database {name} to {reporter}")
    assert load_export(exported, theirs, quietly).tables["jobs"] > 50
    answers(fresh, f"drop owned by {reporter}")
