"""The form of errors in OpenAI's protocol: their fields, their type by status, and refusals of the server in it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson


@dataclass(eq=False)
class ProtocolError(Exception):
    """An error in the form of the protocol."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    # Further fields of the error, such as the expected start.
    more: Mapping[str, Any] = field(default_factory=dict)
    # None derives the type from the status.
    type: str | None = None

    def __str__(self) -> str:
        return self.message

    @property
    def content(self) -> bytes:
        return error_content(self.status, self.message, self.code, self.param, self.type, self.more)

    @property
    def event(self) -> bytes:
        return b"data: " + self.content + b"\n\n"


def error_content(
    status: int,
    message: str,
    code: str | None,
    param: str | None = None,
    kind: str | None = None,
    more: Mapping[str, Any] | None = None,
) -> bytes:
    error = {"message": message, "type": kind or _kind(status), "param": param, "code": code, **(more or {})}
    return orjson.dumps({"error": error})


def _kind(status: int) -> str:
    if status >= 500:
        return "server_error"
    return {403: "permission_error", 429: "rate_limit_error"}.get(status, "invalid_request_error")


def of_problem(content: Mapping[str, Any]) -> tuple[int, bytes]:
    """Returns the status and body that replace a refusal of the server itself, which is `application/problem+json`."""
    status = 400 if content["status"] == 422 else content["status"]
    problems = content.get("errors") or [{}]
    code = "invalid_api_key" if status == 401 else content["code"]
    return status, error_content(status, content["detail"], code, problems[0].get("field") or None)
