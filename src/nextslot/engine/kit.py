"""Kit: what every component of the engine works with, wired once by the composition."""

from dataclasses import dataclass, field

from ..chance import Chance
from ..clock import Clock
from ..handlers.registry import JobTypes
from ..meters import Meters, Unmeasured
from ..tracing import Tracer, Untraced
from .events import EventLog
from .lanes import Lanes
from .timer import Timer
from .webhooks import WebhookService
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
    webhooks: WebhookService
    meters: Meters = field(default_factory=Unmeasured)
    tracer: Tracer = field(default_factory=Untraced)
