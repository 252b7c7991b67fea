"""`nextslot export` and `nextslot import`, as a person or a script uses them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nextslot.cli import progress
from tests import databases, everything, postgres
from tests.cli.terminal import Terminal
from tests.serving import serving


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.delenv("NEXTSLOT_URL", raising=False)
    monkeypatch.delenv("NEXTSLOT_API_KEY", raising=False)
    return Terminal()


@pytest.fixture
def fresh() -> Iterator[str]:
    name = f"nextslot_cli_{os.getpid()}"
    yield postgres.create(name, "template0")
    postgres.drop(name)


@pytest.mark.sqlite_only("it is about both")
def test_a_data_directory_moves_to_PostgreSQL_and_back(alone: Terminal, tmp_path: Path, fresh: str) -> None:
    everything.make(tmp_path)
    files = [str(tmp_path / name) for name in ("there.gz", "back.gz", "again.gz")]

    said = [
        alone("export", files[0], "--data", str(tmp_path)),
        alone("import", files[0], "--data", str(tmp_path / "files"), "--database", fresh),
        alone("export", files[1], "--data", str(tmp_path / "files"), "--database", fresh),
        alone("import", files[1], "--data", str(tmp_path / "back"), "--json"),
        alone("export", files[2], "--data", str(tmp_path / "back"), "--json"),
    ]

    assert [one.code for one in said] == [0] * 5
    assert said[0].out.startswith("exported: ")
    assert said[3].json["imported"] is True
    assert said[3].json["tables"] == said[4].json["tables"]
    assert said[3].json["rows"] == sum(said[3].json["tables"].values()) > 500
    contents = {Path(name).read_bytes() for name in files}
    assert len(contents) == 1


def test_a_running_server_refuses(alone: Terminal, tmp_path: Path) -> None:
    with serving(tmp_path):
        said = alone("export", str(tmp_path / "all"), "--data", str(tmp_path))

    assert said.code == 1
    assert "is in use by process" in said.err
    assert not (tmp_path / "all").exists()


def test_a_file_that_is_there_is_kept_unless_told(alone: Terminal, tmp_path: Path) -> None:
    alone("key", "add", "boss", "--scope", "admin", "--data", str(tmp_path))
    (tmp_path / "all").write_text("mine")

    kept = alone("export", str(tmp_path / "all"), "--data", str(tmp_path))
    assert (kept.code, (tmp_path / "all").read_text()) == (1, "mine")

    assert alone("export", str(tmp_path / "all"), "--data", str(tmp_path), "--force").code == 0
    again = alone("import", str(tmp_path / "all"), "--data", str(tmp_path))
    assert again.code == 1
    assert "is not empty" in again.err


def test_progress_is_on_stderr_and_the_answer_alone_on_stdout(
    alone: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.0)
    everything.make(tmp_path)

    said = alone("export", str(tmp_path / "all"), "--data", str(tmp_path), "--json")

    lines = said.err.splitlines()
    assert [line for line in lines if line.startswith("export: jobs ") and line.endswith(" rows/s")]
    assert said.json["tables"]["jobs"] > 50


def test_an_import_that_is_killed_leaves_nothing_in_the_way(alone: Terminal, tmp_path: Path) -> None:
    """By kill -9, in the middle: the next import begins anew."""
    everything.make(tmp_path)
    alone("export", str(tmp_path / "all"), "--data", str(tmp_path))
    target = tmp_path / "target"

    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path / "all"), databases.url(target), str(target)], check=False
    )
    left = sorted(one.name for one in target.iterdir())
    said = alone("import", str(tmp_path / "all"), "--data", str(target))

    assert killed.returncode == -9
    assert "nextslot.db" not in left
    assert said.code == 0
    files = ["nextslot.db", "nextslot.db.lock"] if databases.kind() == "sqlite" else []
    assert sorted(one.name for one in target.iterdir()) == files


_KILLED = """
import os, signal, sys
from pathlib import Path
from nextslot.store.open import load_export

def killed(doing, table, done, rows):
    if doing == "verify":
        os.kill(os.getpid(), signal.SIGKILL)

Path(sys.argv[3]).mkdir()
load_export(Path(sys.argv[1]), sys.argv[2], killed)
"""
