"""SQL as text: named statements, and schema files with a few words that each database spells its own way.

A statement file is a list of blocks, each opened by `-- name: purpose`; `{file.name}` includes another. All of them are
written for both databases; where one cannot be, `file.postgres.sql` has PostgreSQL's own under the same name, and says
why. Parameters are `:name`; PostgreSQL's driver is given them in its own style.
A schema file is plain SQL in which `{int}`, `{real}`, `{serial}`, `{table}`, `{log}` stand for the dialect's words, and
in which an invariant is written once, as

    rule NAME before update of COLUMNS on TABLE refuse 'MESSAGE' when CONDITION;

which becomes a trigger in whatever form the database has for one.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from importlib import resources
from operator import itemgetter
from typing import Any

_NAME = re.compile(r"^-- ([a-z_]+): .+$", re.MULTILINE)
_INCLUDE = re.compile(r"\{([a-z_.]+)\}")
_RULE = re.compile(
    r"^rule (?P<name>\w+) before (?P<event>insert|delete|update(?: of [\w, ]+?)?) on (?P<table>\w+)"
    r"\s+refuse '(?P<message>[^']+)'\s+when (?P<condition>.+)$",
    re.DOTALL,
)
_NUMBERED = re.compile(r"create table (\w+) \(\s*(\w+) \{serial\}")
_TEXT_COLUMN = re.compile(r"^(\s*(?:alter table \w+ add column )?\w+) text\b", re.MULTILINE)

# A statement that does nothing but insert one row of parameters and constants.
_INSERT = re.compile(r"^(insert into \w+ \([^()]+\)\s+values) \(([^()]+)\)$")

# What a parameter is not: text, a quoted name, a comment, a cast; and what it is.
_TOKEN = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|::|:([a-z_][a-z_0-9]*)|%", re.IGNORECASE)

SQLITE_WORDS = {"int": "integer", "real": "real", "serial": "integer primary key", "table": "strict, without rowid",
                "log": "strict"}  # fmt: skip
POSTGRES_WORDS = {"int": "bigint", "real": "double precision", "table": "", "log": ""}

_OVERRIDES = ".postgres.sql"


@cache
def statements() -> Mapping[str, str]:
    """Every statement by `file.name`."""
    return _included(_common_statements())


@cache
def postgres_statements() -> Mapping[str, str]:
    """The same for PostgreSQL: its own where it has one, with parameters as its driver wants them."""
    found = _common_statements()
    for name, sql in _read(_OVERRIDES):
        if name not in found:
            raise ValueError(f"{name} overrides nothing")
        found[name] = sql
    return {name: postgres_parameters(sql) for name, sql in _included(found).items()}


@lru_cache(maxsize=1024)
def postgres_parameters(sql: str) -> str:
    """`:name` as `%(name)s`, except where it is none: in texts, quoted names, comments and casts."""

    def spelled(token: re.Match[str]) -> str:
        return f"%({token[1]})s" if token[1] else token[0].replace("%", "%%")

    return _TOKEN.sub(spelled, sql)


@lru_cache(maxsize=256)
def many_rows(sql: str, count: int) -> tuple[str, Callable[[Mapping[str, object]], tuple[Any, ...]]] | None:
    """An insert of one row as one of many, with parameters by their place, and how to line up a row's values for it.

    None if it is something else than a plain insert.
    """
    insert = _INSERT.match(sql)
    names = [token[1] for token in _TOKEN.finditer(sql) if token[1]]
    if insert is None or len(names) < 2:
        return None
    row = _TOKEN.sub(lambda token: "?" if token[1] else token[0], " ".join(insert[2].split()))
    return f"{insert[1]} {', '.join([f'({row})'] * count)}", itemgetter(*names)


def _common_statements() -> dict[str, str]:
    return dict(_read(".sql"))


def _read(ending: str) -> Iterator[tuple[str, str]]:
    for file in sorted(resources.files(__package__).joinpath("statements").iterdir(), key=lambda f: f.name):
        if file.name.endswith(ending) and (ending == _OVERRIDES or not file.name.endswith(_OVERRIDES)):
            for name, sql in _blocks(file.read_text()):
                yield f"{file.name.removesuffix(ending)}.{name}", sql


def _included(found: Mapping[str, str]) -> dict[str, str]:
    return {name: _INCLUDE.sub(lambda part: found[part[1]], sql) for name, sql in found.items()}


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    heads = list(_NAME.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    for head, end in zip(heads, ends, strict=True):
        yield head[1], text[head.end() : end].strip().removesuffix(";")


@cache
def migrations() -> Sequence[tuple[int, str, str]]:
    """(number, name, text) of each schema file, in order."""
    found = []
    for file in resources.files(__package__).joinpath("migrations").iterdir():
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            found.append((int(number), name, file.read_text()))
    return sorted(found)


def for_sqlite(schema: str) -> Iterator[str]:
    """The statements of a schema file as SQLite wants them."""
    for statement in _split(schema):
        spelled = _spelled(statement, SQLITE_WORDS)
        yield _sqlite_trigger(_rule(spelled)) if spelled.startswith("rule ") else spelled


def for_postgres(schema: str) -> Iterator[str]:
    """The statements of a schema file as PostgreSQL wants them."""
    for statement in _split(schema):
        spelled = _spelled(statement, POSTGRES_WORDS)
        if numbered := _NUMBERED.match(spelled):
            # Not a sequence of the server's: what a rollback leaves unused would be a gap for ever. Writers take turns.
            yield (
                f"create function next_{numbered[1]}() returns bigint language plpgsql as "
                f"$next$ begin return (select coalesce(max({numbered[2]}), 0) + 1 from {numbered[1]}); end $next$"
            )
            spelled = spelled.replace("{serial}", f"bigint not null primary key default next_{numbered[1]}()")
        if spelled.startswith("rule "):
            yield from _postgres_trigger(_rule(spelled))
        else:
            # By its bytes, as SQLite compares: else the order of names would be that of the server's language.
            is_table = spelled.startswith(("create table ", "alter table "))
            yield _TEXT_COLUMN.sub(r'\1 text collate "C"', spelled) if is_table else spelled


def _spelled(statement: str, words: Mapping[str, str]) -> str:
    for word, spelling in words.items():
        statement = statement.replace(f"{{{word}}}", spelling)
    return statement.strip()


def _split(schema: str) -> Iterator[str]:
    """Statements end with a semicolon at a line's end; comment lines are dropped."""
    text = "\n".join(line for line in schema.splitlines() if not line.lstrip().startswith("--"))
    for statement in re.split(r";\s*$", text, flags=re.MULTILINE):
        if statement.strip():
            yield statement.strip()


def _rule(rule: str) -> re.Match[str]:
    parts = _RULE.match(rule)
    if parts is None:
        raise ValueError(f"not a rule: {rule}")
    return parts


def _sqlite_trigger(rule: re.Match[str]) -> str:
    # RAISE(ABORT) undoes only this statement; the transaction is rolled back by whoever opened it.
    return (
        f"create trigger {rule['name']} before {rule['event']} on {rule['table']} when {rule['condition']} "
        f"begin select raise(abort, '{rule['message']}'); end"
    )


def _postgres_trigger(rule: re.Match[str]) -> Iterator[str]:
    """A function of the rule's own, since the WHEN of a trigger may look at no other row."""
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
