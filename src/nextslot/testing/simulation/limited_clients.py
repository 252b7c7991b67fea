"""Clients whose jobs and callers carry keys and affinities and use tokens, of a scheduler that has rates.

Every seventh history has them (`world.clients_of`). The named devices of their machine are those of `DEVICES`.
"""

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar

from nextslot.domain import NewJob
from nextslot.domain.limits import Rate, RateUnit

from .clients import Clients

# More devices than any limit of the histories allows, so that only their holders differ.
DEVICES = {"gpu": ("0", "1", "2")}
KEYS = (None, ["customer:a"], ["customer:b"], ["customer:big", "other:c"], ["other:c"])
AFFINITIES = (None, "small", "large")
# What a run uses: the bucket of its rate has 100.
TOKENS = (0, 0, 30, 250)


class LimitedClients(Clients):
    limits: ClassVar[Mapping[str, Any]] = {
        "limit_keys": {"customer:*": 1, "customer:b*": 2},
        "rates": {
            "type:work": {RateUnit.STARTS: Rate(20, 3)},
            "type:render": {RateUnit.TOKENS: Rate(300, 100)},
            "resource:disk": {RateUnit.STARTS: Rate(4, 1)},
            "office:b": {RateUnit.STARTS: Rate(12, 2)},
        },
        "affinity_waits": {"gpu": 45.0},
    }
    devices: ClassVar[Mapping[str, tuple[str, ...]]] = DEVICES

    def _new(self, chance: Random, office: str | None = None, **more: Any) -> NewJob:
        new = super()._new(chance, office, **more)
        params = {**new.params, "tokens": chance.choice(TOKENS)}
        return new._replace(params=params, limit_keys=chance.choice(KEYS), affinity=chance.choice(AFFINITIES))

    def _of_caller(self, chance: Random, params: dict[str, Any]) -> dict[str, Any]:
        params["tokens"] = chance.choice(TOKENS)
        return {"limit_keys": chance.choice(KEYS), "affinity": chance.choice(AFFINITIES)}
