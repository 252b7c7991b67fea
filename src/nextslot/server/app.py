"""Makes the HTTP application: its routers, its middleware and its OpenAPI document."""

import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.warnings import UnsupportedFieldAttributeWarning
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from nextslot import extension_api
from nextslot.scheduler import Scheduler
from nextslot.server.routes.console import console
from nextslot.server.routes.direct import direct
from nextslot.server.routes.engines import engines
from nextslot.server.routes.events import events
from nextslot.server.routes.failures import failures
from nextslot.server.routes.groups import groups
from nextslot.server.routes.jobs import jobs
from nextslot.server.routes.keys import keys
from nextslot.server.routes.metrics import metrics
from nextslot.server.routes.node_files import node_files
from nextslot.server.routes.nodes import nodes
from nextslot.server.routes.queue import queue
from nextslot.server.routes.runs import runs
from nextslot.server.routes.schedules import schedules
from nextslot.server.routes.service import Reload, service
from nextslot.server.routes.signals import signals
from nextslot.server.routes.stats import stats
from nextslot.server.routes.templates import templates
from nextslot.server.routes.webhooks import webhooks
from nextslot.telemetry.meters import HttpMeters

from . import problems, schemas
from .auth import of_default, whole
from .connections import Connections
from .fair_shares import FairShares
from .known_keys import KnownKeys
from .office_rate_limits import OfficeRateLimits
from .request_body import Bodies
from .request_guard import Admission, Guard
from .request_log import RequestLog
from .responses import LOG_HEADERS
from .route_rules import Rule, rule_of
from .routes.quotas import quotas
from .routing import Route, Router
from .static_files import pages
from .tls import Certificate
from .turns import Turns

DESCRIPTION = """
A durable job scheduler. Jobs wait in a queue with a strict order until every limit that they fall under has room.

- Errors are `application/problem+json` (RFC 9457): a `code` for programs, a `detail` for people.
- Lists are pages: `next_cursor` of one is the `cursor` of the next.
- Times are RFC 3339 in UTC, with six digits after the second.
- A creating `POST` with an `Idempotency-Key` may be sent again for 24 hours; it then answers 200 with what was made.
- Until the first key exists, a server on loopback is open to local callers. From then on send `X-API-Key`, or
  `Authorization: Bearer`. Each operation says which scope it needs: `read`, `submit`, `operate` or `admin`.
"""

ROUTERS: list[APIRouter] = [
    jobs, queue, runs, signals, templates, schedules, groups, direct, webhooks, events, keys, quotas, nodes, node_files,
    engines, stats, failures, service, metrics, pages, console,
]  # fmt: skip

_PROBLEM = {"$ref": "#/components/schemas/Problem"}
_SECURITY: list[dict[str, list[str]]] = [{"key": []}, {"bearer": []}]
_SCHEMES = {
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "bearer": {"type": "http", "scheme": "bearer"},
}
_REPEAT = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "The same request again, within 24 hours, is answered with what was made the first time (200).",
    "schema": {"type": "string", "minLength": 1, "maxLength": 1000},
}


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the application, beside its scheduler."""

    admission: Admission = field(default_factory=Admission)
    bodies: Bodies = field(default_factory=Bodies)
    connections: Connections = field(default_factory=Connections)
    shares: FairShares = field(default_factory=FairShares)
    known_keys: KnownKeys = field(default_factory=KnownKeys)
    # None: plain HTTP.
    certificate: Certificate | None = None
    root_path: str = ""
    has_docs: bool = True
    # None: there is no configuration to read again.
    reload: Reload | None = None
    http: HttpMeters = field(default_factory=HttpMeters)


def create_app(scheduler: Scheduler, options: Options | None = None) -> ASGIApp:
    options = options or Options()
    app: ASGIApp = _below(options.root_path, Router(application(scheduler, options)))
    if options.admission.allowed_origins:
        # Browsers show answers only to pages of these origins.
        app = CORSMiddleware(
            app,
            allow_origins=options.admission.allowed_origins,
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=["*"],
            expose_headers=["Location", "Retry-After", *LOG_HEADERS, "X-Note", "X-Request-ID"],
        )
    app = Guard(app, options.admission)
    for attached in scheduler.attached.values():
        app = attached.wrap(app, options.root_path)
    return _with_heads(RequestLog(Turns(app, options.known_keys), options.http, time.perf_counter, scheduler.tracer))


def _with_heads(app: ASGIApp) -> ASGIApp:
    """Answers HEAD as GET; the HTTP server leaves the body out. HEAD gets no stream, which would never end."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            headers = [(name, value) for name, value in scope["headers"] if name != b"accept"]
            scope = {**scope, "method": "GET", "headers": headers}
        await app(scope, receive, send)

    return answer


def _below(root_path: str, app: ASGIApp) -> ASGIApp:
    """Serves the application below a path, for a proxy that strips that path or does not."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        # Changes the scope itself, not a copy: `RequestLog` reads from it which route the request took.
        scope["root_path"] = root_path
        await app(scope, receive, send)

    return answer if root_path else app


def application(scheduler: Scheduler, options: Options) -> FastAPI:
    app = FastAPI(
        title="nextslot",
        version=version("nextslot"),
        description=DESCRIPTION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        # `RequestLog` traces and counts requests; the framework's telemetry would also record their content.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    used = scheduler.extensions
    app.state.scheduler = scheduler
    app.state.options = options
    app.state.bodies = options.bodies
    options.bodies.bytes_of = lambda lane: scheduler.quotas.of(lane.removeprefix("office ")).body_bytes
    app.state.shares = options.shares
    app.state.known_keys = options.known_keys
    app.state.office_rate_limits = OfficeRateLimits(scheduler.quotas)
    app.state.off = {path: _why_off(one) for one in extension_api.find_all() if one not in used for path in one.paths}
    app.state.exposition = None
    app.openapi = lambda: app.openapi_schema or _describe(app)  # type: ignore[method-assign]
    problems.install(app)
    for router in [*ROUTERS, *(router for one in used for router in one.routers())]:
        # Skips the framework's layer for nested routers.
        app.router.routes.extend(router.routes)
    return app


def _why_off(extension: extension_api.Extension) -> str:
    if extension.is_on_by_default:
        return f"the extension {extension.name!r} is off on this server: see `extensions.disabled` in its configuration"
    tables = " or ".join(f"[{table}]" for table in extension.settings())
    return f"the extension {extension.name!r} is off on this server: add {tables} to its configuration, and restart it"


def describe(scheduler: Scheduler, options: Options | None = None) -> dict[str, Any]:
    """Returns the OpenAPI document."""
    return application(scheduler, options or Options()).openapi()


def _describe(app: FastAPI) -> dict[str, Any]:
    """Completes FastAPI's document by the rule of each route: its scope, its refusals, its idempotency."""
    with warnings.catch_warnings():
        # Hides warnings about aliases that the framework itself adds to each parameter, and ignores when it compiles a
        # type at once.
        warnings.simplefilter("ignore", UnsupportedFieldAttributeWarning)
        document = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=[one.described for one in routes_of(app)],
            openapi_version="3.1.0",
        )
    components = document.setdefault("components", {})
    components["securitySchemes"] = _SCHEMES
    components.setdefault("schemas", {})["Problem"] = schemas.Problem.model_json_schema(
        ref_template="#/components/schemas/{model}"
    )
    components["schemas"]["FieldProblem"] = components["schemas"]["Problem"].pop("$defs")["FieldProblem"]
    for unused in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(unused, None)
    for route in routes_of(app):
        for method in route.methods or ():
            operation = document["paths"].get(route.path_format, {}).get(method.lower())
            if operation is not None:
                _complete(operation, rule_of(route.endpoint))
    app.openapi_schema = document
    return document


def routes_of(app: FastAPI) -> Iterator[Route]:
    for route in app.routes:
        if isinstance(route, Route):
            yield route


def _complete(operation: dict[str, Any], rule: Rule) -> None:
    responses = operation["responses"]
    for status, description in _refusals(operation, rule).items():
        responses[str(status)] = {
            "description": description,
            "content": {"application/problem+json": {"schema": _PROBLEM}},
        }
    if rule.scope is not None:
        operation["security"] = _SECURITY
        operation["x-scope"] = rule.scope.value
        if rule.office in (whole, of_default):
            operation["x-whole"] = True  # Not for keys of one office (`of_default`: except `default`).
        operation["description"] = (
            f"{operation.get('description', '')}\n\nNeeds the scope `{rule.scope.value}`.".strip()
        )
    if rule.creates:
        operation.setdefault("parameters", []).append(_REPEAT)
        made = responses["201"] if "201" in responses else responses["202"]
        responses.setdefault("200", {"description": "It was there already", "content": made["content"]})
        made.setdefault("headers", {})["Location"] = {"schema": {"type": "string"}}


def _refusals(operation: dict[str, Any], rule: Rule) -> dict[int, str]:
    parameters = operation.get("parameters", [])
    has_body = "requestBody" in operation
    found = {503: "Starting, draining, or the store does not answer; `Retry-After` says when to try again"}
    if rule.scope is not None:
        found |= {401: "No key, or one that is not known", 403: "The key, the host or the page does not allow this"}
    if has_body:
        found |= {
            400: "The body is not JSON",
            408: "The body arrived too slowly",
            413: "The body is too large",
            415: "The body is not JSON by its type",
        }
    if rule.scope is not None:
        found[429] = "Too much is in progress, or a quota is used up; `Retry-After` says when to try again"
    if has_body or parameters or rule.creates:
        found[422] = "It cannot be carried out as it stands; `errors` says where and what"
        found[404] = "There is no such thing"
    if rule.conflicts:
        found[409] = "Its state does not allow this"
    return found
