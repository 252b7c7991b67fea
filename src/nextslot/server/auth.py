"""Identifies the caller of a request and checks the caller's key: its scope, and its office."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from nextslot.domain import (
    DEFAULT_OFFICE,
    Actor,
    RequestContext,
    Scope,
)
from nextslot.scheduler import Scheduler, Services

from .problems import HttpProblem

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Caller:
    name: str
    scope: Scope
    key_id: str | None = None
    # A key for one office opens nothing else.
    office_id: str | None = None

    def check_office(self, office_id: str | None) -> None:
        """Raises 403 unless the key is for this office. None means the whole scheduler."""
        if self.office_id is not None and office_id != self.office_id:
            what = "the whole scheduler" if office_id is None else f"the office {office_id!r}"
            raise HttpProblem(403, "forbidden", f"this key is for the office {self.office_id!r}, and this is {what}")

    def narrowed(self, office_ids: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the offices that a list may show: the given ones, or that of the key."""
        if self.office_id is None:
            return office_ids
        for office_id in office_ids:
            self.check_office(office_id)
        return (self.office_id,)


# Finds the office that a request is about; None if it is about the whole scheduler.
OfficeOf = Callable[[Services, Request], Awaitable[str | None]]


async def whole(scheduler: Services, request: Request) -> str | None:
    """For a route that is about the whole scheduler, which a key of one office may not use."""
    return None


async def of_default(scheduler: Services, request: Request) -> str | None:
    """For a route without offices: it works in the default office."""
    return DEFAULT_OFFICE


async def of_path(scheduler: Services, request: Request) -> str | None:
    return str(request.path_params["office_id"])


def _office_of(place: str, get: Callable[[Services, str], Awaitable[Any]]) -> OfficeOf:
    """Finds the office of the thing whose id is at this place in the path."""

    async def find(scheduler: Services, request: Request) -> str | None:
        office_id: str | None = (await get(scheduler, request.path_params[place])).office_id
        return office_id

    return find


of_job = _office_of("job_id", lambda scheduler, job_id: scheduler.job(job_id))
of_group = _office_of("group_id", lambda scheduler, group_id: scheduler.group(group_id))
of_direct = _office_of("direct_id", lambda scheduler, direct_id: scheduler.direct(direct_id))
of_named_direct = _office_of("name", lambda scheduler, direct_id: scheduler.direct(direct_id))
of_schedule = _office_of("schedule_id", lambda scheduler, schedule_id: scheduler.schedules.get(schedule_id))
of_webhook = _office_of("webhook_id", lambda scheduler, webhook_id: scheduler.webhooks.get(webhook_id))
of_delivery = _office_of("delivery_id", lambda scheduler, delivery_id: scheduler.webhooks.delivery(delivery_id))


async def of_run(scheduler: Services, request: Request) -> str | None:
    run = await scheduler.run_by_id(request.path_params["run_id"])
    return (await scheduler.job(run.job_id)).office_id


async def of_deliveries(scheduler: Services, request: Request) -> str | None:
    """Finds the office by the job or the webhook in the query; without both it is the whole scheduler."""
    asked = request.query_params
    if "job_id" in asked:
        return (await scheduler.job(asked["job_id"])).office_id
    if "webhook_id" in asked:
        return (await scheduler.webhooks.get(asked["webhook_id"])).office_id
    return None


async def admit(request: Request, scope: Scope | None, office: OfficeOf | None) -> None:
    """Refuses a caller who may not use the route; else stores the caller and its services in the request.

    This is the one place that makes a `RequestContext` of a request. A route reaches the scheduler by `scheduler_for`
    alone, so its changes are audited. A request that only reads, by its method or its scope, can change nothing.
    """
    scheduler: Scheduler = request.app.state.scheduler
    if scope is None:
        request.state.scheduler = scheduler.for_caller(RequestContext(is_read_only=True))
        return
    caller = await identify(request)
    if not caller.scope.includes(scope):
        detail = f"this needs a key with the scope {scope.value!r}; yours has {caller.scope.value!r}"
        raise HttpProblem(403, "forbidden", detail)
    request.state.caller = caller
    is_read_only = request.method in SAFE or scope is Scope.READ
    context = RequestContext(
        actor=None if is_read_only else _actor(request, caller),
        is_read_only=is_read_only,
        idempotency_key=request.headers.get("idempotency-key"),
        trace=scheduler.tracer.current(),
    )
    request.state.scheduler = services = scheduler.for_caller(context)
    if office is not None and caller.office_id is not None:
        caller.check_office(await office(services, request))


def scheduler_for(request: Request) -> Services:
    """Returns the scheduler's services for the caller of this request."""
    services: Services = request.state.scheduler
    return services


def caller_of(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


def lane_of(request: Request) -> str:
    """Returns whose share of the server a request uses: its key's office, its key, or without keys its address."""
    caller: Caller | None = getattr(request.state, "caller", None)
    if caller is not None and caller.key_id is not None:
        return f"key {caller.key_id}" if caller.office_id is None else f"office {caller.office_id}"
    return f"address {request.client.host if request.client else '-'}"


async def identify(request: Request) -> Caller:
    scheduler: Scheduler = request.app.state.scheduler
    if not await scheduler.keys.is_guarded():
        return Caller("local", Scope.ADMIN)
    text = _key_text(request)
    if text is None:
        raise _unauthorized("the request has no key; send it as X-API-Key, or as Authorization: Bearer")
    key = await scheduler.keys.find(text)
    if key is None:
        raise _unauthorized("this key is not known; it may have been deleted")
    return Caller(key.name, key.scope, key.key_id, key.office_id)


def _key_text(request: Request) -> str | None:
    given = request.headers.get("x-api-key")
    if given:
        return given
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    return text.strip() if kind.lower() == "bearer" and text.strip() else None


def _unauthorized(detail: str) -> HttpProblem:
    return HttpProblem(401, "unauthorized", detail, headers={"WWW-Authenticate": 'Bearer realm="nextslot"'})


def _actor(request: Request, caller: Caller) -> Actor:
    return Actor(
        name=caller.name,
        key_id=caller.key_id,
        action=f"{request.method} {request.scope['route'].path}",
        target=request.url.path,
        office_id=caller.office_id,
    )
