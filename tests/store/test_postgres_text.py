"""The same SQL on PostgreSQL: the schema and every statement of both databases are right there too."""

import re
from collections.abc import Iterator
from importlib import resources
from typing import Any

import psycopg
import pytest
from psycopg import pq

from nextslot.store import dialects
from nextslot.store.postgres.sessions import Address, connect
from tests import postgres
from tests.store.test_text import EXTENSIONS, HOT

STATEMENTS = dict(dialects.postgres_statements())
# What other statements include.
PARTS = set(re.findall(r"\{([a-z_]+\.[a-z_]+)\}", "".join(sql for _, sql in dialects._read(".sql"))))
# What a column may be: everything else would come as something that the functions of the store do not expect.
TYPES = {"int8", "int4", "text", "float8", "numeric", "bool"}


# Parameters.


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("select :a, :b_2, :a", ("select $1, $2, $1", ("a", "b_2"))),
        ("select ':a', \":b\", x::text, :a -- :c", ("select ':a', \":b\", x::text, $1 -- :c", ("a",))),
        ("select 'it''s :a', :b", ("select 'it''s :a', $1", ("b",))),
        ("select '100%', 5 % :a", ("select '100%', 5 % $1", ("a",))),
    ],
)
def test_a_parameter_is_found_where_it_is_one(sql: str, wanted: tuple[str, tuple[str, ...]]) -> None:
    assert dialects.placed(sql) == wanted


def test_both_databases_have_the_same_statements() -> None:
    assert STATEMENTS.keys() == dialects.statements().keys()


def test_an_override_needs_no_parameter_that_what_it_overrides_has_not_and_says_why() -> None:
    for name, sql in dialects._read(".postgres.sql"):
        assert parameters(sql) <= parameters(dialects._common_statements()[name]), name
    for file in (resources.files("nextslot.store") / "statements").iterdir():
        if file.name.endswith(".postgres.sql"):
            assert file.read_text().startswith("-- Differs because "), file.name


# Statements.


@pytest.mark.parametrize("name", sorted(STATEMENTS.keys() - PARTS))
def test_every_statement_is_one_that_PostgreSQL_understands(
    empty: "psycopg.Connection[tuple[Any, ...]]", name: str
) -> None:
    prepared = empty.pgconn.prepare(b"", dialects.placed((STATEMENTS | EXTENSIONS)[name]).sql.encode())

    assert prepared.status == pq.ExecStatus.COMMAND_OK, prepared.get_error_message()
    described = empty.pgconn.describe_prepared(b"")
    found = {empty.adapters.types[described.ftype(column)].name for column in range(described.nfields)}
    assert found <= TYPES


# Plans: as on SQLite, what the next dispatch costs must not grow with the jobs, the offices or the history.


@pytest.mark.parametrize(("name", "index"), HOT.items())
def test_a_hot_statement_goes_by_its_index_also_in_a_table_that_was_empty(
    settled: "psycopg.Connection[tuple[Any, ...]]", name: str, index: str
) -> None:
    """As the store plans it: once, whatever the values, with statistics of empty tables."""
    sql, names = dialects.placed((STATEMENTS | EXTENSIONS)[name])
    settled.execute(f"prepare hot as {sql}")
    values = ", ".join(["null"] * len(names))

    plan = "\n".join(row[0] for row in settled.execute(f"explain execute hot{f'({values})' if names else ''}"))
    settled.execute("deallocate hot")

    # Of an empty table, either index of lanes with ready jobs does: both begin with the office.
    wanted = ("lanes_ready", "lanes_ready_class") if name == "lanes.waiting_offices" else (index,)
    assert any(f" {one} " in plan for one in wanted), plan
    assert "Seq Scan on jobs" not in plan, plan
    assert "Seq Scan on runs" not in plan, plan


# Many rows at once.

PUT = {
    "runs.finish": "runs_job_id_key",
    "runs.begin": "jobs_pkey",
    "jobs.succeed": "jobs_pkey",
    "jobs.fail": "jobs_pkey",
    "jobs.start": "jobs_pkey",
    "lanes.place": "lanes_pkey",
    "lanes.take_turn": "offices_pkey",
    "lanes.tally": "lanes_pkey",
    "limits.use": "limits_pkey",
}
NUMBERS = {"now", "exit_code", "lane_id", "ready", "is_open", "turn", "units", "priority", "position", "timestamp"}
NUMBERS |= {"first_rank", "first_position"}


@pytest.mark.parametrize(("name", "index"), PUT.items())
def test_what_is_said_of_many_rows_at_once_goes_by_their_keys(
    settled: "psycopg.Connection[tuple[Any, ...]]", name: str, index: str
) -> None:
    """Whatever differs from row to row, and also with statistics of empty tables: never by way of a join."""
    key = dialects.key_of(STATEMENTS[name])
    assert key is not None
    others = [one for one in dialects.placed((STATEMENTS | EXTENSIONS)[name]).names if one != key]

    for differing in ([key], [key, *(one for one in others if one in NUMBERS | {"run_id", "worker_id", "outcome"})]):
        lists = tuple((one, "bigint" if one in NUMBERS else "text") for one in differing)
        together = dialects.set_based(STATEMENTS[name], lists)
        assert together is not None
        sql, names = dialects.placed(together)
        settled.execute(f"prepare hot as {sql}")
        plan = "\n".join(row[0] for row in settled.execute(f"explain execute hot({', '.join(['null'] * len(names))})"))
        settled.execute("deallocate hot")

        assert f"Index Scan using {index} " in plan or f"Bitmap Index Scan on {index} " in plan, plan
        assert "Join" not in plan, plan
        assert "Nested Loop" not in plan, plan


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        (
            "insert into t (a, b, c)\nvalues (:a, ':no', :b)",
            "insert into t (a, b, c)\nselect given.a, ':no', :b from unnest(cast(:a as bigint[])) as given(a)",
        ),
        (
            "update t set b = :b, c = c + :c where a = :a and d > 0",
            "update t set b = :b, c = c + :c where a = any(cast(:a as bigint[])) and coalesce((d > 0), false)",
        ),
        ("update t set b = :a where b = :c", None),
        ("delete from t", None),
        ("insert into t (a) values (:a) on conflict (a) do nothing", None),
    ],
)
def test_a_statement_about_one_row_is_told_of_many_if_it_names_its_row(sql: str, wanted: str | None) -> None:
    assert dialects.set_based(sql, (("a", "bigint"),)) == wanted


def test_what_differs_is_looked_up_by_the_place_of_its_row() -> None:
    told = dialects.set_based("update t set b = :b where a = :a", (("a", "bigint"), ("b", "text")))

    assert told == (
        "update t set b = (cast(:b as text[]))[array_position(cast(:a as bigint[]), a)] "
        "where a = any(cast(:a as bigint[]))"
    )


def test_a_statement_tells_which_tables_it_is_about() -> None:
    assert dialects.tables("jobs.ending_facts") == dialects.Tables(
        frozenset(), frozenset({"jobs", "runs", "dependencies"})
    )
    assert dialects.tables("runs.begin") == dialects.Tables(frozenset({"runs"}), frozenset({"runs", "jobs"}))
    assert dialects.tables("dependencies.meet").changed == {"dependencies"}


@pytest.mark.parametrize("name", sorted(STATEMENTS.keys() - PARTS))
def test_no_table_of_a_statement_is_overlooked(settled: "psycopg.Connection[tuple[Any, ...]]", name: str) -> None:
    """What is asked ahead is dropped by the tables it is about: all of those that PostgreSQL goes to."""
    sql, names = dialects.placed((STATEMENTS | EXTENSIONS)[name])
    settled.execute(f"prepare hot as {sql}")
    values = ", ".join(["null"] * len(names))
    plan = settled.execute(f"explain (format json) execute hot{f'({values})' if names else ''}").fetchone()
    settled.execute("deallocate hot")

    found = set(re.findall(r"'Relation Name': '(\w+)'", str(plan)))
    assert {table for table in found if not table.startswith("pg_")} <= dialects.tables(name).read


# Numbers.


def test_numbers_are_given_without_gaps_whatever_is_undone() -> None:
    schema = "create table t (\n    seq {serial} check (seq > 0),\n    a {int} not null\n) {log};"

    with in_a_schema(schema) as connection:
        connection.execute("insert into t (a) values (1), (2)")
        connection.execute("begin; insert into t (a) values (3); rollback")
        with pytest.raises(psycopg.IntegrityError):
            connection.execute("insert into t (a) values (null)")
        connection.execute("insert into t (a) values (4)")

        assert connection.execute("select seq, a from t order by seq").fetchall() == [(1, 1), (2, 2), (3, 4)]


# Rules.


def test_a_rule_becomes_a_trigger_that_refuses() -> None:
    schema = """create table t (a {int} not null primary key) {table};

        rule no_two before insert on t
            refuse 'two is too many: 100% (1.1)'
            when new.a = 2;

        rule no_smaller before insert on t refuse 'only more' when exists (select 1 from t where a > new.a);
    """
    with in_a_schema(schema.replace("\n        rule", "\nrule")) as connection:
        connection.execute("insert into t values (1)")

        for value, message in ((2, "two is too many: 100% (1.1)"), (0, "only more")):
            with pytest.raises(psycopg.IntegrityError) as refused:
                connection.execute("insert into t values (%s)", (value,))
            assert refused.value.diag.message_primary == message
        assert connection.execute("select a from t order by a").fetchall() == [(1,)]


@pytest.mark.parametrize("event", ["insert", "delete", "update", "update of a", "update of a, b"])
@pytest.mark.parametrize("condition", ["1 = 1", "exists (select 1 from t where a = 1)"])
def test_a_rule_is_for_any_event(event: str, condition: str) -> None:
    change = {"insert": "insert into t values (2, 2)", "delete": "delete from t"}.get(event, "update t set a = 3")
    schema = "create table t (a {int} not null primary key, b {int}) {table};\ninsert into t values (1, 1);\n"

    rule = f"rule r before {event} on t refuse 'no' when {condition};"

    with in_a_schema(schema + rule) as connection, pytest.raises(psycopg.IntegrityError, match="no"):
        connection.execute(change)


def test_what_a_rule_does_not_refuse_is_done() -> None:
    schema = "create table t (a {int} not null primary key) {table};\n"
    for event in ("update", "delete"):
        schema += f"rule no_{event} before {event} on t refuse 'no' when not exists (select 1 from t where a = 1);\n"

    with in_a_schema(schema) as connection:
        connection.execute("insert into t values (1), (2)")
        connection.execute("update t set a = 3 where a = 2")
        connection.execute("delete from t where a = 3")
        assert connection.execute("select a from t").fetchall() == [(1,)]


def test_every_rule_of_the_schema_is_a_trigger(empty: "psycopg.Connection[tuple[Any, ...]]") -> None:
    written = re.findall(r"^rule (\w+)", "".join(file for _, _, file in dialects.migrations()), re.MULTILINE)

    stored = empty.execute("select tgname from pg_trigger where not tgisinternal").fetchall()

    assert sorted(row[0] for row in stored) == sorted(set(written))


def test_text_is_compared_by_its_bytes_as_on_SQLite(empty: "psycopg.Connection[tuple[Any, ...]]") -> None:
    other = empty.execute(
        "select table_name, column_name from information_schema.columns where table_schema = 'public' "
        "and data_type = 'text' and collation_name is distinct from 'C' "
        "and table_name not in ('schema_migrations', 'commit_marks')"
    ).fetchall()

    assert other == []


# Arrangement.


@pytest.fixture(scope="module")
def empty() -> "Iterator[psycopg.Connection[tuple[Any, ...]]]":
    with psycopg.connect(postgres.create("nextslot_empty"), autocommit=True) as connection:
        yield connection
    postgres.drop("nextslot_empty")


@pytest.fixture(scope="module")
def settled(empty: "psycopg.Connection[tuple[Any, ...]]") -> "Iterator[psycopg.Connection[tuple[Any, ...]]]":
    """Opens a connection like the store's, to a database whose empty tables have been analysed: the worst case for
    plans.
    """
    empty.execute("analyze")
    connection = connect(Address.of(postgres.address("nextslot_empty")), "a test")
    yield connection
    connection.close()


class in_a_schema:  # noqa: N801 - reads as the `with` that it is for
    """Makes another schema on the tests' server, with these tables and rules, inside this context."""

    def __init__(self, schema: str) -> None:
        self._schema = schema

    def __enter__(self) -> "psycopg.Connection[tuple[Any, ...]]":
        self._connection = psycopg.connect(postgres.address(), autocommit=True)
        self._connection.execute("set search_path = pg_temp")
        for statement in dialects.for_postgres(self._schema):
            named = re.sub(r"(create function|execute function|default) (\w+\()", r"\1 pg_temp.\2", statement)
            self._connection.execute(named)
        return self._connection

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def parameters(sql: str) -> set[str]:
    return set(re.findall(r"(?<!:):([a-z_]+)", sql))
