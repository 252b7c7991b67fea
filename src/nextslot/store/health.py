"""Health of a store: whether its last write was stored, and whether its file was found to be damaged.

The stores note it, also on their own threads; `scheduler/readiness.py` asks.
"""

import time
from collections.abc import Callable

# For so long a write that was stored shows that the next one can be, and one that was not shows the opposite.
STORED_HOLDS_US = 30_000_000
FAILED_HOLDS_US = 5_000_000


def wall_clock() -> int:
    return time.time_ns() // 1000


class Health:
    def __init__(self, now: Callable[[], int] = wall_clock) -> None:
        self._now = now
        # The last write that changed something: when, and why it was not stored. One value, replaced as a whole:
        # the event loop reads it while the writer's thread may replace it.
        self._last: tuple[int, str | None] | None = None
        # What was found to be wrong with the file; it stays so until the store is opened again.
        self.damage: str | None = None

    def stored(self) -> None:
        """Notes that a write is durable."""
        self._last = (self._now(), None)

    def failed(self, why: str) -> None:
        """Notes that a write was not stored: what was stored before shows nothing any more."""
        self._last = (self._now(), why)

    def found_damage(self, sentence: str) -> None:
        self.damage = self.damage or sentence

    def has_stored(self) -> bool:
        """Whether the last write was stored, and lately."""
        return self._last is not None and self._last[1] is None and self._is_within(self._last[0], STORED_HOLDS_US)

    def failure(self) -> str | None:
        """Why the last write was not stored, if that was just now."""
        return self._last[1] if self._last is not None and self._is_within(self._last[0], FAILED_HOLDS_US) else None

    def _is_within(self, at: int, microseconds: int) -> bool:
        """A clock that was set back makes this false at once, not true for as long as it was set back."""
        return 0 <= self._now() - at < microseconds
