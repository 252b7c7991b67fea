"""The simulation meets every branch of the code that decides, or `seldom_reached.txt` says why it does not."""

import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support import IS_ALL, without_coverage

ROOT = Path(__file__).parents[2]
SELDOM = Path(__file__).with_name("seldom_reached.txt")
# A branch that fewer than 5 of 1,000 histories meet is met by none of so many, as a rule.
SEEDS, PROCESSES = 200, 2

pytestmark = pytest.mark.sqlite_only("simulates SQLite's disk")


def listed() -> dict[str, str]:
    """Returns the seldom executed branches, each with its reason: lines of `branch => reason`."""
    lines = [line for line in SELDOM.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return {name: reason for name, _, reason in (line.partition(" => ") for line in lines)}


def met(first: int, count: int) -> dict[str, int]:
    command = [sys.executable, "-m", "tests.simulation.reach", str(first), str(count)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=without_coverage())
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.mark.no_cover
@pytest.mark.skipif(not IS_ALL, reason="200 histories: a part of ./test --all")
def test_each_branch_of_the_deciding_code_is_met_or_listed() -> None:
    part = SEEDS // PROCESSES
    with ThreadPoolExecutor(PROCESSES) as pool:
        parts = pool.map(lambda number: met(1 + number * part, part), range(PROCESSES))
        counts = sum((Counter(one) | Counter(dict.fromkeys(one, 0)) for one in parts), Counter[str]())
        names = set(met(1, 1))

    never = sorted(name for name in names if not counts[name] and name not in listed())
    assert never == [], "no history meets these; let the simulation do so, or list them with a reason"


@pytest.mark.no_cover
def test_every_listed_branch_exists_and_has_a_reason() -> None:
    names = set(met(1, 1))

    assert sorted(listed().keys() - names) == [], "these are gone: take them off the list"
    assert all(len(reason) > 10 for reason in listed().values())
    assert len(listed()) < len(names) / 3
