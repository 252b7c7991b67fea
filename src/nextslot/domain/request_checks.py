"""Checks requests for jobs: names every problem at once; nothing is stored while there is one."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

from nextslot.errors import Invalid, Problem
from nextslot.system.instant import Instant

from . import RETRYABLE, URGENT, Backoff, FailureKind, Json, NewJob, RetryPolicy, bounds, signals, webhook_delivery
from .declared_values import Declared, declared, is_time, is_words

MAX_TEXT = bounds.MAX_TEXT
MAX_SECONDS = bounds.MAX_SECONDS
_UNITS = bounds.whole(1, 1_000_000)
is_storable = bounds.is_storable
is_number = bounds.is_number
# The last instant that a calendar can show.
MAX_INSTANT = Instant.of(datetime.max.replace(tzinfo=UTC))
AN_INSTANT = "is not an instant; it must be one between 1970 and 9999"


def _is_plain_kind(field: Declared) -> bool:
    """Returns whether values of this field can be compared by value instead of by identity."""
    return field.type in (str, int, float, bool) or is_time(field.type) or is_words(field.type)


# A hashable key of all fields of a request except its parameters.
Form = tuple[object, ...]
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
    """Returns everything that is wrong with a request, except what the schema of its parameters refuses.

    Most requests name few fields, so a field that is not given costs nothing here.
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
        *(signals.problems("await_signal", new.await_signal) if new.await_signal is not None else ()),
        *params_problems(new.params),
    ]


def form(new: NewJob) -> Form:
    """Returns a key of all fields but the parameters: requests with the same key have the same problems.

    Equal values that differ (1 and True) are told apart by their types, lists and objects by their identity.
    """
    given = new.__dict__
    return (*_PLAIN(given), *map(type, _NUMBERS(given)), *map(id, _COMPOUND(given)))


def params_problems(params: Mapping[str, Json]) -> list[Problem]:
    """Returns everything that is wrong with parameters, except what their schema refuses."""
    return [] if _is_plain_object(params) else list(json_problems("params", params))


def _bound_problems(new: NewJob) -> Iterator[Problem]:
    """Checks each field by the bound that its declaration has."""
    for name, bound, is_optional in _BOUNDS:
        value = getattr(new, name)
        if value is None and is_optional:
            continue
        if (problem := bound.problem(value)) is not None:
            yield Problem(name, problem)


def _other_problems(new: NewJob) -> Iterator[Problem]:
    """Checks lists, and rules that involve several fields."""
    if new.job_type is None:
        yield Problem("job_type", "is missing; give it, or the template_id of a template that has one")
    yield from urgency_problems(new.urgent, new.priority)
    if new.depends_on != ():
        yield from _dependency_problems(new.depends_on)


def urgency_problems(urgent: object, priority: object) -> Iterator[Problem]:
    if urgent and priority not in (None, 0, URGENT):
        yield Problem("urgent", f"is true beside the priority {priority}; give one of the two")


def _dependency_problems(given: object) -> Iterator[Problem]:
    if not isinstance(given, (list, tuple)) or not all(isinstance(other, str) for other in given):
        yield Problem("depends_on", "is not a list of texts; it must be a list of job ids or keys")
    elif len(given) > bounds.MAX_DEPENDENCIES:
        yield Problem("depends_on", f"has {len(given):,} items; it must have at most {bounds.MAX_DEPENDENCIES:,}")
    elif not all(is_storable(other) for other in given):
        yield Problem("depends_on", bounds.UNSTORABLE)


def text_problems(field: str, value: object) -> Iterator[Problem]:
    if (problem := bounds.text_problem(value)) is not None:
        yield Problem(field, problem)


def priority_problems(value: object) -> Iterator[Problem]:
    if (problem := bounds.PRIORITY.problem(value)) is not None:
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
        yield Problem("expires_at", f"is {expires_at}; it must be after {earliest_start}, or the job could never start")


def resource_problems(given: object) -> Iterator[Problem]:
    """Checks resources: a list of names, or names with units."""
    if given is None:
        return
    if not isinstance(given, (Mapping, list, tuple)):
        yield Problem("resources", bounds.must_be(given, "a list of names, or an object of names and units"))
        return
    for name, count in given.items() if isinstance(given, Mapping) else ((name, 1) for name in given):
        if (problem := bounds.text_problem(name, bounds.MAX_NAME)) is not None:
            yield Problem("resources", f"has a name that {problem}")
        elif (problem := _UNITS.problem(count)) is not None:
            yield Problem(f"resources.{name}", problem)


def json_problems(field: str, value: Mapping[str, Json]) -> Iterator[Problem]:
    """Checks an object of JSON values: its depth, valid Unicode, finite numbers that fit 64 bits or a double."""
    if not isinstance(value, dict):
        yield Problem(field, bounds.must_be(value, "a JSON object (a dict)"))
        return
    stack: list[tuple[str, Any, int]] = [(field, value, 1)]
    while stack:
        where, item, depth = stack.pop()
        if depth > bounds.MAX_DEPTH:
            yield Problem(where, f"is nested too deep; it must be at most {bounds.MAX_DEPTH} levels deep")
        elif isinstance(item, dict):
            for key, inner in item.items():
                # Checks for exactly these types, here and below: the encoder accepts no subclasses.
                if type(key) is not str or not bounds.is_unicode(key):
                    yield Problem(where, f"has the key {key!r}; a key must be text of valid Unicode")
                else:
                    stack.append((f"{where}.{key}", inner, depth + 1))
        elif isinstance(item, list) or type(item) is tuple:
            stack.extend((f"{where}.{number}", inner, depth + 1) for number, inner in enumerate(item))
        else:
            yield from _scalar_problems(where, item)


def _is_plain_object(value: object) -> bool:
    """Returns whether `json_problems` would certainly find nothing: a quick test for the usual case."""
    return type(value) is dict and _is_plain(value, 1)


def _is_plain(item: Any, depth: int) -> bool:
    kind = type(item)
    if depth > bounds.MAX_DEPTH:
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
            yield Problem(where, "has half of a surrogate pair; it must be valid Unicode")
    elif type(item) is float:
        if not math.isfinite(item):
            yield Problem(where, f"is {item}; it must be a finite number")
    elif isinstance(item, int):
        if not isinstance(item, bool) and not -(2**63) <= item < 2**63:
            yield Problem(where, "does not fit 64 bits; send it as text")
    elif item is not None:
        yield Problem(where, f"is not JSON: {type(item).__name__}; convert it")


def retry_policy(given: Mapping[str, Json] | RetryPolicy | None, default: RetryPolicy) -> RetryPolicy:
    """Returns a given policy, or the default with the given parts in place of its own; refuses wrong parts."""
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
        yield Problem("retry_policy", bounds.must_be(given, "an object"))
        return
    for name, value in given.items():
        field = _POLICY.get(name)
        if field is None:
            yield Problem(f"retry_policy.{name}", f"is not part of a retry policy; its parts are {', '.join(_POLICY)}")
        elif value is None and field.is_optional:
            continue
        elif (problem := kinds_problem(value) if field.bound is None else field.bound.problem(value)) is not None:
            yield Problem(f"retry_policy.{name}", problem)


_POLICY = {one.name: one for one in declared(RetryPolicy)}


def kinds_problem(value: object) -> str | None:
    """Returns what is wrong with a value that should be a list of retryable failure kinds; None if nothing is."""
    if not isinstance(value, (list, tuple)):
        return bounds.must_be(value, f"a list of these kinds: {', '.join(sorted(RETRYABLE))}")
    wrong = [kind for kind in value if str(kind) not in RETRYABLE]
    return f"has {wrong[0]!r}; it must have only these kinds: {', '.join(sorted(RETRYABLE))}" if wrong else None
