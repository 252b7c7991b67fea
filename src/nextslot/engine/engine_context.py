"""EngineContext: the parts that every component of the engine uses, connected once by `Runtime`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nextslot.domain import Job, aging
from nextslot.engine.rollups import Rollups
from nextslot.executors.job_types import JobTypes
from nextslot.store.contract import Tx
from nextslot.store.tables import jobs
from nextslot.store.tables.jobs import Freed, place_of
from nextslot.system.clock import Clock
from nextslot.system.instant import Instant
from nextslot.system.randomness import Chance
from nextslot.telemetry.meters import Meters
from nextslot.telemetry.tracing import Tracer

if TYPE_CHECKING:  # Components in these modules take the context as an argument.
    from nextslot.engine.dispatch.limits_and_slots import Lanes, Workers
    from nextslot.engine.events.event_log import EventLog
    from nextslot.engine.execution.timeouts import Timer
    from nextslot.engine.webhooks.webhook_outbox import WebhookService


@dataclass(frozen=True, slots=True)
class EngineContext:
    clock: Clock
    chance: Chance
    job_types: JobTypes
    lanes: "Lanes"
    workers: "Workers"
    timer: "Timer"
    events: "EventLog"
    webhooks: "WebhookService"
    meters: Meters = field(default_factory=Meters)
    tracer: Tracer = field(default_factory=Tracer)
    rollups: Rollups = field(default_factory=Rollups)

    def note_ready(self, tx: Tx, job: Job | Freed, now: Instant) -> None:
        """Counts a queued job that became ready, notes the event, and stores when the job gets its next aging step."""
        bound = job.bound if isinstance(job, Freed) else place_of(job).bound
        self.lanes.counters(tx).add_ready(job.lane_id, bound)
        self.events.note(tx, "job_ready", now, job.office_id, job.job_id)
        self.begin_aging(tx, job.office_id, [job.job_id], now)

    def note_freed(self, tx: Tx, job: Job | Freed, now: Instant) -> None:
        """Handles a queued job of which one obstacle is gone: counts the job if it is ready, or asks for its signal."""
        if job.is_ready:
            self.note_ready(tx, job, now)
        elif job.is_asking:
            self.ask(tx, job.job_id, now)

    def ask(self, tx: Tx, job_id: str, now: Instant) -> None:
        """Stores that a job now waits only for its signal, and its deadline; notes the event and the webhook."""
        job = jobs.get(tx, job_id)
        if job is None or job.await_signal is None or job.asked_at is not None:
            return
        seconds = job.await_signal["deadline_seconds"]
        answer_by = None if seconds is None else now.after(seconds)
        jobs.asked(tx, job_id, now, answer_by)
        self.timer.note(tx, answer_by)
        asked = job._replace(asked_at=now, answer_by=answer_by).awaiting
        self.events.note(tx, "job_awaiting_signal", now, job.office_id, job_id, details=asked)
        self.webhooks.job_changed(tx, job_id, job.office_id, job.webhook is not None, ("job.awaiting_signal",), now)

    def begin_aging(self, tx: Tx, office_id: str, job_ids: Sequence[str], now: Instant) -> None:
        """Stores when jobs that became ready now get their next aging step, if their office ages its jobs."""
        if (at := self.next_step(tx, office_id, now)) is not None:
            jobs.begin_aging(tx, job_ids, at)
            self.timer.note(tx, at)

    def next_step(self, tx: Tx, office_id: str, now: Instant) -> Instant | None:
        """Returns when a job that becomes ready now gets its next aging step; None if its office does not age jobs."""
        seconds = self.lanes.counters(tx).office(office_id).aging_seconds
        return None if seconds is None else aging.next_step(now, seconds)
