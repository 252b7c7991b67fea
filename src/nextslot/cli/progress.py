"""How far a long command on many rows has come, on stderr, about once a second; stdout stays with the answer."""

import sys
import time
from types import TracebackType

# A person reads no faster, and a log should stay short.
EVERY_SECONDS = 1.0


class Rows:
    """Counts rows; on a terminal in one line that is written over, elsewhere a line each time."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._told = self._began
        self._total = 0
        self._last = ("", "", 0)
        self.seconds = 0.0

    def __enter__(self) -> "Rows":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = time.monotonic() - self._began
        if self._told > self._began and sys.stderr.isatty():
            sys.stderr.write("\n")

    def note(self, doing: str, table: str, done: int, rows: int) -> None:
        before = self._last[2] if self._last[:2] == (doing, table) else 0
        self._total += done - before
        self._last = (doing, table, done)
        now = time.monotonic()
        if now - self._told >= EVERY_SECONDS:
            self._told = now
            self._tell(f"{doing}: {table} {done:,} of {rows:,}, {self._total / (now - self._began):,.0f} rows/s")

    def _tell(self, text: str) -> None:
        is_terminal = sys.stderr.isatty()
        sys.stderr.write(f"\r\x1b[K{text}" if is_terminal else f"{text}\n")
        sys.stderr.flush()
