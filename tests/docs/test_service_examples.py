"""The examples for running it as a service use options that exist, and stop it the way it wants to be stopped."""

import re
import shlex
import tomllib
from itertools import pairwise
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


def test_what_the_service_writes_is_for_its_user_alone() -> None:
    unit = (EXAMPLES / "systemd/nextslot.service").read_text()

    assert re.search(r"^UMask=0077$", unit, re.MULTILINE)
    assert re.search(r"^NoNewPrivileges=yes$", unit, re.MULTILINE)


def test_every_image_of_the_examples_has_an_exact_version() -> None:
    files = [*EXAMPLES.rglob("Containerfile"), *EXAMPLES.rglob("compose.yaml")]
    images = [
        image for file in files for image in re.findall(r"^(?:FROM|\s+image:) (\S+)", file.read_text(), re.MULTILINE)
    ]

    assert len(images) >= 4
    assert [
        image for image in images if not re.search(r":v?\d+\.\d+(\.\d+)?(-[\w.-]+)?(@sha256:[0-9a-f]{64})?$", image)
    ] == []


def test_the_container_installs_the_packages_of_the_lock_by_their_hashes() -> None:
    file = (EXAMPLES / "container/Containerfile").read_text()
    locked = tomllib.loads((EXAMPLES.parent / "uv.lock").read_text())["package"]
    project = next(one for one in locked if one["name"] == "nextslot")
    fetched = [one for one in locked if one is not project]

    steps = [line.strip(" \\&") for line in file.splitlines()]
    export = next(line.split() for line in steps if "uv export" in line)
    extras = {name for option, name in pairwise(export) if option == "--extra"}
    assert {"--locked", "--no-emit-project"} <= set(export)
    assert extras == {"server", "postgres", "otel"} <= set(project["optional-dependencies"])
    assert [line for line in steps if "pip install" in line] == [
        "pip install --no-cache-dir --require-hashes --requirement /tmp/locked",
        "pip install --no-cache-dir --no-deps /tmp/wheel/*.whl",
    ]
    assert "scripts/get_uv.py uv.lock" in file  # Which checks the hash of uv itself.
    files = [[*one.get("wheels", ()), *([one["sdist"]] if "sdist" in one else [])] for one in fetched]
    assert len(files) > 50
    assert all(one and all(part["hash"].startswith("sha256:") for part in one) for one in files)


def accepted(arguments: list[str]) -> bool:
    """Returns whether a command knows every option; starts nothing."""
    known = {option for one in command(arguments[0]).params for option in one.opts}
    return all(argument in known for argument in arguments[1:] if argument.startswith("--"))


def command(name: str):  # type: ignore[no-untyped-def]
    found = CliRunner().invoke(app, [name, "--help"])
    assert found.exit_code == 0, found.output
    return get_command(app).commands[name]  # type: ignore[attr-defined]
