"""Histories whose clients ask over HTTP, with keys of several scopes and offices: no law is broken."""

import pytest

from nextslot.testing.simulation import world
from tests.simulation.http_clients import HttpClients, made
from tests.support import IS_ALL

SEEDS, LENGTH = 150 if IS_ALL else 30, 12

pytestmark = pytest.mark.sqlite_only("simulates SQLite's disk")


@pytest.mark.parametrize("first", range(1, SEEDS + 1, 10))
def test_no_law_is_broken_by_clients_with_keys_and_offices(first: int) -> None:
    for seed in range(first, first + 10):
        history = world.simulate(seed, made(seed, LENGTH), clients=HttpClients)

        assert history.broken == [], f"seed {seed}: {history.lines[-5:]}"


def test_the_clients_are_answered_in_every_way() -> None:
    lines = [
        line for seed in range(1, 21) for line in world.simulate(seed, made(seed, LENGTH), clients=HttpClients).lines
    ]

    found = {line.rpartition(" ")[2] for line in lines if " http /" in line}
    assert found >= {"200", "201", "401", "403", "404"}
