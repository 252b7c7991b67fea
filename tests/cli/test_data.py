"""Commands on a data directory, where no server runs."""

from pathlib import Path

import pytest

from tests.cli.terminal import Terminal
from tests.serving import serving


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.delenv("NEXTSLOT_URL", raising=False)
    monkeypatch.delenv("NEXTSLOT_API_KEY", raising=False)
    return Terminal()


def test_a_key_is_made_before_any_server_runs(alone: Terminal, tmp_path: Path) -> None:
    data = str(tmp_path / "data")

    key = alone("key", "add", "boss", "--scope", "admin", "--data", data).word

    listed = alone("key", "ls", "--data", data)
    assert key.startswith("nsk_")
    assert key not in listed.out
    assert listed.rows[0][1:3] == ["boss", "admin"]
    with serving(Path(data)) as server:
        assert alone("ls", "--url", server.url).code == 1
        assert alone("ls", "--url", server.url, "--key", key).code == 0


@pytest.mark.parametrize(
    "command",
    [["key", "ls"], ["key", "rm", "boss"], ["doctor"], ["doctor", "--repair"], ["migrate"], ["purge"], ["backup", "x"]],
    ids=" ".join,
)
@pytest.mark.sqlite_only("a file; test_postgres.py has its counterpart")
def test_a_directory_that_is_mistyped_is_told_and_not_made(
    alone: Terminal, tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()

    said = [alone(*command, "--data", name) for name in ("typo", "empty")]

    assert [one.code for one in said] == [1, 1]
    assert all("there is no database" in one.err for one in said)
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


def test_a_key_is_deleted_and_the_last_admin_stays(alone: Terminal, tmp_path: Path) -> None:
    for name, scope in (("boss", "admin"), ("guest", "read")):
        alone("key", "add", name, "--scope", scope, "--data", str(tmp_path))

    gone, kept = (alone("key", "rm", name, "--data", str(tmp_path)) for name in ("guest", "boss"))

    assert (gone.code, kept.code) == (0, 1)
    assert [one["name"] for one in alone("key", "ls", "--data", str(tmp_path), "--json").json["items"]] == ["boss"]


def test_a_directory_that_a_server_has_is_refused_with_the_way_to_do_it(alone: Terminal, tmp_path: Path) -> None:
    with serving(tmp_path):
        said = alone("key", "add", "boss", "--scope", "admin", "--data", str(tmp_path))

    assert said.code == 1
    assert "is in use by process" in said.err
    assert "--url" in said.err


def test_a_backup_is_made_beside_a_server_and_restored_elsewhere(alone: Terminal, tmp_path: Path) -> None:
    old, new, file = tmp_path / "old", tmp_path / "new", tmp_path / "backup.db"
    old.mkdir()
    with serving(old) as server:
        job = alone("submit", "skip", "--at", "2999-01-01T00:00:00Z", "--url", server.url).word
        made = alone("backup", str(file), "--data", str(old))
        again = alone("backup", str(file), "--data", str(old))
    restored = alone("restore", str(file), "--data", str(new))

    assert (made.word, again.code, restored.code) == (str(file), 1, 0)
    assert "--force" in again.err
    with serving(new) as server:
        assert alone("show", job, "--url", server.url).code == 0


def test_doctor_and_migrate_say_that_all_is_well(alone: Terminal, tmp_path: Path) -> None:
    with serving(tmp_path):
        pass

    assert alone("doctor", "--data", str(tmp_path)).word == "no problems found"
    assert alone("doctor", "--repair", "--data", str(tmp_path), "--json").json["findings"] == []
    assert alone("migrate", "--data", str(tmp_path)).word == "nothing to do"
    assert alone("migrate", "--dry-run", "--data", str(tmp_path), "--json").json["migrations"] == []


@pytest.mark.sqlite_only("a file")
def test_doctor_ends_with_1_when_it_finds_something(alone: Terminal, tmp_path: Path) -> None:
    (tmp_path / "nextslot.db").write_bytes(b"not a database" * 1000)

    assert alone("doctor", "--data", str(tmp_path)).code == 1


def test_config_check_shows_each_setting_and_where_it_came_from(
    alone: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nextslot.toml").write_text("[server]\nport = 9000\n")
    monkeypatch.setenv("NEXTSLOT_SERVER__HOST", "127.0.0.2")

    found = alone("config", "check", "--data", str(tmp_path), "--json").json

    assert found["server.port"] == {"value": 9000, "origin": "nextslot.toml"}
    assert found["server.host"] == {"value": "127.0.0.2", "origin": "NEXTSLOT_SERVER__HOST"}
    assert ["server.port", "9000", "nextslot.toml"] in alone("config", "check", "--data", str(tmp_path)).rows


def test_a_bad_setting_is_named_with_its_place(alone: Terminal, tmp_path: Path) -> None:
    (tmp_path / "nextslot.toml").write_text("[server]\nport = 'many'\n")

    said = alone("config", "check", "--data", str(tmp_path))

    assert said.code == 1
    assert "nextslot.toml: server.port" in said.err


def test_the_secret_of_jobs_own_webhooks_is_made_once(alone: Terminal, tmp_path: Path) -> None:
    first, second = (alone("webhook", "secret", "--data", str(tmp_path)).word for _ in range(2))

    assert first.startswith("whsec_")
    assert first == second


def test_version(alone: Terminal) -> None:
    assert alone("version", "--json").json == {"version": alone("version").word}
