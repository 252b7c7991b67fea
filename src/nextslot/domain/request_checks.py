"""What a request for a job may say: every problem with it, named; nothing is stored while there is one."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

from nextslot.errors import Invalid, Problem
from nextslot.system.instant import Instant

from . import (
    RETRYABLE,
    URGENT,
    Backoff,
    FailureKind,
    Json,
    NewJob,
    OnDependencyFailure,
    RetryPolicy,
    bounds,
    webhook_delivery,
)
from .declared_values import (
    Declared,
    declared,
    is_time,
    is_words,
)

MAX_PARAMS_BYTES = 256 * 1024
MAX_DEPTH = 64
MAX_DEPENDENCIES = 10_000
MAX_TEXT = bounds.MAX_TEXT
MAX_SECONDS = bounds.MAX_SECONDS
MAX_ATTEMPTS = 1000
MAX_NAME = 200
MAX_UNITS = 1_000_000
is_storable = bounds.is_storable
is_number = bounds.is_number
# The last instant that a calendar can show.
MAX_INSTANT = Instant.of(datetime.max.replace(tzinfo=UTC))
AN_INSTANT = "an instant between 1970 and 9999"


def _is_plain_kind(field: Declared) -> bool:
    """Whether its values are compared, and not looked at by their identity."""
    return field.type in (str, int, float, bool) or is_time(field.type) or is_words(field.type)


_DECLARED = declared(NewJob)
_BOUNDS = [(one.name, one.bound, one.is_optional) for one in _DECLARED if one.bound is not None]
_NUMBERS = itemgetter(*(one.name for one in _DECLARED if one.type in (int, float, bool)))
_PLAIN = itemgetter(*(one.name for one in _DECLARED if _is_plain_kind(one)))
_COMPOUND = itemgetter(*(one.name for one in _DECLARED if not _is_plain_kind(one) and one.name != "params"))


def problems(
    new: NewJob,
    now: Instant,
    allow_private: bool = True,
    formats: Mapping[str, Sequence[str]] = webhook_delivery.NO_FORMATS,
) -> list[Problem]:
    """Everything that is wrong with a request, apart from its parameters' schema.

    Most requests say little and are right: what they do not say costs nothing, what is wrong is looked at again.
    """
    return [
        *_bound_problems(new),
        *_other_problems(new),
        *(_time_problems(new, now) if new.scheduled_for is not None or new.expires_at is not None else ()),
        *(resource_problems(new.resources) if new.resources is not None else ()),
        *(_policy_problems(new.retry_policy) if new.retry_policy is not None else ()),
        *(
            webhook_delivery.problems("webhook", new.webhook, allow_private=allow_private, formats=formats)
            if new.webhook is not None
            else ()
        ),
        *params_problems(new.params),
    ]


def form(new: NewJob) -> tuple[object, ...]:
    """All that a request says but its parameters: two of one form have the same problems, and become the same job.

    What could be equal and yet not be the same (1 and True) goes by its type too, or by its identity.
    """
    said = new.__dict__
    return (*_PLAIN(said), *map(type, _NUMBERS(said)), *map(id, _COMPOUND(said)))


def params_problems(params: Mapping[str, Json]) -> list[Problem]:
    """Everything that is wrong with parameters, apart from their schema."""
    return [] if _is_plain_object(params) else list(json_problems("params", params))


def _bound_problems(new: NewJob) -> Iterator[Problem]:
    """What the declaration of a request says of its fields."""
    for name, bound, is_optional in _BOUNDS:
        value = getattr(new, name)
        if value is None and is_optional:
            continue
        if (problem := bound.problem(value)) is not None:
            yield Problem(name, problem)


def _other_problems(new: NewJob) -> Iterator[Problem]:
    """What no field says by itself."""
    if new.job_type is None:
        yield Problem("job_type", "say the job_type, or the template_id of a template that has one")
    if new.urgent and new.priority not in (None, 0, URGENT):
        yield Problem("urgent", "an urgent job has no other priority")
    if new.depends_on != ():
        yield from _dependency_problems(new.depends_on)
    if new.on_dependency_failure is not None and new.on_dependency_failure not in list(OnDependencyFailure):
        yield Problem("on_dependency_failure", "'wait' or 'cancel'")


def _dependency_problems(given: object) -> Iterator[Problem]:
    if not isinstance(given, (list, tuple)) or not all(isinstance(other, str) for other in given):
        yield Problem("depends_on", "a list of job ids or keys")
    elif len(given) > MAX_DEPENDENCIES:
        yield Problem("depends_on", f"at most {MAX_DEPENDENCIES:,} jobs")
    elif not all(is_storable(other) for other in given):
        yield Problem("depends_on", "must be valid Unicode without NUL")


def text_problems(field: str, value: object) -> Iterator[Problem]:
    if (problem := bounds.text_problem(value)) is not None:
        yield Problem(field, problem)


def priority_problems(value: object) -> Iterator[Problem]:
    if (problem := bounds.priority_problem(value)) is not None:
        yield Problem("priority", problem)


def _time_problems(new: NewJob, now: Instant) -> Iterator[Problem]:
    times = {"scheduled_for": new.scheduled_for, "expires_at": new.expires_at}
    wrong = [name for name, at in times.items() if at is not None and not is_instant(at)]
    yield from (Problem(name, AN_INSTANT) for name in wrong)
    if not wrong:
        yield from expiry_problems(new.expires_at, max(now, new.scheduled_for or now))


def is_instant(value: object) -> bool:
    return isinstance(value, Instant) and 0 <= value <= MAX_INSTANT


def expiry_problems(expires_at: Instant | None, earliest_start: Instant) -> Iterator[Problem]:
    if expires_at is not None and expires_at <= earliest_start:
        yield Problem("expires_at", f"is not after {earliest_start}, so the job could never start")


def resource_problems(given: object) -> Iterator[Problem]:
    """A list of names, or names with units."""
    if given is None:
        return
    if not isinstance(given, (Mapping, list, tuple)):
        yield Problem("resources", "a list of names, or names with units")
        return
    for name, count in given.items() if isinstance(given, Mapping) else ((name, 1) for name in given):
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not is_storable(name):
            yield Problem("resources", f"a name has 1 to {MAX_NAME} characters of valid Unicode, not {name!r}")
        elif type(count) is not int or not 1 <= count <= MAX_UNITS:
            yield Problem("resources", f"{name!r} needs a whole number of units from 1 to {MAX_UNITS:,}")


def json_problems(field: str, value: Mapping[str, Json]) -> Iterator[Problem]:
    """An object of JSON values: bounded depth, valid Unicode, finite numbers that fit 64 bits or a double."""
    if not isinstance(value, dict):
        yield Problem(field, "must be a JSON object (a dict)")
        return
    stack: list[tuple[str, Any, int]] = [(field, value, 1)]
    while stack:
        where, item, depth = stack.pop()
        if depth > MAX_DEPTH:
            yield Problem(where, f"is nested more than {MAX_DEPTH} levels deep")
        elif isinstance(item, dict):
            for key, inner in item.items():
                # Exactly these types, here and below: what the encoder does not take must be found here.
                if type(key) is not str or not bounds.is_unicode(key):
                    yield Problem(where, f"has a key that is not text: {key!r}")
                else:
                    stack.append((f"{where}.{key}", inner, depth + 1))
        elif isinstance(item, list) or type(item) is tuple:
            stack.extend((f"{where}.{number}", inner, depth + 1) for number, inner in enumerate(item))
        else:
            yield from _scalar_problems(where, item)


def _is_plain_object(value: object) -> bool:
    """Whether `json_problems` would find nothing, as far as that is quick to see: no, if there is any doubt."""
    return type(value) is dict and _is_plain(value, 1)


def _is_plain(item: Any, depth: int) -> bool:
    kind = type(item)
    if depth > MAX_DEPTH:
        return False
    if kind is str:
        return bounds.is_unicode(item)
    if kind is int:
        return bool(-(2**63) <= item < 2**63)
    if kind is float:
        return math.isfinite(item)
    if kind is list:
        return all(_is_plain(inner, depth + 1) for inner in item)
    if kind is dict:
        for key, inner in item.items():
            if type(key) is not str or not bounds.is_unicode(key) or not _is_plain(inner, depth + 1):
                return False
        return True
    return kind is bool or item is None


def _scalar_problems(where: str, item: object) -> Iterator[Problem]:
    if isinstance(item, str):
        if not bounds.is_unicode(item):
            yield Problem(where, "is not valid Unicode")
    elif type(item) is float:
        if not math.isfinite(item):
            yield Problem(where, "is not a finite number")
    elif isinstance(item, int):
        if not isinstance(item, bool) and not -(2**63) <= item < 2**63:
            yield Problem(where, "does not fit 64 bits")
    elif item is not None:
        yield Problem(where, f"is not JSON: {type(item).__name__}")


def retry_policy(given: Mapping[str, Json] | RetryPolicy | None, default: RetryPolicy) -> RetryPolicy:
    """The default, with what was given put over it; any part may be given."""
    if given is None:
        return default
    found = list(_policy_problems(given))
    if found:
        raise Invalid(found)
    if isinstance(given, RetryPolicy):
        return given
    values = dict(given)
    if "backoff" in values:
        values["backoff"] = Backoff(values["backoff"])
    if values.get("retry_on") is not None:
        values["retry_on"] = tuple(FailureKind(kind) for kind in values["retry_on"])
    return replace(default, **values)


def _policy_problems(given: object) -> Iterator[Problem]:
    if given is None:
        return
    if isinstance(given, RetryPolicy):
        given = {field.name: getattr(given, field.name) for field in fields(given)}
    if not isinstance(given, Mapping):
        yield Problem("retry_policy", "must be an object")
        return
    for name, value in given.items():
        field, problem = f"retry_policy.{name}", ""
        if name == "max_attempts":
            if type(value) is not int or not 0 <= value <= MAX_ATTEMPTS:
                problem = f"a whole number from 0 to {MAX_ATTEMPTS:,}"
        elif name == "backoff":
            if value not in list(Backoff):
                problem = "'exponential' or 'linear'"
        elif name in ("base_delay_seconds", "max_delay_seconds"):
            if not is_number(value) and not (name == "max_delay_seconds" and value is None):
                problem = "a number of seconds, 0 or more"
        elif name == "jitter":
            if not is_number(value, most=1):
                problem = "a number from 0 to 1"
        elif name == "retry_on":
            if value is not None and (not isinstance(value, (list, tuple)) or not set(map(str, value)) <= RETRYABLE):
                problem = "a list of these kinds: " + ", ".join(sorted(RETRYABLE))
        else:
            problem = "there is no such part of a retry policy"
        if problem:
            yield Problem(field, problem)
