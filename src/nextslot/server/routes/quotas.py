"""Routes of quotas: what admins grant each office at most."""

from typing import Annotated

from fastapi import Request, Response
from pydantic import Field

from nextslot import domain
from nextslot.domain import Scope
from nextslot.domain.bounds import Count, Limit, Text
from nextslot.server import schemas
from nextslot.server.auth import of_path, scheduler_for, whole
from nextslot.server.derived_schemas import shows
from nextslot.server.responses import answer
from nextslot.server.route_rules import needs
from nextslot.server.routing import router
from nextslot.server.schemas import Body

quotas = router("Quotas")


class QuotasPatch(Body):
    """Fields that are not given stay as they are; null restores the default."""

    queued_jobs: Count | None = None
    lanes: Limit | None = None
    batch_jobs: Limit | None = None
    requests_per_second: Limit | None = None
    streams: Limit | None = None
    direct_callers: Limit | None = None
    delivery_places: Limit | None = None
    body_bytes: Count | None = None
    stored_bytes: Count | None = None
    max_concurrent_jobs: Limit | None = None
    job_types: Annotated[list[Text], Field(max_length=1000)] | None = None
    own_resources: bool | None = None


@shows(domain.Quotas, schemas.IN_ANSWERS)
class QuotasAnswer(schemas.ResponseModel):
    pass


class Used(schemas.ResponseModel):
    queued_jobs: int = Field(description="Jobs that have not ended")
    stored_bytes: int | None = Field(description="Of logs and artifacts on this node; null: not measured")


class QuotasWithUse(QuotasAnswer):
    used: Used


@quotas.get("/api/quotas/{office_id}", response_model=QuotasWithUse)
@needs(Scope.READ, of_path)
async def show_quotas(office_id: str, request: Request) -> Response:
    """Shows what an office may use at most, and what it uses."""
    offices = scheduler_for(request).offices
    return answer({**(await offices.quotas(office_id)).to_dict(), "used": await offices.used(office_id)})


@quotas.patch("/api/quotas/{office_id}", response_model=QuotasAnswer)
@needs(Scope.ADMIN, whole)
async def change_quotas(office_id: str, body: QuotasPatch, request: Request) -> Response:
    """Grants an office more or less. Over a quota, requests get 429 `over_quota`; nothing that exists is ended."""
    return answer((await scheduler_for(request).offices.grant(office_id, **body.given())).to_dict())
