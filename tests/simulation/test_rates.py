"""Simulated histories with rates, keys, affinities and named devices: each limit holds, and nothing waits too long."""

from collections.abc import Iterator

import pytest

from nextslot.engine.dispatch import affinity
from nextslot.engine.dispatch.dispatch_round import DispatchRound
from nextslot.engine.dispatch.rates import TransactionBuckets
from nextslot.testing.simulation import plan, world
from nextslot.testing.simulation.limited_clients import LimitedClients

pytestmark = pytest.mark.sqlite_only("simulates SQLite's disk")

SEEDS = 20
# The oracles of these limits find their defects within so many histories.
WITHIN = 5


def history(seed: int) -> world.History:
    return world.simulate(seed, plan.make(seed, 40), clients=LimitedClients)


@pytest.mark.no_cover
@pytest.mark.parametrize("first", range(0, SEEDS, 5))
def test_every_limit_holds_whatever_dies_and_whatever_the_clock_does(first: int) -> None:
    broken = [(seed, found) for seed in range(first, first + 5) if (found := history(seed).broken)]

    assert not broken


def test_every_seventh_history_has_these_limits() -> None:
    assert [seed for seed in range(20) if world.clients_of(seed) is LimitedClients] == [4, 11, 18]


def _broken() -> Iterator[str]:
    for seed in range(WITHIN):
        yield from (one.law for one in history(seed).broken)


DEFECTS = {
    "nothing starts from an empty bucket": (TransactionBuckets, "take", lambda self, lane: None),
    "limits are those of the settings": ("nextslot.domain.limits", "key_capacity", lambda patterns, name: 0),
    "what needs the loaded affinity goes first": (affinity, "_is_over", lambda round_, resource: True),
    "a wait for another affinity goes on": (DispatchRound, "note_passed_for_affinity", lambda self, resource: None),
    "running work holds its devices, and nothing else does": (
        "nextslot.store.tables.devices",
        "release",
        lambda tx, worker_id: None,
    ),
}


@pytest.mark.no_cover
@pytest.mark.parametrize("law", DEFECTS)
def test_the_oracles_find_a_limit_that_is_forgotten(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, name, defect = DEFECTS[law]
    if isinstance(place, str):
        monkeypatch.setattr(f"{place}.{name}", defect)
    else:
        monkeypatch.setattr(place, name, defect)

    assert law in set(_broken())


@pytest.mark.no_cover
def test_the_oracle_finds_a_start_that_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nextslot.store.tables.rates.put", lambda tx, key, bucket: None)

    assert set(_broken())
