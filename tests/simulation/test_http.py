"""Histories whose clients ask over HTTP, with keys of several scopes and offices: no law is broken."""

import pytest

from tests.simulation.http_clients import simulate
from tests.simulation.http_readers import ARTIFACT
from tests.support import IS_ALL

SEEDS, LENGTH = 150 if IS_ALL else 30, 12

pytestmark = pytest.mark.sqlite_only("simulates SQLite's disk")


@pytest.mark.parametrize("first", range(1, SEEDS + 1, 10))
def test_no_law_is_broken_by_clients_with_keys_and_offices(first: int) -> None:
    for seed in range(first, first + 10):
        history = simulate(seed, LENGTH)

        assert history.broken == [], f"seed {seed}: {history.lines[-5:]}"


def test_the_clients_are_answered_in_every_way() -> None:
    lines = [line for seed in range(1, 21) for line in simulate(seed, LENGTH).lines]

    found = {line.rpartition(" ")[2] for line in lines if " http /" in line}
    assert found >= {"200", "201", "401", "403", "404"}
    assert {"log 200", "log 404", f"artifacts/{ARTIFACT} 200"} <= {
        " ".join(line.split(" ")[-2:]) for line in lines if " http_read_file " in line
    }
    assert sum(" http_follow " in line and not line.endswith("nothing") for line in lines) > 10


def test_the_same_seed_gives_the_same_history() -> None:
    first, second = (simulate(9, LENGTH) for _ in range(2))

    assert first.lines == second.lines
    assert (first.commits, first.seconds) == (second.commits, second.seconds)
