"""Schedules, as Python, HTTP and the command line use them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ..arguments import found, instant
from ..clock import Instant
from ..engine.schedule_settings import ScheduleSettings
from ..engine.schedules import ScheduleTrigger, open_span
from ..errors import Invalid
from ..model import Job, Json, Occurrence, Page, Schedule, Upcoming
from ..policy import cron
from ..policy.requests import MAX_INSTANT
from ..store import occurrences, schedules
from ..store.store import Tx
from .access import Access
from .paging import checked_limit, page_of, place


class Schedules:
    def __init__(self, access: Access, settings: ScheduleSettings, trigger: ScheduleTrigger) -> None:
        self._access = access
        self._settings = settings
        self._trigger = trigger

    async def create(self, **fields: Any) -> Schedule:
        """`template_id`, `name`, `cron_expression`; and `timezone`, `enabled`, `office_id`, `param_overrides`,
        `catch_up`, `catch_up_window_seconds`, `overlap`, `priority`."""
        return await self._access.create(lambda tx: self._settings.create(tx, fields, self._access.clock.now()))

    async def change(self, schedule_id: str, **fields: Any) -> Schedule:
        """The same fields; applies to the next occurrence (DEC-010)."""
        return await self._access.write(
            lambda tx: self._settings.change(tx, schedule_id, fields, self._access.clock.now())
        )

    async def delete(self, schedule_id: str) -> Schedule:
        """It plans nothing more and is in no list; its jobs and its ledger stay."""
        return await self._access.write(lambda tx: self._settings.delete(tx, schedule_id, self._access.clock.now()))

    async def trigger(
        self, schedule_id: str, *, params: dict[str, Json] | None = None, priority: int | None = None
    ) -> Job:
        """A job of it now, by hand: no occurrence of it."""
        return await self._access.create(
            lambda tx: self._trigger.trigger(tx, schedule_id, params, priority, self._access.clock.now())
        )

    async def get(self, schedule_id: str) -> Schedule:
        """Deleted ones too."""
        return found(await self._access.read(lambda tx: schedules.get(tx, schedule_id)), "schedule", schedule_id)

    async def list(
        self,
        cursor: str | None = None,
        limit: int = 50,
        *,
        office_id: str | None = None,
        template_id: str | None = None,
    ) -> Page[Schedule]:
        """Those that are not deleted, the newest first."""
        before, count = place(cursor), checked_limit(limit)
        items = await self._access.read(lambda tx: schedules.page(tx, before, count + 1, office_id, template_id))
        return page_of(items, count, lambda schedule: schedule.schedule_id)

    async def upcoming(
        self, schedule_id: str, count: int = 10, after: Instant | datetime | None = None
    ) -> Sequence[Upcoming]:
        """Its next occurrences, also of a disabled one; nothing is fired."""
        checked_limit(count)
        schedule = await self.get(schedule_id)
        plan = cron.parse(schedule.cron_expression, schedule.timezone)
        return _coming(plan, self._from(after), count)

    async def preview(
        self, cron_expression: str, timezone: str = "UTC", count: int = 10, after: Instant | datetime | None = None
    ) -> Sequence[Upcoming]:
        """The next occurrences of an expression that no schedule has yet."""
        checked_limit(count)
        return _coming(cron.parse(cron_expression, timezone), self._from(after), count)

    def _from(self, after: Instant | datetime | None) -> Instant:
        at = instant(after, "after") or self._access.clock.now()
        if not 0 <= at <= MAX_INSTANT:
            raise Invalid("an instant between 1970 and 9999", field="after")
        return at

    async def occurrences(self, schedule_id: str, cursor: str | None = None, limit: int = 50) -> Page[Occurrence]:
        """The ledger, the newest first; of a disabled schedule it begins with the span that is not over yet."""
        below, count = _instant_of(cursor), checked_limit(limit)
        now = self._access.clock.now()

        def work(tx: Tx) -> Sequence[Occurrence]:
            schedule = found(schedules.get(tx, schedule_id), "schedule", schedule_id)
            going_on = open_span(schedule, now) if cursor is None else None
            stored = occurrences.page(tx, schedule_id, below, count + 1)
            return stored if going_on is None else [going_on, *stored]

        items = await self._access.read(work)
        return page_of(items, count, lambda occurrence: str(int(occurrence.instant)))


def _coming(plan: cron.Cron, after: Instant, count: int) -> list[Upcoming]:
    coming: list[Upcoming] = []
    while len(coming) < count and (following := plan.after(after)) is not None:
        coming.append(Upcoming(instant=following, local=plan.local(following)))
        after = following
    return coming


def _instant_of(cursor: str | None) -> Instant:
    if cursor is None:
        return Instant(2**62)
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > 18:
        raise Invalid("not a cursor that a list has given", field="cursor")
    return Instant(int(cursor))
