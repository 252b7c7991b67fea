"""The words of the old `/jobs` endpoints (CON-004): a chain is one old job, a parallel group one old batch.

Pure functions and values: `legacy_service` returns stored jobs in these forms, and `messages` reports them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import format_datetime
from urllib.parse import quote

from nextslot.domain import DEFAULT_OFFICE, Group, GroupStatus, Job, JobStatus, Json, Run, RunStatus
from nextslot.errors import Invalid, Problem
from nextslot.system.instant import Instant

# The old service's names of the job types.
TYPES: Mapping[str, str] = {"story": "story_generation", "research": "research"}
JOB_TYPES: Mapping[str, str] = {word: job_type for job_type, word in TYPES.items()}
STATUSES: Mapping[JobStatus, str] = {
    JobStatus.WAITING: "queued",
    JobStatus.QUEUED: "queued",
    JobStatus.RUNNING: "running",
    JobStatus.COMPLETED: "succeeded",
    JobStatus.FAILED: "failed",
    JobStatus.CANCELLED: "cancelled",
    JobStatus.SKIPPED: "skipped",
}
RUN_STATUSES: Mapping[RunStatus, str] = {
    RunStatus.COMPLETED: "succeeded",
    RunStatus.FAILED: "failed",
    RunStatus.SKIPPED: "skipped",
}
# The stored status of a chain's last job, by the old status.
STORED: Mapping[str, str] = {word: status.value for status, word in STATUSES.items()}
# A batch that is `partial` has successes and failures: a webhook for either gets its message.
PARTIAL = "partial"
WEBHOOK_EVENTS = ("succeeded", "failed", "skipped")
# Marks the webhook of a job or batch whose messages have the old form.
FORMAT = "legacy"
USER_AGENT = "HorrorStoryGenerator/1.3"

# 2026-11-15 and a year later (RFC 9745, RFC 8594).
DEPRECATED_SINCE = Instant(1_794_700_800_000_000)
SUNSET = Instant(1_826_236_800_000_000)

# The similarity of two research cards: the share of runs of three words that they have in common.
HIGH = 0.8
MEDIUM = 0.4


@dataclass(frozen=True, slots=True)
class OldJob:
    """A chain as one old job: the first job's id, the last job's status."""

    root: Job
    last: Job
    run: Run | None
    # Why its webhook was not delivered (yet).
    webhook_error: str | None = None

    @property
    def status(self) -> str:
        return STATUSES[self.last.status]

    @property
    def error(self) -> str | None:
        """Returns the error of a chain that has ended; None while the chain waits for a retry."""
        if self.run is not None:
            return self.run.error
        return self.last.cancel_reason

    @property
    def artifacts(self) -> list[str]:
        return [] if self.run is None else [one.path for one in self.run.artifacts]


@dataclass(frozen=True, slots=True)
class OldBatch:
    group: Group
    members: Sequence[OldJob]
    webhook: Mapping[str, Json] | None
    webhook_sent: bool = False


@dataclass(frozen=True, slots=True)
class DedupCheck:
    """The similarity of a research card to earlier ones; without a card there is no score."""

    job: OldJob
    artifact_path: str | None = None
    score: float | None = None
    # The job whose card is most similar.
    like: str | None = None


def is_old(job: Job) -> bool:
    """Returns whether the old endpoints show this job."""
    return job.office_id == DEFAULT_OFFICE and job.job_type in TYPES


def webhook(url: str | None, wanted: Sequence[str]) -> dict[str, Json] | None:
    """Makes the webhook of a job or a batch; None without a URL or without events."""
    return {"url": url, "events": list(wanted), "format": FORMAT} if url is not None and wanted else None


def trigger(old: OldJob, notes: Sequence[str]) -> dict[str, Json]:
    place = "is in the queue" if old.status == "queued" else f"is {old.status}"
    return {
        "job_id": old.root.job_id,
        "type": TYPES[old.root.job_type],
        "status": old.status,
        "message": _sentences(f"The job {place}", *notes),
    }


def job(old: OldJob) -> dict[str, Json]:
    given = old.root.webhook or {}
    return {
        "job_id": old.root.job_id,
        "type": TYPES[old.root.job_type],
        "status": old.status,
        "params": params(old.root),
        # The work runs inside the scheduler and has no process of its own.
        "pid": None,
        "log_path": None if old.run is None else old.run.log_path,
        "artifacts": old.artifacts,
        "created_at": _time(old.root.created_at),
        # A retry follows a run, so the first job of a chain is the first that started.
        "started_at": _time(old.root.started_at),
        "finished_at": _time(old.last.finished_at),
        "exit_code": None if old.run is None else old.run.exit_code,
        "error": old.error,
        "webhook_url": given.get("url"),
        "webhook_events": events(given),
        "webhook_sent": old.last.webhook_status == "delivered",
        "webhook_error": old.webhook_error,
    }


def params(root: Job) -> dict[str, Json]:
    """Returns the parameters of the old request: those of the job, and the webhook."""
    given = root.webhook or {}
    return {**root.params, "webhook_url": given.get("url"), "webhook_events": events(given)}


def monitored(old: OldJob) -> dict[str, Json]:
    return {
        "job_id": old.root.job_id,
        "status": old.status,
        "pid": None,
        "artifacts": old.artifacts,
        "error": old.error,
        "message": f"The job is {old.status}",
        "reason": None if old.run is None else old.run.reason,
        "webhook_processed": old.last.webhook_status in ("delivered", "failed"),
    }


def batch_trigger(old: OldBatch, notes: Sequence[str]) -> dict[str, Json]:
    return {
        "batch_id": old.group.group_id,
        "job_ids": [one.root.job_id for one in old.members],
        "job_count": len(old.members),
        "status": batch_status(old),
        "message": _sentences(f"{len(old.members)} jobs are in the queue", *notes),
    }


def batch(old: OldBatch) -> dict[str, Json]:
    counts = [one.status for one in old.members]
    ended = old.group.ended
    return {
        "batch_id": old.group.group_id,
        "status": batch_status(old),
        "total_jobs": len(old.members),
        "completed_jobs": ended,
        "succeeded_jobs": counts.count("succeeded"),
        "failed_jobs": counts.count("failed") + counts.count("cancelled"),
        "running_jobs": counts.count("running"),
        "queued_jobs": counts.count("queued"),
        "jobs": [_member(one) for one in old.members],
        "created_at": _time(old.group.created_at),
        "finished_at": _time(old.group.finished_at),
        "webhook_url": None if old.webhook is None else old.webhook["url"],
        "webhook_sent": old.webhook_sent,
        "message": f"{ended} of {len(old.members)} jobs have ended",
    }


def batch_status(old: OldBatch) -> str:
    """Returns the status of a batch. Cancelled members count as failed, skipped ones as neither."""
    if old.group.status is GroupStatus.QUEUED:
        return "queued"
    if old.group.finished_at is None:
        return "running"
    words = {one.status for one in old.members}
    if not words & {"failed", "cancelled"}:
        return "succeeded"
    return PARTIAL if "succeeded" in words else "failed"


def hears_of_batch(given: Mapping[str, Json], status: str) -> bool:
    wanted = events(given)
    return status in wanted or (status == PARTIAL and bool({"succeeded", "failed"} & set(wanted)))


def dedup_check(found: DedupCheck) -> dict[str, Json]:
    old = found.job
    if found.artifact_path is None:
        is_research = old.root.job_type == "research"
        what = f"The job is {old.status}" if is_research else "Only research jobs are compared"
        message = f"{what}: it has no research card"
    elif found.like is None:
        message = "There is no earlier research card to compare it with"
    else:
        message = f"The most similar earlier card is {found.like}"
    return {
        "job_id": old.root.job_id,
        "has_artifact": found.artifact_path is not None,
        "artifact_path": found.artifact_path,
        "signal": None if found.score is None else signal(found.score),
        "similarity_score": found.score,
        "message": message,
    }


def signal(score: float) -> str:
    return "HIGH" if score >= HIGH else "MEDIUM" if score >= MEDIUM else "LOW"


def in_old_words(problem: Problem) -> Problem:
    """Translates a field: our `jobs.0.params.topic` is the old `jobs.0.topic`."""
    field = problem.field.replace("webhook.", "webhook_").replace("params.", "")
    return Problem("" if field == "params" else field, problem.problem)


def refusal(error: Invalid) -> Invalid:
    """Returns the same error with the old field names; its code stays."""
    error.problems = [in_old_words(problem) for problem in error.problems]
    error.args = ("; ".join(str(problem) for problem in error.problems),)
    return error


def ignored(fields: Sequence[str], why: str) -> str:
    """Makes a note about ignored fields."""
    return f"Ignored, {why}: {', '.join(fields)}"


# Deprecation.


def headers(path: str, prefix: str = "") -> dict[str, str]:
    """Returns the headers of every answer: since when the path is deprecated, its last day, and its successor."""
    return {
        "Deprecation": f"@{DEPRECATED_SINCE // 1_000_000}",
        "Sunset": format_datetime(SUNSET.as_datetime(), usegmt=True),
        "Link": f'<{prefix}{successor(path)}>; rel="successor-version"',
    }


def successor(path: str) -> str:
    """Returns the new path that does the same; ids are quoted, because they may have any character."""
    match path.split("/")[2:]:
        case ["batch", "trigger"]:
            return "/api/job-groups"
        case ["batch", batch_id]:
            return f"/api/job-groups/{quote(batch_id, safe='')}"
        case ["monitor"] | [_, "trigger"]:
            return "/api/jobs"
        case [job_id, "cancel"]:
            return f"/api/jobs/{quote(job_id, safe='')}/cancel"
        case [job_id, *_]:
            return f"/api/jobs/{quote(job_id, safe='')}"
        case _:
            return "/api/jobs"


def _member(old: OldJob) -> dict[str, Json]:
    return {
        "job_id": old.root.job_id,
        "type": TYPES.get(old.root.job_type, old.root.job_type),
        "status": old.status,
        "error": old.error,
    }


def events(given: Mapping[str, Json]) -> list[str]:
    """Returns the events of a webhook: those that it names, else all."""
    return list(given.get("events") or WEBHOOK_EVENTS)


def _sentences(*parts: str) -> str:
    return ". ".join(parts)


def _time(value: Instant | None) -> str | None:
    return None if value is None else str(value)
