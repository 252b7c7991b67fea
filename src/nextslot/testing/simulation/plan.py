"""The plan of a simulation, made from a seed in advance, so that parts of it can be left out. No side effects."""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

# How many actions a history has.
LENGTH = 60
# The relative frequency of the clients' actions.
_CLIENTS = {
    "submit": 30,
    "batch": 6,
    "graph": 6,
    "group": 7,
    "crowd": 6,
    "same_key": 4,
    "unique": 2,
    "move": 7,
    "reorder": 3,
    "change": 4,
    "cancel": 7,
    "cancel_group": 2,
    "cancel_many": 3,
    "retry": 5,
    "retry_many": 1,
    "rerun": 2,
    "pause": 4,
    "resume": 5,
    "direct": 7,
    "hang_up": 3,
    "cancel_direct": 1,
    "schedule": 8,
    "change_schedule": 3,
    "trigger": 2,
    "template": 1,
    "office": 3,
    "subscribe": 5,
    "redeliver": 1,
    "dependent": 5,
    "follow": 3,
    "wait_for": 4,
    "outage": 2,
    "quota": 2,
    "release": 1,
    "archive": 1,
    "delete_schedule": 1,
    "rotate": 1,
    "unsubscribe": 1,
    "look": 3,
    "wrong": 2,
    "reload": 2,
}
# A third of all histories has people and programs that are asked; these come between the other actions, which stay.
_ASKING = {"ask": 4, "session": 5, "answer": 9, "park": 4}
_ASKING_EVERY, _ASKING_SHARE = 3, 0.35
# A tenth of all histories cover more than a day; in them ended jobs are purged, on request and daily.
_PURGE_EVERY, _LONG_PAUSE = 10, 100_000.0
# The relative frequency of faults.
_FAULTS = {
    "crash": 4,
    "die_before_commit": 4,
    "die_after_commit": 4,
    "tear": 3,
    "disk_full": 2,
    "disk_io": 2,
    "disk_busy": 2,
    "bad_sync": 3,
    "slow_commit": 3,
    "clock_forward": 2,
    "clock_back": 2,
    "restart": 2,
}
# The share of faults in a history; in a short one at least this many on average, or most would have none.
_MORE_FAULTS, _FEWEST_FAULTS = 0.12, 1.5


class Action(NamedTuple):
    """A client's action or a fault. `seed` decides its details; `pause` is the time that passes afterwards."""

    kind: str
    seed: int
    pause: float

    def __str__(self) -> str:
        return f"{self.kind}:{self.seed}:{self.pause:g}"

    @classmethod
    def parse(cls, text: str) -> "Action":
        kind, seed, pause = text.split(":")
        return cls(kind, int(seed), float(pause))


def make(seed: int, length: int = LENGTH) -> list[Action]:
    """Makes the plan of a seed, which is the same on every machine."""
    chance = random.Random(seed)
    # A fifth of all histories have no faults, so that a failure in them is not caused by one.
    has_faults = seed % 5 != 0
    faults = max(_MORE_FAULTS, _FEWEST_FAULTS / length)
    made = []
    for _ in range(length):
        kinds = _FAULTS if has_faults and chance.random() < faults else _CLIENTS
        kind = chance.choices(list(kinds), list(kinds.values()))[0]
        made.append(Action(kind, chance.getrandbits(32), _pause(chance)))
    if seed % _ASKING_EVERY == 1:
        made = _with_questions(made, random.Random(f"asking {seed}"))
    if seed % _PURGE_EVERY == 3:
        at = chance.randrange(length // 2, length)
        made[at:at] = [Action("wait", 0, _LONG_PAUSE), Action("purge", chance.getrandbits(32), 0.0)]
    return made


def _with_questions(made: list[Action], chance: random.Random) -> list[Action]:
    """Puts actions of sessions and of those who answer between the others."""
    both: list[Action] = []
    for action in made:
        while chance.random() < _ASKING_SHARE:
            kind = chance.choices(list(_ASKING), list(_ASKING.values()))[0]
            both.append(Action(kind, chance.getrandbits(32), _pause(chance)))
        both.append(action)
    return both


def _pause(chance: random.Random) -> float:
    """Returns a pause: often none, so that requests share a transaction; sometimes hours."""
    kind = chance.random()
    if kind < 0.45:
        return 0.0
    if kind < 0.8:
        return round(chance.uniform(0, 5), 3)
    if kind < 0.96:
        return round(chance.uniform(5, 300), 3)
    return round(chance.uniform(300, 7200), 3)


def shrink(actions: Sequence[Action], fails: Callable[[list[Action]], bool], tries: int = 200) -> list[Action]:
    """Returns the fewest actions that still fail. Leaves out smaller and smaller parts, in at most `tries` attempts."""
    left = list(actions)
    size = max(1, len(left) // 2)
    while size >= 1 and tries > 0:
        at, is_smaller = 0, False
        while at < len(left) and tries > 0:
            candidate = left[:at] + left[at + size :]
            tries -= 1
            if candidate and fails(candidate):
                left, is_smaller = candidate, True
            else:
                at += size
        if not is_smaller or size > 1:
            size = size // 2 if size > 1 else 0
    return left
