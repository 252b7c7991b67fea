"""Simulated histories with rates and keys: whatever dies, no rate is exceeded, and no two of a key run at once."""

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, ClassVar

import pytest

from nextslot import NewJob
from nextslot.domain.limits import Rate, RateUnit
from nextslot.engine.dispatch.rates import TransactionBuckets
from nextslot.testing.simulation import plan, world
from nextslot.testing.simulation.clients import Clients

pytestmark = pytest.mark.sqlite_only("simulates SQLite's disk")

SEEDS = 20


class RatedClients(Clients):
    """Their jobs are for customers, and their scheduler has rates."""

    limits: ClassVar[Mapping[str, Any]] = {
        "limit_keys": {"customer:*": 1},
        "rates": {
            "type:work": {RateUnit.STARTS: Rate(20, 3)},
            "resource:disk": {RateUnit.STARTS: Rate(4, 1)},
            "office:b": {RateUnit.STARTS: Rate(12, 2)},
        },
    }

    def _new(self, chance: Random, office: str | None = None, **more: Any) -> NewJob:
        new = super()._new(chance, office, **more)
        customer = chance.choice((None, "customer:a", "customer:b", "other:c"))
        return new if customer is None else new._replace(limit_keys=(customer,))


def history(seed: int) -> world.History:
    # The oracle counts by stored times, which a step of the wall clock would move.
    actions = [one for one in plan.make(seed, 40) if not one.kind.startswith("clock_") and one.kind != "purge"]
    return world.simulate(seed, actions, clients=RatedClients)


@pytest.mark.no_cover
@pytest.mark.parametrize("first", range(0, SEEDS, 5))
def test_no_rate_is_exceeded_and_no_two_of_a_key_run_at_once_whatever_dies(first: int) -> None:
    broken = [(seed, found) for seed in range(first, first + 5) if (found := history(seed).broken)]

    assert not broken


def _broken_by(seeds: range) -> Iterator[str]:
    for seed in seeds:
        yield from (one.law for one in history(seed).broken)


def test_the_oracle_finds_a_rate_that_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionBuckets, "take", lambda self, lane: None)

    assert "no more starts than a rate allows" in set(_broken_by(range(3)))


def test_the_oracle_finds_a_start_that_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nextslot.store.tables.rates.put", lambda tx, key, bucket: None)

    assert set(_broken_by(range(3)))


def test_the_oracle_finds_keys_that_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nextslot.domain.limits.key_capacity", lambda patterns, name: 0)

    assert set(_broken_by(range(3)))
