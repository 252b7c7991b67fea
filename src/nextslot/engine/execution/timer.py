"""Timer: the one alarm of the scheduler, set to the earliest instant that anything waits for."""

from collections.abc import Callable

from nextslot.engine.effects import WakeBy
from nextslot.store.contract import Tx
from nextslot.system.clock import Alarm, Clock
from nextslot.system.instant import Instant


class Timer:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._alarm: Alarm | None = None
        self._next: Instant | None = None
        # A cache of the earliest stored instant that something waits for; it follows the commits.
        self._due: Instant | None = None
        self._ring: Callable[[], None] = lambda: None

    def start(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._alarm = self._clock.alarm(self._rung)

    def stop(self) -> None:
        if self._alarm is not None:
            self._alarm.set(None)
            self._alarm = self._next = None

    def note(self, tx: Tx, at: Instant | None) -> None:
        """What this transaction stores is due then, for whoever leads."""
        if at is not None:
            tx.announce("timer")
            self.note_here(tx, at)

    def note_here(self, tx: Tx, at: Instant) -> None:
        """The same of what is this node's own business, whoever leads."""
        tx.cause(WakeBy(at))

    def wake_by(self, at: Instant) -> None:
        """Not later than then. What is later than the next alarm is found when that one rings."""
        if self._alarm is not None and (self._next is None or at < self._next):
            self._next = at
            self._alarm.set(at)

    def note_earlier(self, at: Instant) -> None:
        """Follows a commit that stored something that is due then."""
        self._due = at if self._due is None else min(self._due, at)

    def note_due(self, at: Instant | None) -> None:
        """Follows a commit that did everything that was due: what is due next."""
        self._due = at

    def is_late(self, now: Instant) -> bool:
        """Whether something is due that was not done: the machine slept, its clock was set, or the alarm is late."""
        return any(at is not None and at < now for at in (self._due, self._next))

    def _rung(self) -> None:
        self._next = None
        self._ring()
