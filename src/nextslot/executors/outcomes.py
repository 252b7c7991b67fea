"""Converts a handler's return value or exception into an outcome."""

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
    """Returns the outcome of a handler that returned. A value that cannot be stored as JSON is a failure."""
    if value is None:
        return Outcome.completed()
    if isinstance(value, Outcome):  # A command's handler returns an outcome, since it knows more than a result.
        return replace(value, error=_optional(value.error), reason=_optional(value.reason))
    problem = next(json_problems("result", {"": value}), None)
    if problem is not None:
        return _invalid(run, f"the handler's return value cannot be stored as JSON: {problem.problem}")
    size = len(orjson.dumps(value))
    if size > MAX_RESULT_BYTES:
        return _invalid(
            run,
            f"the handler returned {size:,} bytes, more than the {MAX_RESULT_BYTES:,} of a result: write an artifact",
        )
    return Outcome.completed(value)


def _invalid(run: RunContext, error: str) -> Outcome:
    run.log.error("%s", error)
    return Outcome.failed(FailureKind.INVALID, _clean(error))


def raised(run: RunContext, error: BaseException) -> Outcome:
    """Returns the outcome of a handler that raised: one sentence. The traceback goes to the run's log only."""
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
    except Exception:  # The handler defined this exception class, whose __str__ may itself raise.
        return "(the exception's message cannot be read)"


def _optional(text: str | None) -> str | None:
    return None if text is None else _clean(text)


def _clean(text: str) -> str:
    """Returns text of bounded length that any database can store."""
    return text[:MAX_ERROR].encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
