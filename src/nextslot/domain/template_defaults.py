"""Templates as pure values: what a job gets from template, schedule and request, each over the one before."""

from collections.abc import Mapping
from dataclasses import replace

from nextslot.system.instant import Instant

from . import (
    Json,
    NewJob,
    RetryPolicy,
    Schedule,
    Template,
)


def merged(*layers: Mapping[str, Json] | None) -> dict[str, Json]:
    """Key by key, one level deep; the later layer wins."""
    result: dict[str, Json] = {}
    for layer in layers:
        result |= layer or {}
    return result


def from_template(new: NewJob, template: Template) -> NewJob:
    """The request, completed by its template wherever it says nothing."""
    return replace(
        new,
        job_type=template.job_type,
        # What is no object is left as it is, to be refused with its name.
        params=merged(template.params, new.params) if isinstance(new.params, Mapping) else new.params,
        priority=template.priority if new.priority is None and not new.urgent else new.priority,
        timeout_seconds=template.timeout_seconds if new.timeout_seconds is None else new.timeout_seconds,
        retry_policy=_retry_policy(new, template),
        resources=template.resources if new.resources is None else new.resources,
        webhook=template.webhook if new.webhook is None else new.webhook,
    )


def of_schedule(
    schedule: Schedule,
    template: Template,
    instant: Instant | None,
    params: Mapping[str, Json] | None = None,
    priority: int | None = None,
) -> NewJob:
    """The job of an occurrence, or (without one) of a trigger by hand, which may say more."""
    wanted = next((one for one in (priority, schedule.priority) if one is not None), template.priority)
    return NewJob(
        job_type=template.job_type,
        params=merged(template.params, schedule.param_overrides, params),
        office_id=schedule.office_id,
        priority=wanted,
        timeout_seconds=template.timeout_seconds,
        retry_policy=template.retry_policy,
        resources=template.resources,
        webhook=template.webhook,
        title=schedule.name,
        scheduled_for=instant,
        template_id=template.template_id,
        schedule_id=schedule.schedule_id,
    )


def _retry_policy(new: NewJob, template: Template) -> Mapping[str, Json] | RetryPolicy | None:
    """Any part may be given: the request's parts go over the template's."""
    given = new.retry_policy
    if given is None:
        return template.retry_policy
    return merged(template.retry_policy, given) if isinstance(given, Mapping) else given
