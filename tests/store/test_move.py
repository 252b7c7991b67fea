"""Moves between SQLite and PostgreSQL: everything as it was, whole and verified, or not at all."""

import asyncio
import gzip
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nextslot import testing
from nextslot.errors import (
    AlreadyOpen,
    CommitUnknown,
    Conflict,
    SchemaTooNew,
    StoreError,
)
from nextslot.store import dialects
from nextslot.store.maintenance import export_file, exported_rows, import_file
from nextslot.store.maintenance.export_file import (
    Header,
    Sum,
    Summing,
    Table,
)
from nextslot.store.open_store import load_export, open_store, write_export
from nextslot.store.postgres.sessions import Session
from tests import databases, postgres
from tests.store.moving import (
    END_THE_OTHERS,
    Notes,
    answers,
    close,
    file,
    has_nothing,
    lines_of,
    quietly,
    staged,
    unseen,
)
from tests.support import history, queued_ids, register_handlers


def written(path: Path, lines: list[Any]) -> Path:
    """Writes a file whose last digest is right for the lines before it."""
    body = b"".join(export_file.line(line) for line in lines[:-1])
    path.write_bytes(body + export_file.line({"sha256": hashlib.sha256(body).hexdigest()}))
    return path


# There and back.


def test_to_the_other_database_and_back_gives_the_same_bytes(
    source: str, exported: Path, fresh: str, tmp_path: Path
) -> None:
    there, back = tmp_path / "there.ndjson", tmp_path / "back.ndjson"

    load_export(exported, fresh, quietly)
    write_export(fresh, there, quietly)
    load_export(there, file(tmp_path / "second.db"), quietly)
    write_export(file(tmp_path / "second.db"), back, quietly)

    assert there.read_bytes() == exported.read_bytes()
    assert back.read_bytes() == exported.read_bytes()


def test_every_table_is_moved_and_the_test_has_rows_in_each(source: str, exported: Path) -> None:
    rows = answers(source, "select name from sqlite_master where type = 'table' and name not like 'sqlite_%'")

    heads = [line for line in lines_of(exported) if isinstance(line, dict) and "table" in line]

    assert {name for (name,) in rows} == {*exported_rows.TABLES, *exported_rows.NOT_MOVED} - {"commit_marks"}
    assert tuple(head["table"] for head in heads) == exported_rows.TABLES
    assert [head["table"] for head in heads if head["rows"] == 0] == []


def test_who_refers_to_a_table_is_moved_after_it() -> None:
    schema = "\n".join(sql for _, _, sql in dialects.migrations())
    statements = [one for one in dialects._split(schema) if one.startswith("create table ")]

    for statement in statements:
        name = statement.split()[2]
        if name in exported_rows.NOT_MOVED:
            continue
        for other in [word for word in exported_rows.TABLES if f"references {word}" in statement and word != name]:
            assert exported_rows.TABLES.index(other) < exported_rows.TABLES.index(name), f"{name} refers to {other}"


def test_a_file_is_compressed_by_its_name_and_has_no_trace_of_when_and_where(source: str, tmp_path: Path) -> None:
    for name in ("one.gz", "two.gz", "plain"):
        write_export(source, tmp_path / name, quietly)

    one, two = (tmp_path / "one.gz").read_bytes(), (tmp_path / "two.gz").read_bytes()
    assert one == two
    assert gzip.decompress(one) == (tmp_path / "plain").read_bytes()
    assert (tmp_path / "plain").stat().st_mode & 0o777 == 0o600, "it has secrets in it"


def test_a_compressed_file_is_imported_as_well(source: str, empty: str, tmp_path: Path) -> None:
    write_export(source, tmp_path / "all.gz", quietly)

    moved = load_export(tmp_path / "all.gz", empty, quietly)

    assert moved.tables["jobs"] == answers(empty, "select count(*) from jobs")[0][0] > 50


AWKWARD = [
    "\\N",
    "\\.",
    "a\\tb",
    "\t\r\n\v",
    "\u2028\u0085\ufeff",
    "''\"`$1%s%(a)s:a?",
    "e\u0301 é 🎬 \U0010ffff",
    "\x01\x7f",
    "",
]


def test_texts_that_a_database_might_take_for_something_else_stay_as_they_are(fresh: str, tmp_path: Path) -> None:
    first, second = file(tmp_path / "a.db"), tmp_path / "b.ndjson"
    close(first)
    connection = apsw.Connection(str(tmp_path / "a.db"))
    for name in AWKWARD:
        connection.execute("insert into pauses values ('type', ?, ?)", (name, -(2**63)))
    connection.close()

    write_export(first, second, quietly)
    load_export(second, fresh, quietly)

    assert sorted(name for (name,) in answers(fresh, "select name from pauses")) == sorted(AWKWARD)
    assert {at for (at,) in answers(fresh, "select paused_at from pauses")} == {-(2**63)}


def test_keys_move_whatever_their_ids_are(empty: str, tmp_path: Path) -> None:
    """Else the first would have to be an admin's, as it must be among those that are added one by one."""
    close(file(tmp_path / "a.db"))
    connection = apsw.Connection(str(tmp_path / "a.db"))
    for key_id, scope in (("z", "admin"), ("a", "read")):
        columns = "key_id, name, digest, scope, created_at"
        connection.execute(f"insert into api_keys ({columns}) values (?, 'name', ?, ?, 1)", (key_id, key_id, scope))
    connection.close()
    write_export(file(tmp_path / "a.db"), tmp_path / "a", quietly)

    load_export(tmp_path / "a", empty, quietly)

    assert answers(empty, "select key_id, scope from api_keys order by key_id") == [("a", "read"), ("z", "admin")]


def test_a_retry_may_come_before_what_it_follows(source: str, empty: str, tmp_path: Path) -> None:
    """Ids are in the order of time only as long as nobody sets the clock back."""
    path = tmp_path / "renamed.db"
    apsw.Connection(source.removeprefix("sqlite:///")).execute("vacuum into ?", (str(path),))
    rename_first_of_a_chain(path)
    moved = write_export(file(path), tmp_path / "all", quietly)

    load_export(tmp_path / "all", empty, quietly)

    assert moved.findings == ()
    assert answers(empty, "select count(*) from jobs where retry_of > job_id") == [(1,)]


def rename_first_of_a_chain(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.pragma("ignore_check_constraints", True)
    for (name,) in list(connection.execute("select name from sqlite_master where type = 'trigger'")):
        connection.execute(f"drop trigger {name}")
    old = connection.execute("select retry_of from jobs where retry_of = chain_id order by job_id limit 1").get
    places = ["jobs.job_id", "jobs.chain_id", "jobs.retry_of", "runs.job_id", "events.job_id", "deliveries.job_id"]
    for table, _, column in (place.partition(".") for place in [*places, "occurrences.job_id"]):
        connection.execute(f"update {table} set {column} = '~' where {column} = ?", (old,))
    connection.close()


# The work that continues after it.


def test_a_moved_queue_goes_on_as_the_one_that_stayed(source: str, exported: Path, empty: str, tmp_path: Path) -> None:
    stayed = file(tmp_path / "stayed.db")
    apsw.Connection(source.removeprefix("sqlite:///")).execute("vacuum into ?", (str(tmp_path / "stayed.db"),))
    load_export(exported, empty, quietly)

    lives = [life(url, tmp_path / name) for url, name in ((stayed, "a"), (empty, "b"))]

    assert lives[0] == lives[1]
    queues, events = lives[0]
    assert len(queues) > 5
    assert [event[0] for event in events] == list(range(1, len(events) + 1)), "each number once, and none left out"
    assert len(events) > answers(source, "select max(seq) from events")[0][0] + 20


def life(url: str, directory: Path) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Runs a scheduler on a database. Returns the queue that it finds, and the events of its first minutes and
    before.
    """
    directory.mkdir()

    async def body() -> tuple[list[str], list[tuple[Any, ...]]]:
        scheduler = testing.scheduler(directory, seed=7, url=url)
        register_handlers(scheduler)
        async with scheduler:
            queue = [job for office in ("default", "a", "b") for job in await queued_ids(scheduler, office)]
            await asyncio.sleep(1_500)
            return queue, [told(event) for event in await history(scheduler)]

    return testing.run(body())


def told(event: Any) -> tuple[Any, ...]:
    return event.seq, event.type, event.job_id, event.run_id, event.timestamp, event.details


# Refused, and nothing is left.


def test_a_target_that_is_not_empty_is_refused_and_left_alone(exported: Path, empty: str) -> None:
    load_export(exported, empty, quietly)
    before = answers(empty, "select * from events order by seq")

    with pytest.raises(Conflict, match=r"not empty \(it has offices\), and an import needs an empty one"):
        load_export(exported, empty, quietly)

    assert answers(empty, "select * from events order by seq") == before


def test_a_target_that_has_tables_and_nothing_in_them_is_empty(exported: Path, empty: str) -> None:
    close(empty)

    load_export(exported, empty, quietly)

    assert len(answers(empty, "select 1 from jobs")) > 50
    close(empty)


def test_a_SQLite_file_of_something_else_is_refused_and_left_alone(exported: Path, tmp_path: Path) -> None:
    apsw.Connection(str(tmp_path / "other.db")).execute("create table theirs (a)")

    with pytest.raises(Conflict, match="a database of another program"):
        load_export(exported, file(tmp_path / "other.db"), quietly)

    assert answers(file(tmp_path / "other.db"), "select name from sqlite_master") == [("theirs",)]


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_file_that_was_cut_is_refused_wherever_it_was(
    source: str, empty: str, tmp_path: Path, is_packed: bool
) -> None:
    whole = tmp_path / ("whole.gz" if is_packed else "whole")
    write_export(source, whole, quietly)
    data, cut = whole.read_bytes(), tmp_path / "cut"

    for length in (0, 1, 100, len(data) // 3, len(data) // 2, len(data) - 20, len(data) - 1):
        cut.write_bytes(data[:length])
        with pytest.raises(StoreError, match=r"is incomplete|damaged|not an export"):
            load_export(cut, empty, quietly)

    assert has_nothing(empty)


def test_a_line_too_many_is_refused(exported: Path, empty: str, tmp_path: Path) -> None:
    (tmp_path / "more").write_bytes(exported.read_bytes() + b"{}\n")

    with pytest.raises(StoreError, match="is damaged"):
        load_export(tmp_path / "more", empty, quietly)

    assert has_nothing(empty)


def test_a_changed_byte_is_refused_on_each_database(exported: Path, empty: str, tmp_path: Path) -> None:
    data = bytearray(exported.read_bytes())
    place = data.index("🎬".encode())
    data[place : place + 4] = "🎭".encode()
    (tmp_path / "changed").write_bytes(data)

    with pytest.raises(StoreError, match="is damaged: its digest does not match its content"):
        load_export(tmp_path / "changed", empty, quietly)

    assert has_nothing(empty)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_changed_byte_is_noticed_by_the_reader(exported: Path, tmp_path: Path, data: st.DataObject) -> None:
    changed = bytearray(exported.read_bytes())
    place = data.draw(st.integers(0, len(changed) - 1))
    changed[place] ^= data.draw(st.integers(1, 255))
    (tmp_path / "changed").write_bytes(changed)

    with pytest.raises(StoreError):
        read(tmp_path / "changed")


def read(path: Path) -> None:
    with export_file.opened(path) as reader:
        for table in reader.tables():
            list(reader.rows(table))
        reader.end()


def test_a_file_from_a_newer_format_is_refused(exported: Path, empty: str, tmp_path: Path) -> None:
    header, *rest = lines_of(exported)
    newer = written(tmp_path / "newer", [{**header, "version": 2, "release": "9.1"}, *rest])

    with pytest.raises(
        SchemaTooNew, match=r"has format 2, but this release reads only 1: import it with nextslot 9.1 or newer"
    ):
        load_export(newer, empty, quietly)

    assert has_nothing(empty)


def test_a_file_from_a_newer_schema_is_refused(exported: Path, empty: str, tmp_path: Path) -> None:
    header, *rest = lines_of(exported)
    newer = written(tmp_path / "newer", [{**header, "schema": 1000, "release": "9.1"}, *rest])

    with pytest.raises(SchemaTooNew, match=r"has schema 1000, but this release knows only"):
        load_export(newer, empty, quietly)

    assert has_nothing(empty)


@pytest.mark.parametrize("content", [b"", b"hello\n", b"SQLite format 3\x00", b'{"format":"other"}\n', b"[]\n"])
def test_what_is_no_export_is_said_to_be_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other").write_bytes(content)

    with pytest.raises(StoreError, match=r"not an export of nextslot|is incomplete|damaged"):
        load_export(tmp_path / "other", file(tmp_path / "target.db"), quietly)


def without_a_schema(lines: list[Any]) -> None:
    lines[0]["schema"] = "new"


def without_columns(lines: list[Any]) -> None:
    del lines[1]["columns"]


def with_other_columns(lines: list[Any]) -> None:
    lines[1]["columns"][0] = "other"


def with_a_row_that_is_none(lines: list[Any]) -> None:
    lines[2] = {"office_id": "a"}


def with_a_row_too_many(lines: list[Any]) -> None:
    lines[1]["rows"] -= 1


def with_other_digests(lines: list[Any]) -> None:
    lines[-2]["end"]["jobs"]["sha256"] = "0"


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (without_a_schema, "its header contains no schema"),
        (without_columns, "the header of a table is incomplete"),
        (with_other_columns, r"the columns of offices in the export are not those of schema \d+"),
        (with_a_row_that_is_none, "row 1 of offices is not a list"),
        (with_a_row_too_many, "a line is neither a table nor the end"),
        (with_other_digests, "the digest of a table does not match"),
    ],
)
def test_a_file_that_says_what_cannot_be_is_refused(
    exported: Path, empty: str, tmp_path: Path, edit: Callable[[list[Any]], None], why: str
) -> None:
    lines = lines_of(exported)
    edit(lines)

    with pytest.raises(StoreError, match=why):
        load_export(written(tmp_path / "edited", lines), empty, quietly)

    assert has_nothing(empty)


def test_a_compressed_file_that_was_changed_is_refused(source: str, tmp_path: Path) -> None:
    write_export(source, tmp_path / "all.gz", quietly)
    data = bytearray((tmp_path / "all.gz").read_bytes())
    data[-8] ^= 1  # The trailer of a gzip file: four bytes of CRC, four of length.
    (tmp_path / "all.gz").write_bytes(data)

    with pytest.raises(
        StoreError, match=r"all\.gz is damaged: CRC check failed 0x\w+ != 0x\w+; export or copy it again"
    ):
        load_export(tmp_path / "all.gz", file(tmp_path / "target.db"), quietly)

    assert has_nothing(file(tmp_path / "target.db"))


def test_a_file_that_cannot_be_read_or_written_is_named(source: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"none/all cannot be written: No such file"):
        write_export(source, tmp_path / "none" / "all", quietly)
    for place in (tmp_path / "none", tmp_path, Path("/proc/self/mem")):
        with pytest.raises(StoreError, match=f"{place} cannot be read: "):
            load_export(place, file(tmp_path / "target.db"), quietly)


@pytest.mark.parametrize("name", ["maintenance", "import_progress"])
def test_a_table_that_belongs_to_the_database_itself_is_refused(
    exported: Path, empty: str, tmp_path: Path, name: str
) -> None:
    header, *rest = lines_of(exported)
    edited = written(tmp_path / "edited", [header, {"table": name, "columns": ["a"], "rows": 1}, ["a"], *rest])

    with pytest.raises(StoreError, match=f"the table {name}, which is never exported"):
        load_export(edited, empty, quietly)

    assert has_nothing(empty)


def test_a_table_that_comes_twice_is_refused(exported: Path, empty: str, tmp_path: Path) -> None:
    header, *rest = lines_of(exported)
    stop = 1 + rest[0]["rows"]

    with pytest.raises(StoreError, match="offices has 3 rows instead of the 0 that were stored"):
        load_export(written(tmp_path / "twice", [header, *rest[:stop], *rest]), empty, quietly)

    assert has_nothing(empty)


def test_a_table_that_is_missing_is_noticed(exported: Path, empty: str, tmp_path: Path) -> None:
    lines = lines_of(exported)
    start = next(n for n, line in enumerate(lines) if isinstance(line, dict) and line.get("table") == "audit")
    stop = start + 1 + lines[start]["rows"]
    del lines[-2]["end"]["audit"]

    with pytest.raises(StoreError, match="lacks the table audit"):
        load_export(written(tmp_path / "less", lines[:start] + lines[stop:]), empty, quietly)

    assert has_nothing(empty)


def test_what_the_rules_forbid_is_refused_even_if_its_digests_are_right(
    exported: Path, empty: str, tmp_path: Path
) -> None:
    """A file that was edited by somebody who knows how: the doctor looks at what came in."""
    edited = altered(exported, tmp_path / "edited", "lanes", "ready", 99)

    with pytest.raises(StoreError, match=r"the imported data is inconsistent, so nothing was imported: .*export again"):
        load_export(edited, empty, quietly)

    assert has_nothing(empty)


def test_what_a_database_stores_otherwise_than_the_file_has_it_is_noticed(
    exported: Path, empty: str, tmp_path: Path
) -> None:
    """A whole number with a fraction: SQLite makes it one without, PostgreSQL refuses it."""
    edited = altered(exported, tmp_path / "edited", "pauses", "paused_at", 5.0)

    with pytest.raises(StoreError, match=r"of pauses differ from the export|cannot store a row of pauses"):
        load_export(edited, empty, quietly)

    assert has_nothing(empty)


def test_what_somebody_has_attached_to_the_empty_tables_is_not_lost(exported: Path, fresh: str) -> None:
    """The import has tables of its own, in place of these: a trigger of somebody's would be gone."""
    close(fresh)
    with psycopg.connect(fresh) as connection:
        connection.execute(
            "create function theirs() returns trigger language plpgsql as "
            "$$ begin new.details := '{}'; return new; end $$; "
            "create trigger theirs before insert on events for each row execute function theirs()"
        )

    with pytest.raises(
        Conflict, match=r"an empty table events with a trigger theirs .*: drop that object, and create it again"
    ):
        load_export(exported, fresh, quietly)

    assert answers(fresh, "select tgname from pg_trigger where tgname = 'theirs'") == [("theirs",)]
    assert staged(fresh) is None


def test_a_view_on_the_empty_tables_is_told_before_anything_is_done(exported: Path, fresh: str) -> None:
    close(fresh)
    answers(fresh, "create view theirs as select job_id from jobs")
    notes: Notes = []

    with pytest.raises(
        Conflict, match=r"has empty tables that other objects depend on \(view theirs depends on table jobs"
    ):
        load_export(exported, fresh, lambda *note: notes.append(note))

    assert (notes, staged(fresh)) == ([], None)


def test_a_row_that_refers_to_nothing_is_refused(exported: Path, empty: str, tmp_path: Path) -> None:
    edited = altered(exported, tmp_path / "edited", "runs", "job_id", "nobody")

    with pytest.raises(StoreError):
        load_export(edited, empty, quietly)

    assert has_nothing(empty)


def altered(exported: Path, path: Path, name: str, column: str, value: object) -> Path:
    """Returns an export in which a column of a table's first row is changed, with matching digests."""
    lines = lines_of(exported)
    start = next(n for n, line in enumerate(lines) if isinstance(line, dict) and line.get("table") == name)
    lines[start + 1][lines[start]["columns"].index(column)] = value
    summing = Summing()
    rows = lines[start + 1 : start + 1 + lines[start]["rows"]]
    summing.add(export_file.lines(rows), len(rows))
    lines[-2]["end"][name]["sha256"] = summing.sum.sha256
    return written(path, lines)


def test_what_was_not_in_order_before_is_moved_as_it_is_and_said(source: str, empty: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.db"
    apsw.Connection(source.removeprefix("sqlite:///")).execute("vacuum into ?", (str(path),))
    apsw.Connection(str(path)).execute("update limits set used = used + 1 where used > 0")

    first = write_export(file(path), tmp_path / "wrong.ndjson", quietly)
    second = load_export(tmp_path / "wrong.ndjson", empty, quietly)

    assert [problem for problem in first.findings if "units in use" in problem]
    assert second.findings == first.findings


def test_text_that_PostgreSQL_cannot_have_is_refused_with_its_table(fresh: str, tmp_path: Path) -> None:
    close(file(tmp_path / "a.db"))
    apsw.Connection(str(tmp_path / "a.db")).execute("insert into pauses values ('type', ?, 1)", ("a\0b",))
    write_export(file(tmp_path / "a.db"), tmp_path / "a.ndjson", quietly)

    with pytest.raises(StoreError, match="cannot store a row of pauses"):
        load_export(tmp_path / "a.ndjson", fresh, quietly)

    assert has_nothing(fresh)


def test_a_connection_that_is_lost_on_the_way_leaves_nothing(exported: Path, fresh: str) -> None:
    def lost(doing: str, table: str, done: int, rows: int) -> None:
        if table == "jobs":
            answers(fresh, END_THE_OTHERS)

    with pytest.raises(
        StoreError, match=r"the database nextslot_move_\d+ on .*: the database did not store the change"
    ):
        load_export(exported, fresh, lost)

    assert unseen(fresh)
    assert load_export(exported, fresh, quietly).resumed_rows > 0


def test_a_connection_that_is_lost_during_the_commit_is_said_to_be_so(
    exported: Path, fresh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Session, "closing", lambda self, mark: "select pg_terminate_backend(pg_backend_pid())")
        with pytest.raises(CommitUnknown, match="completely or not at all: import again, which is refused if it is"):
            load_export(exported, fresh, quietly)

    assert unseen(fresh)
    moved = load_export(exported, fresh, quietly)
    assert moved.resumed_rows == moved.rows


def test_a_limit_for_short_statements_is_not_for_a_move(
    exported: Path, fresh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = answers(fresh, "select current_database()")[0][0]
    postgres.admin().execute(f"alter database {name} set statement_timeout = 1000")
    pieces = import_file._piece
    slow = iter(["select pg_sleep(1.2)"])  # The server's own clock is what counts.

    def take_long(*given: Any) -> Iterator[list[Any]]:
        for row in pieces(*given):
            yield row
            for statement in slow:
                postgres.admin().execute(statement)

    monkeypatch.setattr(import_file, "_piece", take_long)

    assert load_export(exported, fresh, quietly).tables["jobs"] > 50


def test_an_export_that_is_broken_off_leaves_no_file(source: str, tmp_path: Path) -> None:
    def broken_off(doing: str, table: str, done: int, rows: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_export(source, tmp_path / "all", broken_off)

    assert list(tmp_path.iterdir()) == []


# Nobody else has it meanwhile.


@pytest.fixture(params=databases.kinds())
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Opens a database and holds it open."""
    url = file(tmp_path / "open.db") if request.param == "sqlite" else request.getfixturevalue("fresh")
    store = open_store(url, lambda tx: None, threaded=False, synchronous="FULL")
    yield url
    store.abandon()


def test_a_running_server_refuses_export_and_import(served: str, exported: Path, tmp_path: Path) -> None:
    with pytest.raises(AlreadyOpen, match="is in use by process"):
        write_export(served, tmp_path / "all", quietly)
    with pytest.raises(AlreadyOpen, match="is in use by process"):
        load_export(exported, served, quietly)

    assert not (tmp_path / "all").exists()


def test_nobody_can_open_the_target_meanwhile(exported: Path, empty: str) -> None:
    refusals: list[str] = []

    def look(doing: str, table: str, done: int, rows: int) -> None:
        if table == "jobs":
            with pytest.raises(AlreadyOpen) as refused:
                open_store(empty, lambda tx: None, threaded=False, synchronous="FULL")
            refusals.append(str(refused.value))

    load_export(exported, empty, look)

    assert len(refusals) == 2, "while it is filled, and while it is verified"
    close(empty)


# Which database, and how far.


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path, fresh: str) -> None:
    for url in (file(tmp_path / "none.db"), fresh):
        with pytest.raises(StoreError, match=r"there is no database|has no tables of nextslot"):
            write_export(url, tmp_path / "all", quietly)

    assert has_nothing(fresh)
    assert list(tmp_path.iterdir()) == []


def test_an_older_database_is_not_exported_before_it_is_migrated(
    source: str, fresh: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close(fresh)
    newer = [
        *dialects.migrations(),
        (1000, "later", "create table later (\n    a {int} not null primary key\n) {table};"),
    ]
    monkeypatch.setattr(dialects, "migrations", lambda: newer)

    for url in (source, fresh):
        with pytest.raises(StoreError, match=r"older than this release \(1000_later\)|has schema \d+, this release"):
            write_export(url, tmp_path / "all", quietly)


def test_an_export_of_an_older_release_is_imported_and_migrated(
    exported: Path, empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = "create table later (\n    a {int} not null primary key\n) {table};\ninsert into later values (1);"
    newer = [*dialects.migrations(), (dialects.migrations()[-1][0] + 1, "later", later)]
    monkeypatch.setattr(dialects, "migrations", lambda: newer)

    moved = load_export(exported, empty, quietly)

    assert answers(empty, "select a from later") == [(1,)]
    assert answers(empty, "select count(*) from jobs") == [(moved.tables["jobs"],)]


def test_progress_tells_every_row_twice_on_the_way_in(exported: Path, empty: str) -> None:
    notes: Notes = []

    moved = load_export(exported, empty, lambda *note: notes.append(note))

    for doing in ("import", "verify"):
        ends = {table: (done, rows) for said, table, done, rows in notes if said == doing}
        assert ends == {name: (rows, rows) for name, rows in moved.tables.items()}


def test_more_rows_than_a_page_come_in_their_order(fresh: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of one column and of three, on both."""
    monkeypatch.setattr(exported_rows, "PAGE_ROWS", 7)
    close(file(tmp_path / "a.db"))
    connection = apsw.Connection(str(tmp_path / "a.db"))
    for n in range(50):
        connection.execute("insert into events values (?, 't', null, null, null, '{}', 1)", (n + 1,))
        connection.execute(
            "insert into idempotency_keys values (?, ?, ?, '', '', 1)", (f"{n % 3}", f"{n % 5}", f"ä{n}")
        )
    connection.close()

    write_export(file(tmp_path / "a.db"), tmp_path / "a", quietly)
    load_export(tmp_path / "a", fresh, quietly)
    write_export(fresh, tmp_path / "b", quietly)

    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    keys = [tuple(line[:3]) for line in lines_of(tmp_path / "b") if isinstance(line, list) and len(line) == 6]
    assert keys == sorted(keys)
    assert len(keys) == 50


# The file itself.

VALUES = st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text()


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(VALUES, min_size=2, max_size=2)), st.sampled_from(["rows", "rows.gz"]))
def test_what_is_written_is_read(tmp_path: Path, rows: list[list[Any]], name: str) -> None:
    summing = Summing()
    summing.add(export_file.lines(rows), len(rows))
    with export_file.created(tmp_path / name) as target:
        writer = export_file.Writer(target, Header(4, "0.1.0"))
        writer.table(Table("t", ("a", "b"), len(rows)))
        writer.rows(export_file.lines(rows))
        writer.end({"t": summing.sum}, ["a finding"])

    with export_file.opened(tmp_path / name) as reader:
        [(table, found)] = [(table, list(reader.rows(table))) for table in reader.tables()]
        ends = reader.end()

    assert (reader.header, table.columns, found) == (Header(4, "0.1.0"), ("a", "b"), rows)
    assert ends == ({"t": Sum(len(rows), summing.sum.sha256)}, ["a finding"])
