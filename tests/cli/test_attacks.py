"""What goes wrong in front of a terminal: it ends in a sentence, never in a traceback, and nothing is lost by it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import databases
from tests.cli.terminal import Terminal
from tests.serving import Served, serving


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.delenv("NEXTSLOT_URL", raising=False)
    monkeypatch.delenv("NEXTSLOT_API_KEY", raising=False)
    return Terminal()


@pytest.mark.sqlite_only("a file")
@pytest.mark.parametrize("companion", ["", "-wal", "-shm", ".lock", ".commits", ".import"])
@pytest.mark.parametrize("command", ["backup", "export"])
def test_a_database_is_never_written_over_by_its_own_copy(
    alone: Terminal, tmp_path: Path, command: str, companion: str
) -> None:
    alone("key", "add", "boss", "--scope", "admin", "--data", str(tmp_path))
    database = tmp_path / "nextslot.db"
    link = tmp_path / "link"
    link.symlink_to(f"{database}{companion}")
    before = database.stat().st_ino

    said = [alone(command, str(to), "--force", "--data", str(tmp_path)) for to in (f"{database}{companion}", link)]

    assert [one.code for one in said] == [1, 1]
    assert all("is part of the database itself" in one.err for one in said)
    assert database.stat().st_ino == before


@pytest.mark.sqlite_only("a file")
def test_a_running_server_keeps_its_file(alone: Terminal, tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        refused = alone("backup", str(tmp_path / "nextslot.db"), "--force", "--data", str(tmp_path))
        job = alone("submit", "skip", "--at", "2999-01-01T00:00:00Z", "--url", server.url).word
    with serving(tmp_path) as server:
        shown = alone("show", job, "--url", server.url)

    assert (refused.code, shown.code) == (1, 0)


@pytest.mark.parametrize("command", [["serve"], ["restore", "none.db"], ["key", "add", "boss"]])
def test_a_data_directory_that_is_a_file_is_a_sentence(alone: Terminal, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "file").touch()

    said = alone(*command, "--data", str(tmp_path / "file"))

    assert said.code == 1
    assert said.err.startswith("nextslot: ")
    assert str(tmp_path / "file") in said.err


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_caller_who_closed_our_streams_is_no_error_of_ours(served: Served, closed: str) -> None:
    command = f"{sys.executable} -m nextslot.cli.main types --url {served.url} {closed}"

    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)

    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_database_and_its_copies_are_for_their_owner_only(alone: Terminal, tmp_path: Path) -> None:
    old, new, copy = tmp_path / "old", tmp_path / "new", tmp_path / "copy.db"
    old.mkdir()
    with serving(old):
        made = alone("backup", str(copy), "--data", str(old))
        rights = {file.name: file.stat().st_mode & 0o777 for file in [*old.glob("nextslot.db*"), copy]}
    restored = alone("restore", str(copy), "--data", str(new))

    files = (
        ("nextslot.db", "nextslot.db-wal", "nextslot.db-shm", "nextslot.db.commits")
        if databases.kind() == "sqlite"
        else ()
    )
    assert (made.code, restored.code) == (0, 0)
    assert rights | {"nextslot.db.lock": 0o600} == dict.fromkeys((*files, "nextslot.db.lock", "copy.db"), 0o600)
    assert [file.stat().st_mode & 0o777 for file in new.glob("nextslot.db")] == [0o600] * len(files[:1])
