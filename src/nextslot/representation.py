"""How things look to the outside: the one JSON form that the API answers with and webhooks carry.

Pure: values in, plain JSON objects out. `api/schemas.py` declares the same forms for the OpenAPI document, and a test
holds the two together.
"""

from collections.abc import Mapping, Sequence

from .clock import Instant
from .model import Artifact, Direct, Event, Group, Job, Json, Office, Reservation, RetryPolicy, Run


def job(value: Job, attempt: int) -> dict[str, Json]:
    """`attempt` is the job's place in its chain, from 1."""
    return {
        "job_id": value.job_id,
        "office_id": value.office_id,
        "template_id": value.template_id,
        "schedule_id": value.schedule_id,
        "group_id": value.group_id,
        "sequence": value.sequence,
        "job_type": value.job_type,
        "params": value.params,
        "status": value.status,
        "state": value.state,
        "priority": value.priority,
        "position": value.position,
        "attempt": attempt,
        "retry_of": value.retry_of,
        "permanently_failed": value.permanently_failed,
        "scheduled_for": time(value.scheduled_for),
        "expires_at": time(value.expires_at),
        "depends_on": list(value.depends_on),
        "on_dependency_failure": value.on_dependency_failure,
        "role": value.role,
        "task_id": value.task_id,
        "title": value.title,
        "resources": value.resources,
        "timeout_seconds": value.timeout_seconds,
        "stall_timeout_seconds": value.stall_timeout_seconds,
        "retry_policy": retry_policy(value.retry_policy),
        "webhook": value.webhook,
        "webhook_status": value.webhook_status,
        "unique_key": value.unique_key,
        "created_by": value.created_by,
        "created_at": time(value.created_at),
        "queued_at": time(value.queued_at),
        "started_at": time(value.started_at),
        "finished_at": time(value.finished_at),
        "cancel_requested_at": time(value.cancel_requested_at),
        "cancel_mode": value.cancel_mode,
        "cancelled_at": time(value.cancelled_at),
        "cancel_reason": value.cancel_reason,
        "worker_id": value.worker_id,
    }


def run(value: Run) -> dict[str, Json]:
    return {
        "run_id": value.run_id,
        "job_id": value.job_id,
        "template_id": value.template_id,
        "params_snapshot": value.params_snapshot,
        "status": value.status,
        "started_at": time(value.started_at),
        "timeout_at": time(value.timeout_at),
        "finished_at": time(value.finished_at),
        "exit_code": value.exit_code,
        "error": value.error,
        "failure_kind": value.failure_kind,
        "reason": value.reason,
        "artifacts": artifacts(value.artifacts),
        "log_path": value.log_path,
        "session_id": value.session_id,
        "result": value.result,
    }


def group(value: Group) -> dict[str, Json]:
    return {
        "group_id": value.group_id,
        "office_id": value.office_id,
        "name": value.name,
        "mode": value.mode,
        "on_failure": value.on_failure,
        "status": value.status,
        "members": value.members,
        "ended": value.ended,
        "succeeded": value.succeeded,
        "cancelled": value.cancelled,
        "created_at": time(value.created_at),
        "started_at": time(value.started_at),
        "finished_at": time(value.finished_at),
    }


def direct(value: Direct) -> dict[str, Json]:
    return {
        "direct_id": value.direct_id,
        "office_id": value.office_id,
        "job_type": value.job_type,
        "params": value.params,
        "status": value.status,
        "result": value.result,
        "error": value.error,
        "failure_kind": value.failure_kind,
        "reason": value.reason,
        "exit_code": value.exit_code,
        "artifacts": artifacts(value.artifacts),
        "log_path": value.log_path,
        "session_id": value.session_id,
        "detach": value.is_detached,
        "timeout_seconds": value.timeout_seconds,
        "stall_timeout_seconds": value.stall_timeout_seconds,
        "created_by": value.created_by,
        "created_at": time(value.created_at),
        "wait_until": time(value.wait_until),
        "started_at": time(value.started_at),
        "timeout_at": time(value.timeout_at),
        "finished_at": time(value.finished_at),
        "worker_id": value.worker_id,
        "waited_seconds": value.waited_seconds,
        "ran_seconds": value.ran_seconds,
    }


def reservation(value: Reservation) -> dict[str, Json]:
    return {
        "reservation_id": value.reservation_id,
        "direct_id": value.direct_id,
        "office_id": value.office_id,
        "reserved_at": time(value.reserved_at),
        "reserved_by": value.reserved_by,
        "expires_at": time(value.expires_at),
        "status": value.status,
    }


def event(value: Event) -> dict[str, Json]:
    return {
        "seq": value.seq,
        "type": value.type,
        "office_id": value.office_id,
        "job_id": value.job_id,
        "run_id": value.run_id,
        "details": value.details,
        "timestamp": time(value.timestamp),
    }


def office(value: Office) -> dict[str, Json]:
    return {
        "office_id": value.office_id,
        "name": value.name,
        "status": "paused" if value.is_paused and value.status == "active" else value.status,
        "max_concurrent_jobs": value.max_concurrent_jobs,
        "role_limits": value.role_limits,
        "timeout_seconds": value.timeout_seconds,
        "retry_policy": retry_policy(value.retry_policy),
        "cancel_mode": value.cancel_mode,
        "on_dependency_failure": value.on_dependency_failure,
        "webhook": value.webhook,
        "created_at": time(value.created_at),
    }


def retry_policy(value: RetryPolicy) -> dict[str, Json]:
    return {
        "max_attempts": value.max_attempts,
        "backoff": value.backoff,
        "base_delay_seconds": value.base_delay_seconds,
        "max_delay_seconds": value.max_delay_seconds,
        "jitter": value.jitter,
        "retry_on": None if value.retry_on is None else list(value.retry_on),
    }


def artifacts(values: Sequence[Artifact]) -> list[Mapping[str, Json]]:
    return [{"name": one.name, "size": one.size, "path": one.path} for one in values]


def time(value: Instant | None) -> str | None:
    return None if value is None else str(value)
