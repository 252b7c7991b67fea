"""How things look to the outside: the one JSON form that the API answers with and webhooks carry.

Pure: values in, plain JSON objects out. `server/schemas.py` declares the same forms for the OpenAPI document, and a
test holds the two together.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from nextslot.system.clock import Instant

from . import (
    Artifact,
    Attempt,
    AuditEntry,
    Delivery,
    Direct,
    Event,
    Expected,
    Forecast,
    Group,
    Job,
    Json,
    Key,
    Node,
    Occurrence,
    Office,
    Reservation,
    RetryPolicy,
    Run,
    Schedule,
    SchedulerStatus,
    Scope,
    Template,
    Upcoming,
    Webhook,
    Why,
    cron,
)


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


def template(value: Template) -> dict[str, Json]:
    return {
        "template_id": value.template_id,
        "name": value.name,
        "description": value.description,
        "job_type": value.job_type,
        "params": value.params,
        "priority": value.priority,
        "timeout_seconds": value.timeout_seconds,
        "retry_policy": value.retry_policy,
        "resources": value.resources,
        "webhook": value.webhook,
        "created_at": time(value.created_at),
        "archived_at": time(value.archived_at),
    }


def schedule(value: Schedule) -> dict[str, Json]:
    """`cron_words` says the expression in words."""
    return {
        "schedule_id": value.schedule_id,
        "template_id": value.template_id,
        "office_id": value.office_id,
        "name": value.name,
        "cron_expression": value.cron_expression,
        "cron_words": cron.in_words(value.cron_expression),
        "timezone": value.timezone,
        "enabled": value.enabled,
        "param_overrides": value.param_overrides,
        "catch_up": value.catch_up,
        "catch_up_window_seconds": value.catch_up_window_seconds,
        "overlap": value.overlap,
        "priority": value.priority,
        "next_trigger_at": time(value.next_trigger_at),
        "last_triggered_at": time(value.last_triggered_at),
        "created_at": time(value.created_at),
        "deleted_at": time(value.deleted_at),
    }


def occurrence(value: Occurrence) -> dict[str, Json]:
    return {
        "schedule_id": value.schedule_id,
        "instant": time(value.instant),
        "until": time(value.until),
        "count": value.count,
        "outcome": value.outcome,
        "reason": value.reason,
        "detail": value.detail,
        "job_id": value.job_id,
    }


def upcoming(value: Upcoming) -> dict[str, Json]:
    return {"utc": time(value.instant), "local": value.local.isoformat()}


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


def why(value: Why) -> dict[str, Json]:
    return {
        "job_id": value.job_id,
        "state": value.state,
        "reasons": [{"code": one.code, "text": one.text, "data": one.data} for one in value.reasons],
        "ahead": value.ahead,
        **expected(value.expected),
    }


def expected(value: Expected) -> dict[str, Json]:
    return {
        "expected_start": time(value.expected_start),
        "expected_end": time(value.expected_end),
        "confidence": value.confidence,
    }


def expected_start(value: Forecast, job_id: str) -> str | None:
    found = value.jobs.get(job_id)
    return None if found is None else time(found.expected_start)


def expected_end(value: Forecast, job_id: str) -> str | None:
    found = value.jobs.get(job_id)
    return None if found is None else time(found.expected_end)


def key(value: Key) -> dict[str, Json]:
    """Never the text that its holder sends."""
    return {
        "key_id": value.key_id,
        "name": value.name,
        "scopes": [scope.value for scope in Scope if value.scope.includes(scope)],
        "office_id": value.office_id,
        "created_by": value.created_by,
        "created_at": time(value.created_at),
    }


def audit_entry(value: AuditEntry) -> dict[str, Json]:
    return {
        "audit_id": value.audit_id,
        "timestamp": time(value.timestamp),
        "actor": value.actor,
        "key_id": value.key_id,
        "action": value.action,
        "target": value.target,
        "office_id": value.office_id,
        "details": value.details,
    }


def paused(scopes: Sequence[tuple[str, str]], offices: Sequence[str]) -> dict[str, Json]:
    """What is paused: (scope, name) of all but offices, and the offices."""
    return {
        "scheduler": ("scheduler", "") in scopes,
        "offices": list(offices),
        "job_types": [name for scope, name in scopes if scope == "type"],
        "resources": [name for scope, name in scopes if scope == "resource"],
    }


def node(value: Node) -> dict[str, Json]:
    return {
        "node_id": value.node_id,
        "status": value.status,
        "is_leader": value.is_leader,
        "running": value.running,
        "max_running": value.max_running,
        "resources": dict(value.resources),
        "job_types": list(value.job_types),
        "host": value.host,
        "pid": value.pid,
        "version": value.version,
        "life": value.life,
        "joined_at": time(value.joined_at),
        "last_seen_at": time(value.renewed_at),
        "lease_until": time(value.lease_until),
        "ended_at": time(value.ended_at),
    }


def status(value: SchedulerStatus) -> dict[str, Json]:
    return {
        "now": time(value.now),
        "paused": paused(value.paused, [one.office_id for one in value.offices if one.is_paused]),
        "offices": [
            {
                "office_id": one.office_id,
                "paused": one.is_paused,
                "queued": one.queued,
                "waiting": one.waiting,
                "running": one.running,
                "oldest_queued_at": time(one.oldest_queued_at),
                "direct_waiting": one.direct_waiting,
                "direct_running": one.direct_running,
            }
            for one in value.offices
        ],
        "limits": [{"limit": one.limit_key, "capacity": one.capacity, "used": one.used} for one in value.limits],
        "held": [
            {
                "resource": one.resource,
                "since": time(one.since),
                "next_probe_at": time(one.next_probe_at),
                "failures": one.failures,
            }
            for one in value.held
        ],
        "last_event": value.last_event,
    }


def webhook(value: Webhook) -> dict[str, Json]:
    """Without its secret, which is shown once and by itself."""
    return {
        "webhook_id": value.webhook_id,
        "url": value.url,
        "events": list(value.events),
        "office_id": value.office_id,
        "enabled": value.enabled,
        "disabled_reason": value.disabled_reason,
        "old_secret_until": time(value.old_secret_until),
        "created_by": value.created_by,
        "created_at": time(value.created_at),
    }


def delivery(value: Delivery) -> dict[str, Json]:
    return {
        "delivery_id": value.delivery_id,
        "webhook_id": value.webhook_id,
        "url": value.url,
        "event": value.event,
        "seq": value.seq,
        "office_id": value.office_id,
        "job_id": value.job_id,
        "status": value.status,
        "reason": value.reason,
        "next_attempt_at": time(value.next_attempt_at),
        "created_at": time(value.created_at),
        "finished_at": time(value.finished_at),
        "attempts": [attempt(one) for one in value.attempts],
    }


def attempt(value: Attempt) -> dict[str, Json]:
    return {
        "number": value.number,
        "attempted_at": time(value.attempted_at),
        "duration_seconds": value.duration_seconds,
        "status_code": value.status_code,
        "error": value.error,
        "answer": value.answer,
        "retry_after_seconds": value.retry_after_seconds,
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
    return None if value is None else _written(value)


@lru_cache(maxsize=1024)
def _written(value: Instant) -> str:
    """Things that come together have their times in common: of a page or a batch of jobs most are written already."""
    return str(value)
