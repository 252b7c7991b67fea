"""EngineContext: what every component of the engine works with, wired once by `Runtime`."""

from dataclasses import dataclass, field

from nextslot.engine.dispatch.limit_counters import Lanes
from nextslot.engine.dispatch.slots import Workers
from nextslot.engine.events.event_log import EventLog
from nextslot.engine.execution.timer import Timer
from nextslot.engine.webhooks.webhook_outbox import WebhookService
from nextslot.executors.job_types import JobTypes
from nextslot.system.clock import Clock
from nextslot.system.randomness import Chance
from nextslot.telemetry.meters import Meters
from nextslot.telemetry.tracing import Tracer


@dataclass(frozen=True, slots=True)
class EngineContext:
    clock: Clock
    chance: Chance
    job_types: JobTypes
    lanes: Lanes
    workers: Workers
    timer: Timer
    events: EventLog
    webhooks: WebhookService
    meters: Meters = field(default_factory=Meters)
    tracer: Tracer = field(default_factory=Tracer)
