"""Repairs: retries chains whose outcome was lost, in a database that no scheduler has open.

`offline_commands.py` calls it for `nextslot doctor --repair`. It dispatches nothing; the next start does.
"""

from nextslot.domain.limits import Limits
from nextslot.engine.dispatch.limits_and_slots import Lanes, Workers
from nextslot.engine.engine_context import EngineContext
from nextslot.engine.events.event_log import EventLog
from nextslot.engine.execution.timeouts import Timer
from nextslot.engine.finish.group_progress import GroupProgress
from nextslot.engine.finish.retries import RetryController
from nextslot.engine.submit.queue_order import QueueManager
from nextslot.engine.webhooks.webhook_outbox import SilentWebhooks
from nextslot.executors.job_types import JobTypes
from nextslot.store.contract import Tx
from nextslot.store.maintenance import doctor
from nextslot.system.clock import Clock
from nextslot.system.randomness import Chance

# How many chains one transaction retries.
BATCH = 100


class Repairs:
    def __init__(self, clock: Clock, chance: Chance) -> None:
        self._clock = clock
        self._lanes = Lanes(Limits())
        self._events = EventLog()
        webhooks = SilentWebhooks(chance, self._events)
        engine = EngineContext(
            clock, chance, JobTypes(), self._lanes, Workers("offline"), Timer(), self._events, webhooks
        )
        self._retries = RetryController(engine, QueueManager(engine), GroupProgress(engine))

    def retry_unstored(self, tx: Tx) -> int:
        """Retries chains that failed only because an outcome could not be stored. Returns how many, at most BATCH.

        The lost outcome is not known, so the work runs again, and the jobs that depend on it go on.
        """
        found = doctor.unstored_outcomes(tx)[:BATCH]
        for run_id in found:
            self._retries.retry_by_hand(tx, run_id, None, self._clock.now())
        return len(found)

    def close_transaction(self, tx: Tx) -> None:
        """Stores the counters and events of a transaction, and claims no jobs."""
        self._lanes.counters(tx).save()
        self._events.append(tx)
