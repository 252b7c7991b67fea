"""What callers of the Python API say, as values of the model; what makes no sense is refused with a sentence."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from nextslot.domain import NewJob
from nextslot.engine.direct.direct_requests import NewDirect
from nextslot.errors import Invalid, NotFound
from nextslot.system.instant import Instant

T = TypeVar("T")

_JOB_FIELDS = frozenset(NewJob.__dataclass_fields__)


def new_job(**fields: Any) -> NewJob:
    """A request from keyword arguments; times may be datetimes."""
    if not fields.keys() <= _JOB_FIELDS:
        raise Invalid("there is no such field of a job", field=min(fields.keys() - _JOB_FIELDS))
    for name in ("scheduled_for", "expires_at"):
        if name in fields:
            fields[name] = instant(fields[name], name)
    return NewJob(**fields)


def with_instants(wanted: Sequence[NewJob]) -> list[NewJob]:
    """Times in requests may be datetimes."""
    return [
        replace(
            new,
            scheduled_for=instant(new.scheduled_for, "scheduled_for"),
            expires_at=instant(new.expires_at, "expires_at"),
        )
        if new.scheduled_for is not None or new.expires_at is not None
        else new
        for new in wanted
    ]


def new_direct(**fields: Any) -> NewDirect:
    """A direct request from keyword arguments."""
    unknown = sorted(fields.keys() - NewDirect.__dataclass_fields__.keys())
    if unknown:
        raise Invalid("there is no such field of a direct request", field=unknown[0])
    return NewDirect(**fields)


def instant(value: Instant | datetime | None, field: str) -> Instant | None:
    """A time as we keep it."""
    if value is None or isinstance(value, Instant):
        return value
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise Invalid("a datetime with a time zone", field=field)
    return Instant.of(value)


def choice(kind: type[T], value: object, field: str) -> T:
    """One of the words that a kind of value has."""
    try:
        return kind(value)  # type: ignore[call-arg]
    except ValueError:
        raise Invalid("one of " + ", ".join(kind), field=field) from None  # type: ignore[arg-type]


def scope(office_id: str | None, job_type: str | None, resource: str | None) -> tuple[str, str]:
    """What is paused or resumed: the kind of thing, and its name."""
    named = [
        (kind, name)
        for kind, name in (("office", office_id), ("type", job_type), ("resource", resource))
        if name is not None
    ]
    if len(named) > 1:
        raise Invalid("say one of office_id, job_type, resource, or none for the whole scheduler")
    return named[0] if named else ("scheduler", "")


def found(value: T | None, kind: str, name: str) -> T:
    """What was looked for, or an error that says that it is not there."""
    if value is None:
        raise NotFound(kind, name)
    return value
