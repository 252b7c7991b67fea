"""Spec 10 with a real process that is killed again and again while it fires: no occurrence twice, none lost."""

import logging
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import apsw

from tests.crash.schedule_worker import minute

log = logging.getLogger(__name__)

ROOT = Path(__file__).parents[2]
# NEXTSLOT_EXAMPLES=6000 is the whole of it: so many schedules, each firing once a minute of its clock.
SCHEDULES = int(os.environ.get("NEXTSLOT_EXAMPLES", "300"))
KILLS = 5
LONGEST_START = 240.0 + SCHEDULES / 100
MINUTE = 60_000_000


def test_no_occurrence_is_fired_twice_or_lost_by_kills_while_all_fire_each_minute(tmp_path: Path) -> None:
    chance = random.Random(10)

    for life in range(1, KILLS + 1):
        live(tmp_path, life, seconds=chance.uniform(0.2, 1.6) * minute(SCHEDULES))

    connection = apsw.Connection(str(tmp_path / "nextslot.db"))
    assert broken_rows(connection) == []
    assert scattered(connection) == []
    counts: list[Any] = connection.execute(
        "select count(*), count(distinct instant) from occurrences where outcome = 'fired'"
    ).fetchall()
    [(fired, minutes)] = counts
    connection.close()
    log.warning("%d schedules, %d kills: %d occurrences fired at %d instants", SCHEDULES, KILLS, fired, minutes)
    # Enough has happened for this to mean something.
    assert minutes >= KILLS
    assert fired >= SCHEDULES * KILLS


def live(directory: Path, life: int, seconds: float) -> None:
    """Runs one life, from its start until it is killed, this many seconds after it was ready."""
    command = [sys.executable, "-m", "tests.crash.schedule_worker", str(directory), str(SCHEDULES)]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            end = time.monotonic() + LONGEST_START
            ready = directory / "ready"
            while not ready.exists() or len(ready.read_text().splitlines()) < life:
                assert process.poll() is None, "the process ended before it was killed"
                assert time.monotonic() < end, "the process does not get ready"
                time.sleep(0.002)
            time.sleep(seconds)
        finally:
            process.kill()


def broken_rows(connection: apsw.Connection) -> list[Any]:
    """Finds occurrences, jobs and events that do not match one to one."""
    return [
        *connection.execute(
            "select 'a job without its occurrence', job_id from jobs left join occurrences using (job_id)"
            " where occurrences.job_id is null or occurrences.instant <> jobs.scheduled_for"
        ),
        *connection.execute(
            "select 'an instant with two jobs', schedule_id, scheduled_for from jobs group by 2, 3 having count(*) > 1"
        ),
        *connection.execute(
            "select 'an event for each', job_id from occurrences left join events using (job_id)"
            " where outcome = 'fired' group by job_id having sum(type = 'schedule_fired') is not 1"
        ),
    ]


def scattered(connection: apsw.Connection) -> list[Any]:
    """Finds schedules with a minute that has no stored outcome, or whose stored outcomes end before their next
    instant.
    """
    return connection.execute(
        """
        select schedule_id, min(instant), max(coalesce(until, instant)), sum(count), next_trigger_at
        from occurrences join schedules using (schedule_id) group by schedule_id
        having (max(coalesce(until, instant)) - min(instant)) / :minute + 1 <> sum(count)
            or next_trigger_at <> max(coalesce(until, instant)) + :minute
            or min(instant) <> (created_at / :minute + 1) * :minute
        """,
        {"minute": MINUTE},
    ).fetchall()
