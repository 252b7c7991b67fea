"""Offline commands on a database: keys, migrations, the doctor, backups (design: under the scheduler's lock)."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import orjson
import pytest

from nextslot import (
    NewJob,
    Scheduler,
    offline_commands,
    testing,
)
from nextslot.config import Configuration, load
from nextslot.domain import Scope
from nextslot.errors import (
    AlreadyOpen,
    Conflict,
    Invalid,
    SchemaTooNew,
    StoreError,
)
from nextslot.executors.threads import InlineThreads
from nextslot.scheduler_from_config import compose
from nextslot.store import dialects
from tests import databases
from tests.support import register_handlers


def configuration(directory: Path) -> Configuration:
    directory.mkdir(exist_ok=True)
    return load(directory, environment=databases.variables(directory), overrides={"extensions.disabled": ["stories"]})


@asynccontextmanager
async def composed_server(directory: Path, *, crash: bool = False) -> AsyncIterator[Scheduler]:
    clock, chance, threads = testing.VirtualClock(), testing.SeededChance(), InlineThreads()
    scheduler = compose(configuration(directory), clock, chance=chance, threads=threads, is_threaded=False)
    register_handlers(scheduler)
    await scheduler.start()
    yield scheduler
    await (testing.crash(scheduler) if crash else scheduler.stop(grace_seconds=0))


def with_server(directory: Path, main: Callable[[Scheduler], Awaitable[None]], *, crash: bool = False) -> None:
    """Runs a server, for tests of offline commands, which run event loops of their own."""

    async def body() -> None:
        async with composed_server(directory, crash=crash) as scheduler:
            await main(scheduler)

    testing.run(body())


async def busy(scheduler: Scheduler) -> None:
    """Makes a database with some of everything: ended, failed, running, queued, waiting and grouped jobs, and a direct
    caller.
    """
    done = await scheduler.submit("work", {"seconds": 1})
    await scheduler.wait(done.job_id)
    failed = await scheduler.submit("fail", {"times": 1}, resources={"gpu": 1})
    await scheduler.wait(failed.job_id)
    running = await scheduler.submit("work", {"seconds": 1000})
    await scheduler.submit("work", depends_on=[running.job_id])
    await scheduler.submit("work", unique_key="last")
    await testing.settled()


def plain(directory: Path) -> Any:
    return databases.plain(directory)


def tampered(directory: Path, *statements: str) -> None:
    """Makes changes that the engine's own commits cannot make: without rules, checks and references."""
    connection = databases.without_rules(directory)
    for statement in statements:
        for part in statement.split("; "):
            connection.execute(part)
    connection.close()


def found(directory: Path) -> list[str]:
    return [finding.check for finding in offline_commands.doctor(configuration(directory)).findings]


def jobs_in(directory: Path) -> int:
    count: int = plain(directory).execute("select count(*) from jobs").get
    return count


def jobs_in_backup(file: Path) -> int:
    if databases.kind() == "sqlite":
        count: int = apsw.Connection(str(file)).execute("select count(*) from jobs").get
        return count
    tables = [orjson.loads(line) for line in file.read_bytes().splitlines() if line.startswith(b'{"table":"jobs"')]
    return int(tables[0]["rows"])


# Keys, and the lock.


def test_a_key_can_be_added_before_any_server_runs(tmp_path: Path) -> None:
    async def add() -> str:
        async with offline_commands.keys(configuration(tmp_path)) as keys:
            await keys.create("ops", ["admin"])
            _, text_ = await keys.create("web", ["submit"], office_id="default")
            assert [key.name for key in (await keys.page()).items] == ["web", "ops"]
            return text_

    text_ = asyncio.run(add())

    async def look() -> None:
        async with composed_server(tmp_path) as scheduler:
            key = await scheduler.keys.find(text_)
            assert key is not None
            assert (key.scope, key.office_id, key.created_by) == (Scope.SUBMIT, "default", "offline command")
            assert await scheduler.keys.is_guarded()

    testing.run(look())


def test_a_key_for_a_declared_office_is_made_before_the_first_start(tmp_path: Path) -> None:
    (tmp_path / "nextslot.toml").write_text("[offices.builds]\nmax_concurrent_jobs = 3\n")

    async def add() -> None:
        async with offline_commands.keys(configuration(tmp_path)) as keys:
            await keys.create("ops", ["admin"])
            with pytest.raises(Invalid, match="no office 'bilds'"):
                await keys.create("ci", ["submit"], office_id="bilds")
            for name in ("ci", "more"):
                await keys.create(name, ["submit"], office_id="builds")

    asyncio.run(add())

    async def look() -> None:
        async with composed_server(tmp_path) as scheduler:
            assert (await scheduler.offices.get("builds")).max_concurrent_jobs == 3
            assert [(key.name, key.office_id) for key in (await scheduler.keys.page()).items] == [
                ("more", "builds"),
                ("ci", "builds"),
                ("ops", None),
            ]

    testing.run(look())


@pytest.mark.real_time
async def test_a_key_for_an_office_that_is_not_there_is_refused(tmp_path: Path) -> None:
    async with offline_commands.keys(configuration(tmp_path)) as keys:
        await keys.create("ops", ["admin"])
        with pytest.raises(Invalid, match="office_id: there is no office 'nowhere'"):
            await keys.create("web", ["submit"], office_id="nowhere")

        assert [key.name for key in (await keys.page()).items] == ["ops"]


@pytest.mark.real_time
async def test_a_key_can_be_taken_away_offline_and_both_are_audited(tmp_path: Path) -> None:
    async with offline_commands.keys(configuration(tmp_path)) as keys:
        await keys.create("ops", ["admin"])
        second, _ = await keys.create("old", ["read"])
        await keys.delete(second.key_id)
        assert len((await keys.page()).items) == 1

    rows = plain(tmp_path).execute("select actor, details from audit order by audit_id").fetchall()
    assert [actor for actor, _ in rows] == ["offline command"] * 3
    assert '"name":"old"' in str(rows[2][1])


def test_the_webhook_secret_is_the_one_that_the_server_signs_with(tmp_path: Path) -> None:
    offline = asyncio.run(offline_commands.webhook_secret(configuration(tmp_path)))

    async def look() -> None:
        async with composed_server(tmp_path) as scheduler:
            assert scheduler.webhooks.secret() == offline

    testing.run(look())
    assert asyncio.run(offline_commands.webhook_secret(configuration(tmp_path))) == offline
    assert offline not in str(plain(tmp_path).execute("select * from audit").fetchall())


async def _keys(given: Configuration) -> None:
    async with offline_commands.keys(given):
        raise AssertionError("it was not refused")


@pytest.mark.parametrize(
    "command",
    [
        lambda given: asyncio.run(_keys(given)),
        offline_commands.migrate,
        lambda given: offline_commands.doctor(given, repair=True),
        lambda given: offline_commands.restore(given, given.data / "good.db", force=True),
        lambda given: asyncio.run(offline_commands.purge(given)),
    ],
    ids=["keys", "migrate", "repair", "restore", "purge"],
)
@pytest.mark.real_time
async def test_what_writes_is_refused_while_a_server_runs_and_told_by_whom(
    tmp_path: Path, command: Callable[[Configuration], object]
) -> None:
    given = configuration(tmp_path)

    async with compose(given):
        offline_commands.backup(given, tmp_path / "good.db")
        with pytest.raises(AlreadyOpen, match=rf"in use by process {os.getpid()} "):
            await asyncio.to_thread(command, given)


@pytest.mark.real_time
async def test_the_refusal_says_which_command_does_it_while_the_server_runs(tmp_path: Path) -> None:
    given = configuration(tmp_path)

    async with compose(given):
        with pytest.raises(AlreadyOpen, match="to use the running server: nextslot key"):
            await _keys(given)


def test_the_lock_is_free_again_after_each_command(tmp_path: Path) -> None:
    given = configuration(tmp_path)
    with_server(tmp_path, busy)

    offline_commands.migrate(given)
    offline_commands.doctor(given, repair=True)
    offline_commands.backup(given, tmp_path / "good.db")
    asyncio.run(offline_commands.purge(given))

    with_server(tmp_path, busy)


def test_opening_the_store_offline_starts_no_job(tmp_path: Path) -> None:
    async def queue() -> None:
        async with composed_server(tmp_path) as scheduler:
            await scheduler.pause()
            await scheduler.submit("work")

    async def look() -> None:
        async with offline_commands.opened(configuration(tmp_path)) as access:
            await access.write(lambda tx: tx.execute("limits.resume", scope="scheduler", name=""))

    testing.run(queue())
    asyncio.run(look())

    assert plain(tmp_path).execute("select stage from jobs").get == "QUEUED"


# Migrations.


def test_pending_migrations_are_shown_and_then_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = configuration(tmp_path)
    with_server(tmp_path, busy)
    databases.spoil(tmp_path)
    newer = [(1000 + number, f"later{number}", f"create table later{number} (a {{int}} not null)") for number in (1, 2)]
    known = dialects.migrations()
    monkeypatch.setattr(dialects, "migrations", lambda: [*known, *newer])
    wanted = ["1001_later1", "1002_later2"]

    assert offline_commands.pending(given) == wanted
    assert found(tmp_path) == ["schema"]
    with pytest.raises(StoreError, match=r"older than this release|the copy is not sound: the schema is older"):
        offline_commands.backup(given, tmp_path / "no.db")
    assert offline_commands.migrate(given) == wanted
    assert offline_commands.pending(given) == offline_commands.migrate(given) == found(tmp_path) == []


def test_a_database_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    with_server(tmp_path, busy)
    databases.spoil(tmp_path)
    plain(tmp_path).execute("insert into schema_migrations values (9999, 'future')")

    for command in (offline_commands.pending, offline_commands.migrate, offline_commands.doctor):
        with pytest.raises(SchemaTooNew):
            command(configuration(tmp_path))


@pytest.mark.sqlite_only("a file; tests/cli/test_postgres.py has its counterpart")
@pytest.mark.parametrize("command", [offline_commands.pending, offline_commands.doctor])
def test_a_directory_without_a_database_is_told(tmp_path: Path, command: Callable[[Configuration], object]) -> None:
    with pytest.raises(StoreError, match="there is no database"):
        command(configuration(tmp_path))

    assert not (tmp_path / "nextslot.db").exists()


# The doctor.


async def test_spec_12_12_the_doctor_names_subscriptions_that_a_key_stops(tmp_path: Path) -> None:
    async with composed_server(tmp_path) as scheduler:
        webhook, _ = await scheduler.webhooks.create("http://127.0.0.1:9/")
        assert found(tmp_path) == []
        await scheduler.keys.create("admin", ["admin"])

    (finding,) = offline_commands.doctor(configuration(tmp_path)).findings
    assert webhook.webhook_id in finding.problem
    assert "allow_private" in finding.suggestion


async def test_the_doctor_finds_nothing_in_a_busy_database_also_while_the_server_runs(tmp_path: Path) -> None:
    async with composed_server(tmp_path, crash=True) as scheduler:
        await busy(scheduler)
        caller = asyncio.ensure_future(scheduler.run_direct("work", {"seconds": 5}))
        await testing.settled()

        assert found(tmp_path) == []

        await scheduler.cancel((await scheduler.running())[0].job_id, interrupt=True)
        await testing.settled()
        assert found(tmp_path) == []
        await caller
    assert found(tmp_path) == []


@pytest.mark.parametrize(
    ("statement", "check"),
    [
        ("update limits set used = used + 1 where limit_key = 'scheduler'", "limits.used"),
        ("update lanes set ready = ready + 1", "lanes.ready"),
        ("update lanes set running = running + 1", "lanes.running"),
        ("update lanes set is_open = 1 - is_open", "lanes.is_open"),
        ("update lanes set first_position = first_position + 1 where first_rank is not null", "lanes.first"),
        ("update lanes set first_rank = null, first_position = null where ready > 0", "lanes.first"),
        ("delete from limits where limit_key = 'scheduler'", "limits.missing"),
        ("delete from runs where status is null", "references|runless"),
        ("update jobs set finished_at = 1, outcome = 'SKIPPED' where finished_at is null", "unfinished_runs"),
        ("update jobs set outcome = 'SKIPPED' where outcome = 'COMPLETED'", "other_outcomes"),
        ("update jobs set unmet = unmet + 1 where stage = 'QUEUED'", "miscounted_waits"),
        ("update jobs set is_due = 0 where unique_key = 'last'", "endless_waits"),
        (
            "update dependencies set chain_id = (select chain_id from jobs where outcome = 'COMPLETED' limit 1)",
            "forgotten_waits",
        ),
        ("insert into device_holds values ('local', 'gpu', '0', 'local/slot-9')", "left_devices"),
        ("drop index jobs_worker; update jobs set stage = 'RUNNING', worker_id = 'local/slot-1'", "shared_workers"),
        ("drop index jobs_retry; update jobs set retry_of = (select min(job_id) from jobs)", "forked_chains"),
        (
            "insert into job_groups (group_id, office_id, mode, on_failure, status, members, ended, succeeded,"
            " cancelled, created_at) values ('g', 'default', 'parallel', 'stop', 'QUEUED', 5, 0, 0, 0, 1)",
            "miscounted_groups",
        ),
        ("insert into maintenance values ('test', 1)", "references|suspended"),
    ],
)
def test_the_doctor_finds_what_should_not_be(tmp_path: Path, statement: str, check: str) -> None:
    with_server(tmp_path, busy, crash=True)

    tampered(tmp_path, statement)

    findings = offline_commands.doctor(configuration(tmp_path)).findings
    assert set(check.split("|")) & {finding.check for finding in findings}
    assert all(finding.problem and finding.suggestion for finding in findings)


@pytest.mark.sqlite_only("PostgreSQL itself keeps references")
def test_a_reference_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    with_server(tmp_path, busy)
    plain(tmp_path).execute("insert into artifacts values ('nobody', 'a', 'a', 1)")

    assert "references" in found(tmp_path)


async def test_a_reservation_of_somebody_who_has_left_is_found(tmp_path: Path) -> None:
    async with composed_server(tmp_path) as scheduler:
        await scheduler.run_direct("work")
    tampered(tmp_path, "update reservations set status = 'ACTIVE'")

    assert found(tmp_path) == ["forgotten_reservations"]

    tampered(tmp_path, "update reservations set run_id = null")

    assert found(tmp_path) == ["forgotten_reservations"]


def test_counters_are_repaired_when_asked_and_only_then(tmp_path: Path) -> None:
    with_server(tmp_path, busy, crash=True)
    tampered(tmp_path, "update limits set used = 9", "update lanes set ready = 9, is_open = 1, running = 9")
    wrong = found(tmp_path)

    assert found(tmp_path) == wrong != []
    examined = offline_commands.doctor(configuration(tmp_path), repair=True)

    assert examined.findings == ()
    assert examined.repaired > 0
    assert offline_commands.doctor(configuration(tmp_path), repair=True).repaired == 0


def test_a_chain_that_failed_only_because_its_outcome_was_not_stored_is_found_and_retried_by_repair(
    tmp_path: Path,
) -> None:
    """What a defect of an earlier release left: a permanent failure, and dependents that wait for ever."""
    made: list[str] = []

    async def damaged() -> None:
        async with composed_server(tmp_path) as scheduler:
            once: Any = {"params": {"times": 1}, "retry_policy": {"max_attempts": 0}}
            first = await scheduler.submit("fail", **once)
            await scheduler.wait(first.job_id)
            group, members = await scheduler.submit_group([NewJob(job_type="fail", **once)])
            await scheduler.wait(members[0].job_id)
            dependent = await scheduler.submit("work", depends_on=[first.job_id], on_dependency_failure="wait")
            made.extend([first.job_id, members[0].job_id, dependent.job_id, group.group_id])

    async def mended() -> None:
        async with composed_server(tmp_path) as scheduler:
            first, member, dependent, group = made
            for job_id in (first, member, dependent):
                assert (await scheduler.wait(job_id)).status == "COMPLETED"
            assert (await scheduler.group(group)).status == "COMPLETED"

    testing.run(damaged())
    tampered(
        tmp_path,
        "update runs set failure_kind = 'invalid', error = 'its outcome could not be stored: Refused' "
        "where status = 'FAILED'",
    )
    assert found(tmp_path) == ["unstored_outcomes", "unstored_outcomes"]

    examined = offline_commands.doctor(configuration(tmp_path), repair=True)

    assert (examined.findings, examined.retried) == ((), 2)
    assert offline_commands.doctor(configuration(tmp_path), repair=True).retried == 0
    testing.run(mended())
    assert found(tmp_path) == []


@pytest.mark.sqlite_only("a file")
def test_a_damaged_file_is_told_and_not_looked_into(tmp_path: Path) -> None:
    with_server(tmp_path, busy)
    damage(tmp_path / "nextslot.db")

    findings = offline_commands.doctor(configuration(tmp_path)).findings

    assert {finding.check for finding in findings} == {"integrity"}
    assert "restore" in findings[0].suggestion


def damage(path: Path) -> None:
    """Zeroes the pages of one table's contents, but not the schema."""
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "delete")
    page, size = connection.execute("select rootpage from sqlite_master where name = 'jobs'").get, 4096
    connection.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\0" * 200)


# Backup and restore.


def test_a_backup_of_a_running_server_is_restored_and_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with composed_server(tmp_path / "a") as scheduler:
            await busy(scheduler)
            offline_commands.backup(configuration(tmp_path / "a"), tmp_path / "good.db")
            await scheduler.submit("work")

    testing.run(main())
    assert offline_commands.restore(configuration(tmp_path / "b"), tmp_path / "good.db") is None

    async def go_on() -> None:
        async with composed_server(tmp_path / "b") as scheduler:
            assert scheduler.recovered.lost == 1
            await asyncio.sleep(5000)
            assert await scheduler.queue() == []

    assert jobs_in(tmp_path / "b") == jobs_in_backup(tmp_path / "good.db") == jobs_in(tmp_path / "a") - 2
    testing.run(go_on())
    assert found(tmp_path / "b") == []


def test_a_backup_is_made_while_another_process_writes(tmp_path: Path) -> None:
    given = configuration(tmp_path)
    words = [sys.executable, "-c", WRITER, databases.url(tmp_path), str(tmp_path)]
    writer = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline() == "going\n"
        for number in range(5):
            assert offline_commands.backup(given, tmp_path / f"{number}.db").exists()
    finally:
        writer.kill()
        writer.communicate()

    assert [offline_commands.restore(given, tmp_path / f"{number}.db", verify=True) for number in range(5)] == [
        None
    ] * 5


WRITER = """
import asyncio, sys
from nextslot import Scheduler

async def main():
    async with Scheduler(sys.argv[1], data=sys.argv[2]) as scheduler:
        @scheduler.job_type("quick")
        async def quick(run): ...
        await scheduler.submit("quick")
        print("going", flush=True)
        while True:
            await scheduler.submit("quick")

asyncio.run(main())
"""


def test_a_backup_is_one_file_and_takes_no_other_files_place(tmp_path: Path) -> None:
    with_server(tmp_path, busy)
    there = set(tmp_path.iterdir())

    offline_commands.backup(configuration(tmp_path), tmp_path / "good.db")

    assert set(tmp_path.iterdir()) - there <= {tmp_path / "good.db", *companions(tmp_path)}
    with pytest.raises(Conflict, match="exists already"):
        offline_commands.backup(configuration(tmp_path), tmp_path / "good.db")
    offline_commands.backup(configuration(tmp_path), tmp_path / "good.db", force=True)


def companions(directory: Path) -> set[Path]:
    return {directory / f"nextslot.db{end}" for end in ("-wal", "-shm")}


def test_no_backup_is_left_of_what_is_not_sound(tmp_path: Path) -> None:
    with_server(tmp_path, busy)
    tampered(tmp_path, "update limits set used = 9")

    with pytest.raises(StoreError, match="the copy is not sound: the limit"):
        offline_commands.backup(configuration(tmp_path), tmp_path / "bad.db")

    assert not list(tmp_path.glob("*bad.db*"))


@pytest.mark.sqlite_only("a file; tests/cli/test_postgres.py has its counterpart")
def test_restore_overwrites_nothing_unless_it_is_told_to_and_keeps_what_was_there(tmp_path: Path) -> None:
    given = configuration(tmp_path)
    with_server(tmp_path, busy)
    offline_commands.backup(given, tmp_path / "good.db")
    with_server(tmp_path, busy, crash=True)  # What it did last is still in the log beside the file.
    before = jobs_in(tmp_path)

    with pytest.raises(Conflict, match=r"nextslot\.db exists already"):
        offline_commands.restore(given, tmp_path / "good.db")
    assert jobs_in(tmp_path) == before
    kept = offline_commands.restore(given, tmp_path / "good.db", force=True)

    assert kept is not None
    assert jobs_in_backup(kept) == before
    assert jobs_in(tmp_path) == jobs_in_backup(tmp_path / "good.db") < before
    assert found(tmp_path) == []


@pytest.mark.sqlite_only("a file")
def test_restore_replaces_a_damaged_database(tmp_path: Path) -> None:
    given = configuration(tmp_path)
    with_server(tmp_path, busy)
    offline_commands.backup(given, tmp_path / "good.db")
    (tmp_path / "nextslot.db").write_bytes(b"not a database at all" * 100)

    kept = offline_commands.restore(given, tmp_path / "good.db", force=True)

    assert kept is not None
    assert kept.read_bytes().startswith(b"not a database")
    assert found(tmp_path) == []


@pytest.mark.sqlite_only("a file; tests/cli/test_postgres.py has its counterpart")
def test_a_backup_that_is_not_sound_is_refused_before_anything_is_touched(tmp_path: Path) -> None:
    given = configuration(tmp_path)
    with_server(tmp_path, busy)
    offline_commands.backup(given, tmp_path / "bad.db")
    damage(tmp_path / "bad.db")
    before: Any = (tmp_path / "nextslot.db").stat()

    for verify in (True, False):
        with pytest.raises(StoreError, match="is not a sound backup: the file is damaged"):
            offline_commands.restore(given, tmp_path / "bad.db", force=True, verify=verify)

    assert (tmp_path / "nextslot.db").stat().st_ino == before.st_ino
    with pytest.raises(StoreError, match="there is no database"):
        offline_commands.restore(given, tmp_path / "missing.db")
