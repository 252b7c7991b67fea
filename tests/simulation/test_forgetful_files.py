"""Backups, exports and restores on a disk that forgets what was not synced: a power cut leaves the old or the new."""

from collections.abc import Callable
from pathlib import Path

import pytest

from nextslot.errors import StoreError
from nextslot.store.maintenance import backup_sqlite, export_file
from nextslot.store.maintenance.export_file import Header, Writer
from nextslot.store.sqlite import acknowledged_commits
from nextslot.store.sqlite.sqlite_store import connect, migrate
from nextslot.testing.faulty_disk import ForgetfulFiles

pytestmark = pytest.mark.sqlite_only("forgets files of SQLite")


def make_database(path: Path, offices: int) -> Path:
    """Makes a database with so many offices besides the default one, and the record of its commits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = connect(path, "FULL")
    migrate(connection)
    for number in range(offices):
        columns = "office_id, name, status, is_paused, max_concurrent_jobs, role_limits, retry_policy, cancel_mode"
        connection.execute(
            f"insert into offices ({columns}, on_dependency_failure, created_at) "
            "values (?, 'o', 'active', 0, 1, '{}', '{}', 'finish', 'wait', 1)",
            (f"o{number}",),
        )
    connection.execute(f"pragma user_version = {offices}")
    acknowledged_commits.reset(path, acknowledged_commits.number_of(connection))
    connection.close()
    return path


def offices_in(path: Path) -> int:
    """Opens a database as a start does, and counts its offices."""
    acknowledged_commits.refuse_if_removed(path)
    connection = connect(path, "FULL")
    try:
        acknowledged_commits.refuse_if_commits_are_missing(path, connection)
        count: int = connection.execute("select count(*) from offices").get
        return count
    finally:
        connection.close()


def cut_anywhere(directory: Path, work: Callable[[], object], look: Callable[[Path], object]) -> list[object]:
    """Does a work, cuts the power after each sync and at the end, and returns what each cut leaves; the last two are
    those after the end.
    """
    seen: list[object] = []

    def cut() -> None:
        for has_current_names in (True, False):
            seen.append(look(files.left(directory.parent / f"left-{len(seen)}", has_current_names)))

    files = ForgetfulFiles(directory, cut)
    with files:
        work()
        cut()
    return seen


def test_a_power_cut_leaves_the_old_backup_or_the_new_one_and_the_new_one_once_it_is_acknowledged(
    tmp_path: Path,
) -> None:
    source = make_database(tmp_path / "data" / "nextslot.db", offices=3)
    backup = make_database(tmp_path / "backups" / "backup.db", offices=1)

    seen = cut_anywhere(
        backup.parent, lambda: backup_sqlite.copy(source, backup), lambda left: offices_in(left / "backup.db")
    )

    assert set(seen) == {1, 3}
    assert seen[-2:] == [3, 3]


def test_a_power_cut_leaves_no_part_of_an_export_under_its_name(tmp_path: Path) -> None:
    target = tmp_path / "exports" / "all.jsonl"
    target.parent.mkdir()

    def write() -> None:
        with export_file.created(target) as file:
            Writer(file, Header(schema=1, release="1")).end({}, [])

    def look(left: Path) -> str:
        export = left / "all.jsonl"
        if not export.exists():
            return "nothing"
        return "all of it" if export.read_bytes() == target.read_bytes() else "a part"

    seen = cut_anywhere(target.parent, write, look)

    assert "a part" not in seen
    assert seen[-2:] == ["all of it", "all of it"]


def test_a_power_cut_in_a_restore_leaves_a_database_that_starts(tmp_path: Path) -> None:
    """The backup is older than the database: with the database's own record of commits, it would be refused."""
    backup = make_database(tmp_path / "backups" / "backup.db", offices=1)
    database = make_database(tmp_path / "data" / "nextslot.db", offices=3)

    def look(left: Path) -> object:
        try:
            return offices_in(left / "nextslot.db")
        except StoreError as error:
            return str(error)

    seen = cut_anywhere(database.parent, lambda: backup_sqlite.put_in_place(backup, database), look)

    assert set(seen) <= {1, 3}
    assert seen[-2:] == [1, 1]


def test_a_power_cut_can_leave_an_empty_file_and_an_old_name(tmp_path: Path) -> None:
    """The disk forgets: else the tests above would prove nothing."""
    directory = tmp_path / "files"
    directory.mkdir()

    with ForgetfulFiles(directory) as files:
        (directory / "part").write_text("new")
        (directory / "part").replace(directory / "file")
        with_names = files.left(tmp_path / "a", has_current_names=True)
        without_names = files.left(tmp_path / "b", has_current_names=False)

    assert (with_names / "file").read_text() == ""
    assert list(without_names.iterdir()) == []
