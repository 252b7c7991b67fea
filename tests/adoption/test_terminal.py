"""What a newcomer finds at the terminal: sections and examples, completion from the server, a server that reloads."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import typer

from nextslot import Client
from nextslot.cli import reloading
from nextslot.cli.main import PARTS, SECTIONS, app
from tests import databases
from tests.serving import serving


def test_the_help_has_sections_with_every_command_and_examples() -> None:
    text = terminal("-h").stdout

    assert "\nExamples:\n  nextslot serve" in text
    assert all(f"\n{title}:\n" in text for title in SECTIONS)
    in_help = re.findall(r"^  ([a-z]+) +[A-Z]", text, re.MULTILINE)
    assert set(typer.main.get_group(app).commands) == set(in_help)
    assert len(in_help) == len(set(in_help))


def test_every_command_of_the_core_is_in_one_section() -> None:
    core = typer.Typer()
    for part in PARTS:
        part.register(core)

    named = [name for names in SECTIONS.values() for name in names]
    assert typer.main.get_group(core).commands.keys() - set(named) == set()
    assert len(named) == len(set(named))


def test_every_section_names_commands_that_are_there() -> None:
    text = terminal("-h").stdout

    assert [name for names in SECTIONS.values() for name in names if f"\n  {name} " not in text] == []


@pytest.mark.parametrize(
    ("words", "index", "expected"),
    [
        ("nextslot submit ec", 2, {"echo"}),
        ("nextslot show ", 2, {"JOB"}),
        ("nextslot ls --office de", 3, {"default"}),
        ("nextslot ls --filter sta", 3, {"status="}),
        ("nextslot ls --filter status=FA", 3, {"status=FAILED"}),
        ("nextslot ls --filter type=", 3, set()),
    ],
)
def test_a_shell_completes_from_the_server(tmp_path: Path, words: str, index: int, expected: set[str]) -> None:
    with serving(tmp_path) as server, Client(server.url) as client:
        job = client.submit("echo")

        found = completions(words, index, server.url)

        assert found == {job.job_id if one == "JOB" else one for one in expected}


def test_without_a_server_a_shell_completes_nothing_and_says_nothing() -> None:
    assert completions("nextslot submit ec", 2, "http://127.0.0.1:9") == set()


def completions(words: str, index: int, url: str) -> set[str]:
    done = terminal(
        variables={"_NEXTSLOT_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(index),
                   "NEXTSLOT_URL": url},
    )  # fmt: skip
    assert done.stderr == ""
    return set(done.stdout.split())


def terminal(*words: str, variables: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "nextslot.cli.main", *words], env={**os.environ, **(variables or {})},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_the_root_leads_to_the_console(tmp_path: Path) -> None:
    with serving(tmp_path) as server, urllib.request.urlopen(f"{server.url}/", timeout=30) as answer:
        assert answer.url == f"{server.url}/console/"


@pytest.mark.parametrize(
    ("path", "is_code"),
    [
        ("jobs.py", True),
        ("nextslot.toml", True),
        ("package/module.py", True),
        ("nextslot.db", False),
        ("artifacts/1/made.py", False),
        (".venv/lib/module.py", False),
        ("__pycache__/module.py", False),
    ],
)
def test_a_reload_follows_code_and_configuration_alone(tmp_path: Path, path: str, is_code: bool) -> None:
    assert reloading.is_code(Path("data") / path, Path("data")) is is_code


HANDLERS = "def answer() -> int:\n    return {}\n"
TYPES = '[job_types.answer]\nhandler = "handlers:answer"\n'


def test_a_server_that_reloads_runs_the_changed_code(tmp_path: Path) -> None:
    (tmp_path / "handlers.py").write_text(HANDLERS.format(1))
    (tmp_path / "nextslot.toml").write_text(TYPES)
    log = tmp_path / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "nextslot.cli.main", "serve", "--reload", "--port", "0"], cwd=tmp_path,
            env={**os.environ, **databases.variables(tmp_path), "PYTHONPATH": str(tmp_path)},
            stdout=output, stderr=output,
        )  # fmt: skip
    try:
        assert answer_of(address(log, 1)) == 1
        (tmp_path / "handlers.py").write_text(HANDLERS.format(2))
        assert answer_of(address(log, 2)) == 2
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0, log.read_text()
    finally:
        server.kill()
    assert "handlers.py changed; starting again" in log.read_text()


def address(log: Path, number: int) -> str:
    """The address of the n-th server that has started."""
    end = time.monotonic() + 90
    while len(found := re.findall(r"listens on (\S+)", log.read_text())) < number:
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)
    return str(found[number - 1])


def answer_of(url: str) -> object:
    with Client(url) as client:
        return client.run_direct("answer").result
