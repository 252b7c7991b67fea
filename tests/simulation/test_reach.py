"""The simulation meets every branch of the code that decides, or `seldom_reached.txt` says why it does not."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from pathlib import Path

import pytest

from tests.support import IS_ALL, without_coverage

ROOT = Path(__file__).parents[2]
SELDOM = Path(__file__).with_name("seldom_reached.txt")
# A branch that fewer than 5 of 1,000 histories meet is met by none of so many, as a rule.
SEEDS, PROCESSES = 200, 2
# Another choice of the clients moves every history after it: what the first 200 miss may be met by so many.
MOST_SEEDS = 600
# How alike two conditions are if one of them is the other after a change.
ALIKE = 0.6

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


def met_by_processes(first: int) -> Counter[str]:
    """Simulates 200 histories from this seed on, and returns how many of them meet each branch."""
    part = SEEDS // PROCESSES
    with ThreadPoolExecutor(PROCESSES) as pool:
        parts = pool.map(lambda number: met(first + number * part, part), range(PROCESSES))
        return sum((Counter(one) for one in parts), Counter[str]())


def changed(gone: Collection[str], names: Collection[str]) -> dict[str, str]:
    """Finds listed branches under new names: a condition that somebody has changed a little is the same branch."""
    found = {}
    for old in gone:
        module, _, condition = old.partition(" | ")
        of_module = [one.partition(" | ")[2] for one in names if one.startswith(f"{module} | ")]
        if alike := get_close_matches(condition, of_module, 1, ALIKE):
            found[old] = f"{module} | {alike[0]}"
    return found


@pytest.mark.no_cover
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not IS_ALL, reason="200 histories: a part of ./test --all")
def test_each_branch_of_the_deciding_code_is_met_or_listed() -> None:
    names = set(met(1, 1))
    known = listed().keys()
    never = names - known
    never -= set(changed(known - names, never).values())

    for first in range(1, MOST_SEEDS, SEEDS):
        never -= met_by_processes(first).keys() if never else set()

    assert sorted(never) == [], "no history meets these; let the simulation do so, or list them with a reason"


@pytest.mark.no_cover
def test_every_listed_branch_exists_and_has_a_reason() -> None:
    names, known = set(met(1, 1)), listed()
    gone = known.keys() - names

    assert sorted(gone - changed(gone, names - known.keys()).keys()) == [], "these are gone: take them off the list"
    assert all(len(reason) > 10 for reason in known.values())
    assert len(known) < len(names) / 3


def test_a_listed_condition_may_change_a_little_but_not_become_another() -> None:
    """Else each edit of such a line would have to change the list too, and few who edit one know of it."""
    old = "engine.dispatch.dispatcher | if is_busy or self._engine.workers.makes_room(tx)"
    new = "engine.dispatch.dispatcher | if is_cut or is_busy or self._engine.workers.makes_room(tx)"
    others = ["engine.dispatch.dispatcher | if is_open", "engine.dispatch.fairness | if is_busy or self.makes_room(tx)"]

    assert changed([old], [new, *others]) == {old: new}
    assert changed([old], others) == {}
