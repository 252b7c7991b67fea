"""Free disk space: below one limit it is reported, below another new work is refused, so that what runs can be stored.

`Scheduler` makes one `DiskSpace`; creating requests, `/ready`, the metrics and the doctor ask it. Nobody polls.
"""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nextslot.errors import DiskLow

log = logging.getLogger(__name__)

# What was found holds for so long: a burst of requests asks the file system once.
HOLDS_US = 1_000_000


def free_bytes(place: Path) -> int:
    """Asks the file system how much an unprivileged process may still write below a directory, made or not."""
    while not place.exists() and place != place.parent:
        place = place.parent
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """Free bytes below which a warning is given, and below which new work is refused; 0 is no limit."""

    warn_bytes: int = 2**30
    refuse_bytes: int = 100 * 2**20
    # How the file system is asked.
    free_bytes: Callable[[Path], int] = free_bytes


class DiskSpace:
    """The free space where the database, logs and artifacts are: the least of it counts."""

    def __init__(self, limits: DiskLimits, places: Mapping[str, Path], now: Callable[[], int]) -> None:
        """`places` has each directory under the name that people read: `/ready` shows it to everybody."""
        self._limits = limits
        self._places = places
        self._now = now
        self._asked_at: int | None = None
        self._found: tuple[int, str] | None = None
        self._has_warned = False

    def free(self) -> int | None:
        """The least free bytes of all places; None if no file system answers."""
        self._look()
        return None if self._found is None else self._found[0]

    def warning(self) -> str | None:
        """Says that space is short, and where; None if it is not."""
        return self._below(self._limits.warn_bytes)

    def refusal(self) -> str | None:
        """Says why new work is refused; None if it is not."""
        low = self._below(self._limits.refuse_bytes)
        return None if low is None else f"{low}, so no new work is taken; free some space"

    def refuse_if_low(self) -> None:
        if (refusal := self.refusal()) is not None:
            raise DiskLow(refusal)

    def _below(self, limit: int) -> str | None:
        self._look()
        if self._found is None or self._found[0] >= limit:
            return None
        free, place = self._found
        return f"the disk of the {place} has {free:,} bytes left, less than {limit:,}"

    def _look(self) -> None:
        now = self._now()
        # A clock that was set back asks again.
        if self._asked_at is None or not 0 <= now - self._asked_at < HOLDS_US:
            self._asked_at = now
            found = [(free, name) for name, place in self._places.items() if (free := self._free(place)) is not None]
            self._found = min(found, default=None)
            self._report()

    def _free(self, place: Path) -> int | None:
        try:
            return self._limits.free_bytes(place)
        except OSError:
            return None  # A disk that does not answer is found by the writes.

    def _report(self) -> None:
        warning = self.warning()
        if warning is not None and not self._has_warned:
            log.warning("%s: free some space; below %s bytes no new work is taken", warning, self._limits.refuse_bytes)
        elif warning is None and self._has_warned:
            log.info("there is enough disk space again")
        self._has_warned = warning is not None
