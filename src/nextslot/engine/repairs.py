"""Repairs: settles, in a database that no scheduler has open, what only the engine's own rules can settle.

Called by `admin` for `nextslot doctor --repair`. It dispatches nothing: the next start does.
"""

from ..chance import Chance
from ..clock import Clock
from ..handlers.registry import JobTypes
from ..policy.limits import Limits
from ..store import doctor
from ..store.store import Tx
from .events import EventLog
from .groups import GroupProgress
from .kit import Kit
from .lanes import Lanes
from .queue import QueueManager
from .retry import RetryController
from .timer import Timer
from .webhooks import SilentWebhooks
from .workers import Workers

# Chains that one transaction continues.
BATCH = 100


class Repairs:
    def __init__(self, clock: Clock, chance: Chance) -> None:
        self._clock = clock
        self._lanes = Lanes(Limits())
        self._events = EventLog()
        webhooks = SilentWebhooks(chance, self._events)
        kit = Kit(clock, chance, JobTypes(), self._lanes, Workers("offline"), Timer(clock), self._events, webhooks)
        self._retries = RetryController(kit, QueueManager(kit), GroupProgress(kit))

    def retry_unstored(self, tx: Tx) -> int:
        """Retries, by hand, chains that failed only because an outcome could not be stored; how many, at most BATCH.

        What the lost outcome was is not known, so the work runs again, and what waits for it goes on.
        """
        found = doctor.unstored_outcomes(tx)[:BATCH]
        for run_id in found:
            self._retries.retry_by_hand(tx, run_id, None, self._clock.now())
        return len(found)

    def close_transaction(self, tx: Tx) -> None:
        """Stores the counters and events of a transaction; claims nothing."""
        self._lanes.slate(tx).save()
        self._events.append(tx)
