"""Why a job is not running, and when it is expected to start and end."""

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from nextslot.system.instant import Instant

from .bounds import Json
from .declared_values import Value
from .jobs import JobStatus


class Confidence(StrEnum):
    """How certain a forecast is; NONE if there is no forecast."""

    NONE = "none"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class Expected(Value):
    """When a job is expected to start and to end; None if unknown. In four cases of five it starts between
    `earliest_start` and `latest_start`."""

    expected_start: Instant | None = None
    expected_end: Instant | None = None
    earliest_start: Instant | None = None
    latest_start: Instant | None = None
    confidence: Confidence = Confidence.NONE


class Forecast(Value):
    """The forecast of an office's running jobs and the first of its queue; `jobs` by id, direct requests included."""

    office_id: str
    made_at: Instant
    jobs: Mapping[str, Expected]
    # Whether it covers the whole queue; if not, how many jobs, and the last start among them.
    is_whole: bool = True
    places: int = 0
    last_start: Instant | None = None


class Reason(Value):
    """A reason why a job does not start: a code for programs, a sentence for people, and its data."""

    code: str
    text: str
    data: Mapping[str, Json] = field(default_factory=dict)


class Why(Value):
    """Why a job is not running, and when it will; `ahead` counts the jobs before it in its office's queue."""

    job_id: str
    status: JobStatus
    reasons: tuple[Reason, ...]
    ahead: int
    expected: Expected
    # When the forecast was made that `expected` is from; None if the job needs none, or it is not there yet.
    forecast_at: Instant | None = None
