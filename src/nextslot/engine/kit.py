"""Kit: what every component of the engine works with, wired once by the composition."""

from dataclasses import dataclass

from ..chance import Chance
from ..clock import Clock
from ..handlers.registry import JobTypes
from .events import EventLog
from .lanes import Lanes
from .timer import Timer
from .workers import Workers


@dataclass(frozen=True, slots=True)
class Kit:
    clock: Clock
    chance: Chance
    job_types: JobTypes
    lanes: Lanes
    workers: Workers
    timer: Timer
    events: EventLog
