"""Commands with hostile arguments: an exit code and a sentence, never a traceback, and a server that still works."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from nextslot import Client
from nextslot.cli.main import app
from tests.cli.terminal import Said, Terminal
from tests.fuzz.grammars import fuzzed, texts
from tests.server.support import ServerThread

pytestmark = pytest.mark.sqlite_only("hundreds of commands; tests/cli has both databases")
# They serve, wait, show pages for ever, or work on the files of a directory: tests/cli has these.
LEFT_OUT = {"serve", "demo", "top", "run", "backup", "restore", "export", "import", "doctor", "migrate", "purge"}
LEFT_OUT |= {"mcp", "adopt stories", "adopt office", "config check", "webhook secret"}
ENDLESS = {"--follow", "--wait", "--help", "--data", "--config", "--database", "--url", "--key"}
# An argument cannot hold a NUL, and half a pair of surrogates is no text.
words = texts.map(lambda text: text.replace("\0", "").encode(errors="ignore").decode())
plausible = st.sampled_from(
    ("default", "echo", "last", "n=1", "json={}", "0 0 * * *", "5", "-5", "1h", "COMPLETED", "a")
)


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if getattr(command, "commands", None):
        for name, inner in command.commands.items():
            yield from leaves(inner, (*path, name))
    elif " ".join(path) not in LEFT_OUT:
        yield " ".join(path), command


COMMANDS = dict(leaves(typer.main.get_command(app)))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("commanded")) as running:
        _, running.key = running.run(running.server.scheduler.keys.create("fuzzer", ["admin"]))
        yield running


@given(st.data())
@fuzzed(150)
def test_a_command_with_hostile_words_says_what_is_wrong_and_shows_no_traceback(
    server: ServerThread, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(COMMANDS)))
    given_words = drawn(COMMANDS[name], data)

    said = run(server, tmp_path_factory, name.split() + given_words)

    assert said.code in (0, 1, 2), (name, given_words, said)
    assert "Traceback" not in said.err + said.out
    assert said.code == 0 or len(said.err.strip()) > 10, (name, given_words, said)
    with Client(server.url, key=server.key) as client:
        assert client.status().last_event >= 0


def drawn(command: Any, data: st.DataObject) -> list[str]:
    """Draws words for the arguments of a command, and for some of its options."""
    options: list[str] = []
    arguments: list[str] = []
    for one in command.params:
        if one.param_type_name == "argument":
            arguments += data.draw(st.lists(words | plausible, min_size=int(one.required), max_size=2))[: one.nargs]
        elif not ENDLESS & set(one.opts) and data.draw(st.integers(0, 3)) == 0:
            options.append(one.opts[-1])
            if not one.is_flag:
                options.append(data.draw(words | plausible))
    return [*options, *(["--"] if data.draw(st.booleans()) else []), *arguments]


def run(server: ServerThread, directories: pytest.TempPathFactory, line: list[str]) -> Said:
    """Runs a command in an empty directory: a hostile word may be the name of a file."""
    here = Path.cwd()
    os.chdir(directories.mktemp("empty"))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("NEXTSLOT_URL", server.url)
            patch.setenv("NEXTSLOT_API_KEY", server.key)
            return Terminal()(*line)
    finally:
        os.chdir(here)


def test_every_command_of_a_server_is_tried() -> None:
    assert {"submit", "ls", "schedule add", "office submit", "key add", "quota grant"} <= COMMANDS.keys()
    assert len(COMMANDS) > 70
