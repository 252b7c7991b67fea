"""Timer and TimeoutManager: act when a stored due time comes: start or expire jobs, time out runs, age jobs, fire
schedules.

There is one alarm, set to the earliest instant; nothing polls. `tick` does what is due and sets the next alarm.
"""

import asyncio
import logging
from dataclasses import dataclass

from nextslot.domain import FailureKind
from nextslot.domain.limits import is_local, office_of
from nextslot.engine.direct.direct_requests import DirectExecutionHandler
from nextslot.engine.dispatch import aging_steps
from nextslot.engine.dispatch.resource_outages import Outages
from nextslot.engine.effects import DeliveriesDue, DueBy, Stop, WakeBy
from nextslot.engine.engine_context import EngineContext
from nextslot.engine.finish.job_finisher import JobFinisher
from nextslot.engine.schedules.schedule_trigger import ScheduleTrigger
from nextslot.engine.signals.signals import Signals
from nextslot.store.contract import ALL, Store, Tx
from nextslot.store.tables import jobs, outages, rates, runs, schedules
from nextslot.store.tables.outages import Outage
from nextslot.system.clock import Alarm
from nextslot.system.instant import Instant

log = logging.getLogger(__name__)

BATCH = 500
# The claimed size of a batch: large enough to run alone and off the event loop.
MANY = 1_001
RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """The result of a batch: whether everything due is done, which resources to probe, and the next due time."""

    is_all: bool
    to_probe: list[Outage]
    upcoming: Instant | None


class Timer:
    """The one alarm of the scheduler, set to the earliest instant that anything waits for."""

    def __init__(self) -> None:
        self._alarm: Alarm | None = None
        self._next: Instant | None = None
        # A cache of the earliest stored instant that something waits for; it follows the commits.
        self._due: Instant | None = None

    def start(self, alarm: Alarm) -> None:
        self._alarm = alarm

    def stop(self) -> None:
        if self._alarm is not None:
            self._alarm.set(None)
            self._alarm = self._next = None

    def note(self, tx: Tx, at: Instant | None) -> None:
        """Notes a due time that this transaction stores, so that the leader's alarm is set to it after the commit."""
        if at is not None:
            tx.announce("timer")
            self.note_here(tx, at)

    def note_here(self, tx: Tx, at: Instant) -> None:
        """Notes a due time for this node, whether or not it leads: only this node has the run or the caller."""
        tx.cause(WakeBy(at))

    def wake_by(self, at: Instant) -> None:
        """Sets the alarm, unless it is set to an earlier instant: that tick finds the later due times."""
        if self._alarm is not None and (self._next is None or at < self._next):
            self._next = at
            self._alarm.set(at)

    def rung(self) -> None:
        self._next = None

    def note_earlier(self, at: Instant) -> None:
        """Sets the alarm after a commit that stored an earlier due time."""
        self._due = at if self._due is None else min(self._due, at)

    def note_due(self, at: Instant | None) -> None:
        """Sets the alarm after a commit that did everything due. `at` is the next due time."""
        self._due = at

    def is_late(self, now: Instant) -> bool:
        """Returns whether something due was not done: the machine slept, its clock was set, or the alarm is late."""
        return any(at is not None and at < now for at in (self._due, self._next))


class TimeoutManager:
    def __init__(
        self,
        engine: EngineContext,
        finisher: JobFinisher,
        direct: DirectExecutionHandler,
        outages_: Outages,
        trigger: ScheduleTrigger | None = None,
        wakes_for_steps: bool = True,
    ) -> None:
        """A forecast ages its jobs before it starts some, and needs no alarm for their steps."""
        self._clock = engine.clock
        self._timer = engine.timer
        self._finisher = finisher
        self._direct = direct
        self._outages = outages_
        self._signals = Signals(engine, finisher)
        self._schedules = trigger
        self._wakes_for_steps = wakes_for_steps
        self._engine = engine
        self._store: Store | None = None
        self._ticking: asyncio.Task[None] | None = None
        # Whether this node does what only the leader does. Every node times out its own runs.
        self.is_leading = True

    async def start(self, store: Store) -> None:
        self._store = store
        self._timer.start(self._clock.alarm(self._ring))
        await self.tick()

    async def close(self) -> None:
        self._timer.stop()
        self._store = None
        if self._ticking is not None and not self._ticking.done():
            await asyncio.wait([self._ticking])

    async def tick(self) -> None:
        """Does all that is due, one batch per transaction, and sets the alarm for the next due time."""
        assert self._store is not None
        if self._schedules is not None:
            await self._schedules.measure(self._store)
        rows = BATCH
        while True:
            due = await self._store.write(self.do_due, rows=rows)
            await self._outages.probe(self._store, due.to_probe)
            if due.is_all:
                break
            rows = MANY
        if due.upcoming is not None:
            self._timer.wake_by(due.upcoming)

    async def look(self) -> None:
        """Sets the alarm again, because another node may have stored an earlier due time."""
        if self._store is not None:
            upcoming = await self._store.read(self._upcoming)
            if upcoming is not None:
                self._timer.wake_by(upcoming)

    def _upcoming(self, tx: Tx) -> Instant | None:
        occurrence = None if self._schedules is None else schedules.next_instant(tx)
        probe = outages.next_probe(tx, self._clock.now())
        return _first(jobs.next_instant(tx), self._next_step(tx), probe, occurrence, self._next_wake(tx))

    def _next_wake(self, tx: Tx) -> Instant | None:
        """Returns when a rate that holds work back lets some start."""
        return rates.next_wake(tx) if self._engine.lanes.rates else None

    def _wake_rates(self, tx: Tx, now: Instant) -> None:
        """Lets the work be looked at that rates have held back until now."""
        if not self._engine.lanes.rates:
            return
        counters = self._engine.lanes.counters(tx)
        for limit_key in rates.wake(tx, now):
            counters.is_freed = True
            if is_local(limit_key):
                counters.office(office_of(limit_key))

    def _next_step(self, tx: Tx) -> Instant | None:
        """Returns when a job ages next, if this needs an alarm."""
        return jobs.next_step(tx) if self._wakes_for_steps else None

    def expire_if_late(self, tx: Tx) -> None:
        """Expires jobs before a dispatch if the timer is late, so that no expired job starts."""
        now = self._clock.now()
        if self._timer.is_late(now):
            while self._finisher.expire(tx, now, BATCH) == BATCH:
                pass

    def do_due(self, tx: Tx) -> Due:
        """Does a batch of what is due now, such as starts, expiries and timeouts."""
        due = self._do_batch(tx)
        if due.is_all:
            tx.cause(DueBy(due.upcoming))
            tx.cause(DeliveriesDue())
        return due

    def _do_batch(self, tx: Tx) -> Due:
        now = self._clock.now()
        own = self._do_own(tx, now)
        if not self.is_leading:
            return own
        due = jobs.due(tx, now, BATCH)
        for freed in due:
            self._engine.note_freed(tx, freed, now)
        unanswered = self._signals.do_due(tx, now, BATCH)
        expired = self._finisher.expire(tx, now, BATCH)
        no_more_cancels = self._finisher.cancel_some(tx, now)
        no_more_steps = aging_steps.do_due(tx, self._engine.lanes, now)
        to_probe, next_probe = self._outages.do_due(tx, now)
        self._wake_rates(tx, now)
        no_more_occurrences, next_occurrence = True, None
        if self._schedules is not None:
            no_more_occurrences, next_occurrence = self._schedules.do_due(tx, now, BATCH)
        return Due(
            is_all=own.is_all
            and len(due) < BATCH
            and expired < BATCH
            and unanswered < BATCH
            and no_more_cancels
            and no_more_steps
            and no_more_occurrences,
            to_probe=to_probe,
            # Read after the batch, which may have stored a new due time.
            upcoming=_first(
                jobs.next_instant(tx),
                self._next_step(tx),
                own.upcoming,
                next_probe,
                next_occurrence,
                self._next_wake(tx),
            ),
        )

    def _do_own(self, tx: Tx, now: Instant) -> Due:
        """Does what each node does for its own runs and direct callers."""
        is_all, next_direct = self._direct.do_due(tx, now, BATCH)
        # Includes all of them: runs that ignore their stop stay overdue, and must not hide the others.
        for run_id in runs.overdue(tx, now, ALL):
            tx.cause(Stop(run_id, FailureKind.TIMEOUT))
        return Due(
            is_all=is_all,
            to_probe=[],
            upcoming=_first(runs.next_timeout(tx, now), next_direct),
        )

    def _ring(self) -> None:
        self._timer.rung()
        self._ticking = asyncio.get_running_loop().create_task(self._tick_or_try_again(), name="nextslot-timers")

    async def _tick_or_try_again(self) -> None:
        try:
            await self.tick()
        except Exception:  # The timers must continue after a store error.
            log.exception("timers: the store did not answer; trying again in %g s", RETRY_SECONDS)
            self._timer.wake_by(self._clock.now().after(RETRY_SECONDS))


def _first(*instants: Instant | None) -> Instant | None:
    return min((at for at in instants if at is not None), default=None)
