"""Routes of webhooks: subscriptions to events, and deliveries with their attempts."""

from dataclasses import replace
from typing import Annotated, Literal

from fastapi import Query, Request, Response
from pydantic import Field

from nextslot import domain
from nextslot.domain import Scope
from nextslot.domain.webhook_delivery import EVENTS
from nextslot.domain.webhooks import CHAT_FORMATS
from nextslot.engine.submit.idempotency import Replayed
from nextslot.server import schemas
from nextslot.server.auth import Caller, caller_of, of_deliveries, of_delivery, of_webhook, scheduler_for
from nextslot.server.derived_schemas import shows
from nextslot.server.queries import PageQuery
from nextslot.server.responses import answer, created, page
from nextslot.server.route_rules import needs
from nextslot.server.routing import router
from nextslot.server.schemas import Body, Page, partial

webhooks = router("Webhooks")


class SubscriptionBody(Body):
    url: str = Field(max_length=2000, examples=["https://example.org/hook"])
    events: list[str] | None = Field(None, max_length=100, description=f"Of {', '.join(EVENTS)}; default: the runs'")
    office_id: str | None = Field(None, description="Default: the key's office, else all offices")
    format: str | None = Field(None, description=f"Of {', '.join(CHAT_FORMATS)}; null: signed JSON for programs")


class SubscriptionWithState(SubscriptionBody):
    enabled: bool = Field(True, description="A subscription is disabled when its receiver answers 410")


class SubscriptionPatch(partial(SubscriptionWithState)):  # type: ignore[misc]
    """Fields that are not given stay as they are."""


@shows(domain.Webhook, schemas.IN_ANSWERS)
class Subscription(schemas.ResponseModel):
    pass


class SubscriptionWithSecret(Subscription):
    secret: str | None = Field(None, description="The secret that signs the messages. No other answer shows it.")


@shows(domain.Attempt, schemas.IN_ANSWERS)
class Attempt(schemas.ResponseModel):
    pass


@shows(domain.Delivery, schemas.IN_ANSWERS)
class Delivery(schemas.ResponseModel):
    status: Literal["PENDING", "DELIVERED", "FAILED"]
    attempts: list[Attempt]


class DeliveryQuery(PageQuery):
    job_id: str | None = None
    webhook_id: str | None = None
    event: str | None = None
    status: Literal["PENDING", "DELIVERED", "FAILED"] | None = None


@webhooks.post("/api/webhooks", status_code=201, response_model=SubscriptionWithSecret)
@needs(Scope.OPERATE, creates=True)
async def create_webhook(body: SubscriptionBody, request: Request) -> Response:
    """Makes a subscription. No other answer shows its secret."""
    scheduler = scheduler_for(request)
    caller = caller_of(request)
    fields = {"office_id": caller.office_id, **body.given()}
    caller.check_office(fields["office_id"])
    try:
        made, secret = await scheduler.webhooks.create(**fields)
    except Replayed as before:
        made = await scheduler.webhooks.get(before.ids[0])
        return created(made.to_dict(), f"/api/webhooks/{made.webhook_id}", is_new=False)
    return created({**made.to_dict(), "secret": secret}, f"/api/webhooks/{made.webhook_id}")


@webhooks.get("/api/webhooks", response_model=Page[Subscription])
@needs(Scope.READ)
async def list_webhooks(query: Annotated[PageQuery, Query()], request: Request) -> Response:
    """Lists subscriptions, the newest first."""
    scheduler = scheduler_for(request)
    found = await scheduler.webhooks.page(query.limit, query.cursor, office_id=caller_of(request).office_id)
    return page(found)


@webhooks.get("/api/webhooks/{webhook_id}", response_model=Subscription)
@needs(Scope.READ, of_webhook)
async def get_webhook(webhook_id: str, request: Request) -> Response:
    return answer((await scheduler_for(request).webhooks.get(webhook_id)).to_dict())


@webhooks.patch("/api/webhooks/{webhook_id}", response_model=Subscription)
@needs(Scope.OPERATE, of_webhook, conflicts=True)
async def change_webhook(webhook_id: str, body: SubscriptionPatch, request: Request) -> Response:
    """Changes a subscription, for later events."""
    fields = body.given()
    if "office_id" in fields:
        caller_of(request).check_office(fields["office_id"])
    return answer((await scheduler_for(request).webhooks.change(webhook_id, **fields)).to_dict())


@webhooks.delete("/api/webhooks/{webhook_id}", status_code=204, response_class=Response)
@needs(Scope.OPERATE, of_webhook)
async def delete_webhook(webhook_id: str, request: Request) -> Response:
    """Deletes a subscription: its pending deliveries end FAILED, all its deliveries stay on record."""
    await scheduler_for(request).webhooks.delete(webhook_id)
    return Response(status_code=204)


@webhooks.post("/api/webhooks/{webhook_id}/test", status_code=202, response_model=Delivery)
@needs(Scope.OPERATE, of_webhook, conflicts=True)
async def test_webhook(webhook_id: str, request: Request) -> Response:
    """Sends a `webhook.test` to a subscription; the delivery shows the outcome."""
    return answer((await scheduler_for(request).webhooks.test(webhook_id)).to_dict(), 202)


@webhooks.post("/api/webhooks/{webhook_id}/rotate-secret", response_model=SubscriptionWithSecret)
@needs(Scope.OPERATE, of_webhook, conflicts=True)
async def rotate_secret(webhook_id: str, request: Request) -> Response:
    """Makes another secret, which no other answer shows; for a day the old one signs too."""
    webhook, secret = await scheduler_for(request).webhooks.rotate_secret(webhook_id)
    return answer({**webhook.to_dict(), "secret": secret})


@webhooks.get("/api/webhook-deliveries", response_model=Page[Delivery])
@needs(Scope.READ, of_deliveries)
async def list_deliveries(query: Annotated[DeliveryQuery, Query()], request: Request) -> Response:
    """Lists deliveries with their attempts, the newest first. A key of one office must name a job or webhook of it."""
    scheduler = scheduler_for(request)
    found = await scheduler.webhooks.deliveries_page(**query.model_dump())
    caller = caller_of(request)
    if caller.office_id is not None:
        found = replace(found, items=tuple(await scheduler.webhooks.shown_to(caller.office_id, found.items)))
    return page(found, lambda one: _shown(one, caller))


@webhooks.get("/api/webhook-deliveries/{delivery_id}", response_model=Delivery)
@needs(Scope.READ, of_delivery)
async def get_delivery(delivery_id: str, request: Request) -> Response:
    return answer(_shown(await scheduler_for(request).webhooks.delivery(delivery_id), caller_of(request)))


@webhooks.post("/api/webhook-deliveries/{delivery_id}/redeliver", status_code=202, response_model=Delivery)
@needs(Scope.OPERATE, of_delivery, conflicts=True)
async def redeliver(delivery_id: str, request: Request) -> Response:
    """Sends the same message once more, under the same `webhook-id`."""
    return answer((await scheduler_for(request).webhooks.redeliver(delivery_id)).to_dict(), 202)


def _shown(delivery: domain.Delivery, caller: Caller) -> dict[str, object]:
    """Returns the JSON form. What receivers answered is for `operate` only: it would show others a private network."""
    if not caller.scope.includes(Scope.OPERATE):
        bare = (
            replace(one, status_code=None, error=None, answer=None, retry_after_seconds=None)
            for one in delivery.attempts
        )
        delivery = replace(delivery, reason=None, attempts=tuple(bare))
    return delivery.to_dict()
