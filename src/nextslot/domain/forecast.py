"""Why a job is not running, and when it is expected to."""

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from nextslot.system.instant import Instant

from .declared_values import Value
from .jobs import JobStatus
from .json_types import Json


class Confidence(StrEnum):
    """How sure a forecast is; NONE where there is none."""

    NONE = "none"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class Expected(Value):
    """When a job is expected to start and to end, as far as that can be said."""

    expected_start: Instant | None = None
    expected_end: Instant | None = None
    confidence: Confidence = Confidence.NONE


class Forecast(Value):
    """What is expected of an office's running jobs and of the first of its queue; `jobs` by id, direct callers too."""

    office_id: str
    made_at: Instant
    jobs: Mapping[str, Expected]
    # Whether the whole queue was looked at, and when not: how many of it, and the last start among them.
    is_whole: bool = True
    places: int = 0
    last_start: Instant | None = None


class Reason(Value):
    """One thing that keeps a job from starting: a word for programs, a sentence for people, and the data behind it."""

    code: str
    text: str
    data: Mapping[str, Json] = field(default_factory=dict)


class Why(Value):
    """Why a job is not running, and when it will; `ahead` are the jobs before it in its office's queue."""

    job_id: str
    status: JobStatus
    reasons: tuple[Reason, ...]
    ahead: int
    expected: Expected
