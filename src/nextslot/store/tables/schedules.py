"""Schedules: rows to values and back, one function a statement."""

from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from nextslot.domain import CatchUp, Overlap, Schedule
from nextslot.store.contract import Row, Tx
from nextslot.system.clock import Instant

from . import column_codec


def insert(tx: Tx, schedule: Schedule) -> None:
    tx.execute("schedules.insert", **_values(schedule), created_at=schedule.created_at)


def update(tx: Tx, schedule: Schedule) -> None:
    tx.execute("schedules.update", **_values(schedule))


class Progress(NamedTuple):
    """How far a schedule is."""

    schedule_id: str
    last_triggered_at: Instant | None
    accounted_until: Instant
    next_trigger_at: Instant | None


def advance(tx: Tx, progress: Iterable[Progress]) -> None:
    names = ("last_triggered_at", "next_trigger_at", "accounted_until", "schedule_id")
    tx.execute_batch("schedules.advance", names, map(attrgetter(*names), progress))


def get(tx: Tx, schedule_id: str) -> Schedule | None:
    row = tx.row("schedules.get", schedule_id=schedule_id)
    return None if row is None else _schedule(row)


def due(tx: Tx, now: Instant, limit: int) -> list[Schedule]:
    return [_schedule(row) for row in tx.rows("schedules.due", now=now, limit=limit)]


def next_instant(tx: Tx) -> Instant | None:
    row = tx.row("schedules.next_instant")
    return None if row is None else column_codec.instant(row[0])


def enabled(tx: Tx, after: str, limit: int) -> list[Schedule]:
    return [_schedule(row) for row in tx.rows("schedules.enabled", after=after, limit=limit)]


def of_template(tx: Tx, template_id: str) -> list[Schedule]:
    return [_schedule(row) for row in tx.rows("schedules.of_template", template_id=template_id)]


def page(tx: Tx, before: str, limit: int, office_id: str | None, template_id: str | None) -> list[Schedule]:
    """The newest first, from an id downwards."""
    found = tx.rows("schedules.page", before=before, limit=limit, office_id=office_id, template_id=template_id)
    return [_schedule(row) for row in found]


def at_work(tx: Tx, schedule_ids: Iterable[str]) -> set[str]:
    """Those with a job that has not ended, or whose chain goes on."""
    return {row[0] for row in tx.rows("schedules.at_work", schedule_ids=column_codec.key_set(schedule_ids))}


def _values(schedule: Schedule) -> dict[str, object]:
    return {
        "schedule_id": schedule.schedule_id,
        "template_id": schedule.template_id,
        "name": schedule.name,
        "cron_expression": schedule.cron_expression,
        "timezone": schedule.timezone,
        "enabled": int(schedule.enabled),
        "office_id": schedule.office_id,
        "param_overrides": column_codec.optional(schedule.param_overrides),
        "catch_up": schedule.catch_up,
        "catch_up_window_seconds": float(schedule.catch_up_window_seconds),
        "overlap": schedule.overlap,
        "priority": schedule.priority,
        "last_triggered_at": schedule.last_triggered_at,
        "next_trigger_at": schedule.next_trigger_at,
        "accounted_until": schedule.accounted_until,
        "deleted_at": schedule.deleted_at,
    }


def _schedule(row: Row) -> Schedule:
    return Schedule(
        schedule_id=row[0],
        template_id=row[1],
        name=row[2],
        cron_expression=row[3],
        timezone=row[4],
        enabled=row[5] == 1,
        office_id=row[6],
        param_overrides=column_codec.parsed(row[7]),
        catch_up=CatchUp(row[8]),
        catch_up_window_seconds=row[9],
        overlap=Overlap(row[10]),
        priority=row[11],
        last_triggered_at=column_codec.instant(row[12]),
        next_trigger_at=column_codec.instant(row[13]),
        accounted_until=Instant(row[14]),
        created_at=Instant(row[15]),
        deleted_at=column_codec.instant(row[16]),
    )
