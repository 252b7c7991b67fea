"""SQL as text: named statements, and schema files with placeholders for the words that differ between databases.

A statement file is a list of blocks, each opened by `-- name: purpose`; `{file.name}` includes another statement, or
the columns that follow from the declaration of a value (`tables/rows.py`). Statements are written for both databases.
Where that is impossible, `file.postgres.sql` has PostgreSQL's own statement under the same name, with the reason.
Parameters are `:name`; PostgreSQL gets them by position.

A schema file is plain SQL in which `{int}`, `{real}`, `{serial}`, `{table}`, `{log}`, `{computed}` stand for the
dialect's words, and in which an invariant is written once, as

    rule NAME before update of COLUMNS on TABLE refuse 'MESSAGE' when CONDITION;

which becomes a trigger in the form of each database; `drop rule NAME on TABLE;` removes it again.
`sqlite: …;` and `postgres: …;` are statements of one database alone.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from nextslot.errors import SchemaTooNew

from .tables import rows

_NAME = re.compile(r"^-- ([a-z_]+): .+$", re.MULTILINE)
_INCLUDE = re.compile(r"\{([a-z_.]+)\}")
_RULE = re.compile(
    r"^rule (?P<name>\w+) before (?P<event>insert|delete|update(?: of [\w, ]+?)?) on (?P<table>\w+)"
    r"\s+refuse '(?P<message>[^']+)'\s+when (?P<condition>.+)$",
    re.DOTALL,
)
# A statement of a schema file that only one database has.
_ALONE = re.compile(r"(sqlite|postgres): ")
_DROPPED = re.compile(r"^drop rule (\w+) on (\w+)$")
# The end of a statement; a semicolon in a text between dollar signs is not one.
_END = re.compile(r"(\$\w+\$).*?\1|;[ \t]*$", re.DOTALL | re.MULTILINE)
_NUMBERED = re.compile(r"create table (\w+) \(\s*(\w+) \{serial\}")
_TEXT_COLUMN = re.compile(r"^(\s*(?:alter table \w+ add column )?\w+) text\b", re.MULTILINE)

# Matches a statement that only inserts one row of parameters and constants.
_INSERT = re.compile(r"^(insert (?:or rollback )?into \w+ \([^()]+\)\s+values) \(([^()]+)\)$")
_WRITE = re.compile(r"^(insert|update)\b")
_REFERENCE = re.compile(r"\breferences \w+(?! deferrable)\b")

# Matches the condition that selects the row, in which the parameter has the name of its column.
_KEY = re.compile(r"\bwhere (\w+) = :\1\b")
# Matches the further conditions of a statement on its row, and what it returns.
_ALSO = re.compile(r"^\s+and (.+?)(\s+returning .+)?$", re.DOTALL)
# Match the tables that a statement changes, and those that it reads.
_CHANGED = re.compile(r"\b(?:insert into|update|delete from)\s+(\w+)")
_READ = re.compile(r"\b(?:from|join)\s+(\w+)")

# Skips texts, quoted names, comments and casts; the group captures a parameter's name.
_TOKEN = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|::|:([a-z_][a-z_0-9]*)", re.IGNORECASE)

SQLITE_WORDS = {"int": "integer", "real": "real", "serial": "integer primary key", "table": "strict, without rowid",
                "log": "strict", "computed": "virtual"}  # fmt: skip
POSTGRES_WORDS = {"int": "bigint", "real": "double precision", "table": "", "log": "", "computed": "stored"}

_OVERRIDES = ".postgres.sql"


@cache
def statements() -> Mapping[str, str]:
    """Returns every statement for SQLite, by `file.name`."""
    return {name: sqlite_statement(sql) for name, sql in _included(_common_statements()).items()}


def sqlite_statement(sql: str) -> str:
    """Lets a refusal roll back the whole transaction, as on PostgreSQL, and not only the statement.

    The caller rolls back anyway; and a statement that may have to be undone alone would keep a copy of each page that
    it changes (the writes of a hand-over: 122 → 106 µs).
    """
    return _WRITE.sub(r"\1 or rollback", sql)


@cache
def postgres_statements() -> Mapping[str, str]:
    """Returns every statement for PostgreSQL, by `file.name`; PostgreSQL's own version where there is one."""
    found = _common_statements()
    for name, sql in _read(_OVERRIDES):
        if name not in found:
            raise ValueError(f"{name} overrides no statement; correct its name or delete it")
        found[name] = sql
    return _included(found)


@cache
def extension_statements(file: Path) -> Mapping[str, str]:
    """Reads the statements of an extension from its SQL file, each by its name, for `Tx.select` on either database."""
    own = dict(_blocks(file.read_text()))
    known = rows.fragments() | _common_statements() | {f"{file.stem}.{name}": sql for name, sql in own.items()}
    return {name: _INCLUDE.sub(lambda part: known[part[1]], sql) for name, sql in own.items()}


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables that a statement changes, and all tables that its result depends on."""

    changed: frozenset[str]
    read: frozenset[str]


@cache
def tables(statement: str) -> Tables:
    sql = postgres_statements()[statement]
    changed = frozenset(_CHANGED.findall(sql))
    return Tables(changed, changed | frozenset(_READ.findall(sql)))


class Placed(NamedTuple):
    """A statement with positional parameters, `$1` and so on."""

    sql: str
    names: tuple[str, ...]


@lru_cache(maxsize=4096)
def placed(sql: str) -> Placed:
    """Replaces `:name` by `$1` and so on, except in texts, quoted names, comments and casts."""
    names: dict[str, int] = {}

    def spelled(token: re.Match[str]) -> str:
        return f"${names.setdefault(token[1], len(names) + 1)}" if token[1] else token[0]

    by_place = _TOKEN.sub(spelled, sql)
    return Placed(by_place, tuple(names))


@lru_cache(maxsize=512)
def set_based(sql: str, lists: tuple[tuple[str, str], ...]) -> str | None:
    """Turns a statement about one row into one about many: the parameters in `lists` become arrays of the given type.

    PostgreSQL checks the indexes, constraints and rules of a table once for each statement, so ten rows cost little
    more than one. Returns None for a statement that cannot be converted: one that does not select its row by a column
    and a parameter of the same name, which must be in `lists`.
    """
    types = dict(lists)
    if inserted := _INSERT.match(sql):
        given = ", ".join(f"cast(:{name} as {type_}[])" for name, type_ in lists)
        row = _TOKEN.sub(lambda token: f"given.{token[1]}" if token[1] in types else token[0], inserted[2])
        return f"{inserted[1].removesuffix('values')}select {row} from unnest({given}) as given({', '.join(types)})"
    key = _KEY.search(sql)
    if key is None or key[1] not in types:
        return None
    place = f"array_position(cast(:{key[1]} as {types[key[1]]}[]), {key[1]})"

    def spelled(token: re.Match[str]) -> str:
        name = token[1]
        return f"(cast(:{name} as {types[name]}[]))[{place}]" if name in types else token[0]

    # The expression leaves the planner only the key's index. For several rows, other indexes can seem as good while the
    # statistics are those of an empty table, and would then be scanned from end to end.
    after = _ALSO.sub(r" and coalesce((\1), false)\2", sql[key.end() :])
    found = f"where {key[1]} = any(cast(:{key[1]} as {types[key[1]]}[]))"
    return _TOKEN.sub(spelled, sql[: key.start()]) + found + _TOKEN.sub(spelled, after)


@lru_cache(maxsize=256)
def many_rows(sql: str, names: tuple[str, ...], count: int) -> str | None:
    """Turns an insert of one row into an insert of many rows with positional parameters; None if it is not a plain
    insert.

    The names must be the statement's own, in its order, since the values are bound by position.
    """
    if tuple(dict.fromkeys(token[1] for token in _TOKEN.finditer(sql) if token[1])) != names:
        raise ValueError(f"{names} are not the parameters, in their order, of: {sql}")
    insert = _INSERT.match(sql)
    if insert is None:
        return None
    values = " ".join(insert[2].split())
    places = {name: place for place, name in enumerate(names, start=1)}

    def row(before: int) -> str:
        return _TOKEN.sub(lambda token: f"?{before + places[token[1]]}" if token[1] else token[0], values)

    return f"{insert[1]} {', '.join(f'({row(number * len(names))})' for number in range(count))}"


def key_of(sql: str) -> str | None:
    """Returns the column that selects the row of a statement, or None."""
    found = None if _INSERT.match(sql) else _KEY.search(sql)
    return found[1] if found else None


def _common_statements() -> dict[str, str]:
    return dict(_read(".sql"))


def _read(ending: str) -> Iterator[tuple[str, str]]:
    for file in sorted(resources.files(__package__).joinpath("statements").iterdir(), key=lambda f: f.name):
        if file.name.endswith(ending) and (ending == _OVERRIDES or not file.name.endswith(_OVERRIDES)):
            for name, sql in _blocks(file.read_text()):
                yield f"{file.name.removesuffix(ending)}.{name}", sql


def _included(found: dict[str, str]) -> dict[str, str]:
    parts = rows.fragments() | found
    return {name: _INCLUDE.sub(lambda part: parts[part[1]], sql) for name, sql in found.items()}


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    heads = list(_NAME.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    for head, end in zip(heads, ends, strict=True):
        yield head[1], text[head.end() : end].strip().removesuffix(";")


@cache
def migrations() -> Sequence[tuple[int, str, str]]:
    """Returns (number, name, text) of each schema file, in order."""
    found = []
    for file in resources.files(__package__).joinpath("migrations").iterdir():
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            found.append((int(number), name, file.read_text()))
    return sorted(found)


def steps_after(done: int, last: int | None = None, place: str = "this database") -> list[tuple[int, str, str]]:
    """Returns the schema files that follow version `done`, until `last`. Refuses a schema newer than this release."""
    steps = migrations()
    if done > steps[-1][0]:
        raise SchemaTooNew(
            f"{place} has schema {done}, but this release knows only {steps[-1][0]}: use a newer release"
        )
    return [step for step in steps if done < step[0] <= (last or step[0])]


def rules() -> frozenset[str]:
    """Returns the names of all rules that any schema file creates."""
    made = [statement for _, _, schema in migrations() for statement in _split(schema)]
    return frozenset(_rule(statement)["name"] for statement in made if statement.startswith("rule "))


def for_sqlite(schema: str) -> Iterator[str]:
    """Yields the statements of a schema file for SQLite."""
    for statement in _of_dialect(schema, "sqlite"):
        spelled = _spelled(statement, SQLITE_WORDS)
        if spelled.startswith("rule "):
            yield _sqlite_trigger(_rule(spelled))
        elif dropped := _DROPPED.match(spelled):
            yield f"drop trigger {dropped[1]}"
        else:
            # SQLite checks references at the commit: otherwise each insert would need an undo journal of its own.
            yield _REFERENCE.sub(r"\g<0> deferrable initially deferred", spelled)


def for_postgres(schema: str) -> Iterator[str]:
    """Yields the statements of a schema file for PostgreSQL."""
    for statement in _of_dialect(schema, "postgres"):
        spelled = _spelled(statement, POSTGRES_WORDS)
        if numbered := _NUMBERED.match(spelled):
            # Not a sequence of the server, since a rollback would leave a permanent gap. Only one writer runs at a
            # time.
            yield (
                f"create function next_{numbered[1]}() returns bigint language plpgsql as "
                f"$next$ begin return (select coalesce(max({numbered[2]}), 0) + 1 from {numbered[1]}); end $next$"
            )
            spelled = spelled.replace("{serial}", f"bigint not null primary key default next_{numbered[1]}()")
        if spelled.startswith("rule "):
            yield from _postgres_trigger(_rule(spelled))
        elif dropped := _DROPPED.match(spelled):
            yield f"drop trigger {dropped[1]} on {dropped[2]}"
            yield f"drop function {dropped[1]}()"
        else:
            # Compare by bytes, as SQLite does: otherwise the server's locale would decide the order of names.
            is_table = spelled.startswith(("create table ", "alter table "))
            yield _TEXT_COLUMN.sub(r'\1 text collate "C"', spelled) if is_table else spelled


def _of_dialect(schema: str, dialect: str) -> Iterator[str]:
    """Yields the common statements of a schema file, and those of one database alone."""
    for statement in _split(schema):
        alone = _ALONE.match(statement)
        if alone is None or alone[1] == dialect:
            yield statement if alone is None else statement[alone.end() :]


def _spelled(statement: str, words: Mapping[str, str]) -> str:
    for word, spelling in words.items():
        statement = statement.replace(f"{{{word}}}", spelling)
    return statement.strip()


def _split(schema: str) -> Iterator[str]:
    """Splits a schema at semicolons at the end of a line, and drops comment lines."""
    text = "\n".join(line for line in schema.splitlines() if not line.lstrip().startswith("--"))
    ends = [end.span() for end in _END.finditer(text) if end[0].startswith(";")]
    for (_, begin), (end, _) in pairwise([(0, 0), *ends, (len(text), len(text))]):
        if statement := text[begin:end].strip():
            yield statement


def _rule(rule: str) -> re.Match[str]:
    parts = _RULE.match(rule)
    if parts is None:
        raise ValueError(
            f"this is not a rule: {rule}; write: rule NAME before EVENT on TABLE refuse 'MESSAGE' when CONDITION"
        )
    return parts


def _sqlite_trigger(rule: re.Match[str]) -> str:
    # Roll back the whole transaction, not only the statement: see `sqlite_statement`.
    return (
        f"create trigger {rule['name']} before {rule['event']} on {rule['table']} when {rule['condition']} "
        f"begin select raise(rollback, '{rule['message']}'); end"
    )


def _postgres_trigger(rule: re.Match[str]) -> Iterator[str]:
    """Yields a trigger function and its trigger: the WHEN clause of a trigger cannot read other rows, a function
    can."""
    looks_elsewhere = re.search(r"\bselect\b", rule["condition"]) is not None
    raise_it = f"raise exception '%', '{rule['message']}' using errcode = 'integrity_constraint_violation';"
    body = f"if {rule['condition']} then {raise_it} end if;" if looks_elsewhere else raise_it
    kept = "old" if rule["event"] == "delete" else "new"
    yield (
        f"create function {rule['name']}() returns trigger language plpgsql as "
        f"$rule$ begin {body} return {kept}; end $rule$"
    )
    when = "" if looks_elsewhere else f"when ({rule['condition']}) "
    yield (
        f"create trigger {rule['name']} before {rule['event']} on {rule['table']} for each row {when}"
        f"execute function {rule['name']}()"
    )
