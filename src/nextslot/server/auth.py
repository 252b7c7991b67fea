"""Identifies the caller of a request and checks the caller's key: its scope, and its office."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from starlette.types import Scope as AsgiScope

from nextslot.domain import DEFAULT_OFFICE, Actor, Key, RequestContext, Scope
from nextslot.domain.addresses import is_among
from nextslot.errors import NotFound
from nextslot.scheduler import Scheduler, Services

from .connections import peer_of
from .known_keys import KnownKeys, key_text
from .problems import HttpProblem

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
# How long a request with a wrong key, or with none, holds a place of its lane. All of these share one lane.
REFUSED_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Caller:
    name: str
    scope: Scope
    key_id: str | None = None
    # The office of the key; such a key opens nothing else.
    office_id: str | None = None
    # The job types that the key may create; empty: all.
    job_types: tuple[str, ...] = ()
    # The text of the key as the caller sent it: a stream uses it to check whether the key is still valid.
    text: str | None = field(default=None, repr=False)

    def check_office(self, office_id: str | None) -> None:
        """Raises 404 for an office that is not the key's. Raises 403 for None, which means the whole scheduler."""
        if self.office_id is not None and office_id is None:
            detail = f"this key is for the office {self.office_id!r}, and this is the whole scheduler"
            raise HttpProblem(403, "forbidden", detail)
        self.check_thing(office_id, "office", str(office_id))

    def check_thing(self, office_id: str | None, kind: str, name: str) -> None:
        """Raises NotFound, as for a thing that does not exist, unless the key covers the office of this thing."""
        if self.office_id is not None and office_id != self.office_id:
            raise NotFound(kind, name)

    def office_for(self, body: Any) -> str:
        """Returns the office that a body names; otherwise the office of the key, or the default one.

        `body` is any model with the field `office_id`; type checkers do not know this field in models that decorators
        make.
        """
        return self.narrowed_to(body.office_id if "office_id" in body.model_fields_set else None)

    def narrowed(self, office_ids: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the offices that a list may show: the requested ones, or the office of the key."""
        if self.office_id is None:
            return office_ids
        for office_id in office_ids:
            self.check_office(office_id)
        return (self.office_id,)

    def narrowed_to(self, office_id: str | None) -> str:
        """Returns the requested office if the key may use it; without a request, the office of the key, or the default
        one.
        """
        if office_id is not None:
            self.check_office(office_id)
        return office_id or self.office_id or DEFAULT_OFFICE


# Refuses a caller with the key of one office whose request concerns anything outside that office.
OfficeCheck = Callable[[Services, Request, Caller], Awaitable[None]]


async def whole(scheduler: Services, request: Request, caller: Caller) -> None:
    """Checks a route that concerns the whole scheduler: a key of one office may not use it."""
    caller.check_office(None)


async def of_default(scheduler: Services, request: Request, caller: Caller) -> None:
    """Checks a route without offices, which works in the default office: keys of other offices may not use it."""
    if caller.office_id != DEFAULT_OFFICE:
        caller.check_office(None)


async def of_path(scheduler: Services, request: Request, caller: Caller) -> None:
    caller.check_office(str(request.path_params["office_id"]))


def _of_thing(kind: str, place: str, get: Callable[[Services, str], Awaitable[Any]]) -> OfficeCheck:
    """Makes the check of a route whose path has the id of a thing at this place."""

    async def check(scheduler: Services, request: Request, caller: Caller) -> None:
        name = request.path_params[place]
        caller.check_thing((await get(scheduler, name)).office_id, kind, name)

    return check


of_job = _of_thing("job", "job_id", lambda scheduler, job_id: scheduler.job(job_id))
of_group = _of_thing("group", "group_id", lambda scheduler, group_id: scheduler.group(group_id))
of_schedule = _of_thing("schedule", "schedule_id", lambda scheduler, name: scheduler.schedules.get(name))
of_template = _of_thing("template", "template_id", lambda scheduler, name: scheduler.templates.get(name))
of_webhook = _of_thing("webhook", "webhook_id", lambda scheduler, name: scheduler.webhooks.get(name))
of_failure = _of_thing("failure", "fingerprint", lambda scheduler, name: scheduler.failures.get(name))


async def of_direct(scheduler: Services, request: Request, caller: Caller) -> None:
    """Checks a route with a `direct_id` in its path. A caller may have chosen that id within the office in the
    query.
    """
    name = request.path_params.get("direct_id") or request.path_params["name"]
    found = await scheduler.direct(name, caller.narrowed_to(request.query_params.get("office_id")))
    caller.check_thing(found.office_id, "direct execution", name)


async def of_delivery(scheduler: Services, request: Request, caller: Caller) -> None:
    """Checks a route with the id of a delivery. A subscription for all offices belongs to no single office."""
    delivery = await scheduler.webhooks.delivery(request.path_params["delivery_id"])
    if caller.office_id is not None and not await scheduler.webhooks.shown_to(caller.office_id, [delivery]):
        raise NotFound("delivery", delivery.delivery_id)


async def of_run(scheduler: Services, request: Request, caller: Caller) -> None:
    run = await scheduler.run_by_id(request.path_params["run_id"])
    caller.check_thing((await scheduler.job(run.job_id)).office_id, "run", run.run_id)


async def of_deliveries(scheduler: Services, request: Request, caller: Caller) -> None:
    """Checks the job or the webhook in the query. Without both, the request concerns the whole scheduler."""
    asked = request.query_params
    if "job_id" in asked:
        caller.check_thing((await scheduler.job(asked["job_id"])).office_id, "job", asked["job_id"])
    elif "webhook_id" in asked:
        webhook = await scheduler.webhooks.get(asked["webhook_id"])
        caller.check_thing(webhook.office_id, "webhook", webhook.webhook_id)
    else:
        caller.check_office(None)


async def admit(request: Request, scope: Scope | None, office: OfficeCheck | None) -> None:
    """Refuses a caller who may not use the route; else stores the caller and its services in the request.

    This is the one place that makes a `RequestContext` of a request. A route reaches the scheduler by `scheduler_for`
    alone, so its changes are audited. A request whose method or scope is for reading cannot change anything.
    """
    scheduler: Scheduler = request.app.state.scheduler
    if scope is None:
        request.state.scheduler = scheduler.for_caller(RequestContext(is_read_only=True))
        return
    try:
        caller = await identify(request)
    except HttpProblem:
        # A stranger's requests share one lane, wherever they say they come from, and each holds its place for a moment.
        async with request.app.state.shares.request(lane_of(request)):
            await asyncio.sleep(REFUSED_SECONDS)
        raise
    request.app.state.office_rate_limits.take_request(caller.office_id, caller.key_id)
    if not caller.scope.includes(scope):
        detail = f"this needs a key with the scope {scope.value!r}; yours has {caller.scope.value!r}"
        raise HttpProblem(403, "forbidden", detail)
    request.state.caller = caller
    is_read_only = request.method in SAFE or scope is Scope.READ
    context = RequestContext(
        actor=None if is_read_only else _actor(request, caller),
        is_read_only=is_read_only,
        idempotency_key=request.headers.get("idempotency-key"),
        office_id=caller.office_id,
        job_types=caller.job_types,
        trace=scheduler.tracer.current(),
    )
    request.state.scheduler = services = scheduler.for_caller(context)
    if office is not None and caller.office_id is not None:
        await office(services, request, caller)


def scheduler_for(request: Request) -> Services:
    """Returns the scheduler's services for the caller of this request."""
    services: Services = request.state.scheduler
    return services


def caller_of(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


def lane_of(request: Request) -> str:
    """Returns the lane whose share of the server the request uses: its key's office, its key, or, without a key that
    was accepted, its address.
    """
    caller: Caller | None = getattr(request.state, "caller", None)
    return lane_of_address(request.scope) if caller is None or caller.key_id is None else _lane_of_key(caller)


def lane_of_address(scope: AsgiScope) -> str:
    """Returns the lane of all callers without a key at an address, or of IPv6 in a network that a customer gets."""
    host = (scope.get("client") or ("-",))[0]
    try:
        return f"address {peer_of(host)}"
    except ValueError:  # A socket without addresses.
        return f"address {host}"


def _lane_of_key(caller: Caller) -> str:
    return f"key {caller.key_id}" if caller.office_id is None else f"office {caller.office_id}"


async def identify(request: Request) -> Caller:
    scheduler: Scheduler = request.app.state.scheduler
    if not await scheduler.keys.is_guarded():
        return Caller("local", Scope.ADMIN)
    text = key_text(request.headers)
    if text is None:
        raise _unauthorized("the request has no key; send it as X-API-Key, or as Authorization: Bearer")
    known: KnownKeys = request.app.state.known_keys
    key = await known.find(text, scheduler.keys.find_all)
    try:
        caller = _admitted(scheduler, request, key, text)
    except HttpProblem:
        known.refused(text)
        raise
    known.accepted(text, _lane_of_key(caller))
    return caller


def _admitted(scheduler: Scheduler, request: Request, key: Key | None, text: str) -> Caller:
    """Returns the caller with a key. Raises 401 or 403 if the key is not valid now, or not from this address."""
    if key is None:
        raise _unauthorized("this key is not known; it may have been deleted, or replaced by a rotation")
    if key.expires_at is not None and key.expires_at <= scheduler.keys.now():
        raise _unauthorized(f"this key has expired on {key.expires_at}; ask an admin for another one")
    host = request.client.host if request.client is not None else ""
    if key.allowed_addresses and not is_among(host, key.allowed_addresses):
        raise HttpProblem(403, "forbidden", f"this key may not be used from {host or 'here'}")
    scheduler.keys.note_use_soon(key)
    return Caller(key.name, key.scope, key.key_id, key.office_id, key.job_types, text)


def _unauthorized(detail: str) -> HttpProblem:
    return HttpProblem(401, "unauthorized", detail, headers={"WWW-Authenticate": 'Bearer realm="nextslot"'})


def _actor(request: Request, caller: Caller) -> Actor:
    return Actor(
        name=caller.name,
        key_id=caller.key_id,
        action=f"{request.method} {request.scope['route'].path}",
        target=request.scope["path"],
        office_id=caller.office_id,
    )
