"""The whole scheduler on virtual time, from seeds, on a disk that fails: every law holds at every commit.

`NEXTSLOT_SEEDS=100000` looks much longer; `nextslot-sim` does so on all cores.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nextslot.testing.simulation import main, plan, world
from tests.simulation.planted import planted

SEEDS = int(os.environ.get("NEXTSLOT_SEEDS", "500"))
CHUNK = 10
# One chunk in ten has histories of the full length, the others are short: they cost a fifth, and meet other moments.
CHUNKS = [
    (range(first, min(first + CHUNK, SEEDS)), plan.LENGTH if first % (10 * CHUNK) == 0 else 12)
    for first in range(0, SEEDS, CHUNK)
]

pytestmark = pytest.mark.sqlite_only("simulates SQLite's disk")


# Measuring coverage would make it three times as long, and other tests cover the same lines.
@pytest.mark.no_cover
@pytest.mark.parametrize(("seeds", "length"), CHUNKS, ids=lambda part: str(getattr(part, "start", part)))
def test_every_law_holds_whatever_clients_disk_and_clock_do(seeds: range, length: int) -> None:
    figures = main.run(seeds, length)

    assert not figures.failures, "\n\n".join(str(failure) for failure in figures.failures)
    assert figures.seeds == len(seeds)
    assert figures.commits > 20 * figures.seeds


def test_at_least_500_seeds_are_looked_at_each_time_none_twice() -> None:
    looked_at = [seed for seeds, _ in CHUNKS for seed in seeds]

    assert len(set(looked_at)) == len(looked_at) == SEEDS
    assert SEEDS >= 500 or "NEXTSLOT_SEEDS" in os.environ


def test_the_same_seed_gives_the_same_history_to_the_byte() -> None:
    first, second = (world.simulate(7, dumps=True) for _ in range(2))

    assert first.lines == second.lines
    assert first.dump == second.dump
    assert len(first.dump) > 10_000


def test_also_in_another_process_with_other_hashes() -> None:
    """Nothing depends on the order of a set."""
    program = "import hashlib; from nextslot.testing.simulation import world; h = world.simulate(13, dumps=True); " + (
        "print(hashlib.sha256('\\n'.join([*h.lines, h.dump]).encode()).hexdigest())"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }

    assert len(answers) == 1


def test_a_fifth_of_the_histories_has_no_faults_and_the_others_have_all_kinds() -> None:
    kinds = {seed: {action.kind for action in plan.make(seed)} for seed in range(100)}
    faults = set(plan._FAULTS)

    assert all(not kinds[seed] & faults for seed in range(0, 100, 5))
    assert set().union(*kinds.values()) == faults | set(plan._CLIENTS) | set(plan._ASKING) | {"wait", "purge"}


def test_short_histories_have_faults_too() -> None:
    faults = [sum(action.kind in plan._FAULTS for action in plan.make(seed, 6)) for seed in range(1000)]

    assert sum(faults) > 1000
    assert sum(count > 0 for count in faults) > 600


def test_a_failure_is_shown_with_its_seed_the_command_to_repeat_it_and_a_short_history() -> None:
    with planted("position_collision"):
        (failure,) = main.run([1], tries=40).failures
        history = world.simulate(failure.seed, failure.actions)

    assert history.broken
    assert len(failure.actions) < len(plan.make(1)) / 2
    assert "nextslot-sim --from 1 --seeds 1" in str(failure)
    assert [plan.Action.parse(str(action)) for action in failure.actions] == list(failure.actions)


def test_a_short_history_that_fails_says_how_short_it_was() -> None:
    with planted("no_limit"):
        failure = next(one for seed in range(1, 40) for one in main.run([seed], length=12, tries=5).failures)

    assert f"--from {failure.seed} --seeds 1 --length 12" in str(failure)


def test_the_command_says_what_it_did(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    ended = main.main(["--seeds", "2", "--processes", "1", "--length", "10"])

    assert ended == 0
    assert "2 seeds" in capsys.readouterr().out
