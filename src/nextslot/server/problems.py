"""Answers errors in the form of RFC 9457 (`application/problem+json`), with one handler for the exception tree."""

import logging
import math
import re
from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from nextslot.domain.bounds import must_be, quoted
from nextslot.errors import (
    MOST_PROBLEMS,
    Conflict,
    DiskLow,
    Draining,
    Forbidden,
    Invalid,
    NextslotError,
    NotFound,
    OverQuota,
    Problem,
    SlotBusy,
    StoreError,
    Unavailable,
)

log = logging.getLogger(__name__)

# The `Retry-After` of a 503, in seconds.
RETRY_AFTER_SECONDS = 5

TITLES = {
    "malformed": "The request cannot be read",
    "unauthorized": "A key is needed",
    "forbidden": "The key does not allow this",
    "forbidden_host": "This host name is not served",
    "forbidden_origin": "Requests from this page are not taken",
    "not_found": "There is no such thing",
    "method_not_allowed": "This path does not know that method",
    "conflict": "Its state does not allow this",
    "illegal_transition": "Its state does not allow this",
    "already_dispatched": "It has been dispatched",
    "already_finished": "It has ended",
    "too_large": "The request is too large",
    "too_slow": "The request took too long to arrive",
    "overloaded": "Too much is in progress",
    "over_quota": "The quota is used up",
    "unsupported_media_type": "This content type is not understood",
    "invalid": "The request cannot be carried out as it stands",
    "unknown_job_type": "There is no such job type",
    "dependency_cycle": "These jobs wait for each other",
    "too_many_jobs": "The request names too many jobs",
    "idempotency_mismatch": "The key was used for another request",
    "work_failed": "The work failed",
    "work_timed_out": "The work took too long",
    "error": "Something broke on our side",
    "unavailable": "Not available now",
    "slot_busy": "No slot in time",
    "draining": "Shutting down",
    "disk_low": "Too little disk space",
    "commit_unknown": "It may or may not have been stored",
}


class HttpProblem(Exception):
    """A refusal that only HTTP has, such as 401."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        data: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = headers
        self.data = data or {}


def overloaded(detail: str, seconds: float = 1) -> HttpProblem:
    """Makes the refusal of a request that the caller may repeat after some seconds; nothing of it was carried out."""
    return HttpProblem(429, "overloaded", detail, headers={"Retry-After": str(max(1, math.ceil(seconds)))})


def problem(
    status: int,
    code: str,
    detail: str,
    headers: Mapping[str, str] | None = None,
    data: Mapping[str, object] | None = None,
) -> Response:
    return _response(_content(status, code, detail, data), headers)


def _response(content: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    later = {"Retry-After": str(RETRY_AFTER_SECONDS)} if content["status"] in (429, 503) else {}
    body = orjson.dumps(content, default=str)
    return Response(body, content["status"], {**later, **(headers or {})}, media_type="application/problem+json")


def _content(status: int, code: str, detail: str, data: Mapping[str, object] | None = None) -> dict[str, object]:
    return {
        "type": f"urn:nextslot:problem:{code}",
        "title": TITLES[code],
        "status": status,
        # The sentence may quote text that cannot be encoded, such as half a surrogate pair.
        "detail": detail.encode(errors="replace").decode(),
        "code": code,
        **(data or {}),
    }


def install(app: FastAPI) -> None:
    """Lets the framework answer its own refusals, such as of an unknown path, in the same form."""
    app.add_exception_handler(HTTPException, _of_framework)


def of(request: Request, error: Exception) -> Response:
    """Answers an error of a route."""
    match error:
        case NextslotError():
            return of_error(error)
        case HttpProblem():
            return _response(content_of(error), error.headers)
        case RequestValidationError():
            return _of_validation(error)
        case _:
            log.error("%s %s failed", request.method, request.url.path, exc_info=error)
            return problem(500, "error", "an unexpected error occurred in the server; its log has the details")


def is_defect(error: Exception) -> bool:
    """Returns whether an error is unexpected, so that the server must log it too."""
    return not isinstance(error, (NextslotError, HttpProblem, RequestValidationError))


def of_error(error: NextslotError) -> Response:
    if isinstance(error, StoreError):
        log.error("the store failed: %s", error)
    elif isinstance(error, Unavailable) and not isinstance(error, (Draining, DiskLow, SlotBusy)):
        # If it has a cause, the database refused a work. Otherwise the scheduler is starting, or the outage is already
        # logged.
        log.log(logging.ERROR if error.__cause__ else logging.WARNING, "not available: %s", error)
    elif _status(error) == 500:
        log.error("unexpected error: %s", error, exc_info=error)
    return _response(problem_of(error))


def problem_of(error: NextslotError) -> dict[str, object]:
    """Returns an error as JSON, for an answer or inside a stream."""
    if isinstance(error, StoreError):
        return _content(503, "unavailable", "the database cannot be used as it is; the log says more")
    if _status(error) == 500:
        return _content(500, "error", "an unexpected error occurred in the server; its log has the details")
    return _content(_status(error), error.code, str(error), error.data())


def _status(error: NextslotError) -> int:
    match error:
        case Invalid():
            return 422
        case NotFound():
            return 404
        case Forbidden():
            return 403
        case OverQuota():
            return 429
        case Conflict():
            return 409
        case Unavailable() | StoreError():
            return 503
        case _:
            return 500


def content_of(error: HttpProblem) -> dict[str, object]:
    """Returns an `HttpProblem` as JSON, for use inside a stream."""
    return _content(error.status, error.code, error.detail, error.data)


def _of_validation(error: RequestValidationError) -> Response:
    found = error.errors()[:MOST_PROBLEMS]
    return of_error(Invalid([Problem(field_of(one["loc"]), sentence_of(one)) for one in found]))


async def _of_framework(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return problem(404, "not_found", _missing(request))
    if error.status_code == 405:
        allowed = ", ".join(sorted(_methods(request)))
        detail = f"{request.url.path} does not know {request.method}, but {allowed}"
        return problem(405, "method_not_allowed", detail, {"Allow": allowed})
    return problem(400, "malformed", str(error.detail), error.headers)


def _missing(request: Request) -> str:
    path = request.url.path.removeprefix(request.scope.get("root_path", "").rstrip("/"))
    for place, why in request.app.state.off.items():
        if path == place or path.startswith(f"{place}/"):
            return str(why)
    return f"there is no route {request.url.path}; /docs lists those there are"


def _methods(request: Request) -> set[str]:
    """Returns the methods of all routes with this path; the framework names only those of the first route."""
    fitting = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return {method for route in fitting if route.path == fitting[0].path for method in route.methods}


def field_of(place: tuple[object, ...]) -> str:
    """Turns `("body", "jobs", 3, "params")` into `jobs.3.params`; leaves out types such as `list[str]`."""
    inner = place[1:] if place[:1] in (("body",), ("query",), ("path",)) else place
    return ".".join(str(part) for part in inner if not (isinstance(part, str) and part.endswith("]")))


def sentence_of(found: Mapping[str, Any]) -> str:
    """Returns a sentence about a value that pydantic refused: first what the value is, then what it must be."""
    kind, value, context = found["type"], found.get("input"), found.get("ctx", {})
    if kind == "missing":
        return "the request has no body; send a JSON object" if found["loc"] == ("body",) else "is missing; give it"
    if kind == "extra_forbidden":
        return "there is no such field; correct its name or remove it"
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return must_be(_read(value), f"{words} {context[name]:,}")
    if kind in ("literal_error", "enum"):
        return f"is {quoted(value)}; it must be {context['expected']}"
    if kind == "string_pattern_mismatch":
        return f"is {quoted(value)}, which does not match {context['pattern']}"
    if kind == "too_long":
        return f"has {context['actual_length']:,} items; it must have at most {context['max_length']:,}"
    if kind == "too_short":
        return f"has {context['actual_length']:,} items; it must have at least {context['min_length']:,}"
    if kind == "timezone_aware":
        return "has no time zone; add Z or an offset such as +01:00"
    if kind.startswith("datetime"):
        return "is not a date with a time that can be read; write it like 2026-11-15T06:30:00Z"
    if kind in _TYPES:
        said = must_be(value, _TYPES[kind])
        return said if found["loc"] != ("body",) else f"the body {said}"
    return str(found["msg"]).removeprefix("Value error, ")


_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "above"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "below"),
}
_TYPES = {
    "model_attributes_type": "a JSON object",
    "model_type": "a JSON object",
    "dict_type": "a JSON object",
    "list_type": "a list",
    "string_type": "text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of 64 bits",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
}


def _read(value: object) -> object:
    """Returns the number that a query parameter stands for, or the value itself."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value):
        return int(value)
    return value
