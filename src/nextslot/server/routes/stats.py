"""Routes of statistics: what ended, how long it waited and ran, and how long the queue was, over time."""

from typing import Annotated, Literal

from fastapi import Query, Request, Response
from pydantic import Field

from nextslot import domain
from nextslot.domain import Scope
from nextslot.server import schemas
from nextslot.server.auth import caller_of, scheduler_for
from nextslot.server.derived_schemas import shows
from nextslot.server.queries import Query as OwnQuery
from nextslot.server.responses import answer
from nextslot.server.route_rules import needs
from nextslot.server.routing import router

stats = router("Statistics")


class SeriesQuery(OwnQuery):
    from_: schemas.When | None = Field(
        None, alias="from", description="Default: a day before `to`; six hours for step 60, 30 days for step 86400"
    )
    to: schemas.When | None = Field(None, description="Default, and at most: now")
    step: int = Field(3_600, description="Seconds: 60, 300, 900, 3600 or 86400", examples=[3_600])
    office_id: str | None = Field(None, max_length=1000, description="Default: the key's office, else all")
    job_type: str | None = Field(None, max_length=1000, description="Default: all")
    kind: Literal["job", "direct"] = Field("job", description="Jobs, or direct executions")


@shows(domain.SeriesPoint, schemas.IN_ANSWERS)
class SeriesPoint(schemas.ResponseModel):
    pass


class Series(schemas.ResponseModel):
    step: int = Field(description="Seconds")
    counted_from: schemas.Time | None = Field(description="Ends before this time are not counted; null: all are")
    total: SeriesPoint = Field(description="The whole range as one step")
    points: list[SeriesPoint] = Field(description="Without a gap, the oldest first; at most 1,000")


@stats.get("/api/stats/series", response_model=Series)
@needs(Scope.READ)
async def show_series(query: Annotated[SeriesQuery, Query()], request: Request) -> Response:
    """Shows what ended in each step of a range: counts by outcome, p50 and p95 of wait and duration, queue depth.

    Steps begin at multiples of `step` in UTC. Minutes are kept for 2 days and hours for 92, so finer steps cannot go
    further back. Quantiles are at most 6.25 % off.
    """
    offices = caller_of(request).narrowed(() if query.office_id is None else (query.office_id,))
    found = await scheduler_for(request).stats.series(
        query.from_, query.to, query.step, offices[0] if offices else None, query.job_type, query.kind
    )
    return answer(found.to_dict())
