"""The JSON form of values with more than their own fields; the API answers with it and webhooks carry it.

Other values have `to_dict`. `server/schemas.py` describes these forms for the OpenAPI document; a test compares both.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter

from nextslot.system.instant import Instant

from . import Expected, Forecast, Job, Json, Schedule, SchedulerStatus, Upcoming, Why, cron
from .declared_values import declared, written


def job(value: Job, attempt: int) -> dict[str, Json]:
    """Returns a job with `attempt`, its place in its chain, from 1."""
    found = value.to_dict()
    found["attempt"] = attempt
    return found


def jobs(values: Iterable[Job], attempts: Mapping[str, int]) -> Iterator[dict[str, Json]]:
    """Yields the form of each job; `attempts` has the places that are not 1.

    Jobs of one request often differ in three fields only, so the form of the previous job is copied then.
    """
    last: dict[str, Json] = {}
    rest: tuple[object, ...] = ()
    for value in values:
        attempt = attempts.get(value.job_id, 1)
        if (own := (attempt, *_ALIKE(value.__dict__))) == rest:
            last = {**last, "job_id": value.job_id, "params": value.params, "position": value.position}
        else:
            last, rest = job(value, attempt), own
        yield last


_EACH_ITS_OWN = {"job_id", "chain_id", "params", "position"}
_ALIKE = itemgetter(*(one.name for one in declared(Job) if one.name not in _EACH_ITS_OWN))


def schedule(value: Schedule) -> dict[str, Json]:
    """Returns a schedule with `cron_words`, its expression in words."""
    return value.to_dict() | {"cron_words": cron.in_words(value.cron_expression)}


def upcoming(value: Upcoming) -> dict[str, Json]:
    return {"utc": time(value.utc), "local": value.local.isoformat()}


def why(value: Why) -> dict[str, Json]:
    return {
        "job_id": value.job_id,
        "status": value.status,
        "reasons": [one.to_dict() for one in value.reasons],
        "ahead": value.ahead,
        **expected(value.expected),
        "forecast_at": time(value.forecast_at),
    }


def expected(value: Expected) -> dict[str, Json]:
    return {
        "expected_start": time(value.expected_start),
        "expected_end": time(value.expected_end),
        "earliest_start": time(value.earliest_start),
        "latest_start": time(value.latest_start),
        "confidence": value.confidence,
    }


def expected_start(value: Forecast | None, job_id: str) -> str | None:
    found = None if value is None else value.jobs.get(job_id)
    return None if found is None else time(found.expected_start)


def expected_end(value: Forecast | None, job_id: str) -> str | None:
    found = None if value is None else value.jobs.get(job_id)
    return None if found is None else time(found.expected_end)


def paused(scopes: Sequence[tuple[str, str]], offices: Sequence[str]) -> dict[str, Json]:
    """Returns what is paused, from pairs of scope and name, and the paused offices."""
    return {
        "scheduler": ("scheduler", "") in scopes,
        "offices": list(offices),
        "job_types": [name for scope, name in scopes if scope == "type"],
        "resources": [name for scope, name in scopes if scope == "resource"],
    }


def status(value: SchedulerStatus) -> dict[str, Json]:
    return {
        "now": time(value.now),
        "paused": paused(value.paused, [one.office_id for one in value.offices if one.paused]),
        "offices": [one.to_dict() for one in value.offices],
        "limits": [{"limit": one.limit_key, "capacity": one.capacity, "used": one.used} for one in value.limits],
        "held": [one.to_dict() for one in value.held],
        "last_event": value.last_event,
    }


def time(value: Instant | None) -> str | None:
    return None if value is None else written(value)
