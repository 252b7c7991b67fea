"""Rollups: how many jobs ended in a span of time, by outcome, and histograms of how long they waited and ran.

Pure: `engine/rollups.py` counts and stores, `services/stats.py` answers with a series of points, and `doctor` compares
what is stored with history.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Generic, NamedTuple

from nextslot.system.instant import Instant

from .declared_values import At, Says, Value

SECOND = 1_000_000
MINUTE, HOUR, DAY = 60, 3_600, 86_400
# The stored spans, in seconds, and how long each is kept before its rollups are added to the next larger span.
STORED_STEPS = (MINUTE, HOUR, DAY)
KEPT_SECONDS: Mapping[int, int] = {MINUTE: 2 * DAY, HOUR: 92 * DAY}
# How long the failures of an hour are kept.
FAILURES_KEPT_SECONDS = 92 * DAY
# The steps that a caller may request for a series.
SERIES_STEPS = (60, 300, 900, 3_600, 86_400)
MAX_POINTS = 1_000

# The bucket of a job that never started, which neither waited for a start nor ran.
NOT_STARTED = -1
# Each doubling is divided into eight buckets, so the middle of a bucket is at most 1/16 away from any value in it.
_PARTS_BITS = 3
_PARTS = 1 << _PARTS_BITS
MAX_ERROR = 1 / (2 * _PARTS)


# Whether a job or a direct execution ended. Plain strings, because every end hashes them.
JOB = "job"
DIRECT = "direct"
KINDS = (JOB, DIRECT)


class RollupKey(NamedTuple):
    """The labels by which ends are counted, apart from the span of time."""

    office_id: str
    job_type: str
    kind: str
    outcome: str


class End(NamedTuple):
    """The end of one job as the statistics count it: the minute of the end, and the buckets of its wait and
    duration."""

    minute: int
    office_id: str
    job_type: str
    kind: str
    outcome: str
    wait: int
    duration: int

    @property
    def key(self) -> RollupKey:
        return RollupKey(*self[1:5])


@dataclass(slots=True)
class Totals:
    """How many jobs ended with the same key in a span of time. Neither histogram has jobs that never started."""

    jobs: int = 0
    waits: Counter[int] = field(default_factory=Counter)
    durations: Counter[int] = field(default_factory=Counter)

    def count(self, end: End, jobs: int) -> None:
        self.jobs += jobs
        if end.wait != NOT_STARTED:
            self.waits[end.wait] += jobs
            self.durations[end.duration] += jobs

    def add(self, other: "Totals") -> None:
        self.jobs += other.jobs
        self.waits.update(other.waits)
        self.durations.update(other.durations)


class SeriesPoint(Value, Generic[At]):
    """The ends in one step of a series."""

    at: Annotated[At, Says("When the step begins")]
    completed: int
    failed: Annotated[int, Says("Every attempt counts, even if it was retried")]
    skipped: int
    cancelled: int
    wait_p50_seconds: Annotated[float | None, Says("Of the jobs that started; null if none did")]
    wait_p95_seconds: float | None
    duration_p50_seconds: float | None
    duration_p95_seconds: float | None
    queue_depth: Annotated[
        int | None, Says("Jobs that were WAITING or QUEUED when the step ended, or now; null for direct executions")
    ]


class Series(Value):
    """Points without a gap, the oldest first; `step` is in seconds."""

    step: int
    counted_from: Annotated[Instant | None, Says("Ends before this time are not counted; null: all are")]
    total: Annotated[SeriesPoint, Says("The whole range as one step")]
    points: tuple[SeriesPoint, ...]


def ended(key: RollupKey, free_at: Instant | int, started_at: Instant | int | None, finished_at: Instant | int) -> End:
    """Returns how an end is counted. `free_at` is when the job was queued or, if later, its `scheduled_for`;
    `started_at` is None if it never got a worker. If the clock was set back, so that a time is before the one from
    which it is measured, the duration counts as zero.
    """
    minute = floor(finished_at, MINUTE)
    if started_at is None:
        return End(minute, *key, NOT_STARTED, NOT_STARTED)
    return End(minute, *key, bucket(started_at - free_at), bucket(finished_at - started_at))


def bucket(microseconds: int) -> int:
    """Returns the number of the bucket of a time: larger times are in later buckets."""
    if microseconds < _PARTS:
        return max(microseconds, 0)
    exponent = microseconds.bit_length() - _PARTS_BITS - 1
    return exponent * _PARTS + (microseconds >> exponent)


def middle(bucket_: int) -> float:
    """Returns the middle of a bucket in microseconds."""
    if bucket_ < 2 * _PARTS:
        return float(bucket_)
    exponent = bucket_ // _PARTS - 1
    lowest = (_PARTS + bucket_ % _PARTS) << exponent
    return lowest + ((1 << exponent) - 1) / 2


def quantile_seconds(histogram: Mapping[int, int], fraction: float) -> float | None:
    """Returns the time that this fraction of all times is not above, within `MAX_ERROR`; None if there is no time."""
    total = sum(histogram.values())
    rank = max(1, -(-total * round(fraction * 100) // 100))
    seen = 0
    for number in sorted(histogram):
        seen += histogram[number]
        if seen >= rank:
            return round(middle(number) / SECOND, 6)
    return None


def floor(at: int, step: int) -> int:
    """Returns the start, in UTC, of the step that contains this instant."""
    width = step * SECOND
    return at // width * width


def stored_step(at: int, now: int) -> int:
    """Returns the span in which an end at this time is stored: a minute, or more if it is long ago."""
    for step, larger in pairwise(STORED_STEPS):
        if not is_outdated(at, step, larger, now):
            return step
    return STORED_STEPS[-1]


def is_outdated(at: int, step: int, larger: int, now: int) -> bool:
    """Returns whether the whole larger span around this time is so old that rollups of this step are no longer kept."""
    return floor(at, larger) + larger * SECOND <= now - KEPT_SECONDS[step] * SECOND
