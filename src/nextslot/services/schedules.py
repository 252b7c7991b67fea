"""Schedules: makes, changes, triggers and lists them; their past and next occurrences."""

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Unpack

from nextslot.client.keyword_arguments import ScheduleChanges, ScheduleOptions, SchedulePutOptions, Time
from nextslot.domain import DEFAULT_OFFICE, Group, Job, Json, Occurrence, Page, Preview, Schedule, Upcoming, cron
from nextslot.domain.request_checks import MAX_INSTANT
from nextslot.domain.template_defaults import types_of
from nextslot.engine.schedules.schedule_settings import ScheduleSettings
from nextslot.engine.schedules.schedule_trigger import ScheduleTrigger, open_span
from nextslot.engine.submit.idempotency import Once
from nextslot.errors import Invalid, NotFound
from nextslot.store.contract import Tx
from nextslot.store.tables import groups, jobs, occurrences, schedules, templates
from nextslot.system.instant import Instant

from .arguments import found, instant
from .cursors import DEFAULT_LIMIT, checked_limit, each, read_page
from .unit_of_work import UnitOfWork

# Sorts after every id and every instant.
TOP = "~"
END_OF_TIME = 2**62


class ScheduleService:
    def __init__(self, access: UnitOfWork, settings: ScheduleSettings, trigger: ScheduleTrigger) -> None:
        self._access = access
        self._settings = settings
        self._trigger = trigger

    async def create(
        self, name: str, template_id: str, cron_expression: str, **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """Creates a schedule that creates jobs from a template. Fails if the name exists; `put` does not."""
        fields = {"name": name, "template_id": template_id, "cron_expression": cron_expression, **options}
        office_id = options.get("office_id", DEFAULT_OFFICE)
        once: Once[Schedule] = Once("schedules", office_id, fields, lambda made: [made.schedule_id])

        def work(tx: Tx) -> Schedule:
            return self._allowed(tx, self._settings.create(tx, fields, self._access.clock.now()))

        return await self._access.create(work, once=once)

    async def put(
        self,
        name: str,
        template_id: str,
        cron_expression: str,
        *,
        office_id: str | None = None,
        **options: Unpack[SchedulePutOptions],
    ) -> tuple[Schedule, bool]:
        """Creates the schedule with this name, or sets it to these fields. Returns whether it is new. Fields that are
        not given get their defaults, except `enabled`, which stays.
        """
        fields = {"template_id": template_id, "cron_expression": cron_expression, **options}
        return await self._access.create(lambda tx: self.store(tx, office_id or DEFAULT_OFFICE, name, fields))

    def store(self, tx: Tx, office_id: str, name: str, fields: Mapping[str, object]) -> tuple[Schedule, bool]:
        """Does what `put` does, in the transaction of a caller that stores more."""
        schedule, is_new = self._settings.put(tx, office_id, name, fields, self._access.clock.now())
        return self._allowed(tx, schedule), is_new

    async def change(self, schedule_id: str, **fields: Unpack[ScheduleChanges]) -> Schedule:
        """Changes fields of a schedule, from its next occurrence on (DEC-010)."""
        return await self._access.write(
            lambda tx: self._allowed(tx, self._settings.change(tx, schedule_id, fields, self._access.clock.now()))
        )

    def _allowed(self, tx: Tx, schedule: Schedule) -> Schedule:
        """Returns a schedule if the caller may create its jobs. A disabled schedule creates none, so everybody may
        store it.
        """
        template = templates.get(tx, schedule.template_id)
        for job_type in types_of(template) if template is not None and schedule.enabled else ():
            self._access.refuse_type(schedule.office_id, job_type)
        return schedule

    async def delete(self, schedule_id: str) -> Schedule:
        """Deletes a schedule. It creates no more jobs and is in no list; its jobs and its occurrences stay."""
        return await self._access.write(lambda tx: self._settings.delete(tx, schedule_id, self._access.clock.now()))

    async def trigger(
        self, schedule_id: str, *, params: dict[str, Json] | None = None, priority: int | None = None
    ) -> Job | Group:
        """Creates a job or group of a schedule now, by hand. This is not stored as an occurrence."""
        context, content = self._access.context, [schedule_id, params, priority]
        created_by = None if context.actor is None or context.actor.key_id is None else context.actor.name
        once: Once[Job | Group] = Once("trigger", context.office_id, content, _ids)
        return await self._access.create(
            lambda tx: self._trigger.trigger(tx, schedule_id, params, priority, created_by, self._access.clock.now()),
            once=once,
        )

    async def made(self, made_id: str) -> Job | Group:
        """Returns the job or the group that an earlier trigger created."""

        def read(tx: Tx) -> Job | Group | None:
            return jobs.get(tx, made_id) or groups.get(tx, made_id)

        made: Job | Group | None = await self._access.read(read)
        if made is None:
            raise NotFound("job or group", made_id)
        return made

    async def get(self, schedule_id: str) -> Schedule:
        """Returns a schedule, even a deleted one."""
        return found(await self._access.read(lambda tx: schedules.get(tx, schedule_id)), "schedule", schedule_id)

    def list(self, *, office_id: str | None = None, template_id: str | None = None) -> AsyncIterator[Schedule]:
        """Yields schedules that are not deleted, the newest first."""
        return each(partial(self.page, office_id=office_id, template_id=template_id))

    async def page(
        self,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
        *,
        office_id: str | None = None,
        template_id: str | None = None,
    ) -> Page[Schedule]:
        """Returns a page of schedules that are not deleted, the newest first."""
        read = partial(schedules.page, office_id=office_id, template_id=template_id)
        return await read_page(self._access, "schedules", TOP, cursor, limit, read, "schedule_id")

    async def upcoming(self, schedule_id: str, count: int = 10, after: Time | None = None) -> tuple[Upcoming, ...]:
        """Returns the next occurrences of a schedule, even of a disabled one. Creates no jobs."""
        checked_limit(count)
        schedule = await self.get(schedule_id)
        plan = cron.parse(schedule.cron_expression, schedule.timezone)
        return _coming(plan, self._from(after), count)

    async def preview(
        self, cron_expression: str, timezone: str = "UTC", count: int = 10, after: Time | None = None
    ) -> Preview:
        """Returns an expression in words, and when it would fire. No schedule needs to exist."""
        checked_limit(count)
        items = _coming(cron.parse(cron_expression, timezone), self._from(after), count)
        return Preview(cron_words=cron.in_words(cron_expression), items=items)

    def _from(self, after: Time | None) -> Instant:
        at = instant(after, "after") or self._access.clock.now()
        if not 0 <= at <= MAX_INSTANT:
            raise Invalid("is not between 1970 and 9999", field="after")
        return at

    async def occurrences_page(
        self, schedule_id: str, limit: int = DEFAULT_LIMIT, cursor: str | None = None
    ) -> Page[Occurrence]:
        """Lists occurrences, the newest first. For a disabled schedule the list begins with the span that is still
        open.
        """
        now = self._access.clock.now()

        def read(tx: Tx, below: int, rows: int) -> Sequence[Occurrence]:
            schedule = found(schedules.get(tx, schedule_id), "schedule", schedule_id)
            going_on = open_span(schedule, now) if cursor is None else None
            stored = occurrences.page(tx, schedule_id, Instant(below), rows)
            return stored if going_on is None else [going_on, *stored]

        return await read_page(self._access, "occurrences", END_OF_TIME, cursor, limit, read, "instant")


def _ids(made: Job | Group) -> list[str]:
    return [made.job_id if isinstance(made, Job) else made.group_id]


def _coming(plan: cron.Cron, after: Instant, count: int) -> tuple[Upcoming, ...]:
    coming: list[Upcoming] = []
    while len(coming) < count and (following := plan.after(after)) is not None:
        coming.append(Upcoming(utc=following, local=plan.local(following)))
        after = following
    return tuple(coming)
