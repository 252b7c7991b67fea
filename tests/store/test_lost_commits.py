"""A database that lacks acknowledged commits, or is damaged, is refused with a remedy; a sound one never is."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from nextslot import Scheduler, offline_commands, testing
from nextslot.config.loading import Configuration, load
from nextslot.errors import Damaged, LostCommits, StoreError
from nextslot.store.contract import Tx
from nextslot.store.maintenance import backup_sqlite
from nextslot.store.open_store import open_store
from nextslot.store.sqlite import acknowledged_commits, integrity_check
from nextslot.store.sqlite.acknowledged_commits import CommitNumber
from nextslot.store.sqlite.sqlite_store import SqliteStore
from tests.store.bench import say
from tests.support import eventually

pytestmark = pytest.mark.sqlite_only("is about its files")

# Commits one job after the other, and prints the number of each that was acknowledged.
WRITER = """
import asyncio, sys
from nextslot import Scheduler
async def main():
    scheduler = Scheduler(f"sqlite:///{sys.argv[1]}/nextslot.db")
    scheduler.job_types.add("work", lambda run: None)
    async with scheduler:
        await scheduler.pause()
        for number in range(int(sys.argv[2])):
            await scheduler.submit("work")
            print(number + 1, flush=True)
        sys.stdin.read()
asyncio.run(main())
"""


def killed_after(directory: Path, jobs: int, of: int | None = None) -> None:
    """Leaves the files of a process that was killed after this many acknowledged jobs, with or without more work to
    do.
    """
    directory.mkdir(exist_ok=True)
    command = [sys.executable, "-c", WRITER, str(directory), str(of or jobs)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= jobs:
            break
    process.send_signal(signal.SIGKILL)
    process.communicate()


def counted(directory: Path) -> int:
    """Starts a scheduler there and counts its jobs."""

    async def main() -> int:
        scheduler = Scheduler(f"sqlite:///{directory}/nextslot.db")
        scheduler.job_types.add("work", lambda run: None)
        async with scheduler:
            return len(await scheduler.queue(limit=1_000_000))

    return asyncio.run(main())


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("killed")
    killed_after(directory, 30)
    return directory


@pytest.fixture
def data(killed: Path, tmp_path: Path) -> Path:
    """Copies the whole directory that a killed server left."""
    shutil.copytree(killed, tmp_path / "data")
    return tmp_path / "data"


# What is refused.


def remove_file(data: Path) -> None:
    (data / "nextslot.db").unlink()


def empty_file(data: Path) -> None:
    os.truncate(data / "nextslot.db", 0)


def remove_file_and_log(data: Path) -> None:
    for name in ("nextslot.db", "nextslot.db-wal", "nextslot.db-shm"):
        (data / name).unlink()


def remove_file_and_record(data: Path) -> None:
    (data / "nextslot.db").unlink()
    (data / "nextslot.db.commits").unlink()


def remove_log(data: Path) -> None:
    (data / "nextslot.db-wal").unlink()


def cut_log(data: Path) -> None:
    """Cuts off the last commit only."""
    os.truncate(data / "nextslot.db-wal", (data / "nextslot.db-wal").stat().st_size - 1)


@pytest.mark.parametrize(
    ("lose", "says"),
    [
        (remove_file, "is missing, but it had commits (see nextslot.db-wal and nextslot.db.commits)"),
        (empty_file, "is empty, but it had commits (see nextslot.db-wal and nextslot.db.commits)"),
        (remove_file_and_log, "is missing, but it had commits (see nextslot.db.commits)"),
        (remove_file_and_record, "is missing, but it had commits (see nextslot.db-wal)"),
        (remove_log, "lacks commits that were acknowledged"),
        (cut_log, "lacks commits that were acknowledged"),
    ],
)
def test_a_database_that_lost_commits_is_refused_with_a_remedy_each_time_it_is_started(
    data: Path, lose: Callable[[Path], None], says: str
) -> None:
    lose(data)

    for _ in range(2):
        with pytest.raises(LostCommits) as refused:
            counted(data)

        assert says in str(refused.value)
        assert "nextslot restore FILE" in str(refused.value)
        assert "delete nextslot.db" in str(refused.value)


def test_what_is_put_back_is_accepted_after_a_refusal(data: Path, tmp_path: Path) -> None:
    for name in ("nextslot.db", "nextslot.db-wal"):
        (data / name).rename(tmp_path / name)
        with pytest.raises(LostCommits):
            counted(data)
        (tmp_path / name).rename(data / name)

    assert counted(data) >= 30


@pytest.mark.parametrize("lose", [remove_file, empty_file, remove_file_and_log, remove_log, cut_log])
def test_the_refused_one_starts_once_what_the_sentence_names_is_deleted(
    data: Path, lose: Callable[[Path], None]
) -> None:
    lose(data)
    with pytest.raises(LostCommits) as refused:
        counted(data)

    for name in str(refused.value).rpartition("delete ")[2].split(" and "):
        (data / name).unlink()

    assert counted(data) < 100_000


async def test_a_commit_without_an_event_is_missed_too(tmp_path: Path) -> None:
    store = open_at(tmp_path)
    await store.write(lambda tx: tx.execute("nodes.settings_changed"))
    copy_files(tmp_path, tmp_path / "before")
    await store.write(lambda tx: tx.execute("nodes.settings_changed"))
    record = tmp_path / "nextslot.db.commits"
    shutil.copyfile(record, tmp_path / "before" / record.name)
    await store.close()

    with pytest.raises(LostCommits, match="1 of 2 other commits are there"):
        open_at(tmp_path / "before")


def test_the_doctor_reports_lost_commits(data: Path) -> None:
    assert offline_commands.doctor(configuration(data)).findings == ()
    remove_log(data)

    findings = offline_commands.doctor(configuration(data)).findings

    assert [one.check for one in findings] == ["commits"]
    assert "nextslot restore FILE" in findings[0].suggestion


@pytest.mark.parametrize("lose", [remove_file, empty_file])
def test_offline_commands_refuse_it_too_and_leave_its_log_alone(
    data: Path, tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    lose(data)
    log = (data / "nextslot.db-wal").read_bytes()
    commands: list[Callable[[], object]] = [
        lambda: offline_commands.doctor(configuration(data)),
        lambda: offline_commands.doctor(configuration(data), repair=True),
        lambda: offline_commands.migrate(configuration(data)),
        lambda: offline_commands.backup(configuration(data), tmp_path / "backup.db"),
        lambda: offline_commands.export_to(configuration(data), tmp_path / "export"),
    ]

    for command in commands:
        with pytest.raises(LostCommits):
            command()

    assert (data / "nextslot.db-wal").read_bytes() == log


# What is not refused.


def test_a_killed_server_never_leaves_a_record_that_is_ahead(tmp_path: Path) -> None:
    for jobs in (1, 7, 19, 40):
        killed_after(tmp_path / str(jobs), jobs, of=1_000_000)

        assert counted(tmp_path / str(jobs)) >= jobs


def test_a_record_that_is_older_torn_empty_or_absent_refuses_no_sound_database(data: Path) -> None:
    record = data / "nextslot.db.commits"
    whole = record.read_bytes()
    older = acknowledged_commits._line(CommitNumber(1, 0), b"FULL")

    for content in (older, whole[:20], whole.replace(b"0", b"9", 3), b"", b"\xff" * 60):
        record.write_bytes(content)
        assert counted(data) >= 30
    record.unlink()
    assert counted(data) >= 30


@pytest.mark.parametrize("content", [b"torn", b"\x00" * 60])
def test_a_torn_record_does_not_hide_that_the_file_was_removed(data: Path, content: bytes) -> None:
    remove_file_and_log(data)
    (data / "nextslot.db.commits").write_bytes(content)

    with pytest.raises(LostCommits):
        counted(data)


@pytest.mark.parametrize("left", [(), ("nextslot.db",), ("nextslot.db", "nextslot.db.commits"), ("nextslot.db.lock",)])
def test_a_first_start_that_was_killed_early_begins_again(tmp_path: Path, left: tuple[str, ...]) -> None:
    for name in left:
        (tmp_path / name).touch()

    assert counted(tmp_path) == 0


def test_a_copy_of_the_file_alone_opens_elsewhere(data: Path, tmp_path: Path) -> None:
    jobs = counted(data)  # Which empties the log into the file.
    (tmp_path / "elsewhere").mkdir()
    shutil.copyfile(data / "nextslot.db", tmp_path / "elsewhere" / "nextslot.db")

    assert counted(tmp_path / "elsewhere") == jobs


def test_another_program_that_empties_the_log_changes_nothing(data: Path) -> None:
    connection = apsw.Connection(str(data / "nextslot.db"))
    connection.pragma("wal_checkpoint(truncate)")
    connection.close()

    assert counted(data) >= 30


def test_history_that_is_purged_is_no_loss(tmp_path: Path) -> None:
    async def main() -> None:
        scheduler = testing.scheduler(tmp_path)
        scheduler.job_types.add("work", lambda run: None)
        async with scheduler:
            job = await scheduler.submit("work")
            await scheduler.wait(job.job_id)
            await asyncio.sleep(400 * 86_400)

    testing.run(main())

    assert counted(tmp_path) == 0


async def test_a_rolled_back_transaction_is_never_recorded(tmp_path: Path) -> None:
    """Neither by itself, nor by what SQLite remembers of it in the next transaction."""

    def fail(tx: Tx) -> None:
        say("never")(tx)
        raise ZeroDivisionError

    store = open_at(tmp_path)
    numbers = []
    for work in (say("a"), fail, change, fail, nothing, fail, say("b")):
        with contextlib.suppress(ZeroDivisionError):
            await store.write(work)
        record = acknowledged_commits.read(tmp_path / "nextslot.db")
        assert record is not None
        assert record.number == acknowledged_commits.number_of(store._writer)
        numbers.append(tuple(record.number))
    await store.close()

    assert numbers == [(1, 0), (1, 0), (1, 1), (1, 1), (1, 1), (1, 1), (2, 1)]


async def test_rows_of_the_full_text_are_not_taken_for_events(tmp_path: Path) -> None:
    """They have row numbers too. With a number beyond the last event, a start would refuse the database."""
    store = open_at(tmp_path)
    for _ in range(3):
        await store.write(lambda tx: tx.execute("search.add", job_id="a", title="a title"))
    store.abandon()

    recorded = acknowledged_commits.read(tmp_path / "nextslot.db")

    assert recorded is not None
    assert recorded.number.events == 0
    open_at(tmp_path).abandon()


async def test_a_transaction_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    store = open_at(tmp_path)
    await store.write(lambda tx: tx.execute("nodes.settings_changed"))
    before = (tmp_path / "nextslot.db-wal").read_bytes()
    await store.write(nothing)

    assert (tmp_path / "nextslot.db-wal").read_bytes() == before
    await store.close()


async def test_a_commit_stands_when_its_record_cannot_be_written(tmp_path: Path) -> None:
    store = open_at(tmp_path)
    (tmp_path / "nextslot.db.commits").mkdir()
    assert await store.write(lambda tx: tx.execute("nodes.settings_changed")) == 1
    await store.close()


async def test_synchronous_NORMAL_only_warns_and_only_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_at(tmp_path, "NORMAL")
    await store.write(lambda tx: tx.execute("nodes.settings_changed"))
    copy_files(tmp_path, tmp_path / "cut")
    await store.write(lambda tx: tx.execute("nodes.settings_changed"))
    shutil.copyfile(tmp_path / "nextslot.db.commits", tmp_path / "cut" / "nextslot.db.commits")
    await store.close()

    for _ in range(2):
        open_at(tmp_path / "cut", "FULL").abandon()

    warnings = [one.getMessage() for one in caplog.records if "lacks commits" in one.getMessage()]
    assert len(warnings) == 1
    assert "synchronous=NORMAL" in warnings[0]


# What resets the record.


@pytest.mark.parametrize("lose", [lambda data: None, remove_file, empty_file, remove_log, remove_file_and_log])
def test_a_restore_takes_the_place_of_whatever_was_there(
    data: Path, tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    backup = tmp_path / "backup.db"
    offline_commands.backup(configuration(data), backup)
    jobs = counted(data)
    killed_after(data, 5)
    log = (data / "nextslot.db-wal").read_bytes()
    lose(data)

    kept = offline_commands.restore(configuration(data), backup, force=True)

    assert counted(data) == jobs
    assert counted(data) == jobs
    if lose in (remove_file, empty_file):
        assert kept is not None
        assert kept.with_name(kept.name.removesuffix("-wal") + "-wal").read_bytes() == log
    assert kept is None or kept.exists(), "the name that is reported is one that is there"


def test_a_restore_that_dies_anywhere_leaves_a_database_that_starts(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = tmp_path / "backup.db"
    offline_commands.backup(configuration(data), backup)
    before = counted(data)
    killed_after(data, 5)
    put = backup_sqlite.put

    def die_before(part: Path, target: Path) -> None:
        raise KeyboardInterrupt

    def die_after(part: Path, target: Path) -> None:
        put(part, target)
        raise KeyboardInterrupt

    for moment, has_been_replaced in ((die_before, False), (die_after, True)):
        monkeypatch.setattr(backup_sqlite, "put", moment)
        with pytest.raises(KeyboardInterrupt):
            backup_sqlite.put_in_place(backup, data / "nextslot.db")

        assert (counted(data) == before) is has_been_replaced


def test_an_import_forgets_the_record_of_the_empty_database(data: Path, tmp_path: Path) -> None:
    export, target = tmp_path / "export", tmp_path / "target"
    jobs = counted(data)
    offline_commands.export_to(configuration(data), export)
    target.mkdir()
    asyncio.run(commit_something(target))

    offline_commands.import_from(configuration(target), export)

    assert counted(target) == jobs


def test_an_import_takes_the_place_of_a_database_that_was_removed(data: Path, tmp_path: Path) -> None:
    export = tmp_path / "export"
    jobs = counted(data)
    offline_commands.export_to(configuration(data), export)
    remove_file(data)

    offline_commands.import_from(configuration(data), export)

    assert counted(data) == jobs


def test_a_migration_keeps_to_the_record(data: Path) -> None:
    assert offline_commands.migrate(configuration(data)) == []
    assert counted(data) >= 30


# Damage.


def cut_in_half(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def invert_a_page(file: Path) -> None:
    """Inverts a page of the jobs, which the server has to read."""
    page = page_of(file, "jobs")
    content = bytearray(file.read_bytes())
    content[(page - 1) * 4096 : page * 4096] = bytes(255 - byte for byte in content[(page - 1) * 4096 : page * 4096])
    file.write_bytes(content)


@pytest.mark.parametrize("harm", [cut_in_half, invert_a_page])
def test_a_damaged_file_is_refused_at_the_start_and_by_backup_and_shown_by_the_doctor(
    data: Path, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    counted(data)
    harm(data / "nextslot.db")

    with pytest.raises(Damaged, match=r"damaged or not a database: .*nextslot restore FILE"):
        counted(data)
    with pytest.raises(StoreError, match="damaged"):
        offline_commands.backup(configuration(data), tmp_path / "backup.db")

    assert not (tmp_path / "backup.db").exists()
    assert {one.check for one in offline_commands.doctor(configuration(data)).findings} == {"integrity"}


def test_a_large_file_is_checked_in_the_background(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted(data)
    invert_a_page(data / "nextslot.db")
    monkeypatch.setattr(integrity_check, "CHECKED_AT_ONCE_BYTES", 0)

    async def main() -> None:
        store = SqliteStore(data / "nextslot.db", lambda tx: None)
        await eventually(lambda: store.health.damage)
        assert "nextslot restore FILE" in (store.health.damage or "")
        await store.close()

    asyncio.run(main())


def test_a_check_in_the_background_finds_nothing_in_a_sound_file_and_ends_with_the_store(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted(data)
    monkeypatch.setattr(integrity_check, "CHECKED_AT_ONCE_BYTES", 0)

    async def main() -> None:
        store = SqliteStore(data / "nextslot.db", lambda tx: None)
        await store.close()
        assert store.health.damage is None

    asyncio.run(main())


# Arrangement.


def open_at(directory: Path, synchronous: str = "FULL") -> SqliteStore:
    url = f"sqlite:///{directory}/nextslot.db"
    store = open_store(url, lambda tx: None, threaded=False, synchronous=synchronous)
    assert isinstance(store, SqliteStore)
    return store


async def commit_something(directory: Path) -> None:
    """Stores nothing that an import would have to keep."""
    store = open_at(directory)
    await store.write(lambda tx: tx.execute("nodes.settings_changed"))
    await store.close()


def change(tx: Tx) -> None:
    """Changes a row without appending an event."""
    tx.execute("nodes.settings_changed")


def nothing(tx: Tx) -> None:
    tx.rows("nodes.all")


def copy_files(directory: Path, target: Path) -> None:
    """Copies the database and its log, as a power cut would leave them now."""
    target.mkdir()
    for name in ("nextslot.db", "nextslot.db-wal"):
        shutil.copyfile(directory / name, target / name)


def configuration(data: Path) -> Configuration:
    return load(data, environment={})


def page_of(file: Path, table: str) -> int:
    connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        page: int = connection.execute("select rootpage from sqlite_schema where name = ?", (table,)).get
        return page
    finally:
        connection.close()
