"""Clients whose jobs go to a simulated engine, and histories of them."""

from random import Random
from typing import Any, ClassVar

from nextslot import NewJob
from nextslot.testing.simulation import plan
from nextslot.testing.simulation.clients import Clients
from nextslot.testing.simulation.plan import Action

FAULTS = ("engine_silent", "engine_cut_off", "engine_cut_off", "engine_kill", "engine_kill", "crash", "restart")


class PlacingClients(Clients):
    """Two thirds of their jobs go to an engine."""

    has_engine: ClassVar[bool] = True

    def _new(self, chance: Random, office: str | None = None, **more: Any) -> NewJob:
        new = super()._new(chance, office, **more)
        job_type = chance.choice((None, "placed", "placed_big"))
        if job_type is None:
            return new
        seconds = chance.choice((0.0, 1.0, 20.0, 90.0, 300.0))
        timeout = 60.0 if new.params["do"] == "hang" else new.timeout_seconds
        params = {**new.params, "seconds": seconds}
        return new._replace(job_type=job_type, params=params, resources=None, timeout_seconds=timeout)


def actions_of(seed: int) -> list[Action]:
    """Returns a plan with more jobs and more faults than others, most of them faults of the engine."""
    chance = Random(f"placed {seed}")
    # A purge removes what the oracle reads.
    usual = [action for action in plan.make(seed, 10) if action.kind != "purge"]
    made = []
    for action in usual:
        made += [Action("submit", chance.getrandbits(32), chance.choice((0.0, 0.0, 10.0))) for _ in range(2)]
        made.append(action)
        if chance.random() < 0.7:
            made.append(Action(chance.choice(FAULTS), chance.getrandbits(32), chance.choice((0.0, 30.0, 200.0))))
    return made
