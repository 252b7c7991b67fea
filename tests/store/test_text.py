"""SQL as text: every statement is right, used, and quick where it has to be; rules become triggers."""

import re
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import nextslot
from nextslot.store import dialects
from nextslot.store.tables.rows import JOBS

SOURCE = Path(nextslot.__file__).parent
STATEMENTS = dict(dialects.statements())
# Those of extensions, as `ext_NAME.statement`.
EXTENSIONS = {
    f"{file.stem}.{name}": sql
    for file in SOURCE.glob("extensions/*/ext_*.sql")
    for name, sql in dialects.extension_statements(file).items()
}
# Those of one database only are in test_postgres_text.py.
FILES = [path for path in (SOURCE / "store" / "statements").glob("*.sql") if path.suffixes == [".sql"]]
# Lists of columns and the like, which other statements include.
PARTS = {
    name
    for name in STATEMENTS | EXTENSIONS
    if name.endswith((".columns", ".brief", ".chains", ".now", "lanes.is_idle", "rollups.queued"))
}


# Statements.


def test_statements_are_named_by_file_and_block() -> None:
    files = {name.partition(".")[0] for name in STATEMENTS}

    assert files == {path.stem for path in FILES}
    assert STATEMENTS["events.last"] == "select coalesce(max(seq), 0) from events"


def test_no_block_is_lost_on_the_way() -> None:
    """A name with a wrong character would make one block part of the one before."""
    comments = [(path.stem, line) for path in FILES for line in path.read_text().splitlines() if line.startswith("--")]

    assert len(comments) == len(STATEMENTS)
    assert all(f"{file}.{line[3:].partition(':')[0]}" in STATEMENTS for file, line in comments)


def test_includes_are_resolved() -> None:
    assert STATEMENTS["jobs.get"] == f"select {', '.join(JOBS.columns)} from jobs where job_id = :job_id"
    assert not [name for name, sql in STATEMENTS.items() if "{" in sql or "}" in sql]


@pytest.mark.parametrize("name", sorted((STATEMENTS | EXTENSIONS).keys() - PARTS))
def test_every_statement_is_one_that_SQLite_understands(empty: apsw.Connection, name: str) -> None:
    sql = (STATEMENTS | EXTENSIONS)[name]

    assert ";" not in sql
    assert empty.execute(f"explain {sql}", bindings(sql)).fetchall()


def test_an_insert_of_many_rows_is_that_of_one_with_its_row_repeated() -> None:
    many = dialects.many_rows("insert into t (a, b, c, d)\nvalues (:b, ':no', :a, :b)", ("b", "a"), 2)

    assert many == "insert into t (a, b, c, d)\nvalues (?1, ':no', ?2, ?1), (?3, ':no', ?4, ?3)"


@pytest.mark.parametrize("names", [("a", "b"), ("b",), ("b", "a", "c")])
def test_rows_are_in_the_order_of_the_statement(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="are not the parameters, in their order"):
        dialects.many_rows("insert into t (a, b) values (:b, :a)", names, 2)


@pytest.mark.parametrize(
    "sql",
    [
        "insert into t (a, b) values (:a, :b) on conflict (a) do nothing",
        "insert into t (a, b) values (:a, coalesce(:b, 1))",
        "insert into t (a, b) select :a, :b",
        "update t set a = :a where b = :b",
    ],
)
def test_what_is_more_than_an_insert_of_parameters_is_left_alone(sql: str) -> None:
    assert dialects.many_rows(sql, ("a", "b"), 2) is None


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_no_statement_is_dead(name: str) -> None:
    code = "".join(path.read_text() for path in SOURCE.rglob("*.py"))
    sql = "".join(path.read_text() for path in SOURCE.rglob("*.sql"))

    assert f'"{name}"' in code or f"{{{name}}}" in sql


@pytest.mark.parametrize("name", sorted(EXTENSIONS))
def test_no_statement_of_an_extension_is_dead(name: str) -> None:
    [file] = SOURCE.glob(f"extensions/*/{name.partition('.')[0]}.sql")
    code = "".join(path.read_text() for path in file.parent.glob("*.py"))

    assert f'SQL.rows(tx, "{name.partition(".")[2]}"' in code or f"{{{name}}}" in file.read_text()


def test_the_code_names_no_statement_that_is_not_there() -> None:
    named = {
        name
        for path in SOURCE.rglob("*.py")
        for name in re.findall(r'tx\.(?:row|rows|run|run_many)\(\s*"([^"]+)"', path.read_text())
    }

    assert named
    assert named <= STATEMENTS.keys()


# Plans: what the next dispatch costs must not grow with the jobs, the offices or the history.

HOT = {
    "jobs.heads": "jobs_ready",
    "jobs.last_position": "jobs_queue",
    "jobs.running": "jobs_worker",
    "jobs.due": "jobs_due",
    "jobs.expired": "jobs_expiry",
    "jobs.starving": "jobs_starving",
    "jobs.undecided": "jobs_undecided",
    "ext_legacy.page": "jobs_by_legacy",
    "ext_legacy.total": "jobs_by_legacy",
    "ext_legacy.all": "jobs_by_legacy",
    "ext_legacy.running": "jobs_worker",
    "lanes.of_office": "lanes_ready",
    "lanes.classes_of": "lanes_ready_class",
    "lanes.of_class": "lanes_ready_class",
    "lanes.waiting_offices": "lanes_ready",
    "jobs.firsts": "jobs_ready",
    "lanes.first_open": "lanes_open",
    "lanes.next_open": "lanes_open",
    "ext_offices.roots": "jobs_by_office",
    "ext_offices.roots_of_task": "jobs_by_task",
    "ext_offices.failed": "jobs_office_failed",
    "ext_offices.cancelled": "jobs_office_cancelled",
    "dependencies.meet": "dependencies_chain",
    "runs.overdue": "runs_timeout",
}


@pytest.mark.parametrize(("name", "index"), HOT.items())
def test_a_hot_statement_goes_by_its_index(empty: apsw.Connection, name: str, index: str) -> None:
    steps = plan(empty, name)

    assert any(f" {index} " in f"{step} " for step in steps), steps


@pytest.mark.parametrize("name", sorted(HOT))
def test_a_hot_statement_scans_no_table(empty: apsw.Connection, name: str) -> None:
    """A scan is fine only over a partial index, which holds nothing but what the statement wants."""
    partial = {row[0] for row in empty.execute("select name from pragma_index_list('jobs') where partial = 1")}
    for table in ("runs", "lanes", "dependencies"):
        partial |= {row[0] for row in empty.execute(f"select name from pragma_index_list('{table}') where partial = 1")}
    tables = {row[0] for row in empty.execute("select name from sqlite_schema where type = 'table'")} | {"first"}

    scans = [
        step
        for step in plan(empty, name)
        if step.startswith("SCAN ")
        and step.split()[1] in tables
        and not any(f"INDEX {index}" in step for index in partial)
    ]

    assert scans == []


@pytest.mark.parametrize("name", ["jobs.heads", "jobs.expired", "jobs.due", "jobs.undecided", "runs.overdue"])
def test_a_hot_statement_sorts_nothing(empty: apsw.Connection, name: str) -> None:
    assert not [step for step in plan(empty, name) if "TEMP B-TREE" in step]


# Schema files.


def test_migrations_are_numbered_without_gaps() -> None:
    assert [number for number, _, _ in dialects.migrations()] == list(range(1, len(dialects.migrations()) + 1))


def test_a_rule_becomes_a_trigger_that_refuses() -> None:
    rule = "rule no_two before insert on t\n    refuse 'two is too many (1.1)'\n    when new.a = 2;"
    connection = schema(f"create table t (a {{int}} not null primary key) {{table}};\n\n{rule}")

    connection.execute("insert into t values (1)")

    with pytest.raises(apsw.ConstraintError, match=r"^two is too many \(1\.1\)$"):
        connection.execute("insert into t values (2)")
    assert connection.execute("select a from t").fetchall() == [(1,)]


def test_a_rule_ends_the_transaction() -> None:
    rule = "rule no_two before insert on t refuse 'no' when new.a = 2;"
    connection = schema(f"create table t (a {{int}} not null primary key) {{table}};\n{rule}")
    connection.execute("begin")
    connection.execute("insert into t values (1)")

    with pytest.raises(apsw.ConstraintError):
        connection.execute("insert into t values (3), (2)")

    assert not connection.in_transaction
    assert connection.execute("select a from t").fetchall() == []


@pytest.mark.parametrize(
    "refused", ["insert into t values (1)", "insert into t values (-1)", "insert into t values (null)"]
)
def test_a_statement_that_a_constraint_refuses_ends_the_transaction_too(refused: str) -> None:
    connection = schema("create table t (a {int} not null primary key check (a > 0)) {table};")
    connection.execute("begin")
    connection.execute("insert into t values (1)")

    with pytest.raises(apsw.ConstraintError):
        connection.execute(dialects.sqlite_statement(refused))

    assert not connection.in_transaction


def test_a_row_whose_parent_is_missing_is_refused_by_the_commit() -> None:
    parent = "create table p (a {int} not null primary key) {table};"
    connection = schema(f"{parent}\ncreate table t (a {{int}} not null primary key, b {{int}} references p) {{table}};")
    connection.pragma("foreign_keys", True)
    connection.execute("begin")
    connection.execute("insert into t values (1, 2)")

    with pytest.raises(apsw.ConstraintError, match="FOREIGN KEY"):
        connection.execute("commit")


@pytest.mark.parametrize("event", ["insert", "delete", "update", "update of a", "update of a, b"])
def test_a_rule_is_for_any_event(event: str) -> None:
    table = "create table t (a {int} not null primary key, b {int}) {table};"

    [trigger] = schema(f"{table}\nrule r before {event} on t refuse 'no' when 1 = 1;").execute(
        "select sql from sqlite_schema where type = 'trigger'"
    )

    assert f"before {event} on t when 1 = 1" in str(trigger[0])


@pytest.mark.parametrize(
    "rule",
    ["rule r after insert on t refuse 'no' when 1 = 1", "rule r before insert on t", "rule r before insert refuse 'x'"],
)
def test_what_is_no_rule_is_told(rule: str) -> None:
    with pytest.raises(ValueError, match="this is not a rule: rule r"):
        list(dialects.for_sqlite(rule + ";"))


def test_comments_and_words_are_gone_from_what_the_database_gets() -> None:
    for _, _, migration in dialects.migrations():
        for statement in dialects.for_sqlite(migration):
            assert statement.startswith(
                (
                    "create table ", "create index ", "create unique index ", "create trigger ", "drop trigger ",
                    "alter table ", "insert into cluster ", "update direct_executions set direct_id ", "drop index ",
                    "update reservations set status ", "update offices set ", "update schedules set ",
                    "update lanes set", "update job_templates set ", "insert into rollup_bounds ",
                    "insert into held_resources ", "drop table ", "create virtual table ",
                    "insert into job_text ",
                )
            )  # fmt: skip
            assert "{" not in statement.replace("'{}'", "")
            assert not re.search(r"^\s*--", statement, re.MULTILINE)


def test_every_rule_of_the_schema_is_a_trigger(empty: apsw.Connection) -> None:
    written = re.findall(r"^rule (\w+)", "".join(file for _, _, file in dialects.migrations()), re.MULTILINE)

    stored = [row[0] for row in empty.execute("select name from sqlite_schema where type = 'trigger'")]

    assert sorted(stored, key=str) == sorted(set(written))


def test_a_look_at_an_office_reads_its_last_turn_once_and_not_for_each_lane(empty: apsw.Connection) -> None:
    assert not [line for line in plan(empty, "lanes.of_office") if "CORRELATED" in line]


def test_every_table_is_strict(empty: apsw.Connection) -> None:
    """Else a column would take a value of any type. The tables of the full text are SQLite's own."""
    loose = empty.execute("select name from pragma_table_list where schema = 'main' and not strict").fetchall()

    assert {name for (name,) in loose if not str(name).startswith("job_text")} == {"sqlite_schema"}


# Arrangement.


@pytest.fixture(scope="module")
def empty() -> Iterator[apsw.Connection]:
    connection = schema("\n".join(file for _, _, file in dialects.migrations()))
    # As the store has it: a plan that does not depend on the values.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    yield connection
    connection.close()


def schema(file: str) -> apsw.Connection:
    connection = apsw.Connection("")
    for statement in dialects.for_sqlite(file):
        connection.execute(statement)
    return connection


def bindings(sql: str) -> dict[str, object]:
    """Returns a value for every parameter: sets of ids are JSON."""
    names = set(re.findall(r":([a-z_]+)", sql))
    return {name: "{}" if f"json_each(:{name})" in sql else 1 for name in names}


def plan(connection: apsw.Connection, name: str) -> list[str]:
    sql = (STATEMENTS | EXTENSIONS)[name]
    return [str(row[3]) for row in connection.execute(f"explain query plan {sql}", bindings(sql))]
