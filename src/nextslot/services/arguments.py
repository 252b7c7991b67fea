"""Turns the arguments of the Python API into values of the domain, or refuses them."""

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
    """Makes a request from keyword arguments; times may be datetimes."""
    if not fields.keys() <= _JOB_FIELDS:
        raise Invalid("is not a field of a job", field=min(fields.keys() - _JOB_FIELDS))
    for name in ("scheduled_for", "expires_at"):
        if name in fields:
            fields[name] = instant(fields[name], name)
    return NewJob(**fields)


def with_instants(wanted: Sequence[NewJob]) -> list[NewJob]:
    """Turns the datetimes in requests into instants."""
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
    """Makes a direct request from keyword arguments."""
    unknown = sorted(fields.keys() - NewDirect.__dataclass_fields__.keys())
    if unknown:
        known = ", ".join(sorted(NewDirect.__dataclass_fields__))
        raise Invalid(f"is not a field of a direct request; its fields are {known}", field=unknown[0])
    return NewDirect(**fields)


def instant(value: Instant | datetime | None, field: str) -> Instant | None:
    """Turns a datetime into an instant."""
    if value is None or isinstance(value, Instant):
        return value
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise Invalid("is not a datetime with a time zone; give an Instant or such a datetime", field=field)
    return Instant.of(value)


def choice(kind: type[T], value: object, field: str) -> T:
    """Returns the member of an enumeration that has this value."""
    try:
        return kind(value)  # type: ignore[call-arg]
    except ValueError:
        known = ", ".join(kind)  # type: ignore[arg-type]
        raise Invalid(f"is {value!r}; it must be one of {known}", field=field) from None


def scope(office_id: str | None, job_type: str | None, resource: str | None) -> tuple[str, str]:
    """Returns what is paused or resumed: the kind of thing, and its name."""
    named = [
        (kind, name)
        for kind, name in (("office", office_id), ("type", job_type), ("resource", resource))
        if name is not None
    ]
    if len(named) > 1:
        raise Invalid(
            "more than one of office_id, job_type and resource is given; give one, or none for the whole scheduler"
        )
    return named[0] if named else ("scheduler", "")


def found(value: T | None, kind: str, name: str) -> T:
    """Returns a value that was read, or raises NotFound if there is none."""
    if value is None:
        raise NotFound(kind, name)
    return value
