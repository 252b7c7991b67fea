"""The checkers are checked: each planted defect is found, and within how many seeds."""

import pytest

from nextslot.simulation import world
from tests.simulation.planted import DEFECTS, planted

# The most seeds that any of them may take; docs/reliability.md has how many each took.
WITHIN = 12

pytestmark = pytest.mark.sqlite_only("simulates SQLite's disk")


@pytest.mark.no_cover
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_found(defect: str) -> None:
    for seed in range(1, WITHIN + 1):
        with planted(defect):
            if world.simulate(seed).broken:
                return

    pytest.fail(f"{defect} was not found in {WITHIN} seeds")
