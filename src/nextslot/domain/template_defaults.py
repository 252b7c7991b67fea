"""What a job gets from its template, its schedule and its request: the later ones override the earlier ones."""

from collections.abc import Mapping
from dataclasses import replace

from nextslot.system.instant import Instant

from . import Json, NewJob, RetryPolicy, Schedule, Template
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
    # Parameters that are not an object stay as they are, and are refused later.
    params = merged(template.params, new.params) if isinstance(new.params, Mapping) else new.params
    changes = {"job_type": template.job_type, "params": params, "retry_policy": _retry_policy(new, template)}
    return replace(new, **missing | changes)


def of_schedule(
    schedule: Schedule,
    template: Template,
    instant: Instant | None,
    params: Mapping[str, Json] | None = None,
    priority: int | None = None,
) -> NewJob:
    """Makes the job of an occurrence, or of a trigger by hand, which may give parameters and a priority."""
    wanted = next((one for one in (priority, schedule.priority) if one is not None), template.priority)
    return NewJob(**{name: getattr(template, name) for name in SHARED})._replace(
        params=merged(template.params, schedule.param_overrides, params),
        office_id=schedule.office_id,
        priority=wanted,
        title=schedule.name,
        scheduled_for=instant,
        schedule_id=schedule.schedule_id,
    )


def _retry_policy(new: NewJob, template: Template) -> Mapping[str, Json] | RetryPolicy | None:
    """Puts the parts that the request gives over those of the template."""
    given = new.retry_policy
    if given is None:
        return template.retry_policy
    return merged(template.retry_policy, given) if isinstance(given, Mapping) else given
