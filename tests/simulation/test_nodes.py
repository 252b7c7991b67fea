"""Three simulated nodes on one database: every law holds, and their leases take the steps of the model."""

import os
import subprocess
import sys

import pytest

from nextslot.testing.simulation import nodes
from nextslot.testing.simulation.plan import LENGTH, Action
from tests.simulation import lease_trace
from tests.support import IS_ALL

SEEDS = int(os.environ.get("NEXTSLOT_NODE_SEEDS", "12" if IS_ALL else "6"))
CHUNK = 3
# So many steps of a history are compared with the model: a rest of days has many more, which are all alike.
MOST_STEPS = 6_000

pytestmark = pytest.mark.sqlite_only("simulates nodes on a file")


@pytest.mark.no_cover
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_law_holds_whatever_happens_to_the_nodes(first: int) -> None:
    for seed in range(first, min(first + CHUNK, SEEDS)):
        world = nodes.simulated(seed, nodes.make(seed, LENGTH))

        again = f"nextslot-sim --nodes --from {seed} --seeds 1 --length {LENGTH}"
        assert not world.history.broken, f"{again}: {world.history.broken[:3]}"
        assert list(lease_trace.problems(world.observed[:MOST_STEPS], nodes.NAMES)) == [], f"seed {seed}"


@pytest.mark.no_cover
def test_the_same_seed_gives_the_same_history_in_another_process() -> None:
    program = "from nextslot.testing.simulation import nodes; w = nodes.simulated(3); " + (
        "import hashlib; print(hashlib.sha256(repr([w.history.lines, w.observed]).encode()).hexdigest())"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }

    assert len(answers) == 1


def test_a_node_that_is_stopped_for_longer_than_its_lease_is_lost_and_joins_again() -> None:
    work = [Action("batch", seed, 0.5) for seed in range(4)]
    world = nodes.simulated(1, [*work, Action("stop", 0, 150.0), *work])

    lost = [one.node for one in world.observed if one.name == "lose"]
    assert not world.history.broken
    assert lost
    assert [one.node for one in world.observed if one.name == "register"].count(lost[0]) == 2


def test_a_node_whose_lease_is_over_starts_nothing_before_it_is_renewed() -> None:
    slow = [Action("move", 2953749281, 12.0), Action("lag", 3130590860, 0.4), Action("submit", 796302498, 45.0)]
    world = nodes.simulated(5, slow)

    assert not world.history.broken
