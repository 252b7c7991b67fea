"""How things look to the outside: the one JSON form that the API answers with and webhooks carry.

Pure: values in, plain JSON objects out. `server/schemas.py` declares the same forms for the OpenAPI document, and a
test holds the two together.
"""

from collections.abc import Sequence

from nextslot.system.instant import Instant

from . import (
    Expected,
    Forecast,
    Job,
    Json,
    Key,
    Node,
    Office,
    Schedule,
    SchedulerStatus,
    Scope,
    Upcoming,
    Why,
    cron,
)
from .declared_values import written


def job(value: Job, attempt: int) -> dict[str, Json]:
    """`attempt` is the job's place in its chain, from 1."""
    return value.to_dict() | {"attempt": attempt}


def schedule(value: Schedule) -> dict[str, Json]:
    """`cron_words` says the expression in words."""
    return value.to_dict() | {"cron_words": cron.in_words(value.cron_expression)}


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
        "retry_policy": value.retry_policy.to_dict(),
        "cancel_mode": value.cancel_mode,
        "on_dependency_failure": value.on_dependency_failure,
        "webhook": value.webhook,
        "created_at": time(value.created_at),
    }


def why(value: Why) -> dict[str, Json]:
    return {
        "job_id": value.job_id,
        "status": value.status,
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


def time(value: Instant | None) -> str | None:
    return None if value is None else written(value)
