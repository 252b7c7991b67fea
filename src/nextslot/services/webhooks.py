"""Webhooks: subscriptions to events, and deliveries with their attempts."""

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Unpack

from nextslot.client.keyword_arguments import WebhookChanges
from nextslot.domain import DEFAULT_OFFICE, Delivery, DeliveryStatus, Page, Webhook
from nextslot.domain.webhook_delivery import SERVER
from nextslot.engine.submit.idempotency import Once
from nextslot.engine.webhooks.webhook_outbox import WebhookService
from nextslot.store.contract import Tx
from nextslot.store.tables import deliveries, webhooks

from .arguments import choice, found
from .cursors import DEFAULT_LIMIT, each, read_page
from .unit_of_work import UnitOfWork


class WebhookSubscriptions:
    def __init__(self, access: UnitOfWork, service: WebhookService) -> None:
        self._access = access
        self._service = service

    # Subscriptions.

    async def create(
        self, url: str, events: Sequence[str] | None = None, office_id: str | None = None, format: str | None = None
    ) -> tuple[Webhook, str]:
        """Subscribes a URL to these events (default: the ends of runs) of one office (default: all), in a format.

        Returns the subscription and its secret. No other call returns the secret; `rotate_secret` makes a new one.
        """
        created_by = self._access.context.asked_by

        def work(tx: Tx) -> tuple[Webhook, str]:
            made, secret = self._service.create(tx, content, created_by, self._access.clock.now())
            self._changed(tx, None, made)
            return made, secret

        content = {"url": url, "events": events, "office_id": office_id, **({"format": format} if format else {})}
        once: Once[tuple[Webhook, str]] = Once("webhooks", office_id, content, lambda made: [made[0].webhook_id])
        return await self._access.create(work, once=once)

    async def get(self, webhook_id: str) -> Webhook:
        return await self._access.read(lambda tx: self._service.subscription(tx, webhook_id))

    def list(self, *, office_id: str | None = None) -> AsyncIterator[Webhook]:
        """Yields subscriptions of one office, or of all, the newest first."""
        return each(partial(self.page, office_id=office_id))

    async def page(
        self, limit: int = DEFAULT_LIMIT, cursor: str | None = None, *, office_id: str | None = None
    ) -> Page[Webhook]:
        """Returns a page of subscriptions of one office, or of all, the newest first."""
        read = partial(webhooks.page, office_id=office_id)
        return await read_page(self._access, "webhooks", deliveries.NEWEST, cursor, limit, read, "webhook_id")

    async def change(self, webhook_id: str, **changes: Unpack[WebhookChanges]) -> Webhook:
        """Changes `url`, `events`, `office_id`, `format` or `enabled` of a subscription, for later events."""

        def work(tx: Tx) -> Webhook:
            before, after = self._service.change(tx, webhook_id, changes, self._access.clock.now())
            self._changed(tx, before, after)
            return after

        return await self._access.write(work)

    async def delete(self, webhook_id: str) -> None:
        """Deletes a subscription. Its pending deliveries end FAILED; all its deliveries stay stored."""

        def work(tx: Tx) -> None:
            self._changed(tx, self._service.delete(tx, webhook_id, self._access.clock.now()), None)

        await self._access.write(work)

    async def rotate_secret(self, webhook_id: str) -> tuple[Webhook, str]:
        """Makes a new secret, which no other call returns. For a day the old secret signs messages too."""

        def work(tx: Tx) -> tuple[Webhook, str]:
            before = self._service.subscription(tx, webhook_id)
            after, secret = self._service.rotate_secret(tx, webhook_id, self._access.clock.now())
            self._changed(tx, before, after)
            return after, secret

        return await self._access.write(work)

    async def test(self, webhook_id: str) -> Delivery:
        """Sends a `webhook.test` to a subscription, even to a disabled one."""
        delivery_id = await self._access.write(lambda tx: self._service.test(tx, webhook_id, self._access.clock.now()))
        return await self.delivery(delivery_id)

    # Deliveries.

    async def deliveries_page(
        self,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
        *,
        job_id: str | None = None,
        webhook_id: str | None = None,
        event: str | None = None,
        status: DeliveryStatus | str | None = None,
    ) -> Page[Delivery]:
        """Lists matching deliveries with their attempts, the newest first."""
        word = None if status is None else choice(DeliveryStatus, status, "status")
        read = partial(deliveries.page, job_id=job_id, webhook_id=webhook_id, event=event, status=word)
        return await read_page(self._access, "deliveries", deliveries.NEWEST, cursor, limit, read, "delivery_id")

    async def delivery(self, delivery_id: str) -> Delivery:
        read = await self._access.read(lambda tx: deliveries.get(tx, delivery_id))
        return found(read, "delivery", delivery_id)

    async def shown_to(self, office_id: str, found: Sequence[Delivery]) -> Sequence[Delivery]:
        """Returns those deliveries that an office may see: about its own events, to its own URLs.

        A subscription for all offices, or of another office, stays hidden: its URL may contain a token.
        """

        def read(tx: Tx) -> Sequence[Delivery]:
            signers = {signer for one in found for signer in one.signers} - {SERVER}
            own = {signer for signer in signers if _office_of(tx, signer) == office_id} | {SERVER}
            return [one for one in found if one.office_id == office_id and own.intersection(one.signers)]

        return await self._access.read(read)

    async def redeliver(self, delivery_id: str) -> Delivery:
        """Sends an ended delivery again: the same message with the same `webhook-id`, in a new round of attempts."""
        return await self._access.write(lambda tx: self._service.redeliver(tx, delivery_id, self._access.clock.now()))

    # The server's own secret.

    def secret(self, office_id: str = DEFAULT_OFFICE) -> str:
        """Returns the secret that signs the webhooks of an office, of its jobs and of its direct requests. Only for
        their receivers."""
        return self._service.secret(office_id)

    def _changed(self, tx: Tx, before: Webhook | None, after: Webhook | None) -> None:
        self._access.audit.changed(
            tx,
            None if before is None else before.to_dict(),
            None if after is None else after.to_dict(),
        )


def _office_of(tx: Tx, webhook_id: str) -> str | None:
    webhook = webhooks.get(tx, webhook_id)
    return None if webhook is None else webhook.office_id
