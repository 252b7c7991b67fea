"""A power cut at any moment, from below Python: the writes and syncs of real processes are recorded, and the disk is
rebuilt as each cut leaves it. Unsynced writes are missing, torn or out of order; renamed files have their old name.

`NEXTSLOT_CUTS=2000` cuts more often than a test of each change can.
"""

import logging
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nextslot.errors import StoreError
from nextslot.store.maintenance import backup_sqlite, export_file
from nextslot.store.sqlite.sqlite_store import connect_writer
from tests.crash import power_cut
from tests.crash.faulty_machine import recorded
from tests.crash.power_cut import ALL, MIXTURES, Change, Disk
from tests.crash.recorded_worker import scheduler_on
from tests.crash.server import NEXTSLOT, ROOT
from tests.support import IS_ALL

log = logging.getLogger(__name__)

CUTS = int(os.environ.get("NEXTSLOT_CUTS", "100" if IS_ALL else "25"))
JOBS = 60

pytestmark = pytest.mark.sqlite_only("is about its files")


def record(directory: Path, *command: str) -> tuple[Disk, list[Change]]:
    """Runs a command below which each change in `directory / "data"` is recorded."""
    data, file = directory / "data", directory / "record"
    data.mkdir(exist_ok=True)
    disk = Disk(data)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **recorded(data, file)}
    ended = subprocess.run(command, env=environment, cwd=data, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return disk, list(power_cut.read(file))


def cuts(disk: Disk, changes: list[Change], directory: Path, count: int = CUTS) -> Iterator[Path]:
    """Yields what power cuts leave after some of the changes and after the last one, each with another mixture of
    losses.
    """
    chance = random.Random(len(changes))
    moments = {*chance.sample(range(len(changes)), min(count, len(changes))), len(changes) - 1}
    for number, change in enumerate(changes):
        disk.play(change)
        if number in moments:
            how = ALL if number == len(changes) - 1 else chance.choice(MIXTURES)
            yield disk.cut(directory / f"left-{number}", chance, how)


class Found:
    """What a start finds in a file: every job that is stored, and those that have ended."""

    def __init__(self, path: Path, synchronous: str) -> None:
        connection = connect_writer(path, synchronous, None)
        self.jobs = {str(row[0]) for row in connection.execute("select job_id from jobs")}
        ended = connection.execute("select job_id from jobs where finished_at is not null")
        self.ended = {str(row[0]) for row in ended}
        connection.close()
        self.findings = backup_sqlite.examine(path)


def work(directory: Path, synchronous: str) -> tuple[Disk, list[Change]]:
    program = (sys.executable, "-m", "tests.crash.recorded_worker")
    return record(directory, *program, str(directory / "data"), synchronous, str(JOBS))


def test_FULL_loses_nothing_that_was_acknowledged_whenever_the_power_is_cut(tmp_path: Path) -> None:
    disk, changes = work(tmp_path, "FULL")
    checkpoints = sum(change.kind == "s" and change.path.endswith("nextslot.db") for change in changes)

    for left in cuts(disk, changes, tmp_path):
        if not disk.acknowledged:
            continue
        found = Found(left / "nextslot.db", "FULL")
        made, ended = (
            {line.split()[1] for line in disk.acknowledged if line.startswith(word)} for word in ("made", "ended")
        )
        assert made <= found.jobs
        assert ended <= found.ended
        assert found.findings == []

    assert checkpoints > 2, "no checkpoint was cut"
    assert len(disk.acknowledged) == 2 * JOBS


def test_NORMAL_loses_only_the_last_commits_damages_nothing_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk, changes = work(tmp_path, "NORMAL")
    losses = warnings = 0

    for left in cuts(disk, changes, tmp_path):
        if not disk.acknowledged:
            continue
        caplog.clear()
        found = Found(left / "nextslot.db", "NORMAL")
        made = [line.split()[1] for line in disk.acknowledged if line.startswith("made")]
        kept = [job_id in found.jobs for job_id in made]
        losses += not all(kept)
        warnings += "synchronous=NORMAL allows this loss" in caplog.text

        assert kept == sorted(kept, reverse=True), "a later commit is there, and an earlier one is not"
        assert found.findings == []

    log.warning("%d cuts of NORMAL lost commits, %d said so", losses, warnings)
    assert losses > 0, "this disk forgets nothing: it proves nothing"
    assert warnings > 0


async def test_what_a_power_cut_left_is_recovered_and_goes_on(tmp_path: Path) -> None:
    for synchronous in ("FULL", "NORMAL"):
        directory = tmp_path / synchronous
        directory.mkdir()
        disk, changes = work(directory, synchronous)
        for left in cuts(disk, changes, directory, 3):
            async with scheduler_on(left, synchronous) as scheduler:
                job = await scheduler.submit("work", {"text": "after"})
                assert (await scheduler.wait(job.job_id)).status == "COMPLETED"
            assert backup_sqlite.examine(left / "nextslot.db") == []


# Files that commands write.


def some_database(directory: Path, jobs: int) -> Path:
    """Makes a data directory whose power was never cut."""
    directory.mkdir(parents=True)
    program = (sys.executable, "-m", "tests.crash.recorded_worker")
    command = [*program, str(directory), "FULL", str(jobs)]
    subprocess.run(command, cwd=directory, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, timeout=120)
    return directory / "nextslot.db"


def every_cut(directory: Path, look: Callable[[Path], object], *command: str) -> list[object]:
    """Yields what is left after each change of a command. The last one is a cut after its end that loses everything
    that was not synced.
    """
    disk, changes = record(directory, str(NEXTSLOT), *command)
    return [look(left) for left in cuts(disk, changes, directory)]


def jobs_in(path: Path) -> object:
    if not path.exists() or path.stat().st_size == 0:
        return "nothing"
    try:
        return len(Found(path, "FULL").jobs)
    except StoreError as error:
        return str(error)


def test_a_power_cut_leaves_the_old_backup_or_the_new_one(tmp_path: Path) -> None:
    source = some_database(tmp_path / "source", 3)
    backup = some_database(tmp_path / "data", 1).rename(tmp_path / "data" / "backup.db")

    seen = every_cut(
        tmp_path,
        lambda left: jobs_in(left / "backup.db"),
        *("backup", str(backup), "--force", "--data", str(source.parent)),
    )

    assert set(seen) <= {1, 3}
    assert seen[-1] == 3


def test_a_power_cut_leaves_no_part_of_an_export(tmp_path: Path) -> None:
    source = some_database(tmp_path / "source", 3)
    whole = tmp_path / "data" / "all.jsonl"

    def look(left: Path) -> object:
        file = left / whole.name
        return export_file.is_export(file) and file.read_bytes() == whole.read_bytes() if file.exists() else "nothing"

    seen = every_cut(tmp_path, look, "export", str(whole), "--data", str(source.parent))

    assert set(seen) <= {"nothing", True}
    assert seen[-1] is True


def test_a_power_cut_in_an_import_leaves_nothing_or_all_of_it(tmp_path: Path) -> None:
    source = some_database(tmp_path / "source", 3)
    export = tmp_path / "all.jsonl"
    subprocess.run([str(NEXTSLOT), "export", str(export), "--data", str(source.parent)], check=True, timeout=120)

    seen = every_cut(
        tmp_path, lambda left: jobs_in(left / "nextslot.db"), "import", str(export), "--data", str(tmp_path / "data")
    )

    assert set(seen) <= {"nothing", 3}
    assert seen[-1] == 3


def test_a_power_cut_in_a_restore_leaves_the_old_database_or_the_backup(tmp_path: Path) -> None:
    backup = tmp_path / "backup.db"
    source = some_database(tmp_path / "source", 1)
    subprocess.run([str(NEXTSLOT), "backup", str(backup), "--data", str(source.parent)], check=True, timeout=120)
    some_database(tmp_path / "data", 3)

    seen = every_cut(
        tmp_path,
        lambda left: jobs_in(left / "nextslot.db"),
        *("restore", str(backup), "--force", "--data", str(tmp_path / "data")),
    )

    assert set(seen) <= {1, 3}
    assert seen[-1] == 1
