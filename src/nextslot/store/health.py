"""Health of a store: whether its last write was stored, and whether its file was found to be damaged.

The stores record it from any thread; `scheduler/readiness.py` reads it.
"""

import time
from collections.abc import Callable

# How long a stored write shows that the next one will succeed, and how long a failed write shows the opposite.
STORED_HOLDS_US = 30_000_000
FAILED_HOLDS_US = 5_000_000


def wall_clock() -> int:
    return time.time_ns() // 1000


class Health:
    def __init__(self, now: Callable[[], int] = wall_clock) -> None:
        self._now = now
        # The last write that changed something: its time, and the error if it was not stored. Replaced as one value,
        # because the event loop reads it while the writer's thread may replace it.
        self._last: tuple[int, str | None] | None = None
        # The damage that was found in the file; it stays set until the store is opened again.
        self.damage: str | None = None

    def stored(self) -> None:
        """Records that a write is durable."""
        self._last = (self._now(), None)

    def failed(self, why: str) -> None:
        """Records that a write was not stored; earlier successes no longer count."""
        self._last = (self._now(), why)

    def found_damage(self, sentence: str) -> None:
        self.damage = self.damage or sentence

    def has_stored(self) -> bool:
        """Returns whether the last write was stored, and recently."""
        return self._last is not None and self._last[1] is None and self._is_within(self._last[0], STORED_HOLDS_US)

    def failure(self) -> str | None:
        """Returns why the last write was not stored, if it failed recently."""
        return self._last[1] if self._last is not None and self._is_within(self._last[0], FAILED_HOLDS_US) else None

    def _is_within(self, at: int, microseconds: int) -> bool:
        """Returns whether a time is recent. If the clock was set back, the answer is false at once."""
        return 0 <= self._now() - at < microseconds
