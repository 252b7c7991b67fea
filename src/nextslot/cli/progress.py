"""Shows the progress of a long command on stderr, about once a second; stdout is left for the result."""

import sys
import time
from types import TracebackType

# People read no faster, and a log should stay short.
EVERY_SECONDS = 1.0


class Rows:
    """Counts rows. On a terminal it overwrites one line, elsewhere it writes a new line each time."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._printed = self._counted_at = self._since = self._began
        self._total = 0
        self._last = ("", "", 0)
        self.seconds = 0.0

    def __enter__(self) -> "Rows":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = time.monotonic() - self._began
        if self._printed > self._began and sys.stderr.isatty():
            sys.stderr.write("\n")

    def note(self, doing: str, table: str, done: int, rows: int) -> None:
        now = time.monotonic()
        self._count(doing, table, done)
        if now - self._printed >= EVERY_SECONDS:
            self._printed = now
            speed = self._total / max(now - self._since, 0.001)
            self._print(f"{doing}: {table} {done:,} of {rows:,}, {speed:,.0f} rows/s")
        self._counted_at = now

    def _count(self, doing: str, table: str, done: int) -> None:
        """Adds up rows for each activity. Skipped rows of a table are not counted again when the rest is processed."""
        last_doing, last_table, last_done = self._last
        if doing != last_doing:
            self._total, self._since = 0, self._counted_at
        goes_on = table == last_table and last_doing in (doing, "skip")
        self._total += done - last_done if goes_on else done
        self._last = (doing, table, done)

    def _print(self, text: str) -> None:
        is_terminal = sys.stderr.isatty()
        sys.stderr.write(f"\r\x1b[K{text}" if is_terminal else f"{text}\n")
        sys.stderr.flush()
