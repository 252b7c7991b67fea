"""docs/cli.md lists every command that there is, with what it says of itself, and no other."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from nextslot.cli.main import app
from tests.cli.terminal import Terminal

PAGE = (Path(__file__).parents[2] / "docs/cli.md").read_text()


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields the commands at the leaves of the tree."""
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
    else:
        for name, one in below.items():
            yield from commands(one, (*path, name))


LEAVES = list(commands(typer.main.get_command(app)))


def test_every_command_is_listed_with_its_first_sentence() -> None:
    rows = re.findall(r"^\| `nextslot ([^`]+)` \| (.*?) \|$", PAGE, re.MULTILINE)

    listed = {row[0]: row[1] for row in rows}

    assert len(rows) == len(listed)
    assert listed == {" ".join(path): first_sentence(command) for path, command in LEAVES}


def first_sentence(command: Any) -> str:
    return str(command.help).strip().split("\n\n")[0].replace("\n", " ")


@pytest.mark.parametrize("path", [path for path, _ in LEAVES], ids=" ".join)
def test_every_command_has_help_and_json(path: tuple[str, ...]) -> None:
    said = Terminal()(*path, "--help")

    assert said.code == 0
    # The demo prints a story, which is for people only.
    assert ("--json" in said.out) == (path != ("demo",))
