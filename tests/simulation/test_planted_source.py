"""Bugs that are planted into the text of the package are found, by the simulation or by the test that each names."""

import os

import pytest

from tests.simulation.planted_bug import Bug
from tests.simulation.planted_source import BUGS, PACKAGE, finds
from tests.support import IS_ALL

# One in ten is planted, with `--all` one in three: each costs the start of a process, and most of them some histories.
ONE_IN = int(os.environ.get("NEXTSLOT_TEST_ONE_IN", 0)) or (3 if IS_ALL else 10)
SAMPLE = BUGS[::ONE_IN]

pytestmark = pytest.mark.sqlite_only("plants bugs for processes of their own")


@pytest.mark.no_cover
@pytest.mark.parametrize("bug", SAMPLE, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    assert finds(bug) is not None, f"{bug.name} escapes {bug.found_by}"


def test_there_are_some_of_them_in_every_part_of_the_package() -> None:
    parts = {bug.file.partition("/")[0] for bug in BUGS}

    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 40
    assert parts >= {"domain", "engine", "store", "executors", "services", "server"}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_text_that_a_bug_replaces_is_there_once(bug: Bug) -> None:
    """Whoever changes that line changes the bug too; if there is no such line any more, the bug can go."""
    assert (PACKAGE / bug.file).read_text(encoding="utf-8").count(bug.old) == 1
