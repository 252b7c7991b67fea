"""Databases of every release that there was: opened, migrated, in order, and nothing in them lost or changed.

`scripts/make_upgrade_fixture.py` makes the files in `data`, one database and its export for each version.
"""

import asyncio
import gzip
import json
import os
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from nextslot import testing
from nextslot.store import dialects
from nextslot.store.maintenance import backup_sqlite, exported_rows
from nextslot.store.open_store import load_export, open_store, write_export
from tests import postgres
from tests.support import register_handlers

DATA = Path(__file__).parent / "data"
KEPT = sorted(path.name.removesuffix(".db.gz") for path in DATA.glob("*.db.gz"))
STEPS = dialects.migrations()

# Whatever makes a table, an index, a rule or a number what it is.
_POSTGRES_SCHEMA = """
    select 'column', table_name || '.' || column_name, concat_ws(' ', data_type, is_nullable, column_default,
        collation_name) from information_schema.columns where table_schema = 'public'
    union all select 'constraint', conname, pg_get_constraintdef(oid) from pg_constraint
        where connamespace = 'public'::regnamespace and contype <> 'n'
    union all select 'index', indexname, indexdef from pg_indexes where schemaname = 'public'
    union all select 'trigger', tgname, pg_get_triggerdef(oid) from pg_trigger where not tgisinternal
    union all select 'function', proname, prosrc from pg_proc where pronamespace = 'public'::regnamespace
    order by 1, 2, 3
"""

# Columns that have another name since then.
RENAMED = {("reservations", "direct_id"): "run_id"}
# Columns whose values a migration changes: running direct work has no reservation any more, and an office whose timeout
# was the default has none of its own.
CHANGED = {("reservations", "status"), ("offices", "timeout_seconds")}


@pytest.fixture
def other(empty: str, tmp_path: Path) -> Iterator[str]:
    """Returns another value of the same kind."""
    if empty.startswith("sqlite"):
        yield f"sqlite:///{tmp_path}/other.db"
        return
    name = f"nextslot_upgrade_other_{os.getpid()}"
    yield postgres.create(name, "template0")
    postgres.drop(name)


@pytest.fixture(params=KEPT)
def kept(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def unpacked(name: str, directory: Path) -> Path:
    path = directory / "nextslot.db"
    path.write_bytes(gzip.decompress((DATA / f"{name}.db.gz").read_bytes()))
    return path


def opened(url: str) -> None:
    """Opens a database as a server does, which migrates it."""
    asyncio.run(open_store(url, lambda tx: None, threaded=False, synchronous="FULL").close())


def schema_of(url: str) -> list[tuple[Any, ...]]:
    """Returns the schema without the order in which it was made."""
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        rows = list(connection.execute("select type, name, sql from sqlite_master where sql is not null order by 1, 2"))
        return [(kind, name, " ".join(str(sql).split())) for kind, name, sql in rows]
    with psycopg.connect(url) as server:
        return server.execute(_POSTGRES_SCHEMA).fetchall()


def contents(path: Path) -> dict[str, tuple[list[str], list[Any]]]:
    """Returns columns and rows of each table of an export."""
    found: dict[str, tuple[list[str], list[Any]]] = {}
    rows: list[Any] = []
    for line in gzip.decompress(path.read_bytes()).split(b"\n")[1:-3]:
        value = json.loads(line)
        if isinstance(value, dict):
            rows = []
            found[value["table"]] = (value["columns"], rows)
        else:
            rows.append(value)
    return found


# The kept files.


def test_this_release_has_its_kept_database() -> None:
    assert f"nextslot-{version('nextslot')}" in KEPT, "make it: uv run python scripts/make_upgrade_fixture.py"


def test_a_kept_database_has_the_schema_that_its_migrations_make(kept: str, tmp_path: Path) -> None:
    """So a migration that was released is never edited: it has been applied out there."""
    path = unpacked(kept, tmp_path)
    done = apsw.Connection(str(path)).execute("select max(version) from schema_migrations").get
    made = apsw.Connection(str(tmp_path / "made.db"))
    made.execute("create table if not exists schema_migrations (version integer primary key, name text) strict")
    for statement in [one for number, _, schema in STEPS if number <= done for one in dialects.for_sqlite(schema)]:
        made.execute(statement)

    assert schema_of(f"sqlite:///{path}") == schema_of(f"sqlite:///{tmp_path}/made.db"), (
        f"the schema of {kept} was changed. If it is released, undo that and write a new migration; "
        "while it is not: uv run python scripts/make_upgrade_fixture.py"
    )


def test_a_kept_database_is_brought_up_to_date_and_is_in_order(kept: str, tmp_path: Path) -> None:
    path = unpacked(kept, tmp_path)

    opened(f"sqlite:///{path}")

    assert backup_sqlite.pending(path) == []
    assert backup_sqlite.examine(path) == []


def test_nothing_in_a_kept_database_is_lost_or_changed(kept: str, tmp_path: Path) -> None:
    path = unpacked(kept, tmp_path)
    before = contents(DATA / f"{kept}.ndjson.gz")

    opened(f"sqlite:///{path}")
    write_export(f"sqlite:///{path}", tmp_path / "now.gz", lambda *_: None)

    after = contents(tmp_path / "now.gz")
    for table, (columns, rows) in before.items():
        same = [number for number, column in enumerate(columns) if (table, column) not in CHANGED]
        places = [after[table][0].index(RENAMED.get((table, columns[number]), columns[number])) for number in same]
        assert [[row[place] for place in places] for row in after[table][1]] == [
            [row[number] for number in same] for row in rows
        ], table
        assert rows, f"{table} is empty: a kept database has some of everything"


def test_a_kept_export_can_be_imported_and_is_the_kept_database(kept: str, empty: str, tmp_path: Path) -> None:
    opened(f"sqlite:///{unpacked(kept, tmp_path)}")
    write_export(f"sqlite:///{tmp_path}/nextslot.db", tmp_path / "upgraded", lambda *_: None)

    load_export(DATA / f"{kept}.ndjson.gz", empty, lambda *_: None)
    write_export(empty, tmp_path / "imported", lambda *_: None)

    assert (tmp_path / "imported").read_bytes() == (tmp_path / "upgraded").read_bytes()


def test_an_export_from_before_the_column_stage_had_its_name_can_be_imported(empty: str, tmp_path: Path) -> None:
    before = DATA / "before-stage.ndjson.gz"

    load_export(before, empty, lambda *_: None)
    write_export(empty, tmp_path / "now.gz", lambda *_: None)

    columns, rows = contents(before)["jobs"]
    now, found = contents(tmp_path / "now.gz")["jobs"]
    assert ("status" in columns, "status" in now, "stage" in now) == (True, False, True)
    assert [row[: len(columns)] for row in found] == rows


def test_each_migration_has_a_number_of_its_own_and_none_is_left_out() -> None:
    assert [number for number, *_ in STEPS] == list(range(1, len(STEPS) + 1))


def test_an_import_renames_schedules_of_one_name_and_says_so(empty: str, tmp_path: Path) -> None:
    before = [step for step in STEPS if step[0] < 15]
    path = unpacked(KEPT[0], tmp_path)
    with pytest.MonkeyPatch.context() as older:
        older.setattr(dialects, "migrations", lambda: before)
        newer = {"aliases", "rollups_recent", "rollups", "queue_depths", "rollup_bounds"}
        newer |= {"checkpoints", "signals", "affinities", "inbox", "rates", "failures", "failure_hours"}
        older.setattr(exported_rows, "TABLES", [name for name in exported_rows.TABLES if name not in newer])
        # The doctor of today asks for columns of today.
        older.setattr(exported_rows, "findings", lambda tx: [])
        opened(f"sqlite:///{path}")
        with closing(apsw.Connection(str(path))) as connection:
            for key, name in (("~1", "nightly"), ("~2", "nightly (2)"), ("~3", "nightly"), ("~4", "nightly")):
                copy_schedule(connection, key, name)
        write_export(f"sqlite:///{path}", tmp_path / "old.gz", lambda *_: None)

    moved = load_export(tmp_path / "old.gz", empty, lambda *_: None)

    write_export(empty, tmp_path / "now.gz", lambda *_: None)
    columns, rows = contents(tmp_path / "now.gz")["schedules"]
    names = {row[0]: row[columns.index("name")] for row in rows if str(row[0]).startswith("~")}
    assert names == {"~1": "nightly", "~2": "nightly (2)", "~3": "nightly (2) (~3)", "~4": "nightly (3)"}
    assert [change.split()[2] for change in moved.changes] == ["~3", "~4"]


def copy_schedule(connection: apsw.Connection, key: str, name: str) -> None:
    [columns] = connection.execute("select group_concat(name) from pragma_table_info('schedules')")
    chosen = {"schedule_id": f"'{key}'", "name": f"'{name}'", "deleted_at": "null"}
    values = ", ".join(chosen.get(column, column) for column in columns[0].split(","))
    connection.execute(f"insert into schedules select {values} from schedules limit 1")


def test_a_scheduler_goes_on_with_a_kept_database(kept: str, tmp_path: Path) -> None:
    path = unpacked(kept, tmp_path)

    async def body() -> str:
        scheduler = testing.scheduler(tmp_path, seed=7)
        register_handlers(scheduler)
        async with scheduler:
            job = await scheduler.submit("work", priority=1000)
            return (await scheduler.wait(job.job_id)).status

    assert testing.run(body()) == "COMPLETED"
    assert [one.problem for one in backup_sqlite.examine(path)] == []


# The schema, on both databases.


def test_migrated_step_by_step_is_migrated_at_once(empty: str, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(other)

    for count in range(1, len(STEPS) + 1):
        monkeypatch.setattr(dialects, "migrations", lambda count=count: STEPS[:count])
        opened(empty)

    assert schema_of(empty) == schema_of(other)
    assert len(schema_of(empty)) > 100


def test_each_step_adds_to_the_one_before(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []

    for count in range(1, len(STEPS) + 1):
        monkeypatch.setattr(dialects, "migrations", lambda count=count: STEPS[:count])
        opened(empty)
        found.append(schema_of(empty))

    assert all(earlier != later for earlier, later in pairwise(found))


def test_an_import_makes_the_schema_that_a_start_makes(kept: str, empty: str, other: str) -> None:
    opened(other)

    load_export(DATA / f"{kept}.ndjson.gz", empty, lambda *_: None)

    assert schema_of(empty) == schema_of(other)
