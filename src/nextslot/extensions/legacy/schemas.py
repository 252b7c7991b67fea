"""The bodies and answers of the old endpoints. Bodies note unknown fields; those of the new API refuse them."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from nextslot.domain.request_checks import MAX_SECONDS, MAX_TEXT
from nextslot.server.schemas import Id, ResponseModel, Time

from . import old_words

Status = Literal["queued", "running", "succeeded", "failed", "cancelled", "skipped"]
BatchStatus = Literal["queued", "running", "succeeded", "failed", "partial"]
Type = Literal["story_generation", "research"]
Event = Literal["succeeded", "failed", "skipped"]
Url = Annotated[str, Field(max_length=MAX_TEXT * 10, examples=["https://example.org/hook"])]
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Tags = Annotated[list[Annotated[str, Field(min_length=1, max_length=100)]], Field(max_length=50)]
Model = Annotated[str, Field(min_length=1, max_length=200, description="None: the configured one")]
Length = Annotated[int, Field(ge=300, le=10_000, description="Characters, about")]
Timeout = Annotated[int, Field(ge=1, le=86_400, description="Seconds; 300 unless said")]

# The timeout of research in the old service, in seconds.
RESEARCH_SECONDS = 300


class OldBody(BaseModel):
    """A strict body. Unknown fields are ignored, as the old service did, and noted in the answer."""

    model_config = ConfigDict(extra="allow", strict=True)

    # Fields that old clients send and that have no effect.
    WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset()

    def notes(self, prefix: str = "") -> list[str]:
        given = sorted(name for name in self.WITHOUT_EFFECT if self._is_said(name))
        unknown = sorted(self.model_extra or {})
        noted = [(given, "without effect here"), (unknown[:20], "not known")]
        return [old_words.ignored([f"{prefix}{name[:100]}" for name in names], why) for names, why in noted if names]

    def _is_said(self, name: str) -> bool:
        return name in self.model_fields_set and getattr(self, name) != type(self).model_fields[name].default


class Hooked(OldBody):
    webhook_url: Url | None = None
    webhook_events: Annotated[list[Event], Field(max_length=10)] = Field(list(old_words.WEBHOOK_EVENTS))  # type: ignore[arg-type]

    def webhook(self) -> dict[str, Any] | None:
        return old_words.webhook(self.webhook_url, self.webhook_events)


class StoryTrigger(Hooked):
    WITHOUT_EFFECT = frozenset({"duration_seconds", "interval_seconds", "db_path", "load_history"})

    max_stories: int = Field(1, ge=1, le=100)
    duration_seconds: Annotated[int, Field(ge=1, le=MAX_SECONDS)] | None = Field(None, description="Without effect")
    interval_seconds: int = Field(0, ge=0, le=MAX_SECONDS, description="Without effect")
    enable_dedup: bool = False
    db_path: str | None = Field(None, description="Without effect: clients choose no paths")
    load_history: bool = Field(False, description="Without effect: `enable_dedup` knows the history")
    model: Model | None = None
    target_length: Length | None = None

    def params(self) -> dict[str, Any]:
        return _story(self)


class ResearchTrigger(Hooked):
    topic: Annotated[
        str, Field(max_length=MAX_TEXT, description="10 to 200 characters", examples=["how tides turn turbines"])
    ]
    tags: Tags = Field([])
    model: Model | None = None
    timeout: Timeout | None = None

    def params(self) -> dict[str, Any]:
        return _research(self)


class BatchJob(OldBody):
    type: Literal["research", "story"]
    topic: Text | None = Field(None, description="Needed for research: 10 to 200 characters")
    tags: Tags = Field([])
    max_stories: int = Field(1, ge=1, le=100)
    enable_dedup: bool = False
    target_length: Length | None = None
    model: Model | None = None
    timeout: Timeout | None = None

    def params(self) -> dict[str, Any]:
        if self.type == "research":
            # Without `topic` the check of the parameters names the missing field.
            return {name: value for name, value in _research(self).items() if name != "topic" or value is not None}
        return {**_story(self), "topic": self.topic, "tags": self.tags}

    def notes(self, prefix: str = "") -> list[str]:
        foreign = {"max_stories", "enable_dedup", "target_length"} if self.type == "research" else {"timeout"}
        said = sorted(f"{prefix}{name}" for name in foreign if self._is_said(name))
        return [*super().notes(prefix), *([old_words.ignored(said, f"not for a {self.type} job")] if said else [])]


class BatchTrigger(Hooked):
    jobs: Annotated[list[BatchJob], Field(min_length=1, max_length=50)]

    def notes(self, prefix: str = "") -> list[str]:
        inside = [note for index, job in enumerate(self.jobs) for note in job.notes(f"jobs.{index}.")]
        return [*super().notes(prefix), *inside]


class ListQuery(BaseModel):
    status: Status | None = None
    type: Type | None = None
    limit: int = Field(50, ge=1, le=200)


def _story(body: StoryTrigger | BatchJob) -> dict[str, Any]:
    return {
        "max_stories": body.max_stories,
        "enable_dedup": body.enable_dedup,
        "model": body.model,
        "target_length": body.target_length,
    }


def _research(body: ResearchTrigger | BatchJob) -> dict[str, Any]:
    # A model that hangs must not hold the only slot for ever.
    timeout = RESEARCH_SECONDS if body.timeout is None else body.timeout
    return {"topic": body.topic, "tags": body.tags, "model": body.model, "timeout": timeout}


# Answers.


class Triggered(ResponseModel):
    job_id: Id
    type: Type
    status: Status
    message: str


class JobStatus(ResponseModel):
    job_id: Id
    type: Type
    status: Status
    params: dict[str, Any]
    pid: int | None
    log_path: str | None
    artifacts: list[str]
    created_at: Time
    started_at: Time | None
    finished_at: Time | None
    exit_code: int | None
    error: str | None
    webhook_url: str | None
    webhook_events: list[str]
    webhook_sent: bool
    webhook_error: str | None


class JobList(ResponseModel):
    jobs: list[JobStatus]
    total: int = Field(description="How many there are, not how many are shown")
    message: str


class JobCancelled(ResponseModel):
    job_id: str
    success: bool
    message: str
    error: str | None


class Monitored(ResponseModel):
    job_id: str
    status: Status | None = Field(description="null: there is no such job")
    pid: int | None
    artifacts: list[str]
    error: str | None
    message: str
    reason: str | None = Field(description="Why it was skipped")
    webhook_processed: bool


class AllMonitored(ResponseModel):
    monitored_count: int
    results: list[Monitored]


class DedupCheck(ResponseModel):
    job_id: Id
    has_artifact: bool
    artifact_path: str | None
    signal: Literal["LOW", "MEDIUM", "HIGH"] | None
    similarity_score: float | None
    message: str


class BatchTriggered(ResponseModel):
    batch_id: Id
    job_ids: list[Id]
    job_count: int
    status: BatchStatus
    message: str


class BatchMember(ResponseModel):
    job_id: Id
    type: Type
    status: Status
    error: str | None


class Batch(ResponseModel):
    batch_id: Id
    status: BatchStatus
    total_jobs: int
    completed_jobs: int = Field(description="Those that have ended, whatever their end")
    succeeded_jobs: int
    failed_jobs: int = Field(description="Failed or cancelled")
    running_jobs: int
    queued_jobs: int
    jobs: list[BatchMember]
    created_at: Time
    finished_at: Time | None
    webhook_url: str | None
    webhook_sent: bool
    message: str
