"""Schedules: converts rows to values and back, one function per statement."""

from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from nextslot.domain import Schedule
from nextslot.store.contract import Tx
from nextslot.system.instant import Instant

from . import column_codec
from .rows import SCHEDULES


def insert(tx: Tx, schedule: Schedule) -> None:
    tx.execute("schedules.insert", **SCHEDULES.named(schedule))


def update(tx: Tx, schedule: Schedule) -> None:
    tx.execute("schedules.update", **SCHEDULES.changed(schedule))


class Progress(NamedTuple):
    """When a schedule last fired, up to when its occurrences are stored, and when the next one is."""

    schedule_id: str
    last_triggered_at: Instant | None
    accounted_until: Instant
    next_trigger_at: Instant | None


def advance(tx: Tx, progress: Iterable[Progress]) -> None:
    names = ("last_triggered_at", "next_trigger_at", "accounted_until", "schedule_id")
    tx.execute_batch("schedules.advance", names, map(attrgetter(*names), progress))


def get(tx: Tx, schedule_id: str) -> Schedule | None:
    row = tx.row("schedules.get", schedule_id=schedule_id)
    return None if row is None else SCHEDULES.value(row)


def by_name(tx: Tx, office_id: str, name: str) -> str | None:
    """Returns the id of the office's current schedule with this name."""
    row = tx.row("schedules.by_name", office_id=office_id, name=name)
    return None if row is None else row[0]


def due(tx: Tx, now: Instant, limit: int) -> list[Schedule]:
    return [SCHEDULES.value(row) for row in tx.rows("schedules.due", now=now, limit=limit)]


def next_instant(tx: Tx) -> Instant | None:
    row = tx.row("schedules.next_instant")
    return None if row is None else column_codec.instant(row[0])


def enabled(tx: Tx, after: str, limit: int) -> list[Schedule]:
    return [SCHEDULES.value(row) for row in tx.rows("schedules.enabled", after=after, limit=limit)]


def of_template(tx: Tx, template_id: str) -> list[Schedule]:
    return [SCHEDULES.value(row) for row in tx.rows("schedules.of_template", template_id=template_id)]


def page(tx: Tx, before: str, limit: int, office_id: str | None, template_id: str | None) -> list[Schedule]:
    """Returns a page of schedules, the newest first, below an id."""
    found = tx.rows("schedules.page", before=before, limit=limit, office_id=office_id, template_id=template_id)
    return [SCHEDULES.value(row) for row in found]


def at_work(tx: Tx, schedule_ids: Iterable[str]) -> set[str]:
    """Returns those schedules that have a job that has not ended, or whose chain continues."""
    return {row[0] for row in tx.rows("schedules.at_work", schedule_ids=column_codec.key_set(schedule_ids))}
