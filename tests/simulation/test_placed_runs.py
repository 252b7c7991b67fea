"""Simulated histories with an engine that lies: whatever dies, no work overlaps its retry, and every job ends."""

import json
from collections import Counter
from collections.abc import Collection
from typing import Any

import pytest

from nextslot.domain import Outcome
from nextslot.engine.placement.placed_executor import PlacedExecutor
from nextslot.engine.placement.placed_runner import PlacedRunner
from nextslot.executors.command import CommandType
from nextslot.executors.engines import records
from nextslot.executors.engines.engines import EngineSettings, unit_of
from nextslot.testing.simulation import world
from tests.simulation.placing_clients import PlacingClients, actions_of

pytestmark = pytest.mark.sqlite_only("simulates SQLite's disk")

SEEDS = 20


def history(seed: int) -> world.History:
    return world.simulate(seed, actions_of(seed), clients=PlacingClients)


@pytest.mark.no_cover
@pytest.mark.parametrize("first", range(0, SEEDS, 5))
def test_no_work_on_an_engine_overlaps_its_retry_whatever_dies_and_lies(first: int) -> None:
    broken = [(seed, found) for seed in range(first, first + 5) if (found := history(seed).broken)]

    assert not broken


@pytest.mark.no_cover
def test_the_engines_of_the_histories_fail_in_every_way() -> None:
    met: Counter[str] = Counter()
    for seed in range(1, 31):
        met.update(history(seed).met)

    ways = {"refused", "twice", "forgot", "lost answer", "hid", "state", "deaf", "unreachable"}
    happened = {"refused start", "patience", "machine", "wrapper"}
    assert {name for name in ways | happened if not met[name]} == set()


# Defects, each of which some history finds.


_after_claim = PlacedExecutor._after_claim


async def _lease_of_ten_seconds(self: PlacedExecutor, one: Any, look: Any) -> Outcome | None:
    if one.has_begun and look.lease == one.lease and self._clock.monotonic() - one.renewed_at > 10:
        return await self.give_up(one, "planted")
    return await _after_claim(self, one, look)


def _claim_always(directory: str, name: str, record: dict[str, Any]) -> bool:
    records.replace(directory, name, json.dumps(record).encode())
    return True


async def _adopt_nothing(self: PlacedRunner, *given: Any) -> int:
    return 0


def _only_a_slot(command: CommandType, engine: EngineSettings) -> dict[str, int]:
    return {engine.name: 1}


def _only_units(command: CommandType, engine: EngineSettings) -> dict[str, int]:
    return {unit_of(engine.name, unit): count for unit, count in command.engine_units.items()}


OVERLAPS = {"no work of a run overlaps its retry", "an engine runs no more than its limits"}
EXECUTOR = "nextslot.engine.placement.placed_executor.PlacedExecutor"
DEFECTS: dict[str, tuple[str, object, Collection[str]]] = {
    "a lease is over before its time": (f"{EXECUTOR}._after_claim", _lease_of_ten_seconds, OVERLAPS),
    "a claim replaces another": (
        "nextslot.executors.engines.records.write_once",
        _claim_always,
        {"a placed run is claimed once"},
    ),
    "a crash forgets placed runs": (
        "nextslot.engine.placement.placed_runner.PlacedRunner.adopt",
        _adopt_nothing,
        {"nothing runs for ever"},
    ),
    "units are not counted": (
        "nextslot.executors.command._needs",
        _only_a_slot,
        {"an engine runs no more than its limits"},
    ),
    "slots are not counted": (
        "nextslot.executors.command._needs",
        _only_units,
        {"an engine runs no more than its limits"},
    ),
}


@pytest.mark.no_cover
@pytest.mark.parametrize("name", DEFECTS)
def test_the_simulation_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, defect, laws = DEFECTS[name]
    monkeypatch.setattr(place, defect)

    assert _is_found(laws)


def _is_found(laws: Collection[str]) -> bool:
    return any(one.law in laws for seed in range(1, 11) for one in history(seed).broken)
