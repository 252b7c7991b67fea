"""Makes the JSON of the office API's answers."""

from nextslot.domain import Event, Json, json_form

from .office_words import Execution, OfficeConfig, OfficeJob, OfficeRole, OfficeStats, milliseconds


def office_job(value: OfficeJob) -> dict[str, Json]:
    return {
        "job_id": value.job_id,
        "office_id": value.office_id,
        "job_type": value.job_type,
        "task_id": value.task_id,
        "role": value.role,
        "description": value.description,
        "status": value.status,
        "priority": value.priority,
        "aged_steps": value.aged_steps,
        "params": value.params,
        "timeout_ms": value.timeout_ms,
        "depends_on": list(value.depends_on),
        "blocked_by": [{"job_id": one.job_id, "status": one.status} for one in value.blocked_by],
        "retry_count": value.retry_count,
        "executions": [execution(one) for one in value.executions],
        "created_at": json_form.time(value.created_at),
        "started_at": json_form.time(value.started_at),
        "completed_at": json_form.time(value.completed_at),
        "cancelled_at": json_form.time(value.cancelled_at),
    }


def last_execution(value: OfficeJob) -> dict[str, Json] | None:
    return execution(value.executions[-1]) if value.executions else None


def execution(value: Execution) -> dict[str, Json]:
    return {
        "id": value.id,
        "job_id": value.job_id,
        "attempt": value.attempt,
        "started_at": json_form.time(value.started_at),
        "timeout_at": json_form.time(value.timeout_at),
        "completed_at": json_form.time(value.completed_at),
        "session_id": value.session_id,
        "status": value.status,
        "error_message": value.error_message,
        "created_at": json_form.time(value.created_at),
    }


def office_stats(value: OfficeStats) -> dict[str, Json]:
    return {
        "office_id": value.office_id,
        "pending": value.pending,
        "ready": value.ready,
        "processing": value.processing,
        "done": value.done,
        "failed": value.failed,
        "cancelled": value.cancelled,
        "avg_completion_time": value.avg_completion_time,
    }


def office_config(value: OfficeConfig) -> dict[str, Json]:
    """Returns the configuration with the camelCase names of the office API."""
    return {
        "maxConcurrentJobs": value.max_concurrent_jobs,
        "maxConcurrentByRole": value.max_concurrent_by_role,
        "defaultTimeout": value.default_timeout,
        "maxRetries": value.max_retries,
        "retryBackoff": value.retry_backoff,
        "retryBaseDelay": value.retry_base_delay,
        "retryOn": list(value.retry_on),
        "priorityAging": value.priority_aging,
    }


def office_role(value: OfficeRole) -> dict[str, Json]:
    """Returns a role without the values of its environment variables, which may be secrets."""
    return {
        "role": value.role,
        "command": None if value.command is None else list(value.command),
        "cwd": value.cwd,
        "env": sorted(value.env),
        "timeout_ms": None if value.timeout_seconds is None else milliseconds(value.timeout_seconds),
        "max_concurrent": value.max_concurrent,
        "is_own": value.is_own,
        "resume_args": list(value.resume_args),
        "resume_on": list(value.resume_on),
        "session_id_pattern": value.session_id_pattern,
    }


def office_event(value: Event) -> dict[str, Json]:
    return {
        "type": value.type,
        "job_id": value.job_id,
        "office_id": value.office_id,
        "details": value.details,
        "timestamp": json_form.time(value.timestamp),
    }
