"""What answers look like and what several bodies share, declared for the OpenAPI document.

Answers are made by `representation.py`; a test holds the two together. Bodies refuse what they do not know.
"""

import re
from copy import copy
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    create_model,
)

from nextslot.domain import (
    MAX_PRIORITY,
    Backoff,
    CancelMode,
    DirectStatus,
    FailureKind,
    GroupMode,
    GroupStatus,
    JobStatus,
    OnDependencyFailure,
    OnFailure,
    RunStatus,
    State,
    request_checks,
)
from nextslot.engine.submit.intake import MAX_BATCH

T = TypeVar("T")

Time = Annotated[
    str,
    Field(
        pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$",
        examples=["2026-11-15T06:30:00.000000Z"],
        description="RFC 3339, UTC, microseconds",
    ),
]


def _written(value: object) -> object:
    # Else a number in a query would be taken for seconds since 1970.
    if not isinstance(value, str) or not re.match(r"\d{4}-\d\d-\d\d[Tt ]", value):
        raise ValueError("a time such as 2026-11-15T06:30:00Z")
    return value


# A time that a caller gives: text, with a zone.
When = Annotated[
    AwareDatetime,
    Field(strict=False),
    BeforeValidator(_written),
    WithJsonSchema({"type": "string", "format": "date-time", "examples": ["2026-11-15T06:30:00Z"]}),
]
Id = Annotated[str, Field(examples=["0193f6a2-7b1c-7c3e-8d52-6f0a9e1b2c3d"])]
Text = Annotated[str, Field(min_length=1, max_length=request_checks.MAX_TEXT)]
# Items of a long list that are worked on without a break: a few milliseconds.
SOME = 500
Seconds = Annotated[float, Field(gt=0, le=request_checks.MAX_SECONDS)]


class ResponseModel(BaseModel):
    """Exactly these fields."""

    model_config = ConfigDict(extra="forbid")


class Body(BaseModel):
    """An unknown field is refused, so that a typo is not silently ignored; no type is guessed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    def given(self) -> dict[str, Any]:
        """What the caller said, and nothing else; as plain values."""
        return {name: _plain(getattr(self, name)) for name in self.model_fields_set}


def _plain(value: object) -> object:
    return value.given() if isinstance(value, Body) else value


def partial(body: type[Body]) -> type[Body]:
    """The same fields, none of them needed: for a PATCH, which changes what it names."""
    fields: dict[str, Any] = {}
    for name, field in body.model_fields.items():
        optional = copy(field)
        optional.default, optional.default_factory = None, None
        # Only what was given is looked at, so what stands here for the rest does not matter.
        fields[name] = (field.annotation, optional)
    return create_model(f"Partial{body.__name__}", __base__=Body, **fields)


class FieldProblem(ResponseModel):
    field: str = Field(description="Where, such as `jobs.3.params`; empty when it is the request as a whole")
    problem: str


class Problem(BaseModel):
    """RFC 9457. More data may follow where it helps, such as `cycle` or `ahead`."""

    type: str = Field(examples=["urn:nextslot:problem:not_found"])
    title: str
    status: int
    detail: str = Field(description="A sentence for people")
    code: str = Field(description="A word for programs", examples=["not_found"])
    errors: list[FieldProblem] | None = None


class Page(ResponseModel, Generic[T]):
    items: list[T]
    next_cursor: str | None = Field(description="The `cursor` of the next page; null: this is the last")


class RetryPolicy(ResponseModel):
    max_attempts: int
    backoff: Backoff
    base_delay_seconds: float
    max_delay_seconds: float | None
    jitter: float
    retry_on: list[FailureKind] | None


class Artifact(ResponseModel):
    name: str
    size: int
    path: str


class Job(ResponseModel):
    job_id: Id
    office_id: str
    template_id: str | None
    schedule_id: str | None
    group_id: str | None
    sequence: int | None = Field(description="Its place in its group, from 0")
    job_type: str
    params: dict[str, Any]
    status: JobStatus
    state: State = Field(description="Its status and its run's in one word")
    priority: int = Field(description="Higher goes first; 1,000,000 is urgent")
    position: int = Field(description="Among jobs of the same priority, lower goes first")
    attempt: int = Field(description="Its place in its chain, from 1")
    retry_of: str | None
    permanently_failed: bool
    scheduled_for: Time | None
    expires_at: Time | None
    depends_on: list[str]
    on_dependency_failure: OnDependencyFailure
    role: str | None
    task_id: str | None
    title: str | None
    resources: dict[str, int]
    timeout_seconds: float | None
    stall_timeout_seconds: float | None
    retry_policy: RetryPolicy
    webhook: dict[str, Any] | None
    webhook_status: Literal["none", "pending", "delivered", "failed"]
    unique_key: str | None
    created_by: str | None
    created_at: Time
    queued_at: Time
    started_at: Time | None
    finished_at: Time | None
    cancel_requested_at: Time | None
    cancel_mode: CancelMode | None
    cancelled_at: Time | None
    cancel_reason: str | None
    worker_id: str | None


class Run(ResponseModel):
    run_id: Id
    job_id: Id
    template_id: str | None
    params_snapshot: dict[str, Any]
    status: RunStatus | None = Field(description="null while it runs")
    started_at: Time
    timeout_at: Time | None
    finished_at: Time | None
    exit_code: int | None
    error: str | None
    failure_kind: FailureKind | None
    reason: str | None = Field(description="Why it was SKIPPED")
    artifacts: list[Artifact]
    log_path: str | None
    session_id: str | None
    result: Any = Field(description="What the work returned")


class Progress(ResponseModel):
    fraction: float | None
    text: str


class RunDetail(Run):
    progress: Progress | None = Field(description="While it runs, if it reports any")


class JobDetail(Job):
    run: Run | None
    chain: list[Job] = Field(description="The whole chain from its root, this job included")


class Group(ResponseModel):
    group_id: Id
    office_id: str
    name: str | None
    mode: GroupMode
    on_failure: OnFailure
    status: GroupStatus
    members: int
    ended: int = Field(description="How many members have ended; a member counts by the last job of its chain")
    succeeded: int
    cancelled: int
    created_at: Time
    started_at: Time | None
    finished_at: Time | None


class Direct(ResponseModel):
    direct_id: str
    office_id: str
    job_type: str
    params: dict[str, Any]
    status: DirectStatus
    result: Any
    error: str | None
    failure_kind: FailureKind | None
    reason: str | None
    exit_code: int | None
    artifacts: list[Artifact]
    log_path: str | None
    session_id: str | None
    detach: bool
    timeout_seconds: float
    stall_timeout_seconds: float | None
    created_by: str | None
    created_at: Time
    wait_until: Time
    started_at: Time | None
    timeout_at: Time | None
    finished_at: Time | None
    worker_id: str | None
    waited_seconds: float | None
    ran_seconds: float | None


class Reservation(ResponseModel):
    reservation_id: Id
    direct_id: str | None
    office_id: str
    reserved_at: Time
    reserved_by: str
    expires_at: Time
    status: Literal["ACTIVE", "RELEASED", "EXPIRED"]


class Event(ResponseModel):
    seq: int
    type: str
    office_id: str | None
    job_id: str | None
    run_id: str | None
    details: dict[str, Any]
    timestamp: Time


class WebhookBody(Body):
    url: Annotated[str, Field(max_length=request_checks.MAX_TEXT * 10, examples=["https://example.org/hook"])]
    events: list[str] | None = Field(None, description="Default: job.run.completed, job.run.failed, job.run.skipped")


class RetryPolicyBody(Body):
    """Any part may be given; the rest is the type's, or the office's."""

    max_attempts: int | None = Field(None, ge=0, le=1000, description="How many automatic retries")
    backoff: Literal["exponential", "linear"] | None = None
    base_delay_seconds: float | None = Field(None, ge=0, le=request_checks.MAX_SECONDS)
    max_delay_seconds: float | None = Field(None, ge=0, le=request_checks.MAX_SECONDS)
    jitter: float | None = Field(None, ge=0, le=1)
    retry_on: list[str] | None = None


class JobBody(Body):
    template_id: str | None = Field(None, description="Or `job_type`: one of the two is needed")
    job_type: Text | None = Field(None, examples=["thumbnail"])
    # From a factory: a default that can be changed would be copied, deeply, for every job of a batch.
    params: dict[str, Any] = Field(
        default_factory=dict, examples=[{"path": "a.png", "size": 256}], json_schema_extra={"default": {}}
    )
    priority: int = Field(0, ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    urgent: bool = Field(False, description="Before everything else in its office")
    scheduled_for: When | None = Field(None, description="Not before then")
    expires_at: When | None = Field(None, description="Cancelled if it has not started by then")
    depends_on: list[str] = Field(
        default_factory=list,
        description="Jobs of the same office, or keys of the same request",
        json_schema_extra={"default": []},
    )
    on_dependency_failure: Literal["wait", "cancel"] | None = None
    role: Text | None = None
    task_id: Text | None = None
    title: Text | None = None
    resources: dict[str, int] | list[str] | None = Field(None, description="Added to those of its type")
    timeout_seconds: Seconds | None = None
    stall_timeout_seconds: Seconds | None = None
    retry_policy: RetryPolicyBody | None = None
    webhook: WebhookBody | None = None
    unique_key: Text | None = Field(None, description="While a job with this key has not ended, it is the answer")
    office_id: str = "default"


class KeyedJobBody(JobBody):
    key: Text | None = Field(None, description="What `depends_on` of the same request may name")


def _later(value: object, validate: ValidatorFunctionWrapHandler) -> object:
    return value if isinstance(value, list) and SOME < len(value) <= MAX_BATCH else validate(value)


# A long list is only let through here: `jobs.new_jobs` validates it, some at a time.
KeyedJobs = Annotated[list[KeyedJobBody], Field(min_length=1, max_length=MAX_BATCH), WrapValidator(_later)]
