"""What a handler's end means: its return value or its exception, as an outcome."""

import traceback
from dataclasses import replace

import orjson

from nextslot.domain import FailureKind, Json, Outcome
from nextslot.domain.request_checks import json_problems

from .run_context import (
    Fail,
    RunContext,
    Skip,
    Stopped,
)

MAX_RESULT_BYTES = 64 * 1024
MAX_ERROR = 10_000


def returned(run: RunContext, value: Json) -> Outcome:
    """A result, if it can be kept as one."""
    if value is None:
        return Outcome.completed()
    if isinstance(value, Outcome):  # From a handler that knows more of its end than a result: a command.
        return replace(value, error=_optional(value.error), reason=_optional(value.reason))
    problem = next(json_problems("result", {"": value}), None)
    if problem is not None:
        return _invalid(run, f"the handler returned something that cannot be kept as JSON: {problem.problem}")
    size = len(orjson.dumps(value))
    if size > MAX_RESULT_BYTES:
        return _invalid(
            run, f"the handler returned {size:,} bytes; a result has at most {MAX_RESULT_BYTES:,}: use an artifact"
        )
    return Outcome.completed(value)


def _invalid(run: RunContext, error: str) -> Outcome:
    run.log.error("%s", error)
    return Outcome.failed(FailureKind.INVALID, _clean(error))


def raised(run: RunContext, error: BaseException) -> Outcome:
    """The traceback is in the log; what others see is one sentence."""
    if isinstance(error, Skip):
        return Outcome.skipped(_clean(_text(error)) or "no reason given")
    if isinstance(error, Stopped):
        return Outcome.failed(FailureKind.CANCELLED, "stopped")
    run.log.error("%s", "".join(traceback.format_exception(error)).rstrip())
    if isinstance(error, Fail):
        return Outcome.failed(error.kind, _clean(_text(error)) or error.kind)
    return Outcome.failed(FailureKind.ERROR, _clean(f"{type(error).__name__}: {_text(error)}".removesuffix(": ")))


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # The error is the handler's own class, and may be broken too.
        return "(its message cannot be read)"


def _optional(text: str | None) -> str | None:
    return None if text is None else _clean(text)


def _clean(text: str) -> str:
    """Text that any database takes, of a bounded length."""
    return text[:MAX_ERROR].encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
