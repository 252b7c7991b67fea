"""Routes of API keys and the audit log, for admins; and `/api/me`."""

from typing import Annotated, Literal

from fastapi import Query, Request, Response
from pydantic import Field

from nextslot import domain
from nextslot.domain import Scope
from nextslot.domain.bounds import Text
from nextslot.engine.submit.idempotency import Replayed
from nextslot.server import schemas
from nextslot.server.auth import caller_of, scheduler_for, whole
from nextslot.server.derived_schemas import shows
from nextslot.server.queries import PageQuery
from nextslot.server.responses import answer, created, page
from nextslot.server.route_rules import needs
from nextslot.server.routing import router
from nextslot.server.schemas import Body, Page, When

keys = router("Keys and audit")


class KeyBody(Body):
    name: Text = Field(examples=["ci"])
    scopes: Annotated[list[Literal["read", "submit", "operate", "admin"]], Field(min_length=1, max_length=4)]
    office_id: str | None = Field(None, description="The only office of the key; not allowed for the scope `admin`")
    expires_at: When | None = Field(
        None, description="From then on the key is not valid; not allowed for the first admin key"
    )
    allowed_addresses: list[str] = Field(
        [],
        max_length=100,
        description="Addresses and networks from which the key may be used",
        examples=[["10.0.0.0/8"]],
    )
    job_types: list[Text] = Field(
        [], max_length=1000, description="The types of jobs that the key may create; empty: all"
    )


class RotateBody(Body):
    overlap_seconds: float = Field(0, ge=0, le=30 * 86_400, description="How long the previous text stays valid")


@shows(domain.Key, schemas.IN_ANSWERS)
class KeyAnswer(schemas.ResponseModel):
    scopes: list[str] = Field(description="The given scope, and those that it includes")


class Me(schemas.ResponseModel):
    name: str = Field(description="The name of the key; `local` on a server without keys")
    key_id: str | None
    scopes: list[str] = Field(description="The scopes of the caller")
    office_id: str | None = Field(description="null: every office")
    job_types: list[str] = Field(description="The job types that the caller may create; empty: all")
    last_event: int = Field(description="The number of the newest event; follow them from there")
    extensions: list[str] = Field(description="The extensions that this server has")


class NewKey(KeyAnswer):
    key: str | None = Field(
        None, description="The text that the holder sends. No other answer shows it, and it is not stored."
    )


@shows(domain.AuditEntry, schemas.IN_ANSWERS)
class Entry(schemas.ResponseModel):
    pass


@keys.get("/api/me", response_model=Me)
@needs(Scope.READ)
async def show_me(request: Request) -> Response:
    """Shows the caller as the server sees it: its name, scopes and office; and what the server has."""
    scheduler = scheduler_for(request)
    caller = caller_of(request)
    return answer(
        {
            "name": caller.name,
            "key_id": caller.key_id,
            "scopes": [scope.value for scope in Scope if caller.scope.includes(scope)],
            "office_id": caller.office_id,
            "job_types": list(caller.job_types),
            "last_event": await scheduler.lists.last_event(),
            "extensions": list(scheduler.attached),
        }
    )


@keys.post("/api/keys", status_code=201, response_model=NewKey)
@needs(Scope.ADMIN, whole, creates=True, conflicts=True)
async def create_key(body: KeyBody, request: Request) -> Response:
    """Makes a key. The first must have the scope admin; from then on every caller needs a key."""
    scheduler = scheduler_for(request)
    try:
        key, text = await scheduler.keys.create(**body.given())
    except Replayed as before:
        key = await scheduler.keys.get(before.ids[0])
        return created(key.to_dict(), f"/api/keys/{key.key_id}", is_new=False)
    return created({**key.to_dict(), "key": text}, f"/api/keys/{key.key_id}")


@keys.get("/api/keys", response_model=Page[KeyAnswer])
@needs(Scope.ADMIN, whole)
async def list_keys(query: Annotated[PageQuery, Query()], request: Request) -> Response:
    """Lists keys, the newest first."""
    found = await scheduler_for(request).keys.page(query.limit, query.cursor)
    return page(found)


@keys.delete("/api/keys/{key_id}", status_code=204, response_class=Response)
@needs(Scope.ADMIN, whole, conflicts=True)
async def delete_key(key_id: str, request: Request) -> Response:
    """Deletes a key. The last admin key cannot be deleted."""
    await scheduler_for(request).keys.delete(key_id)
    return Response(status_code=204)


@keys.post("/api/keys/{key_id}/rotate", response_model=NewKey)
@needs(Scope.ADMIN, whole)
async def rotate_key(key_id: str, request: Request, body: RotateBody | None = None) -> Response:
    """Gives a key another text, which no other answer shows; the text before opens for `overlap_seconds` more."""
    key, text = await scheduler_for(request).keys.rotate(key_id, (body or RotateBody()).overlap_seconds)
    return answer({**key.to_dict(), "key": text})


@keys.get("/api/audit", response_model=Page[Entry])
@needs(Scope.ADMIN, whole)
async def list_audit(query: Annotated[PageQuery, Query()], request: Request) -> Response:
    """Lists every change through the API, the newest first; settings with their values before and after."""
    found = await scheduler_for(request).lists.audit(query.cursor, query.limit)
    return page(found)
