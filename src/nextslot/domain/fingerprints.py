"""Fingerprints of failures: errors that differ only in numbers, ids, times and paths have the same one.

A fingerprint belongs to one office, one job type and one failure kind, so it says nothing about other offices.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Annotated, Generic, NamedTuple

from nextslot.system.instant import Instant

from .declared_values import Apart, At, Says, Value
from .failures import FailureKind

# What is read of an error, and what is kept of its line and its pattern.
READ_CHARACTERS = 1_000
LINE_CHARACTERS = 300
DIGITS = 24

# The first alternative that fits at a place wins. Each repetition is bounded or of one kind of character, and no more
# than READ_CHARACTERS are read, so a crafted error takes no longer than another.
_VARIABLE = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?)?"
    r"|\b\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)"
    r"|(?P<id>\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b(?=[a-f]{0,40}\d)[0-9a-f]{8,64}\b)"
    r"|(?P<hex>\b0x[0-9a-f]{1,64}\b)"
    r"|(?P<path>'[^'\n]{0,300}[/\\][^'\n]{0,300}'|\"[^\"\n]{0,300}[/\\][^\"\n]{0,300}\""
    r"|(?<![\w/<:.])(?:~|[a-z]:)?(?:[/\\][\w.@+-]{1,200}){2,40}[/\\]?)"
    r"|(?P<n>\d{1,400}(?:[.,]\d{1,400})?)",
    re.IGNORECASE,
)


class Fingerprint(NamedTuple):
    """The fingerprint of an error, what all errors with it have in common, and the line that lists show."""

    fingerprint: str
    pattern: str
    line: str


class FailedRun(Value):
    """A run that failed in this way, with its job."""

    run_id: str
    job_id: str


class AffectedSchedule(Value):
    """A schedule whose jobs failed in this way."""

    schedule_id: str
    name: str | None


class Failure(Value, Generic[At]):
    """Failures of an office that have one fingerprint."""

    fingerprint: Annotated[str, Says("Of one office, type and kind", examples=("6f1f5ab0c3d94e7788aa01b2",))]
    office_id: str
    job_type: str
    failure_kind: FailureKind
    message: Annotated[str, Says("What their errors have in common: numbers, ids, times and paths are left out")]
    last_error: Annotated[str, Says("The beginning of the newest error, on one line")]
    first_seen: At
    last_seen: At
    total: Annotated[int, Says("How many there were in all")]
    muted: Annotated[bool, Says("Whether lists leave it out unless asked")] = False
    note: str | None = None
    count: Annotated[Apart[int], Says("How many there were in the range")] = 0
    buckets: Annotated[Apart[tuple[int, ...]], Says("How many in each part of the range, the oldest first")] = ()
    schedules: Annotated[Apart[tuple[AffectedSchedule, ...]], Says("Of the last 100 of them")] = ()
    last_runs: Annotated[Apart[tuple[FailedRun, ...]], Says("The last 5, the newest first")] = ()


@dataclass(frozen=True, slots=True)
class FailurePage:
    """A part of a list of failures, the last seen first, and the range in which they are counted."""

    items: tuple[Failure, ...]
    next_cursor: str | None
    since: Instant
    until: Instant
    bucket_seconds: int


def fingerprint(office_id: str, job_type: str, kind: FailureKind, error: str | None) -> Fingerprint:
    """Returns the fingerprint of a failure. The same failure has the same one in every process and release."""
    read = " ".join((error or "")[:READ_CHARACTERS].split())
    pattern = _VARIABLE.sub(lambda found: f"<{found.lastgroup}>", read)[:LINE_CHARACTERS]
    # No part has this character: names and texts are refused with it.
    whole = f"{office_id}\0{job_type}\0{kind}\0{pattern}"
    digest = hashlib.sha256(whole.encode(errors="replace")).hexdigest()[:DIGITS]
    return Fingerprint(digest, pattern, read[:LINE_CHARACTERS])
