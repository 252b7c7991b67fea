"""Schedules as settings: creates, changes and deletes them. Each change first settles the occurrences before it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from nextslot.domain import (
    CatchUp,
    Json,
    NewJob,
    Overlap,
    Schedule,
    Template,
    cron,
    json_form,
    request_checks,
)
from nextslot.domain.declared_values import declared
from nextslot.domain.template_defaults import of_schedule
from nextslot.engine.engine_context import EngineContext
from nextslot.engine.settings.audit_log import AuditLog
from nextslot.engine.submit.intake import Intake
from nextslot.errors import (
    Conflict,
    Invalid,
    NotFound,
    Problem,
)
from nextslot.store.contract import Tx
from nextslot.store.tables import offices, schedules, templates
from nextslot.system.instant import Instant

from .schedule_trigger import ScheduleTrigger

REQUIRED = ("template_id", "name", "cron_expression")
_SET_BY_ENGINE = {"schedule_id", "created_at", "deleted_at", "accounted_until", "last_triggered_at", "next_trigger_at"}
FIELDS = {one.name for one in declared(Schedule)} - _SET_BY_ENGINE
# The fields that shape a schedule's jobs. When one of them changes, a job of the schedule is checked.
_JOB_FIELDS = {"template_id", "param_overrides", "priority", "office_id"}


class ScheduleSettings:
    def __init__(self, engine: EngineContext, intake: Intake, trigger: ScheduleTrigger, audit: AuditLog) -> None:
        self._chance = engine.chance
        self._timer = engine.timer
        self._intake = intake
        self._trigger = trigger
        self._audit = audit

    def create(self, tx: Tx, fields: Mapping[str, Any], now: Instant) -> Schedule:
        check_given(fields, REQUIRED)
        blank = Schedule(
            schedule_id=self._chance.new_id(),
            template_id="",
            name="",
            cron_expression="",
            accounted_until=now,
            created_at=now,
        )
        schedule = self._planned(tx, self._changed(tx, blank, fields, now), now)
        schedules.insert(tx, schedule)
        self._audit.changed(tx, None, json_form.schedule(schedule))
        return schedule

    def put(self, tx: Tx, office_id: str, name: str, fields: Mapping[str, Any], now: Instant) -> tuple[Schedule, bool]:
        """Creates the schedule with this name, or sets it to these fields; fields that are not given get their
        defaults, except `enabled`, which stays. Returns whether the schedule is new.
        """
        known = schedules.by_name(tx, office_id, name)
        given = {**fields, "name": name, "office_id": office_id}
        if known is None:
            return self.create(tx, given, now), True
        check_given(given, REQUIRED)
        return self.change(tx, known, {**dict.fromkeys(FIELDS - {"enabled"}), **given}, now), False

    def change(self, tx: Tx, schedule_id: str, fields: Mapping[str, Any], now: Instant) -> Schedule:
        """Changes a schedule. Occurrences up to now follow the old settings, the next one the new ones (DEC-010)."""
        before = self.live(tx, schedule_id)
        # Refuse an invalid change before anything is stored.
        self._changed(tx, before, fields, now)
        settled = self._trigger.settle(tx, before, now)
        schedule = self._planned(tx, self._changed(tx, settled, fields, now), now)
        schedules.update(tx, schedule)
        self._audit.changed(tx, json_form.schedule(before), json_form.schedule(schedule))
        return schedule

    def delete(self, tx: Tx, schedule_id: str, now: Instant) -> Schedule:
        """Deletes a schedule. It creates no more jobs and is in no list, but its occurrences can still be read."""
        before = self.live(tx, schedule_id)
        settled = self._trigger.settle(tx, before, now)
        schedule = replace(settled, enabled=False, next_trigger_at=None, deleted_at=now)
        schedules.update(tx, schedule)
        self._audit.changed(tx, json_form.schedule(before), None)
        return schedule

    def disable_all_of(self, tx: Tx, template_id: str, now: Instant) -> None:
        for before in schedules.of_template(tx, template_id):
            settled = self._trigger.settle(tx, before, now)
            schedules.update(tx, replace(settled, enabled=False, next_trigger_at=None))

    def live(self, tx: Tx, schedule_id: str) -> Schedule:
        schedule = schedules.get(tx, schedule_id)
        if schedule is None or schedule.deleted_at is not None:
            raise NotFound("schedule", schedule_id)
        return schedule

    def _planned(self, tx: Tx, schedule: Schedule, now: Instant) -> Schedule:
        """Returns the schedule with its next occurrence, and sets the timer for it."""
        accounted = max(schedule.accounted_until, now)
        plan = cron.parse(schedule.cron_expression, schedule.timezone)
        upcoming = plan.after(accounted) if schedule.enabled else None
        self._timer.note(tx, upcoming)
        return replace(schedule, accounted_until=accounted, next_trigger_at=upcoming)

    def _changed(self, tx: Tx, before: Schedule, fields: Mapping[str, Any], now: Instant) -> Schedule:
        unknown = sorted(fields.keys() - FIELDS)
        if unknown:
            raise Invalid(f"is not a field of a schedule; use one of {', '.join(sorted(FIELDS))}", field=unknown[0])
        values = _with_defaults(fields)
        problems = list(_problems(values))
        if problems:
            raise Invalid(problems)
        for name, kind in (("catch_up", CatchUp), ("overlap", Overlap)):
            if name in values:
                values[name] = kind(values[name])
        schedule: Schedule = replace(before, **values)
        template = self._template(tx, schedule)
        if values.keys() & _JOB_FIELDS:
            self._check_job(tx, schedule, template, now)
        holder = schedules.by_name(tx, schedule.office_id, schedule.name)
        if holder not in (None, schedule.schedule_id):
            raise Conflict(f"another schedule is named {schedule.name!r}: choose another name, or delete that one")
        return schedule

    def _template(self, tx: Tx, schedule: Schedule) -> Template:
        template = templates.get(tx, schedule.template_id)
        is_foreign = template is not None and template.office_id != schedule.office_id
        if template is None or (is_foreign and offices.get(tx, schedule.office_id) is not None):
            there = f"there is no template {schedule.template_id!r} in the office {schedule.office_id!r}"
            raise Invalid(f"{there}; create it, or give another", field="template_id")
        if template.archived_at is not None and schedule.enabled:
            raise Conflict(
                f"the template {template.name!r} was archived on {template.archived_at}: "
                "use another template, or leave the schedule disabled"
            )
        return template

    def _check_job(self, tx: Tx, schedule: Schedule, template: Template, now: Instant) -> None:
        """Raises Invalid if it is already known that a job of this schedule could not be created."""
        office = offices.get(tx, schedule.office_id)
        if office is None or office.status != "active":
            what = "does not exist; create it" if office is None else "is archived; make it active"
            raise Invalid(f"the office {schedule.office_id!r} {what}, or give another", field="office_id")
        try:
            made = of_schedule(schedule, template, None)
            self._intake.check([made] if isinstance(made, NewJob) else made.jobs, now)
        except Invalid as error:
            raise Invalid([_for_schedule(problem) for problem in error.problems]) from None


def check_given(fields: Mapping[str, Any], required: Iterable[str]) -> None:
    missing = [Problem(name, "is missing; give it") for name in required if fields.get(name) is None]
    if missing:
        raise Invalid(missing)


def _with_defaults(fields: Mapping[str, Any]) -> dict[str, Json]:
    """Returns the given fields. Null stands for the default."""
    optional = {"param_overrides", "priority"}
    defaults = {name: Schedule.__dataclass_fields__[name].default for name in FIELDS - set(REQUIRED)}
    # A class with slots has its field defaults only in `__dataclass_fields__`.
    return {
        name: defaults[name] if value is None and name in defaults and name not in optional else value
        for name, value in fields.items()
    }


def _problems(values: Mapping[str, Any]) -> Iterator[Problem]:
    for name in ("template_id", "name", "office_id"):
        if name in values:
            yield from request_checks.text_problems(name, values[name])
    yield from _plan_problems(values)
    if "enabled" in values and not isinstance(values["enabled"], bool):
        yield Problem("enabled", "is neither true nor false; give one of them")
    if values.get("param_overrides") is not None:
        yield from request_checks.json_problems("param_overrides", values["param_overrides"])
    for name, kind in (("catch_up", CatchUp), ("overlap", Overlap)):
        if name in values and values[name] not in list(kind):
            yield Problem(name, "has a value that is not allowed; use one of " + ", ".join(kind))
    if "catch_up_window_seconds" in values and not request_checks.is_number(values["catch_up_window_seconds"]):
        yield Problem("catch_up_window_seconds", "is not a number of seconds from 0 on; give for example 3600")
    if values.get("priority") is not None:
        yield from request_checks.priority_problems(values["priority"])


def _plan_problems(values: Mapping[str, Any]) -> Iterator[Problem]:
    """Yields the problems of expression and time zone separately, so that both are reported."""
    for name, check in (("cron_expression", cron.parse), ("timezone", cron.zone)):
        if name not in values:
            continue
        if not isinstance(values[name], str):
            yield Problem(name, "is not a text; give one")
            continue
        try:
            check(values[name])
        except Invalid as error:
            yield from error.problems


def _for_schedule(problem: Problem) -> Problem:
    """Renames parameter problems for a schedule, which calls parameters `param_overrides`."""
    if problem.field.partition(".")[0] == "params":
        return Problem("param_overrides" + problem.field.removeprefix("params"), problem.problem)
    if problem.field.startswith("jobs."):
        return Problem(f"template.{problem.field}", problem.problem)
    return problem
