"""The examples for running it as a service use options that exist, and stop it the way it wants to be stopped."""

import re
import shlex
from pathlib import Path

from typer.main import get_command
from typer.testing import CliRunner

from nextslot.cli.main import app

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_systemd_unit_starts_it_with_options_that_it_has() -> None:
    unit = (EXAMPLES / "systemd/nextslot.service").read_text()
    _, *arguments = shlex.split(re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)[1])  # type: ignore[index]

    assert accepted(arguments)
    assert "KillMode=mixed" in unit
    assert "ExecReload=/bin/kill -HUP $MAINPID" in unit


def test_the_container_starts_it_with_options_that_it_has() -> None:
    file = (EXAMPLES / "container/Containerfile").read_text()
    arguments = re.findall(r'"([^"]+)"', re.search(r"^CMD (\[.*\])$", file, re.MULTILINE)[1])  # type: ignore[index]

    assert accepted(arguments)
    assert "STOPSIGNAL SIGTERM" in file


def accepted(arguments: list[str]) -> bool:
    """Returns whether a command knows every option; starts nothing."""
    known = {option for one in command(arguments[0]).params for option in one.opts}
    return all(argument in known for argument in arguments[1:] if argument.startswith("--"))


def command(name: str):  # type: ignore[no-untyped-def]
    found = CliRunner().invoke(app, [name, "--help"])
    assert found.exit_code == 0, found.output
    return get_command(app).commands[name]  # type: ignore[attr-defined]
