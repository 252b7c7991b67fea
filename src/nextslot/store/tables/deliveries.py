"""Deliveries and their attempts: converts rows to values and back, one function per statement."""

from collections.abc import Sequence

from nextslot.domain import Attempt, Delivery, DeliveryStatus
from nextslot.domain.addresses import origin
from nextslot.domain.webhook_delivery import Next
from nextslot.store.contract import Row, Tx
from nextslot.system.instant import Instant

from . import column_codec
from .rows import ATTEMPTS

NEWEST = "~"


def insert(tx: Tx, made: Sequence[Delivery]) -> None:
    tx.execute_batch("deliveries.insert", _NAMES, map(_row, made))


def get(tx: Tx, delivery_id: str) -> Delivery | None:
    row = tx.row("deliveries.get", delivery_id=delivery_id)
    return None if row is None else _delivery(row, attempts(tx, delivery_id))


def attempts(tx: Tx, delivery_id: str) -> tuple[Attempt, ...]:
    return tuple(map(ATTEMPTS.value, tx.rows("deliveries.attempts", delivery_id=delivery_id)))


def origins(tx: Tx) -> dict[str, Instant]:
    """Returns for each endpoint when its next delivery is due."""
    return {row[0]: Instant(row[1]) for row in tx.rows("deliveries.origins")}


def due(tx: Tx, origin: str, now: Instant, limit: int) -> list[Delivery]:
    return [_delivery(row) for row in tx.rows("deliveries.due", origin=origin, now=now, limit=limit)]


def next_due(tx: Tx, origin: str, now: Instant) -> Instant | None:
    row = tx.row("deliveries.next_due", origin=origin, now=now)
    return None if row is None else column_codec.instant(row[0])


def settle(tx: Tx, delivery_id: str, tries: int, following: Next, now: Instant) -> bool:
    """Stores what follows an attempt. Returns False if the delivery had ended in the meantime."""
    changed = tx.execute(
        "deliveries.settle",
        delivery_id=delivery_id,
        status=following.status,
        tries=tries,
        next_attempt_at=following.at,
        reason=following.reason,
        finished_at=None if following.status is DeliveryStatus.PENDING else now,
    )
    return changed == 1


def add_attempt(tx: Tx, delivery_id: str, attempt: Attempt) -> None:
    tx.execute(
        "deliveries.add_attempt",
        delivery_id=delivery_id,
        attempted_at=attempt.attempted_at,
        duration_seconds=attempt.duration_seconds,
        status_code=attempt.status_code,
        error=attempt.error,
        answer=attempt.answer,
        retry_after_seconds=attempt.retry_after_seconds,
    )


def give_up(tx: Tx, webhook_id: str, reason: str, now: Instant) -> int:
    signers = column_codec.dumps([webhook_id])
    return tx.execute("deliveries.give_up", webhook_id=webhook_id, signers=signers, reason=reason, now=now)


def send_again(tx: Tx, delivery_id: str, now: Instant) -> bool:
    return tx.execute("deliveries.send_again", delivery_id=delivery_id, now=now) == 1


def mark_job(tx: Tx, job_id: str) -> None:
    tx.execute("deliveries.mark_job", job_id=job_id)


def mark_pending(tx: Tx, job_id: str) -> None:
    tx.execute("deliveries.mark_pending", job_id=job_id)


def page(
    tx: Tx,
    before: str,
    limit: int,
    job_id: str | None = None,
    webhook_id: str | None = None,
    event: str | None = None,
    status: str | None = None,
) -> list[Delivery]:
    """Returns a page of deliveries, the newest first, with their attempts. An index finds the rows of each filter."""
    words = {"event": event or "", "status": status or ""}
    if job_id is not None:
        of_job = {"job_id": job_id, "webhook_id": webhook_id or ""}
        found = tx.rows("deliveries.page_of_job", before=before, limit=limit, **of_job, **words)
    elif webhook_id is not None:
        found = tx.rows("deliveries.page_of_webhook", webhook_id=webhook_id, before=before, limit=limit, **words)
    elif event is not None:
        found = tx.rows("deliveries.page_of_event", before=before, limit=limit, **words)
    elif status in (DeliveryStatus.PENDING, DeliveryStatus.FAILED):
        found = tx.rows("deliveries.page_of_status", status=status, before=before, limit=limit)
    else:
        found = tx.rows("deliveries.page", status=status or "", before=before, limit=limit)
    return [_delivery(row, attempts(tx, row[0])) for row in found]


_NAMES = ("delivery_id", "url", "origin", "event", "seq", "office_id", "job_id", "webhook_id", "signers", "is_own",
          "body", "headers", "now")  # fmt: skip


def _row(one: Delivery) -> Row:
    return (
        one.delivery_id,
        one.url,
        origin(one.url),
        one.event,
        one.seq,
        one.office_id,
        one.job_id,
        one.webhook_id,
        column_codec.dumps(one.signers),
        int(one.is_own),
        one.body,
        column_codec.dumps(one.headers) if one.headers else None,
        one.created_at,
    )


def _delivery(row: Row, tried: tuple[Attempt, ...] = ()) -> Delivery:
    (delivery_id, url, event, seq, office_id, job_id, signers, is_own, body, headers, status, tries, next_attempt_at,
     reason, created_at, finished_at) = row  # fmt: skip
    return Delivery(
        delivery_id=delivery_id,
        url=url,
        event=event,
        seq=seq,
        office_id=office_id,
        job_id=job_id,
        signers=tuple(column_codec.loads(signers)),
        is_own=is_own == 1,
        body=body,
        headers=column_codec.parsed(headers) or {},
        status=DeliveryStatus(status),
        tries=tries,
        next_attempt_at=column_codec.instant(next_attempt_at),
        reason=reason,
        created_at=Instant(created_at),
        finished_at=column_codec.instant(finished_at),
        attempts=tried,
    )
