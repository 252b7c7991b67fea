"""Logs the same line at most once a second, with the number of repetitions that were left out."""

import time
from collections.abc import Callable

SECONDS = 1.0
# How many different lines are remembered; all further ones count as one line.
MOST_LINES = 1000


class Throttle:
    """Counts repeated lines. Several threads may use it: a race adds or loses one line."""

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        # When a line was last logged, and how many repetitions were left out since.
        self._lines: dict[str, tuple[float, int]] = {}

    def left_out(self, line: str) -> str | None:
        """Returns None if the line must be left out; otherwise the text to append to it, which is mostly empty."""
        now = self._seconds()
        line = line if line in self._lines or self._has_room(now) else ""
        last, count = self._lines.get(line, (now - SECONDS, 0))
        if now - last < SECONDS:
            self._lines[line] = (last, count + 1)
            return None
        self._lines[line] = (now, 0)
        return f" ({count:,} more like this since)" if count else ""

    def _has_room(self, now: float) -> bool:
        if len(self._lines) >= MOST_LINES:
            self._lines = {line: (last, count) for line, (last, count) in self._lines.items() if now - last < SECONDS}
        return len(self._lines) < MOST_LINES
