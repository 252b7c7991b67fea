"""Watches free disk space: warns below one limit, and refuses new work below another so that outcomes of running work
can still be stored.

`Scheduler` creates one `DiskSpace`. Creating requests, `/ready`, the metrics and the doctor query it; nothing polls.
"""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nextslot.errors import DiskLow

log = logging.getLogger(__name__)

# How long a measurement is reused, so that a burst of requests asks the file system once.
HOLDS_US = 1_000_000


def free_bytes(place: Path) -> int:
    """Returns how many bytes an unprivileged process may still write below a directory, which need not exist yet."""
    while not place.exists() and place != place.parent:
        place = place.parent
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """The numbers of free bytes below which a warning is logged and new work is refused; 0 means no limit."""

    warn_bytes: int = 2**30
    refuse_bytes: int = 100 * 2**20
    # The function that asks the file system.
    free_bytes: Callable[[Path], int] = free_bytes


class DiskSpace:
    """The free space of the directories of database, logs and artifacts. The smallest value counts."""

    def __init__(self, limits: DiskLimits, places: Mapping[str, Path], now: Callable[[], int]) -> None:
        """`places` maps readable names to directories; `/ready` shows the names to everybody."""
        self._limits = limits
        self._places = places
        self._now = now
        self._measured_at: int | None = None
        self._found: tuple[int, str] | None = None
        self._has_warned = False

    def free(self) -> int | None:
        """Returns the smallest number of free bytes of all places; None if no file system answers."""
        self._measure()
        return None if self._found is None else self._found[0]

    def warning(self) -> str | None:
        """Returns a sentence about a place that is short of space; None if there is none."""
        return self._below(self._limits.warn_bytes)

    def refusal(self) -> str | None:
        """Returns why new work is refused; None if it is not."""
        low = self._below(self._limits.refuse_bytes)
        return None if low is None else f"{low}, so new work is refused; free some space"

    def refuse_if_low(self) -> None:
        if (refusal := self.refusal()) is not None:
            raise DiskLow(refusal)

    def _below(self, limit: int) -> str | None:
        self._measure()
        if self._found is None or self._found[0] >= limit:
            return None
        free, place = self._found
        return f"the disk of the {place} has {free:,} bytes left, less than {limit:,}"

    def _measure(self) -> None:
        now = self._now()
        # If the clock was set back, measures again.
        if self._measured_at is None or not 0 <= now - self._measured_at < HOLDS_US:
            self._measured_at = now
            found = [(free, name) for name, place in self._places.items() if (free := self._free(place)) is not None]
            self._found = min(found, default=None)
            self._report()

    def _free(self, place: Path) -> int | None:
        try:
            return self._limits.free_bytes(place)
        except OSError:
            return None  # The next write will reveal a disk that does not answer.

    def _report(self) -> None:
        warning = self.warning()
        if warning is not None and not self._has_warned:
            log.warning("%s: free some space; below %s bytes new work is refused", warning, self._limits.refuse_bytes)
        elif warning is None and self._has_warned:
            log.info("there is enough disk space again")
        self._has_warned = warning is not None
