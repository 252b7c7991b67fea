"""Makes the JSON of the office API's answers."""

from nextslot.domain import Event, Json, json_form

from .office_words import OfficeConfig, OfficeRole, milliseconds


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
