"""Limits of keys, and a process that is killed while their jobs run: no two runs of a key overlap, none is lost."""

import json
import random
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests import databases
from tests.crash import laws
from tests.crash.key_worker import KEYS
from tests.crash.test_kill import LINE, ROOT, size

JOBS, KILLS = 200, 6
LONGEST_LIFE = 120.0

pytestmark = pytest.mark.sqlite_only("its process opens a file")


def test_no_two_runs_of_a_key_overlap_and_none_is_lost_however_often_the_process_is_killed(tmp_path: Path) -> None:
    chance, interrupted = random.Random(21), set[str]()
    before: laws.Evidence | None = None
    for life in range(KILLS):
        live(tmp_path, life, until=(life + 1) * JOBS // 10, seconds=chance.uniform(0, 0.01))
        found = laws.find(tmp_path)
        assert [*laws.lost(found, before), *laws.doubled(found), *laws.torn(found), *found.miscounted][:3] == []
        interrupted |= {job.job_id for job in found.jobs.values() if job.is_running}
        before = found
    live(tmp_path, KILLS)

    found = laws.find(tmp_path)
    broken = [
        *laws.lost(found, before),
        *laws.doubled(found),
        *laws.torn(found),
        *laws.untold(found.jobs, found.events),
    ]
    broken += [*laws.unrecovered(found, interrupted), *laws.unasked(found, interrupted), *laws.unfinished(found, JOBS)]
    assert [*broken, *found.miscounted][:3] == []
    assert len(interrupted) > KILLS, "several runs at once were interrupted"
    assert most_at_once(tmp_path) == dict.fromkeys(KEYS, 1)
    assert list(overlapping(tmp_path)) == []


def live(directory: Path, life: int, until: int | None = None, seconds: float = 0) -> None:
    """Runs one life, until so many handlers have begun in all and this many seconds more, or to its end."""
    command = [sys.executable, "-m", "tests.crash.key_worker", str(directory), str(JOBS), str(life)]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            if until is None:
                assert process.wait(LONGEST_LIFE) == 0
                return
            end = time.monotonic() + LONGEST_LIFE
            while size(directory / "executions") < until * LINE:
                assert process.poll() is None, "the process ended before it was killed"
                assert time.monotonic() < end, "the process does not get on"
                time.sleep(0.0005)
            time.sleep(seconds)
        finally:
            process.kill()


def most_at_once(directory: Path) -> dict[str, int]:
    """Returns how many handlers of each key ran at once at most; with a process ends whatever it ran."""
    now: Counter[tuple[str, str]] = Counter()
    most: Counter[str] = Counter()
    for line in (directory / "spans").read_text().splitlines():
        life, key, step = line.split()
        now[life, key] += int(step)
        most[key] = max(most[key], now[life, key])
    return dict(most)


def overlapping(directory: Path) -> list[tuple[Any, Any]]:
    """Returns the stored runs of one key of which the second began before the first had ended."""
    connection = databases.plain(directory)
    stored: list[Any] = connection.execute(
        "select limit_keys, runs.started_at, runs.finished_at from jobs join runs using (job_id) order by 2, 3"
    ).fetchall()
    connection.close()
    by_key = {key: [row[1:] for row in stored if json.loads(row[0]) == [key]] for key in KEYS}
    assert sum(map(len, by_key.values())) == len(stored) > JOBS
    return [pair for runs in by_key.values() for pair in pairwise(runs) if pair[0][1] > pair[1][0]]
