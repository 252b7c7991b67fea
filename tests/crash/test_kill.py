"""Spec 15 with a real process, killed again and again in its work: nothing is lost, doubled or torn."""

import contextlib
import random
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.crash import laws
from tests.crash.laws import Judge
from tests.crash.worker import LIMIT

ROOT = Path(__file__).parents[2]
LINE = 74  # Bytes of one execution: two ids, a space, a newline.
LONGEST_LIFE = 60.0
# One with a defect may not get on at all: it is killed then, and has left evidence too.
LONGEST_PLANTED_LIFE = 20.0


class Moment(NamedTuple):
    """When to kill: after so many starts or executions in all, and so many seconds more."""

    executions: int
    seconds: float
    starts: int = 0


def test_DEC_008_nothing_is_lost_doubled_or_reordered_by_20_kills_in_10_000_jobs(tmp_path: Path) -> None:
    judge = Judge(LIMIT)
    chance = random.Random(8)

    broken = [found for life in lives(tmp_path, 10_000, moments(chance, 10_000)) for found in judge.judge(life)]

    assert broken[:5] == []
    assert list(laws.unfinished(laws.find(tmp_path), 10_000))[:5] == []
    # Most kills have found work to interrupt: else this would prove nothing.
    assert len(judge.interrupted) > 20


@pytest.mark.parametrize(
    ("defect", "law"),
    [
        ("run_in_a_second_transaction", "a job and its run start and end together"),
        ("handler_before_the_commit", "no job runs twice"),
        ("handler_before_the_commit", "nothing runs before that is stored"),
        ("acknowledged_before_the_commit", "nothing acknowledged is ever lost"),
        ("interrupted_jobs_queued_again", "no job runs twice"),
        ("interrupted_jobs_not_retried", "an interrupted job has one retry"),
        ("counters_in_a_second_transaction", "counters are what the jobs say"),
        ("events_in_a_second_transaction", "events are complete"),
        ("no_limit", "limits hold at every instant"),
        ("last_come_first_served", "jobs start in the queue's order"),
    ],
)
def test_the_same_laws_catch_a_planted_defect(tmp_path: Path, defect: str, law: str) -> None:
    judge = Judge(LIMIT)
    chance = random.Random(8)
    soon = [Moment(40 * kill, chance.uniform(0, 0.02)) for kill in range(1, 13)]

    caught: set[str] = set()
    with contextlib.closing(lives(tmp_path, 2_000, soon, defect)) as found:
        while law not in caught:
            caught |= {broken.law for broken in judge.judge(next(found))}

    assert law in caught


def moments(chance: random.Random, jobs: int) -> list[Moment]:
    """Returns twenty moments: fifteen spread over the work, and five while the next life opens the file and
    recovers.
    """
    in_the_work = sorted(chance.sample(range(1, jobs - jobs // 50), 15))
    chosen = [Moment(executions, chance.uniform(0, 0.005)) for executions in in_the_work]
    for _ in range(5):
        chosen.insert(chance.randrange(1, len(chosen)), Moment(0, chance.uniform(0, 0.03)))
    return [moment._replace(starts=number) for number, moment in enumerate(chosen, start=1)]


def lives(directory: Path, jobs: int, kills: list[Moment], *planted: str) -> Generator[laws.Evidence]:
    """Lets the process live until each kill in turn, and shows what it left; then once more, to the end."""
    for number, moment in enumerate([*kills, None]):
        command = [sys.executable, "-m", "tests.crash.worker", str(directory), str(jobs), str(number), *planted]
        with subprocess.Popen(command, cwd=ROOT) as process:
            try:
                if moment is None:
                    assert process.wait(LONGEST_LIFE) == 0
                else:
                    is_there = wait_for(moment, process, directory, LONGEST_PLANTED_LIFE if planted else LONGEST_LIFE)
                    assert is_there or planted, "the process does not get on"
            finally:
                process.kill()
        yield laws.find(directory)


def wait_for(moment: Moment, process: subprocess.Popen[bytes], directory: Path, seconds: float) -> bool:
    """Waits for a condition. Returns whether it became true in this many seconds."""
    end = time.monotonic() + seconds
    while size(directory / "starts") < moment.starts or size(directory / "executions") < moment.executions * LINE:
        assert process.poll() is None, "the process ended before it was killed"
        if time.monotonic() > end:
            return False
        time.sleep(0.0005)
    time.sleep(moment.seconds)
    return True


def size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
