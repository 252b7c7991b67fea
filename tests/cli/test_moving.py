"""`nextslot export` and `nextslot import`, as a person or a script uses them."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nextslot.cli import output
from tests import databases, everything, postgres
from tests.cli.terminal import Terminal, database_of
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
    monkeypatch.setattr(output, "EVERY_SECONDS", 0.0)
    everything.make(tmp_path)

    said = alone("export", str(tmp_path / "all"), "--data", str(tmp_path), "--json")

    lines = said.err.splitlines()
    assert [line for line in lines if line.startswith("export: jobs ") and line.endswith(" rows/s")]
    assert said.json["tables"]["jobs"] > 50


def test_an_import_that_is_killed_again_and_again_goes_on(alone: Terminal, tmp_path: Path) -> None:
    """By kill -9, in every phase: nothing is seen of it, and no row is loaded twice."""
    everything.make(tmp_path)
    target, files = tmp_path / "target", [str(tmp_path / name) for name in ("all", "again")]
    alone("export", files[0], "--data", str(tmp_path))
    loaded = 0

    for doing, count in MOMENTS:
        loaded += killed(doing, count, "import", files[0], "--data", str(target)).count("import")
        assert has_no_jobs(target)
    said = alone("import", files[0], "--data", str(target), "--json")
    alone("export", files[1], "--data", str(target))

    assert said.json["resumed_rows"] == said.json["rows"]
    assert loaded == sum(-(-rows // 5) for rows in said.json["tables"].values()), "each piece once"
    assert len({Path(name).read_bytes() for name in files}) == 1
    files_left = {"nextslot.db", "nextslot.db.lock"} if databases.kind() == "sqlite" else set()
    assert {one.name for one in target.iterdir()} == files_left


MOMENTS = (("import", 1), ("row", 61), ("import", 30), ("skip", 2), ("row", 99), ("import", 40), ("verify", 5))


def killed(doing: str, count: int, *words: str) -> list[str]:
    """Kills a command after it has done something this many times. Returns the lines that it printed until then."""
    ended = stopped("SIGKILL", doing, count, *words)
    assert ended.returncode == -9, ended.stderr
    return [line.partition(":")[0] for line in ended.stderr.splitlines()]


def stopped(signal: str, doing: str, count: int, *words: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", _STOPPED, signal, doing, str(count), *words]
    environment = {**os.environ, **database_of(words)}
    return subprocess.run(program, env=environment, capture_output=True, text=True, check=False)


def has_no_jobs(directory: Path) -> bool:
    if databases.kind() == "sqlite":
        return not (directory / "nextslot.db").exists()
    return list(databases.each(directory, "select 1 from jobs")) == []


_STOPPED = """
import os, signal, sys
from nextslot.cli import output
from nextslot.cli.main import main
from nextslot.store.maintenance import import_file as imports

imports.PIECE_ROWS, output.EVERY_SECONDS = 5, 0.0
how, doing, left = getattr(signal, sys.argv[1]), sys.argv[2], int(sys.argv[3])
note, piece = output.Rows.note, imports._piece

def count(what):
    global left
    left -= what == doing
    if left == 0:
        os.kill(os.getpid(), how)

def noted(self, what, *rest):
    note(self, what, *rest)
    count(what)

def counted(*given):
    for row in piece(*given):
        yield row
        count("row")

output.Rows.note, imports._piece = noted, counted
main(sys.argv[4:])
"""


@pytest.mark.parametrize("is_anew", [False, True])
def test_it_is_said_that_an_import_went_on_or_began_anew(alone: Terminal, tmp_path: Path, is_anew: bool) -> None:
    everything.make(tmp_path)
    alone("export", str(tmp_path / "all"), "--data", str(tmp_path))
    alone("key", "add", "boss", "--scope", "admin", "--data", str(tmp_path / "other"))
    alone("export", str(tmp_path / "other.all"), "--data", str(tmp_path / "other"))
    words = ["import", str(tmp_path / ("other.all" if is_anew else "all")), "--data", str(tmp_path / "target")]

    broken_off = stopped("SIGINT", "verify", 1, "import", str(tmp_path / "all"), *words[2:])
    said = subprocess.run(
        [sys.executable, "-c", "from nextslot.cli.main import main; main()", *words],
        env={**os.environ, **database_of(words)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert broken_off.returncode == 130
    assert "interrupted: run the same command again to continue" in broken_off.stderr
    assert ("starts again from the beginning: it was made from another file" in said.stderr) is is_anew
    assert bool(re.search(r"^imported: .* events, continued after [\d,]+ rows$", said.stdout)) is not is_anew
