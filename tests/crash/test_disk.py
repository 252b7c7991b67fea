"""Disks that fail, on a real file: logs that are cut, a disk that is full, a file that cannot be written."""

import asyncio
import contextlib
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from nextslot import NewJob, Scheduler, testing
from nextslot.errors import NextslotError, StoreError, Unavailable
from nextslot.store.maintenance import backup_sqlite
from nextslot.testing.faulty_disk import salvage
from tests.support import register_handlers

pytestmark = pytest.mark.sqlite_only("is about its files")


def scheduler_on(directory: Path, seed: int = 0) -> Scheduler:
    scheduler = testing.scheduler(directory, seed)
    register_handlers(scheduler)
    return scheduler


def stored(path: Path) -> list[str]:
    connection = apsw.Connection(str(path))
    ids = [job_id for (job_id,) in connection.execute("select job_id from jobs order by position, job_id")]
    connection.close()
    return ids


def a_database_and_its_log(directory: Path, jobs: int) -> tuple[list[str], int]:
    """Makes a database and its log as a power cut leaves them while all commits are still in the log.

    Returns the jobs in the order of their commits, and how long the log was before the first of them.
    """

    async def main() -> tuple[list[str], int]:
        scheduler = scheduler_on(directory)
        await scheduler.start()
        await scheduler.pause()
        before = (directory / "nextslot.db-wal").stat().st_size
        ids = [(await scheduler.submit("work")).job_id for _ in range(jobs)]
        salvage(directory / "nextslot.db", directory / "cut" / "nextslot.db")
        await testing.crash(scheduler)
        return ids, before

    return testing.run(main())


def test_a_log_that_is_cut_anywhere_opens_and_keeps_a_prefix_of_what_was_committed(tmp_path: Path) -> None:
    ids, before = a_database_and_its_log(tmp_path, 12)
    log, chance = (tmp_path / "cut" / "nextslot.db-wal").read_bytes(), random.Random(3)
    cuts = chance.sample(range(before), 4) + chance.sample(range(before, len(log)), 8)
    counts = set()

    for number, size in enumerate([*cuts, len(log)]):
        place = tmp_path / f"cut-{number}"
        place.mkdir()
        shutil.copyfile(tmp_path / "cut" / "nextslot.db", place / "nextslot.db")
        (place / "nextslot.db-wal").write_bytes(log[:size])
        backup_sqlite.apply_migrations(place / "nextslot.db")
        found = stored(place / "nextslot.db")
        assert found == ids[: len(found)]
        assert backup_sqlite.examine(place / "nextslot.db") == []
        counts.add(len(found))

    # The whole log has all of it, and some cuts were in the middle.
    assert 12 in counts
    assert len(counts) > 3


def test_a_log_with_a_torn_page_loses_that_commit_and_no_earlier_one(tmp_path: Path) -> None:
    ids, _ = a_database_and_its_log(tmp_path, 12)
    path = tmp_path / "cut" / "nextslot.db"
    log = bytearray(path.with_name("nextslot.db-wal").read_bytes())
    log[-2000:-1000] = os.urandom(1000)
    path.with_name("nextslot.db-wal").write_bytes(log)

    found = stored(path)

    assert found == ids[:11]
    assert [one.check for one in backup_sqlite.examine(path)] == ["commits"], "it was acknowledged"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mounts a file system of four megabytes, if the machine allows that."""
    place = tmp_path / "small"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if made.returncode != 0:
        pytest.skip("only root may make a small disk here; tests/simulation fills one from below SQLite")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("room", [0, 12_000, 60_000])
def test_a_server_that_starts_on_a_full_disk_says_so_and_nothing_beside(small_disk: Path, room: int) -> None:
    data = small_disk / "data"
    data.mkdir()
    fill_up(small_disk / "ballast", room)

    command = [str(Path(sys.executable).with_name("nextslot")), "serve", "--data", str(data), "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    *before, last = ended.stderr.splitlines()

    assert (ended.returncode, ended.stdout) == (1, "")
    assert re.fullmatch(
        rf"nextslot: the disk is full: {data} has [0-9,]+ free bytes, too few to open the database; "
        r"free some space there, then start again",
        last,
    ), ended.stderr
    assert not [line for line in before if "stopp" in line.lower() or "server process" in line]


def fill_up(ballast: Path, room: int) -> None:
    """Fills the disk but for about so many bytes."""
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    os.truncate(ballast, ballast.stat().st_size - room)


@pytest.mark.virtual_time
async def test_a_disk_that_is_full_refuses_new_work_and_loses_nothing_it_has_taken(small_disk: Path) -> None:
    scheduler = scheduler_on(small_disk)
    async with scheduler:
        await scheduler.pause()
        taken: list[str] = []
        ballast = small_disk / "ballast"
        ballast.write_bytes(b"x" * 2_600_000)
        with pytest.raises(Unavailable, match="did not store the change"):
            await fill(scheduler, taken)
        refused = stored_count(scheduler)
        while_full = await scheduler.readiness()
        ballast.unlink()
        after = await scheduler.submit("work")
        at_last = await scheduler.readiness()
        await scheduler.resume()
        ended = [await scheduler.wait(job_id) for job_id in (*taken, after.job_id)]

    assert await refused == len(taken)
    assert "the database stores nothing" in (while_full or "")
    assert at_last is None
    assert {one.status for one in ended} == {"COMPLETED"}
    assert backup_sqlite.examine(small_disk / "nextslot.db") == []


async def fill(scheduler: Scheduler, taken: list[str]) -> None:
    while True:
        taken.append((await scheduler.submit("work", {"text": "x" * 5_000})).job_id)


def stored_count(scheduler: Scheduler) -> "asyncio.Future[int]":
    async def count() -> int:
        return len(await scheduler.queue(limit=1000)) + len(await scheduler.running())

    return asyncio.ensure_future(count())


@pytest.mark.virtual_time
async def test_a_file_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    """Root may write any file; one that is a directory, or is no database, nobody can."""
    (tmp_path / "nextslot.db").write_bytes(b"not a database, and long enough to be read as one" * 100)

    with pytest.raises(StoreError, match="damaged or not a database"):
        await scheduler_on(tmp_path).start()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write any file")
def test_a_read_only_file_is_told_at_the_start(tmp_path: Path) -> None:
    a_database_and_its_log(tmp_path, 1)
    (tmp_path / "nextslot.db").chmod(0o444)

    async def main() -> None:
        with pytest.raises(NextslotError):
            await scheduler_on(tmp_path).start()

    testing.run(main())


@pytest.mark.virtual_time
async def test_a_clock_that_is_set_back_while_nobody_runs_changes_no_order_and_loses_no_job(tmp_path: Path) -> None:
    clock = testing.VirtualClock()
    first = testing.scheduler(tmp_path, clock=clock)
    register_handlers(first)
    await first.start()
    await first.pause()
    before: Any = await first.submit_many([NewJob(job_type="work")] * 3)
    await testing.crash(first)
    clock.jump(-86_400)
    second = testing.scheduler(tmp_path, seed=1, clock=clock)
    register_handlers(second)
    async with second:
        late = await second.submit("work")
        order = [job.job_id for job in await second.queue()]
        await second.resume()
        ended = [await second.wait(job_id) for job_id in order]

    assert order == [*(job.job_id for job in before), late.job_id]
    assert {one.status for one in ended} == {"COMPLETED"}
