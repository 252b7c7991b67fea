"""The jobs of a template that makes a group: their form, and everything that is wrong with them.

`template_settings` calls it. A job is stored as the fields that were given, so that later defaults still apply.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from nextslot.domain import GroupMode, Json, NewJob, OnFailure, RetryPolicy, Template, request_checks, webhook_delivery
from nextslot.domain.bounds import must_be
from nextslot.domain.declared_values import declared
from nextslot.domain.template_defaults import SHARED, members
from nextslot.engine.submit.intake import Intake
from nextslot.engine.webhooks.webhook_outbox import WebhookService
from nextslot.errors import MOST_PROBLEMS, Invalid, Problem, UnknownJobType
from nextslot.store.tables import column_codec
from nextslot.system.instant import Instant

# With `catch_up: all`, up to 100 occurrences fire at once: together at most as many jobs as a batch may have.
MOST_JOBS = 1000
# The largest body of a request. Python callers have the same limit.
MOST_BYTES = 2**20
# Fields that a template cannot set: those that identify or place one job, and times that occur once.
_NOT_OF_TEMPLATES = {
    "template_id", "schedule_id", "office_id", "scheduled_for", "expires_at", "unique_key", "created_by",
}  # fmt: skip
FIELDS = [one.name for one in declared(NewJob) if one.name not in _NOT_OF_TEMPLATES]
_WORDS: Mapping[str, type[GroupMode] | type[OnFailure]] = {"mode": GroupMode, "on_failure": OnFailure}


def complete(values: dict[str, Any], before: Template) -> None:
    """Converts the jobs of a template to their stored form, and chooses `mode` and `on_failure` where none is given.

    Raises Invalid if a job is malformed, or if there are more than a template may have.
    """
    if "jobs" in values and values["jobs"] is not None:
        values["jobs"] = _stored(values["jobs"])
    jobs = values.get("jobs", before.jobs)
    if jobs is None:
        # A template that no longer makes a group loses its group settings.
        values |= {name: None for name in _WORDS if before.jobs is not None and name not in values}
        return
    is_graph = any(fields.get("depends_on") for fields in jobs)
    for name, default in (("mode", "parallel" if is_graph else "sequential"), ("on_failure", "stop")):
        values[name] = _word(name, values.get(name, getattr(before, name)) or default)


def check(template: Template, intake: Intake, webhooks: WebhookService, now: Instant) -> None:
    """Raises Invalid with every problem of a template that makes a group; each job is named by its place."""
    problems = list(_own_problems(template, webhooks, now))
    wanted = [] if problems else members(template)
    for index, new in enumerate(wanted):
        try:
            found = intake.problems_so_far(new, now)
        except UnknownJobType as error:
            found = error.problems
        problems += [Problem(f"jobs.{index}.{one.field}", one.problem) for one in found]
        if len(problems) >= MOST_PROBLEMS:
            break
    if problems:
        raise Invalid(problems)
    intake.check_graph(wanted, template.mode or GroupMode.SEQUENTIAL)


def _stored(jobs: object) -> tuple[Mapping[str, Json], ...]:
    if not isinstance(jobs, (list, tuple)):
        raise Invalid(must_be(jobs, "a list of jobs"), field="jobs")
    if not 0 < len(jobs) <= MOST_JOBS:
        raise Invalid(f"there are {len(jobs):,} jobs; give a template 1 to {MOST_JOBS:,}", field="jobs")
    made = tuple(_given(one, index) for index, one in enumerate(jobs))
    try:
        size = column_codec.size(made)
    except (TypeError, RecursionError):
        raise Invalid("has a value that JSON cannot express; give text, numbers, lists and objects", "jobs") from None
    if size > MOST_BYTES:
        raise Invalid(f"is {size:,} bytes of JSON; it must be at most {MOST_BYTES:,}", field="jobs")
    return made


def _given(one: object, index: int) -> Mapping[str, Json]:
    """Returns the fields of a job that the caller gave. For a `NewJob`, these are the ones that differ from their
    default.
    """
    if isinstance(one, NewJob):
        empty = NewJob()
        fields = {name: value for name, value in one.__dict__.items() if value != getattr(empty, name)}
    elif isinstance(one, Mapping):
        fields = dict(one)
    else:
        raise Invalid(must_be(one, "an object with the fields of a job"), field=f"jobs.{index}")
    unknown = sorted(str(name) for name in fields.keys() - set(FIELDS))
    if unknown:
        said = "cannot be given to a job of a template; it may have "
        raise Invalid(said + ", ".join(FIELDS), field=f"jobs.{index}.{unknown[0]}")
    if isinstance(fields.get("retry_policy"), RetryPolicy):
        fields["retry_policy"] = fields["retry_policy"].to_dict()
    return {name: value for name, value in fields.items() if value is not None}


def _word(name: str, value: object) -> GroupMode | OnFailure:
    try:
        return _WORDS[name](str(value))
    except ValueError:
        raise Invalid(f"is {value!r}; it must be one of {', '.join(_WORDS[name])}", field=name) from None


def _own_problems(template: Template, webhooks: WebhookService, now: Instant) -> Iterator[Problem]:
    """Finds what is wrong with the defaults of the jobs, and with the webhook of the group."""
    given = NewJob(**{name: getattr(template, name) for name in SHARED})
    # Accepts any type, because each job has its own.
    defaults = given._replace(job_type="group", webhook=None)
    yield from request_checks.problems(defaults, now)
    if template.webhook is not None:
        events = webhook_delivery.GROUP_EVENTS
        yield from webhook_delivery.problems(
            "webhook", template.webhook, events, webhooks.allow_private, webhooks.format_words
        )
