"""Templates of jobs and of groups: creates, changes and archives them. Existing jobs stay as they are (INV-005)."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from nextslot.domain import DEFAULT_OFFICE, Json, NewJob, RetryPolicy, Template, request_checks
from nextslot.domain.declared_values import declared
from nextslot.domain.template_defaults import members
from nextslot.engine.engine_context import EngineContext
from nextslot.engine.settings.audit_log import AuditLog
from nextslot.engine.submit.intake import Intake
from nextslot.errors import Conflict, Invalid, NotFound, Problem, UnknownJobType
from nextslot.executors.job_types import resource_units
from nextslot.store.contract import Tx
from nextslot.store.tables import templates
from nextslot.system.instant import Instant

from . import template_jobs
from .schedule_settings import ScheduleSettings, check_given

FIELDS = {one.name for one in declared(Template)} - {"template_id", "created_at", "archived_at"}


class TemplateSettings:
    def __init__(self, engine: EngineContext, intake: Intake, schedules: ScheduleSettings, audit: AuditLog) -> None:
        self._chance = engine.chance
        self._intake = intake
        self._webhooks = engine.webhooks
        self._schedules = schedules
        self._audit = audit

    def create(self, tx: Tx, fields: Mapping[str, Any], now: Instant) -> Template:
        check_given(fields, _required(fields))
        blank = Template(template_id=self._chance.new_id(), name="", created_at=now)
        template = self._changed(tx, blank, fields, now)
        templates.insert(tx, template)
        self._audit.changed(tx, None, template.to_dict())
        return template

    def put(self, tx: Tx, office_id: str, name: str, fields: Mapping[str, Any], now: Instant) -> tuple[Template, bool]:
        """Creates the template with this name, or sets it to these fields; fields that are not given get their
        defaults. Returns whether the template is new.
        """
        known = templates.by_name(tx, office_id, name)
        given = {**fields, "name": name, "office_id": office_id}
        if known is None:
            return self.create(tx, given, now), True
        check_given(given, _required(given))
        return self.change(tx, known, {**dict.fromkeys(FIELDS), **given}, now), False

    def change(self, tx: Tx, template_id: str, fields: Mapping[str, Any], now: Instant) -> Template:
        """Changes a template for future jobs; existing jobs keep their copies."""
        before = self._live(tx, template_id)
        template = self._changed(tx, before, fields, now)
        templates.update(tx, template)
        self._audit.changed(tx, before.to_dict(), template.to_dict())
        return template

    def archive(self, tx: Tx, template_id: str, now: Instant) -> Template:
        """Archives a template: it creates no more jobs, its schedules are disabled, and its name is free again."""
        before = self._live(tx, template_id)
        self._schedules.disable_all_of(tx, template_id, now)
        template = replace(before, archived_at=now)
        templates.update(tx, template)
        self._audit.changed(tx, before.to_dict(), template.to_dict())
        return template

    def _live(self, tx: Tx, template_id: str) -> Template:
        template = templates.get(tx, template_id)
        if template is None:
            raise NotFound("template", template_id)
        if template.archived_at is not None:
            raise Conflict(
                f"the template {template.name!r} was archived on {template.archived_at}: use another template"
            )
        return template

    def _changed(self, tx: Tx, before: Template, fields: Mapping[str, Any], now: Instant) -> Template:
        unknown = sorted(fields.keys() - FIELDS)
        if unknown:
            raise Invalid(f"is not a field of a template; use one of {', '.join(sorted(FIELDS))}", field=unknown[0])
        values = _with_defaults(fields)
        template_jobs.complete(values, before)
        self._check(values, before, now)
        if values.get("resources") is not None:
            values["resources"] = resource_units(values["resources"])
        template: Template = replace(before, **values)
        if values.get("resources") or values.get("jobs"):
            single = NewJob(office_id=template.office_id, resources=template.resources)
            self._intake.note_resources(tx, [single] if template.jobs is None else members(template))
        if before.name and template.office_id != before.office_id:
            raise Conflict(f"a template stays in its office, {before.office_id!r}: create another one there")
        self._intake.office(tx, template.office_id)
        holder = templates.by_name(tx, template.office_id, template.name)
        if holder not in (None, template.template_id):
            raise Conflict(f"another template is named {template.name!r}: choose another name, or archive that one")
        return template

    def _check(self, values: dict[str, Any], before: Template, now: Instant) -> None:
        """Checks a template like an incomplete job: the schedule and the request may add the missing parameters."""
        all_values = {name: getattr(before, name) for name in FIELDS} | values
        name, description = all_values.pop("name"), all_values.pop("description")
        problems = list(request_checks.text_problems("name", name))
        if description is not None:
            problems += request_checks.text_problems("description", description)
        of_group = {name: all_values.pop(name) for name in ("jobs", "mode", "on_failure")}
        problems += _kind_problems(all_values["job_type"], of_group)
        if of_group["jobs"] is not None:
            if problems:
                raise Invalid(problems)
            template_jobs.check(before._replace(**all_values, **of_group), self._intake, self._webhooks, now)
            return
        try:
            problems += self._intake.problems_so_far(NewJob(**all_values), now)
        except UnknownJobType as error:
            if not problems:
                raise
            problems += error.problems
        if problems:
            raise Invalid(problems)


def _required(fields: Mapping[str, Any]) -> tuple[str, ...]:
    return ("name",) if fields.get("jobs") is not None else ("name", "job_type")


def _kind_problems(job_type: str | None, of_group: Mapping[str, Json]) -> Iterator[Problem]:
    """Checks that a template defines either one job or a group."""
    if of_group["jobs"] is None:
        if job_type is None:
            yield Problem("job_type", "is missing; give it, or `jobs` for a template that makes a group")
        for name in ("mode", "on_failure"):
            if of_group[name] is not None:
                yield Problem(name, "is of a group; give `jobs` too, or leave it out")
    elif job_type is not None:
        yield Problem("job_type", "is given beside `jobs`; give one of the two, and null for the other")


def _with_defaults(fields: Mapping[str, Any]) -> dict[str, Json]:
    """Returns the given fields. Null stands for the default."""
    values = dict(fields)
    for name, default in (("params", dict[str, Json]()), ("priority", 0), ("office_id", DEFAULT_OFFICE)):
        if name in values and values[name] is None:
            values[name] = default
    if isinstance(values.get("retry_policy"), RetryPolicy):
        values["retry_policy"] = values["retry_policy"].to_dict()
    return values
