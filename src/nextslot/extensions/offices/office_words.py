"""The words of the office API (spec 14): a chain of jobs is one office job, and its runs are that job's executions.

Pure: `office_jobs` reads what is stored and `office_service` says it in these words.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Generic

from nextslot.domain import (
    MAX_PRIORITY,
    URGENT,
    Backoff,
    Decision,
    Event,
    FailureKind,
    Job,
    JobStatus,
    Json,
    NewJob,
    Office,
    RunStatus,
    Stage,
    request_checks,
)
from nextslot.domain.declared_values import At, Says, Value
from nextslot.domain.failures import RETRYABLE
from nextslot.domain.offices import OFFICE_RETRIES
from nextslot.errors import MOST_PROBLEMS, Invalid, Problem
from nextslot.system.instant import Instant

# The job type of jobs without a type: the command of their role.
SESSION = "session"


class OfficeJobStatus(StrEnum):
    PENDING = "pending"
    READY = "ready"
    PROCESSING = "processing"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    # Waiting for its time again after a timeout; in the statistics it is pending.
    TIMEOUT = "timeout"


class ExecutionStatus(StrEnum):
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"


class Execution(Value, Generic[At]):
    """The n-th job of a chain and its run: one attempt, one session."""

    id: str
    job_id: str
    attempt: int
    started_at: At
    timeout_at: At | None
    completed_at: At | None
    session_id: str | None
    status: ExecutionStatus
    error_message: str | None
    created_at: At


class Blocker(Value):
    """A prerequisite that a job still waits for, with its status."""

    job_id: str
    status: OfficeJobStatus


class OfficeJob(Value, Generic[At]):
    """A chain as one office job, under the id of its first job."""

    job_id: str
    office_id: str
    job_type: str
    task_id: str | None
    role: str | None
    description: str | None
    status: OfficeJobStatus
    priority: int
    aged_steps: Annotated[int, Says("By how many priorities it goes before others because it was ready for long")]
    params: Mapping[str, Json]
    timeout_ms: int | None
    depends_on: tuple[str, ...]
    blocked_by: Annotated[tuple[Blocker, ...], Says("The prerequisites that still hold it")]
    retry_count: int
    executions: tuple[Execution[At], ...]
    created_at: At
    started_at: At | None
    completed_at: At | None
    cancelled_at: At | None


class OfficeStats(Value):
    office_id: str
    pending: int
    ready: int
    processing: int
    done: int
    failed: int
    cancelled: int
    avg_completion_time: Annotated[
        float, Says("Milliseconds from the first start to the completion, on average; 0 if no job has been completed")
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfficeRole:
    """How an office runs the jobs of a role: by its own settings, else by the configuration, else by default."""

    role: str
    command: tuple[str, ...] | None
    cwd: str | None
    env: Mapping[str, str]
    timeout_seconds: float | None
    max_concurrent: int | None
    is_own: bool
    resume_args: tuple[str, ...]
    resume_on: tuple[str, ...]
    session_id_pattern: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OfficeConfig:
    """An office's settings by the names and units of the office API: times are milliseconds."""

    max_concurrent_jobs: int
    max_concurrent_by_role: Mapping[str, int]
    default_timeout: float | None
    max_retries: int
    retry_backoff: Backoff
    retry_base_delay: float
    # The failure kinds that are retried in addition to those that every office retries.
    retry_on: tuple[FailureKind, ...]
    # The period after which a ready job gains one priority; None if jobs do not age.
    priority_aging: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OfficeEvents:
    """Events of an office, oldest first. `next_cursor` is None on the last page; later events follow `next_after`."""

    items: tuple[Event, ...]
    next_cursor: str | None
    next_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The fields of a run that the office API shows."""

    run_id: str
    status: RunStatus | None
    started_at: Instant
    timeout_at: Instant | None
    finished_at: Instant | None
    session_id: str | None
    error: str | None
    failure_kind: FailureKind | None


def status_of(chain: Sequence[Job], runs: Mapping[str, RunFacts]) -> OfficeJobStatus:
    """Returns the status of a chain, which follows from its last job."""
    last = chain[-1]
    match last.status:
        case JobStatus.WAITING:
            before = None if last.retry_of is None else runs.get(last.retry_of)
            return _waiting(before)
        case JobStatus.QUEUED:
            return OfficeJobStatus.READY
        case JobStatus.RUNNING:
            return OfficeJobStatus.PROCESSING
        case JobStatus.CANCELLED:
            return OfficeJobStatus.CANCELLED
        case JobStatus.FAILED:
            # UNDECIDED: recovery has not decided yet whether the job is retried. RETRY: the transaction that ends the
            # run stores the retry after the message about the failure.
            has_retry = last.decision in (Decision.UNDECIDED, Decision.RETRY)
            return _waiting(runs.get(last.job_id)) if has_retry else OfficeJobStatus.FAILED
        case JobStatus.COMPLETED | JobStatus.SKIPPED:
            return OfficeJobStatus.DONE


def _waiting(before: RunFacts | None) -> OfficeJobStatus:
    """Returns the status of a job that waits, by the run before, if there is one."""
    timed_out = before is not None and before.failure_kind is FailureKind.TIMEOUT
    return OfficeJobStatus.TIMEOUT if timed_out else OfficeJobStatus.PENDING


def execution_status(run: RunFacts) -> ExecutionStatus:
    if run.status is None:
        return ExecutionStatus.RUNNING
    if run.status is not RunStatus.FAILED:
        return ExecutionStatus.COMPLETED
    if run.failure_kind is FailureKind.TIMEOUT:
        return ExecutionStatus.TIMEOUT
    return ExecutionStatus.CANCELLED if run.failure_kind is FailureKind.CANCELLED else ExecutionStatus.FAILED


def executions_of(chain: Sequence[Job], runs: Mapping[str, RunFacts]) -> tuple[Execution, ...]:
    """Returns the jobs of a chain that were started, with their places in it."""
    return tuple(
        Execution(
            id=run.run_id,
            job_id=chain[0].job_id,
            attempt=attempt,
            started_at=run.started_at,
            timeout_at=run.timeout_at,
            completed_at=run.finished_at,
            session_id=run.session_id,
            status=execution_status(run),
            error_message=run.error,
            created_at=job.created_at,
        )
        for attempt, job in enumerate(chain, start=1)
        if (run := runs.get(job.job_id)) is not None
    )


def office_job(chain: Sequence[Job], runs: Mapping[str, RunFacts], blocked_by: Sequence[Blocker] = ()) -> OfficeJob:
    root, last = chain[0], chain[-1]
    status = status_of(chain, runs)
    executions = executions_of(chain, runs)
    has_result = status in (OfficeJobStatus.DONE, OfficeJobStatus.FAILED)
    return OfficeJob(
        job_id=root.job_id,
        office_id=root.office_id,
        job_type=root.job_type,
        task_id=root.task_id,
        role=root.role,
        description=last.title,
        status=status,
        priority=-last.priority,
        aged_steps=last.aged_steps,
        params=last.params,
        timeout_ms=None if last.timeout_seconds is None else round(last.timeout_seconds * 1000),
        depends_on=root.depends_on,
        blocked_by=tuple(blocked_by) if last.stage is Stage.QUEUED else (),
        retry_count=len(chain) - 1,
        executions=executions,
        created_at=root.created_at,
        started_at=executions[0].started_at if executions else None,
        completed_at=last.finished_at if has_result else None,
        cancelled_at=last.cancelled_at,
    )


def event_details(details: Mapping[str, Json]) -> dict[str, Json]:
    """Translates the details of an event: the sign of a priority, milliseconds, and attempts in place of retry jobs."""
    told = {name: value for name, value in details.items() if name not in _ENGINE_DETAILS}
    if "priority" in details:
        told["priority"] = -details["priority"]
    if "delay_seconds" in details:
        told["delay_ms"] = milliseconds(details["delay_seconds"])
    if "number" in details:
        told["attempt"] = details["number"] + 1
    return told


# `retry` is the id of a job that the office API does not know: there, a retry is an attempt of the same job.
_ENGINE_DETAILS = ("priority", "position", "delay_seconds", "number", "retry")


# Requests.

_JOB_FIELDS = {
    "key", "description", "role", "priority", "depends_on", "timeout_ms", "params", "urgent", "job_type",
    "await_signal",
}  # fmt: skip
# The office API's name of each field of a job, for error messages.
_NAMES = {"title": "description", "timeout_seconds": "timeout_ms"}
# Fields of a request that do not belong to one of its jobs.
_OF_REQUEST = ("jobs", "idempotency_key")


def new_jobs(
    office_id: str, items: Sequence[Mapping[str, Any]], task_id: str | None, created_by: str | None = None
) -> list[NewJob]:
    """Translates the jobs of a request; raises Invalid with everything that cannot be translated."""
    if not isinstance(items, (list, tuple)):
        raise Invalid("a list of jobs", field="jobs")
    problems: list[Problem] = []
    wanted: list[NewJob] = []
    for index, item in enumerate(items):
        found = list(_item_problems(item))
        problems += [Problem(f"jobs.{index}.{one.field}".rstrip("."), one.problem) for one in found]
        if len(problems) >= MOST_PROBLEMS:
            break
        if not found:
            wanted.append(_new_job(office_id, item, task_id, created_by))
    if problems:
        raise Invalid(problems)
    return wanted


def _new_job(office_id: str, item: Mapping[str, Any], task_id: str | None, created_by: str | None) -> NewJob:
    timeout_ms = item.get("timeout_ms")
    return NewJob(
        job_type=item.get("job_type") or SESSION,
        params=item.get("params") or {},
        office_id=office_id,
        key=item.get("key"),
        priority=engine_priority(item.get("priority", 0)),
        urgent=item.get("urgent", False),
        depends_on=item.get("depends_on") or (),
        role=item.get("role"),
        task_id=task_id,
        title=item["description"],
        timeout_seconds=None if timeout_ms is None else timeout_ms / 1000,
        await_signal=item.get("await_signal"),
        created_by=created_by,
    )


def _item_problems(item: object) -> Iterator[Problem]:
    if not isinstance(item, Mapping):
        yield Problem("", "must be an object")
        return
    for name in sorted(map(str, item.keys() - _JOB_FIELDS)):
        yield Problem(name, "an office job has no such field; it has " + ", ".join(sorted(_JOB_FIELDS)))
    if "description" not in item:
        yield Problem("description", "says what is to be done, and is missing")
    timeout_ms = item.get("timeout_ms")
    if timeout_ms is not None and not request_checks.is_number(
        timeout_ms, above=0, most=request_checks.MAX_SECONDS * 1000
    ):
        yield Problem("timeout_ms", "a number of milliseconds above 0")
    if type(item.get("urgent", False)) is not bool:
        yield Problem("urgent", "true or false")
    yield from priority_problems(item.get("priority", 0))


def priority_problems(priority: object) -> Iterator[Problem]:
    if type(priority) is not int or not (-MAX_PRIORITY <= priority <= MAX_PRIORITY or priority == -URGENT):
        yield Problem("priority", f"a whole number from -{MAX_PRIORITY:,} to {MAX_PRIORITY:,}; the lower, the sooner")


def engine_priority(priority: int) -> int:
    """Translates a priority: in the office API the lower goes first, in the engine the higher."""
    return -priority


def in_office_words(error: Invalid, count: int) -> Invalid:
    """Translates an error of the engine to the field names of the request; for one job without its number."""
    return Invalid([Problem(_in_office_words(problem.field, count), problem.problem) for problem in error.problems])


def _in_office_words(field: str, count: int) -> str:
    """Translates `title` or `jobs.3.title`; fields further inside (`params.title`) are the caller's own."""
    parts = field.split(".")
    place = 2 if parts[0] == "jobs" else 0
    parts[place : place + 1] = [_NAMES.get(name, name) for name in parts[place : place + 1]]
    is_of_its_job = count == 1 and parts[0] not in _OF_REQUEST
    return ".".join(["jobs.0", *parts] if is_of_its_job else parts)


# Configuration.

_SETTINGS = {
    "maxConcurrentJobs": "max_concurrent_jobs",
    "maxConcurrentByRole": "role_limits",
    "defaultTimeout": "timeout_seconds",
    "maxRetries": "max_attempts",
    "retryBackoff": "backoff",
    "retryBaseDelay": "base_delay_seconds",
    "retryOn": "retry_on",
    "priorityAging": "priority_aging_seconds",
}
# Settings in milliseconds, with the smallest value of each.
_MILLISECONDS = {"defaultTimeout": 0, "retryBaseDelay": 0, "priorityAging": 1000}
_OF_POLICY = {"maxRetries", "retryBackoff", "retryBaseDelay", "retryOn"}


def config_of(office: Office) -> OfficeConfig:
    timeout = office.timeout_of(None)
    return OfficeConfig(
        max_concurrent_jobs=office.max_concurrent_jobs,
        max_concurrent_by_role=office.role_limits,
        default_timeout=None if timeout is None else milliseconds(timeout),
        max_retries=office.retry_policy.max_attempts,
        retry_backoff=office.retry_policy.backoff,
        retry_base_delay=milliseconds(office.retry_policy.base_delay_seconds),
        retry_on=_added_kinds(office.retry_policy.retry_on),
        priority_aging=None if office.priority_aging_seconds is None else milliseconds(office.priority_aging_seconds),
    )


def _added_kinds(retry_on: Sequence[FailureKind] | None) -> tuple[FailureKind, ...]:
    """Returns the kinds that an office retries besides the usual ones and `quota`, which is always retried; None stands
    for all that can be retried."""
    kinds = RETRYABLE if retry_on is None else retry_on
    return tuple(sorted(kind for kind in kinds if kind not in (*OFFICE_RETRIES, FailureKind.QUOTA)))


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Translates changes from the office API's names and units; `null` for a map or a time means none."""
    problems = list(_config_problems(config))
    if problems:
        raise Invalid(problems)
    settings: dict[str, Any] = {}
    for name, value in config.items():
        if name in _MILLISECONDS and value is not None:
            value = value / 1000
        if name == "retryOn":
            value = [*OFFICE_RETRIES, *(value or ())]
        into = settings.setdefault("retry_policy", {}) if name in _OF_POLICY else settings
        into[_SETTINGS[name]] = value
    return settings


def with_limits_of_roles(settings: Mapping[str, Any], office: Office) -> Mapping[str, Any]:
    """Completes translated changes with the limits of the other roles of an office: a map of limits changes the named
    roles only, and `null` for a role takes its limit away.
    """
    if "role_limits" not in settings:
        return settings
    given = settings["role_limits"]
    limits = {} if given is None else {**office.role_limits, **given}
    return {**settings, "role_limits": {role: limit for role, limit in limits.items() if limit is not None}}


def in_config_words(error: Invalid) -> Invalid:
    """Translates an error about a setting to its name in the office API."""
    names = {setting: name for name, setting in _SETTINGS.items()}

    def renamed(field: str) -> str:
        setting, dot, part = field.removeprefix("retry_policy.").partition(".")
        return names.get(setting, setting) + dot + part

    return Invalid([Problem(renamed(problem.field), problem.problem) for problem in error.problems])


def _config_problems(config: object) -> Iterator[Problem]:
    if not isinstance(config, Mapping):
        yield Problem("", "must be an object")
        return
    for name in sorted(map(str, config.keys() - _SETTINGS.keys())):
        yield Problem(name, "there is no such setting; there are " + ", ".join(_SETTINGS))
    for name in _MILLISECONDS.keys() & config.keys():
        value, least = config[name], _MILLISECONDS[name]
        is_none = value is None and name != "retryBaseDelay"
        most = request_checks.MAX_SECONDS * 1000
        if not is_none and not request_checks.is_number(value, above=least - 1e-9, most=most):
            yield Problem(name, "a number of milliseconds" + (f" from {least:,}, or null" if least else ""))
    if not isinstance(config.get("maxConcurrentByRole", {}), Mapping | None):
        yield Problem("maxConcurrentByRole", "must be an object: limits by role")
    if config.get("retryOn") is not None and (problem := request_checks.kinds_problem(config["retryOn"])):
        yield Problem("retryOn", problem)


def milliseconds(seconds: float) -> float:
    """Converts seconds to milliseconds; whole numbers are integers."""
    value = seconds * 1000
    return round(value) if abs(value - round(value)) < 1e-6 else value
