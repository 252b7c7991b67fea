"""The words of the code are those of docs/glossary.md: a retired word does not come back as the name of anything."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/nextslot"

# The retired word, and the word that replaced it.
RETIRED = {
    "basis": "estimate",
    "brief": "execution spec",
    "chores": "maintenance",
    "endings": "finisher",
    "face": "service",
    "faces": "services",
    "foreseen": "prefetched",
    "habits": "prefetched reads",
    "homeless": "without an office",
    "keeper": "capacity hold, lease keeper",
    "kit": "engine context",
    "machinery": "runtime",
    "manners": "retries",
    "outlook": "dispatch hints",
    "patience": "timeout",
    "plans": "operations",
    "purges": "retention",
    "scratch": "in-memory copy",
    "seat": "membership",
    "shells": "transports",
    "slate": "counters",
    "tunable": "reloadable",
    "tuned": "reloadable",
}
# The name of a lease's process is two words, one of which is retired alone.
ALLOWED = {"LeaseKeeper", "lease_keeper"}


def names(path: Path) -> Iterator[tuple[str, int]]:
    """Returns every name that a file gives: itself, its classes, functions, arguments and variables."""
    yield path.stem, 1
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno
            case _:
                pass


def words(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name)}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_a_retired_word_names_nothing(path: Path) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name} ({RETIRED[word]})"
        for name, line in names(path)
        if name not in ALLOWED
        for word in words(name) & RETIRED.keys()
    ]

    assert not found


def test_the_glossary_says_nothing_with_a_retired_word() -> None:
    terms = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)

    assert terms
    assert not [term for term in terms if words(term) & RETIRED.keys()]
