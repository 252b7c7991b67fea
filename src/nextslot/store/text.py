"""SQL as text: named statements, and schema files with a few words that each database spells its own way.

A statement file is a list of blocks, each opened by `-- name: purpose`; `{file.name}` includes another.
A schema file is plain SQL in which `{int}`, `{real}`, `{serial}`, `{table}`, `{log}` stand for the dialect's words, and
in which an invariant is written once, as

    rule NAME before update of COLUMNS on TABLE refuse 'MESSAGE' when CONDITION;

which becomes a trigger in whatever form the database has for one.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources

_NAME = re.compile(r"^-- ([a-z_]+): .+$", re.MULTILINE)
_INCLUDE = re.compile(r"\{([a-z_.]+)\}")
_RULE = re.compile(
    r"^rule (?P<name>\w+) before (?P<event>insert|delete|update(?: of [\w, ]+?)?) on (?P<table>\w+)"
    r"\s+refuse '(?P<message>[^']+)'\s+when (?P<condition>.+)$",
    re.DOTALL,
)

SQLITE_WORDS = {"int": "integer", "real": "real", "serial": "integer primary key", "table": "strict, without rowid",
                "log": "strict"}  # fmt: skip


@cache
def statements() -> Mapping[str, str]:
    """Every statement by `file.name`."""
    found: dict[str, str] = {}
    for file in sorted(resources.files(__package__).joinpath("statements").iterdir(), key=lambda f: f.name):
        if file.name.endswith(".sql"):
            for name, sql in _blocks(file.read_text()):
                found[f"{file.name.removesuffix('.sql')}.{name}"] = sql
    return {name: _INCLUDE.sub(lambda part: found[part[1]], sql) for name, sql in found.items()}


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    heads = list(_NAME.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    for head, end in zip(heads, ends, strict=True):
        yield head[1], text[head.end() : end].strip().removesuffix(";")


def migrations() -> list[tuple[int, str, str]]:
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
        for word, spelling in SQLITE_WORDS.items():
            statement = statement.replace(f"{{{word}}}", spelling)
        yield _sqlite_trigger(statement) if statement.startswith("rule ") else statement


def _split(schema: str) -> Iterator[str]:
    """Statements end with a semicolon at a line's end; comment lines are dropped."""
    text = "\n".join(line for line in schema.splitlines() if not line.lstrip().startswith("--"))
    for statement in re.split(r";\s*$", text, flags=re.MULTILINE):
        if statement.strip():
            yield statement.strip()


def _sqlite_trigger(rule: str) -> str:
    parts = _RULE.match(rule)
    if parts is None:
        raise ValueError(f"not a rule: {rule}")
    # RAISE(ABORT) undoes only this statement; the transaction is rolled back by whoever opened it.
    return (
        f"create trigger {parts['name']} before {parts['event']} on {parts['table']} when {parts['condition']} "
        f"begin select raise(abort, '{parts['message']}'); end"
    )
