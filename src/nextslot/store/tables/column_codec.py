"""Converts values to columns and back where a column does not hold the value itself: JSON, policies, sets of ids."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import orjson

from nextslot.domain import (
    Backoff,
    FailureKind,
    Outcome,
    RetryPolicy,
)
from nextslot.system.instant import Instant

loads = orjson.loads

# Only types that JSON has: a date or a data class in a result is a mistake, which must not be hidden.
_STRICT = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS


def dumps(value: object) -> str:
    return orjson.dumps(value, option=_STRICT).decode()


def size(value: object) -> int:
    """Returns the number of bytes of a value's JSON."""
    return len(orjson.dumps(value, option=_STRICT))


def canonical(value: Mapping[str, object]) -> str:
    """Returns JSON text that is the same for equal content."""
    return orjson.dumps(value, option=_STRICT | orjson.OPT_SORT_KEYS).decode()


def optional(value: object) -> str | None:
    return None if value is None else dumps(value)


def parsed(text: str | None) -> Any:
    return None if text is None else loads(text)


def key_set(keys: Iterable[str]) -> str:
    """Returns a list parameter for `in (select key from json_each(:x))`, which both databases understand."""
    return dumps(dict.fromkeys(keys, 1))


def instant(value: int | None) -> Instant | None:
    return None if value is None else Instant(value)


def outcome_values(outcome: Outcome) -> dict[str, object]:
    """Returns the columns of an outcome, for a job's run or a direct caller. Artifacts are stored separately."""
    return {
        "status": outcome.status,
        "exit_code": outcome.exit_code,
        "error": outcome.error,
        "failure_kind": outcome.failure_kind,
        "reason": outcome.reason,
        "log_path": outcome.log_path,
        "session_id": outcome.session_id,
        "result": optional(outcome.result),
    }


@lru_cache(maxsize=1024)
def policy_text(policy: RetryPolicy) -> str:
    return dumps(policy.to_dict())


@lru_cache(maxsize=1024)
def policy(text: str) -> RetryPolicy:
    value = loads(text)
    kinds = value["retry_on"]
    value["retry_on"] = None if kinds is None else tuple(FailureKind(kind) for kind in kinds)
    return RetryPolicy(**value | {"backoff": Backoff(value["backoff"])})
