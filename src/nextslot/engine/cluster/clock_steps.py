"""ClockSteps: follows the wall clock when it steps, and moves the stored due times that count from a moment by as much.

A step is a change of wall time against monotonic time: somebody set the clock, or the machine slept. Timeouts, retry
delays and other waits last as long as they would have without it; calendar times (a caller's `scheduled_for`, cron,
`expires_at`) are left alone, and so follow the wall clock.

The rows and the clock offset that they are counted by are stored together (`nodes.clock_offset`). So a transaction that
is rolled back, or whose commit nobody knows of, is neither forgotten nor done twice. If the process dies before that
transaction, the next start counts by what is stored.
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
        # An offset that was stored. If it is not the last one that was, `follow` reads what is stored and no more.
        self._stored: int | None = None

    def begin(self, tx: Tx, is_shared: bool) -> None:
        """Stores the clock offset of a new life of this node, in the transaction in which the node joins."""
        offset = self._clock.offset
        due_times.count_by(tx, self._node_id, offset)
        tx.cause(ClockCounted(offset, is_shared))

    def note(self, offset: int, is_shared: bool) -> None:
        """Follows a commit."""
        self._stored, self._is_shared = offset, is_shared

    def end(self) -> None:
        """Stops moving stored times: what another life of this node stores is counted by another clock."""
        self._stored = None

    def follow(self, tx: Tx) -> None:
        """Lets the clock follow a step before anything else is stored, and moves the due times in the same transaction.

        The store calls it first in each writing transaction.
        """
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
            # Where nodes share a database, they agree on its server's clock, and so on when these are due.
            due_times.shift_common(tx, shift)
        if shift < 0:
            self._schedules.plan_again(tx)
        due_times.count_by(tx, self._node_id, offset)
        tx.cause(ClockCounted(offset, self._is_shared))
        tx.cause(ClockStepped(shift))

    def stepped(self, shift: int) -> None:
        """Moves what is kept in memory too, and looks at what is due now."""
        log.warning(
            "the wall clock has stepped by %+.3f s (it was set, or the machine slept): timeouts, retries and other "
            "waits are moved by as much; schedules, `scheduled_for` and `expires_at` follow the clock",
            shift / 1_000_000,
        )
        if not self._is_shared:
            self._deliveries.shift(shift)
        self._timer.wake_by(Instant(0))
