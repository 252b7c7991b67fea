"""Subscriptions and the secrets that sign: converts rows to values and back, one function per statement."""

from collections.abc import Mapping
from typing import NamedTuple

from nextslot.domain import Json, Webhook
from nextslot.store.contract import Tx
from nextslot.system.instant import Instant

from . import column_codec
from .rows import WEBHOOKS


class Secrets(NamedTuple):
    """The secrets with which a subscription signs; the old one until the end of its rotation."""

    secret: str
    old_secret: str | None
    old_until: Instant | None


def insert(tx: Tx, webhook: Webhook, secret: str) -> None:
    tx.execute("webhooks.insert", secret=secret, **WEBHOOKS.named(webhook))


def get(tx: Tx, webhook_id: str) -> Webhook | None:
    row = tx.row("webhooks.get", webhook_id=webhook_id)
    return None if row is None else WEBHOOKS.value(row)


def page(tx: Tx, before: str, limit: int, office_id: str | None = None) -> list[Webhook]:
    """Returns a page of subscriptions, the newest first; of one office or of all."""
    rows = tx.rows("webhooks.page", before=before, limit=limit, office_id=office_id or "")
    return [WEBHOOKS.value(row) for row in rows]


def count(tx: Tx, office_id: str | None) -> int:
    row = tx.row("webhooks.count", office_id=office_id or "")
    return row[0] if row else 0


def enabled(tx: Tx) -> list[Webhook]:
    return [WEBHOOKS.value(row) for row in tx.rows("webhooks.enabled")]


def update(tx: Tx, webhook: Webhook) -> None:
    tx.execute("webhooks.update", **WEBHOOKS.changed(webhook))


def rotate(tx: Tx, webhook_id: str, secret: str, until: Instant) -> None:
    tx.execute("webhooks.rotate", webhook_id=webhook_id, secret=secret, until=until)


def delete(tx: Tx, webhook_id: str) -> None:
    tx.execute("webhooks.delete", webhook_id=webhook_id)


def secrets(tx: Tx) -> dict[str, Secrets]:
    return {row[0]: Secrets(row[1], row[2], column_codec.instant(row[3])) for row in tx.rows("webhooks.secrets")}


def server_secret(tx: Tx) -> str | None:
    row = tx.row("webhooks.server_secret")
    return row[0] if row else None


def keep_server_secret(tx: Tx, secret: str) -> None:
    tx.execute("webhooks.keep_server_secret", secret=secret)


def offices(tx: Tx) -> dict[str, Mapping[str, Json]]:
    return {row[0]: column_codec.loads(row[1]) for row in tx.rows("webhooks.offices")}
