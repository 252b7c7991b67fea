"""Routes of failures: what failed alike, how often and since when; muting, and notes."""

from typing import Annotated, Any

from fastapi import Query, Request, Response
from pydantic import Field

from nextslot.domain import Scope
from nextslot.domain.bounds import MAX_TEXT
from nextslot.domain.fingerprints import Failure as StoredFailure
from nextslot.server import schemas
from nextslot.server.auth import caller_of, of_failure, scheduler_for
from nextslot.server.derived_schemas import shows
from nextslot.server.queries import Query as OwnQuery
from nextslot.server.queries import Values, split
from nextslot.server.responses import answer
from nextslot.server.route_rules import needs
from nextslot.server.routing import router
from nextslot.services.failures import DEFAULT_LIMIT, KEPT_DAYS, MOST

failures = router("Failures")


class FailureQuery(OwnQuery):
    since: schemas.When | None = Field(
        None, description=f"Default: a day before `until`; at most {KEPT_DAYS} days before it"
    )
    until: schemas.When | None = Field(None, description="Default, and at most: now")
    office_id: Values | None = Field(None, description="Default: the key's office, else all; several by comma")
    job_type: Values | None = None
    fingerprint: Values | None = None
    muted: bool | None = Field(None, description="Only muted ones, or only others; default: both")
    limit: Annotated[int, Field(ge=1, le=MOST)] = DEFAULT_LIMIT
    cursor: str | None = Field(None, max_length=1000, description="`next_cursor` of the page before")


class FailureChange(schemas.Body):
    """What is not given stays."""

    muted: bool = Field(False, description="Whether lists leave it out unless asked")
    note: str | None = Field(None, max_length=MAX_TEXT, description="null removes it")


@shows(StoredFailure, schemas.IN_ANSWERS)
class Failure(schemas.ResponseModel):
    pass


class Failures(schemas.ResponseModel):
    items: list[Failure]
    next_cursor: str | None
    since: schemas.Time = Field(description="The range: whole hours")
    until: schemas.Time
    bucket_seconds: int = Field(description="The length of each part of the range, of which `buckets` has the counts")


@failures.get("/api/failures", response_model=Failures)
@needs(Scope.READ)
async def list_failures(query: Annotated[FailureQuery, Query()], request: Request) -> Response:
    """Lists failures that are alike, the last seen first: how many there were in a range, and when.

    `POST /api/jobs/retry` with a `fingerprint` retries those that can be retried.
    """
    found = await scheduler_for(request).failures.list(
        query.since,
        query.until,
        office_id=caller_of(request).narrowed(split(query.office_id)),
        job_type=split(query.job_type),
        fingerprint=split(query.fingerprint),
        muted=query.muted,
        cursor=query.cursor,
        limit=query.limit,
    )
    return answer(
        {
            "items": [one.to_dict() for one in found.items],
            "next_cursor": found.next_cursor,
            "since": str(found.since),
            "until": str(found.until),
            "bucket_seconds": found.bucket_seconds,
        }
    )


@failures.patch("/api/failures/{fingerprint}", response_model=Failure)
@needs(Scope.OPERATE, of_failure)
async def change_failure(fingerprint: str, body: FailureChange, request: Request) -> Response:
    """Mutes failures of a fingerprint in its office, or notes something about them. The answer has no counts."""
    changes: dict[str, Any] = body.given()
    return answer((await scheduler_for(request).failures.change(fingerprint, **changes)).to_dict())
