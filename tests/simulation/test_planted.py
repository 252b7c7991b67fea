"""The checkers are checked: each planted defect is found, and within how many seeds."""

import re
from unittest import mock

import pytest

from nextslot.store.tables import due_times
from nextslot.testing.simulation import world
from nextslot.testing.simulation.plan import Action
from tests.simulation.planted import DEFECTS, planted

# The most seeds that any of them may take; docs/reliability.md has how many each took before the world grew.
WITHIN = 100
# What fails if a defect does not fit the code any more. Then no law finds the defect: it is none.
DRIFTED = re.compile(r"\b(TypeError|AttributeError|NameError|ValueError)\(")

pytestmark = pytest.mark.sqlite_only("simulates SQLite's disk")


@pytest.mark.no_cover
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_found(defect: str) -> None:
    for seed in range(1, WITHIN + 1):
        with planted(defect):
            broken = world.simulate(seed).broken
        if broken:
            assert not DRIFTED.search(str(broken[0])), f"the code has changed: mend {defect} in planted.py"
            return

    pytest.fail(f"{defect} was not found in {WITHIN} seeds")


@pytest.mark.parametrize(
    ("step", "law"),
    [("clock_forward", "a timeout lasts its seconds"), ("clock_back", "a run ends at its timeout")],
)
def test_a_timeout_that_is_wrong_because_the_clock_was_set_is_found(step: str, law: str) -> None:
    """Few seeds set the clock while something runs that has a timeout: this history does."""
    hangs, by_an_hour = 11, 5
    history = [Action("submit", hangs, 5.0), Action(step, by_an_hour, 0.0), Action("submit", hangs, 200.0)]

    found = world.simulate(1, history).broken
    with mock.patch.object(due_times, "shift_own"):
        found_in_a_defect = world.simulate(1, history).broken

    assert found == []
    assert [one.law for one in found_in_a_defect] == [law]
