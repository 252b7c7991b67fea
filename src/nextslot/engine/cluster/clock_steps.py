"""ClockSteps: moves stored due times when the wall clock steps, so that waits last as long as without the step.

A step is a change of wall time against monotonic time: somebody set the clock, or the machine slept. Timeouts, retry
delays and other waits are moved. Calendar times (a caller's `scheduled_for`, cron, `expires_at`) are not, and so follow
the wall clock.

The due times are stored together with the clock offset on which they are based (`nodes.clock_offset`). So a step whose
transaction is rolled back, or whose commit was not confirmed, is neither lost nor applied twice. If the process dies
before that transaction, the next start uses the stored times as they are.
"""

import logging

from nextslot.engine.effects import ClockCounted, ClockStepped
from nextslot.engine.engine_context import EngineContext
from nextslot.engine.schedules.schedule_trigger import ScheduleTrigger
from nextslot.engine.webhooks.delivery_worker import DeliveryWorker
from nextslot.store.contract import Tx
from nextslot.store.tables import due_times
from nextslot.system.instant import Instant

log = logging.getLogger(__name__)


class ClockSteps:
    def __init__(
        self, engine: EngineContext, node_id: str, schedules: ScheduleTrigger, deliveries: DeliveryWorker
    ) -> None:
        self._clock = engine.clock
        self._timer = engine.timer
        self._node_id = node_id
        self._schedules = schedules
        self._deliveries = deliveries
        self._is_shared = False
        # The newest offset that this node knows. The stored one may be newer; `follow` reads it.
        self._stored: int | None = None

    def begin(self, tx: Tx, is_shared: bool) -> None:
        """Stores the clock offset of a new incarnation of this node, in the transaction in which the node joins."""
        offset = self._clock.offset
        due_times.count_by(tx, self._node_id, offset)
        tx.cause(ClockCounted(offset, is_shared))

    def note(self, offset: int, is_shared: bool) -> None:
        """Remembers the stored offset after its commit."""
        self._stored, self._is_shared = offset, is_shared

    def end(self) -> None:
        """Stops moving stored times, because the next incarnation of this node has another clock offset."""
        self._stored = None

    def follow(self, tx: Tx) -> None:
        """If the wall clock was set, moves all stored due times with it. Each writing transaction begins with this."""
        self._clock.follow()
        offset = self._clock.offset
        if self._stored is None or offset == self._stored:
            return
        stored = due_times.offset(tx, self._node_id)
        if stored is None or offset == stored:
            return
        shift = offset - stored
        due_times.shift_own(tx, self._node_id, shift)
        if not self._is_shared:
            # Nodes that share a database use the clock of its server, so these due times are right for all of them.
            due_times.shift_common(tx, shift)
        if shift < 0:
            self._schedules.plan_again(tx)
        due_times.count_by(tx, self._node_id, offset)
        tx.cause(ClockCounted(offset, self._is_shared))
        tx.cause(ClockStepped(shift))

    def stepped(self, shift: int) -> None:
        """Moves the due times in memory too, and wakes the timer for what is due now."""
        log.warning(
            "the wall clock has stepped by %+.3f s (it was set, or the machine slept): timeouts, retries and other "
            "waits are moved by as much; schedules, `scheduled_for` and `expires_at` follow the clock",
            shift / 1_000_000,
        )
        if not self._is_shared:
            self._deliveries.shift(shift)
        self._timer.wake_by(Instant(0))
