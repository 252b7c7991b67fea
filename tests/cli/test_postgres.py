"""The commands that need no server, on PostgreSQL: by its address, or by a configuration that names it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests import databases, everything, postgres
from tests.cli.terminal import Terminal
from tests.serving import serving


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name in ("NEXTSLOT_URL", "NEXTSLOT_API_KEY", "NEXTSLOT_STORE__URL"):
        monkeypatch.delenv(name, raising=False)
    return Terminal()


@pytest.fixture
def address(tmp_path: Path) -> str:
    """Returns the address of an empty database with tables, for the test's own data directory."""
    databases.use("postgres")
    return databases.url(tmp_path)


@pytest.fixture
def fresh() -> Iterator[str]:
    """Returns the address of a database that has no tables of nextslot yet."""
    name = f"nextslot_cli_{os.getpid()}"
    yield postgres.create(name, "template0")
    postgres.drop(name)


def rows(address: str, sql: str) -> list[tuple[object, ...]]:
    with psycopg.connect(address) as connection:
        return connection.execute(sql).fetchall()


pytestmark = pytest.mark.sqlite_only("names PostgreSQL itself")


def test_a_key_is_added_listed_and_deleted_by_the_databases_address(
    alone: Terminal, tmp_path: Path, fresh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEXTSLOT_URL", "http://127.0.0.1:9")  # Nobody is asked there: the database is named.

    key = alone("key", "add", "boss", "--scope", "admin", "--database", fresh).word
    guest = alone("key", "add", "guest", "--database", fresh)
    gone = alone("key", "rm", "guest", "--database", fresh)
    listed = alone("key", "ls", "--database", fresh, "--json").json["items"]

    assert key.startswith("nsk_")
    assert (guest.code, gone.code) == (0, 0)
    assert [one["name"] for one in listed] == ["boss"]
    assert list(tmp_path.iterdir()) == []


def test_the_secret_of_jobs_own_webhooks_is_kept_in_the_database(alone: Terminal, address: str) -> None:
    first, second = (alone("webhook", "secret", "--database", address).word for _ in range(2))

    assert first.startswith("whsec_")
    assert first == second


@pytest.mark.parametrize(
    "command",
    [["doctor"], ["doctor", "--repair"], ["migrate"], ["migrate", "--dry-run"], ["purge"],
     ["purge", "--dry-run"], ["backup", "x"], ["export", "x"], ["key", "ls"], ["key", "rm", "boss"]],
    ids=" ".join,
)  # fmt: skip
def test_a_database_that_was_never_used_is_told_and_left_alone(
    alone: Terminal, tmp_path: Path, fresh: str, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    said = alone(*command, "--database", fresh)

    assert said.code == 1
    assert "has no tables of nextslot yet" in said.err
    assert rows(fresh, "select 1 from pg_tables where schemaname = 'public'") == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [["doctor"], ["migrate"], ["purge"], ["key", "ls"], ["backup", "x"]], ids=" ".join)
def test_a_server_that_does_not_answer_is_a_sentence_without_its_password(
    alone: Terminal, tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    said = alone(*command, "--database", "postgresql://me:sesame@127.0.0.1:9/jobs")

    assert said.code == 1
    warning, _, sentence = said.err.partition("\n")
    assert warning.startswith("warning: every user of this machine can see the password")
    assert sentence.startswith("nextslot: the database jobs on 127.0.0.1")
    assert "Traceback" not in said.err
    assert "sesame" not in said.err


def test_the_doctor_looks_while_a_server_runs_and_repairs_when_none_does(
    alone: Terminal, tmp_path: Path, address: str
) -> None:
    with serving(tmp_path) as server:
        alone("submit", "skip", "--wait", "--url", server.url)
        looked = alone("doctor", "--database", address)
        refused = alone("doctor", "--repair", "--database", address)
    databases.without_rules(tmp_path).execute("update lanes set ready = 9")

    found = alone("doctor", "--database", address, "--json")
    repaired = alone("doctor", "--repair", "--database", address, "--json")

    assert looked.word == "no problems found"
    assert refused.code == 1
    assert "is in use by process" in refused.err
    assert found.code == 1
    assert {one["check"] for one in json.loads(found.out)["findings"]} == {"lanes.ready"}
    assert repaired.json["findings"] == []
    assert repaired.json["repaired"] > 0


def test_a_configuration_names_the_database(alone: Terminal, tmp_path: Path, address: str) -> None:
    databases.use("sqlite")  # So that nothing but the file says it.
    (tmp_path / "nextslot.toml").write_text(f"[store]\nurl = {json.dumps(address)}\n")

    added = alone("key", "add", "boss", "--scope", "admin", "--data", str(tmp_path))
    doctor, migrate, purge = (
        alone(command, "--data", str(tmp_path)).word for command in ("doctor", "migrate", "purge")
    )

    assert added.code == 0
    assert rows(address, "select name from api_keys") == [("boss",)]
    assert (doctor, migrate, purge) == ("no problems found", "nothing to do", "deleted: nothing")
    assert not (tmp_path / "nextslot.db").exists()


def test_history_that_is_old_is_counted_and_then_goes(alone: Terminal, tmp_path: Path, address: str) -> None:
    everything.make(tmp_path)
    databases.without_rules(tmp_path).execute("update events set timestamp = seq")  # At the begin of 1970.
    config = tmp_path / "short.toml"
    config.write_text("[retention]\nevents_days = 1\n")
    words = ("--database", address, "--data", str(tmp_path), "--config", str(config), "--json")

    counted = alone("purge", "--dry-run", *words).json
    gone = alone("purge", *words).json
    then = alone("purge", "--dry-run", *words).json

    assert counted["events"] == gone["events"] > 0
    assert then["events"] == 0
    assert alone("doctor", "--database", address).code == 0


# Backups.


@pytest.mark.parametrize("name", ["backup", "backup.gz"])
def test_a_backup_is_of_one_moment_of_a_running_server_and_goes_on_elsewhere(
    alone: Terminal, tmp_path: Path, address: str, name: str
) -> None:
    file = str(tmp_path / name)
    with serving(tmp_path) as server:
        job = alone("submit", "skip", "--at", "2999-01-01T00:00:00Z", "--url", server.url).word
        made = alone("backup", file, "--database", address)
        again = alone("backup", file, "--database", address)
        later = alone("submit", "skip", "--at", "2999-01-01T00:00:00Z", "--url", server.url).word
    (tmp_path / "new").mkdir()
    verified = alone("restore", file, "--verify", "--data", str(tmp_path / "nowhere"))
    restored = alone("restore", file, "--database", databases.url(tmp_path / "new"), "--data", str(tmp_path / "new"))

    assert (made.word, again.code, verified.word) == (file, 1, "the backup is sound")
    assert restored.word == "restored"
    assert not (tmp_path / "nowhere").exists()
    with serving(tmp_path / "new") as server:
        assert alone("show", job, "--url", server.url).code == 0
        assert alone("show", later, "--url", server.url).code == 1


def test_a_backup_is_in_order_however_much_is_written_meanwhile(alone: Terminal, tmp_path: Path, address: str) -> None:
    words = [sys.executable, "-c", _WRITER, address, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        files = [str(tmp_path / f"{number}.gz") for number in range(3)]
        made = [alone("backup", file, "--database", address) for file in files]
        writer.kill()

    assert [one.err for one in made] == [""] * 3
    assert {alone("restore", file, "--verify").word for file in files} == {"the backup is sound"}


_WRITER = """
import asyncio, sys
from nextslot import Scheduler

async def main():
    async with Scheduler(sys.argv[1], data=sys.argv[2]) as scheduler:
        @scheduler.job_type("quick")
        async def quick(run): ...
        await scheduler.submit("quick")
        print("going", flush=True)
        while True:
            await asyncio.gather(*(scheduler.submit("quick") for _ in range(5)))

asyncio.run(main())
"""


def test_a_backup_that_is_not_whole_is_refused_before_anything_is_touched(
    alone: Terminal, tmp_path: Path, address: str, fresh: str
) -> None:
    everything.make(tmp_path)
    file = tmp_path / "backup"
    alone("backup", str(file), "--database", address)
    whole = file.read_bytes()
    damages = {"cut": whole[:-100], "changed": whole.replace(b'"QUEUED"', b'"RUNNING"', 1)}

    for name, content in damages.items():
        (tmp_path / name).write_bytes(content)
        verified = alone("restore", str(tmp_path / name), "--verify")
        restored = alone("restore", str(tmp_path / name), "--database", fresh, "--force")
        assert (name, verified.code, restored.code) == (name, 1, 1)
        assert str(tmp_path / name) in verified.err

    assert rows(fresh, "select 1 from pg_tables where schemaname = 'public'") == []


def test_no_backup_is_left_of_what_is_not_in_order(alone: Terminal, tmp_path: Path, address: str) -> None:
    everything.make(tmp_path)
    databases.without_rules(tmp_path).execute("update limits set used = 9 where limit_key = 'scheduler'")

    said = alone("backup", str(tmp_path / "bad"), "--database", address)

    assert said.code == 1
    assert "the copy is not sound: the limit 'scheduler'" in said.err
    assert list(tmp_path.glob("*bad*")) == []


def test_a_database_that_has_something_is_not_restored_over(alone: Terminal, tmp_path: Path, address: str) -> None:
    everything.make(tmp_path)
    alone("backup", str(tmp_path / "all"), "--database", address)

    said = alone("restore", str(tmp_path / "all"), "--database", address, "--data", str(tmp_path), "--force")

    assert said.code == 1
    assert "is not empty" in said.err
    assert "create a new database" in said.err


def test_a_backup_of_the_other_database_is_refused_with_the_way_to_do_it(
    alone: Terminal, tmp_path: Path, address: str
) -> None:
    databases.use("sqlite")
    alone("key", "add", "boss", "--scope", "admin", "--data", str(tmp_path / "here"))
    alone("backup", str(tmp_path / "file.db"), "--data", str(tmp_path / "here"))
    alone("key", "add", "boss", "--scope", "admin", "--database", address, "--data", str(tmp_path / "there"))
    alone("backup", str(tmp_path / "export"), "--database", address)

    there = alone("restore", str(tmp_path / "file.db"), "--database", address, "--data", str(tmp_path / "x"))
    here = alone("restore", str(tmp_path / "export"), "--data", str(tmp_path / "new"))

    assert (there.code, here.code) == (1, 1)
    assert "is a SQLite file" in there.err
    assert "nextslot import" in here.err
    assert not (tmp_path / "new" / "nextslot.db").exists()


# Servers.


def test_a_server_that_others_can_reach_says_how_its_own_database_gets_a_key(
    alone: Terminal, tmp_path: Path, address: str
) -> None:
    said = alone("serve", "--host", "0.0.0.0", "--port", "0", "--data", str(tmp_path), "--database", address)

    assert said.code == 1
    assert f"--scope admin --data {tmp_path} --database {address}" in said.err
