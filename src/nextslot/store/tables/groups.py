"""Groups: converts rows to values and back, one function per statement."""

from collections.abc import Mapping

from nextslot.domain import Group, Json
from nextslot.store.contract import Tx
from nextslot.system.instant import Instant

from . import column_codec
from .rows import GROUPS


def insert(tx: Tx, group: Group) -> None:
    tx.execute(
        "groups.insert",
        group_id=group.group_id,
        office_id=group.office_id,
        name=group.name,
        mode=group.mode,
        on_failure=group.on_failure,
        members=group.members,
        created_at=group.created_at,
        template_id=group.template_id,
        schedule_id=group.schedule_id,
    )


def get(tx: Tx, group_id: str) -> Group | None:
    row = tx.row("groups.get", group_id=group_id)
    return None if row is None else GROUPS.value(row)


def begin(tx: Tx, group_id: str, now: Instant) -> bool:
    return tx.execute("groups.begin", group_id=group_id, now=now) == 1


def count(tx: Tx, group: Group) -> None:
    tx.execute(
        "groups.count",
        group_id=group.group_id,
        ended=group.ended,
        succeeded=group.succeeded,
        cancelled=group.cancelled,
        status=group.status,
        finished_at=group.finished_at,
    )


def request_cancel(tx: Tx, group_id: str, request: Mapping[str, Json] | None) -> None:
    tx.execute(
        "groups.request_cancel",
        group_id=group_id,
        cancel_request=None if request is None else column_codec.dumps(request),
    )


def to_cancel(tx: Tx) -> Group | None:
    """Returns a group whose members are being cancelled, if there is one."""
    row = tx.row("groups.to_cancel")
    return None if row is None else GROUPS.value(row)


def set_webhook(tx: Tx, group_id: str, webhook: Mapping[str, Json]) -> None:
    tx.execute("groups.set_webhook", group_id=group_id, webhook=column_codec.dumps(webhook))


def webhook(tx: Tx, group_id: str) -> tuple[Mapping[str, Json] | None, str | None]:
    """Returns the group's own webhook, if it has one, and the delivery about its end, if there was one."""
    row = tx.row("groups.webhook", group_id=group_id)
    return (None, None) if row is None else (column_codec.parsed(row[0]), row[1])


def told(tx: Tx, group_id: str, delivery_id: str) -> None:
    tx.execute("groups.told", group_id=group_id, delivery_id=delivery_id)
