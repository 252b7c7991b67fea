"""What a job or a group gets from its template, its schedule and its request: the later ones override the earlier."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nextslot.system.instant import Instant

from . import Json, NewGroup, NewJob, RetryPolicy, Schedule, Template
from .declared_values import declared

# The fields of a template that its jobs have too.
SHARED = [one.name for one in declared(Template) if one.name in NewJob.__dataclass_fields__]


def merged(*layers: Mapping[str, Json] | None) -> dict[str, Json]:
    """Merges objects key by key, one level deep; the later one wins."""
    result: dict[str, Json] = {}
    for layer in layers:
        result |= layer or {}
    return result


def from_template(new: NewJob, template: Template) -> NewJob:
    """Returns the request, completed by its template where it has no value of its own."""
    missing = {name: getattr(template, name) for name in SHARED if getattr(new, name) is None}
    if new.urgent:
        missing.pop("priority", None)
    # Leave parameters that are not an object as they are; a later check refuses them.
    params = merged(template.params, new.params) if isinstance(new.params, Mapping) else new.params
    changes = {
        "job_type": template.job_type or new.job_type,
        "params": params,
        "retry_policy": _retry_policy(new, template),
    }
    return replace(new, **missing | changes)


def of_schedule(
    schedule: Schedule,
    template: Template,
    instant: Instant | None,
    params: Mapping[str, Json] | None = None,
    priority: int | None = None,
    created_by: str | None = None,
) -> NewJob | NewGroup:
    """Makes the job or group of an occurrence, or of a manual trigger, which may set parameters and a priority.

    The schedule's overrides apply to every job of a group.
    """
    wanted = schedule.priority if priority is None else priority
    same: dict[str, Any] = {
        "office_id": schedule.office_id,
        "schedule_id": schedule.schedule_id,
        "created_by": created_by,
    }
    if template.jobs is None:
        return NewJob(**{name: getattr(template, name) for name in SHARED})._replace(
            params=merged(template.params, schedule.param_overrides, params),
            priority=template.priority if wanted is None else wanted,
            title=schedule.name,
            scheduled_for=instant,
            **same,
        )
    made = members(template, merged(schedule.param_overrides, params), wanted, scheduled_for=instant, **same)
    return NewGroup(
        jobs=[new._replace(title=new.title or schedule.name) for new in made],
        mode=template.mode,
        on_failure=template.on_failure,
        name=schedule.name,
        webhook=template.webhook,
        template_id=template.template_id,
        **same,
    )


def members(
    template: Template, params: Mapping[str, Json] | None = None, priority: int | None = None, **of_each: object
) -> list[NewJob]:
    """Makes the jobs of a template that makes a group; the given parameters and priority go to every one."""
    # The group has the template's webhook, so the receiver gets one message about the end of the group.
    defaults = template._replace(webhook=None)
    same = {"template_id": template.template_id, "office_id": template.office_id, **of_each}
    made = [from_template(NewJob(**fields)._replace(**same), defaults) for fields in template.jobs or ()]
    if priority is not None:
        made = [new._replace(priority=priority, urgent=False) for new in made]
    return [new._replace(params=merged(new.params, params)) for new in made] if params else made


def types_of(template: Template) -> list[str]:
    """Returns the types of the jobs that a template makes."""
    given = [template.job_type, *(fields.get("job_type") for fields in template.jobs or ())]
    return sorted({str(one) for one in given if one is not None})


def group_of_template(wanted: NewGroup, template: Template) -> NewGroup:
    """Returns the request for a group, completed by its template."""
    return wanted._replace(
        jobs=members(template, wanted.params, wanted.priority, created_by=wanted.created_by),
        mode=template.mode,
        on_failure=template.on_failure,
        name=wanted.name or template.name,
        webhook=wanted.webhook or template.webhook,
        office_id=template.office_id,
    )


def _retry_policy(new: NewJob, template: Template) -> Mapping[str, Json] | RetryPolicy | None:
    """Returns the template's retry policy, with the parts that the request gives in place of its own."""
    given = new.retry_policy
    if given is None:
        return template.retry_policy
    return merged(template.retry_policy, given) if isinstance(given, Mapping) else given
